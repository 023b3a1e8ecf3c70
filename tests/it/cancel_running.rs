//! Cancel of a job that a worker holds under a lease: it is told at once in every way there is, and ended by force.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    answer_to_the_next_append_says_stop,
    held_heartbeat_answers_early_on_cancel,
    held_heartbeat_of_a_flagged_run_does_not_wait,
    held_heartbeat_is_refused_at_once_when_the_lease_is_revoked,
    held_heartbeat_answers_at_once_on_drain,
    held_heartbeat_keeps_the_lease_alive,
    lines_in_progress_are_answered_at_once_on_cancel,
    lines_in_progress_are_refused_at_once_when_the_lease_is_revoked,
    cancel_comes_through_while_a_thousand_jobs_wait,
    silent_worker_is_ended_by_force_at_its_grace,
    slot_of_a_job_ended_by_force_is_free_at_once,
    completion_within_the_grace_wins,
    run_that_ends_any_other_way_ends_as_cancelled,
    second_cancel_only_shortens,
    worker_may_cancel_unasked,
    waiting_job_is_cancelled_at_once_and_never_handed_out,
    replaced_job_loses_its_lease,
    request_outlives_the_process,
    race_of_cancel_and_complete_has_one_end,
    race_of_cancel_and_claim_has_one_answer,
    nothing_cancelled_is_handed_out_after_a_crash,
);

/// How soon a worker is told that it should stop.
const AT_ONCE: Duration = Duration::from_secs(1);

/// A job that was asked to stop, with a grace longer than any test.
async fn asked(queue: &Queue, spec: Value) -> Job {
    let job = queue.running(spec).await;
    job.cancel(json!({"reason": "user left", "grace_ms": 120_000})).await.expect(202);
    job
}

/// The lease is gone: whatever is appended under it is refused and leaves no trace.
async fn assert_revoked(job: &Job) {
    job.untouched(async {
        for event in [json!([]), json!({"type": "log", "data": {"message": "late"}}), json!({"type": "completed"})] {
            let answer = job.try_append(&event).await;
            let code = text(&answer.expect(409)["code"]).to_owned();
            assert!(["lease_lost", "job_terminal"].contains(&code.as_str()), "{code} for {event}");
        }
    })
    .await;
}

fn ends(types: &[String]) -> usize {
    types.iter().filter(|kind| ["completed", "failed", "cancelled", "expired"].contains(&kind.as_str())).count()
}

async fn answer_to_the_next_append_says_stop(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let job = queue.running(json!({})).await;
    assert_eq!(job.try_append(&json!([])).await.expect(200)["cancel_requested"], false);
    let mut stream = job.resume(2).await;
    let state = job.cancel(json!({"reason": "user left", "grace_ms": 120_000})).await.expect(202);
    assert_eq!((&state["state"], &state["cancel_requested"]), (&json!("running"), &json!(true)));
    let requested = stream.expect("cancel_requested").await.json();
    assert_eq!((&requested["data"]["reason"], &requested["data"]["grace_ms"]), (&json!("user left"), &json!(120_000)));
    for event in [
        json!([]),
        json!({"type": "progress", "data": {"percent": 5}}),
        json!([{"type": "output", "data": {"text": "x"}}, {"type": "log", "data": {"message": "m"}}]),
    ] {
        let answer = job.try_append(&event).await.expect(200);
        assert_eq!(answer["cancel_requested"], true, "{event}");
        assert!(number(&answer["lease"]["expires_in_ms"]) > 25_000, "a worker that is asked to stop keeps its lease");
    }
    let ended = job.try_append(&json!({"type": "cancelled", "data": {"reason": "stopped"}})).await.expect(200);
    assert_eq!(ended["lease"], Value::Null);
    let state = job.folded().await;
    assert_eq!((&state["state"], &state["cancel_requested"]), (&json!("cancelled"), &json!(true)));
    assert_revoked(&job).await;
}

async fn held_heartbeat_answers_early_on_cancel(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let job = queue.running(json!({})).await;
    let begun = Instant::now();
    let answer = job.hold(500).send().await.expect(200);
    assert!(begun.elapsed() >= Duration::from_millis(450), "it was held");
    assert_eq!((&answer["seq"], &answer["cancel_requested"]), (&json!(2), &json!(false)));
    let held = tokio::spawn(job.hold(10_000).send());
    tokio::time::sleep(Duration::from_millis(300)).await;
    let begun = Instant::now();
    job.cancel(json!({"grace_ms": 60_000})).await.expect(202);
    let answer = within(AT_ONCE, "the answer", held).await.expect("answered").expect(200);
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    assert_eq!(answer["cancel_requested"], true);
    assert!(number(&answer["lease"]["expires_in_ms"]) > 25_000);
    assert_eq!(job.types().await, ["queued", "started", "cancel_requested"]);
}

async fn held_heartbeat_of_a_flagged_run_does_not_wait(store: Store) {
    let job = asked(&Queue::own(&store.shared().await), json!({})).await;
    let begun = Instant::now();
    assert_eq!(job.hold(10_000).send().await.expect(200)["cancel_requested"], true);
    assert!(begun.elapsed() < Duration::from_secs(3), "there was something to say: {:?}", begun.elapsed());
}

async fn held_heartbeat_is_refused_at_once_when_the_lease_is_revoked(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let key = unique("key");
    let job = queue.running(json!({"unique_key": key})).await;
    let held = tokio::spawn(job.hold(10_000).send());
    tokio::time::sleep(Duration::from_millis(300)).await;
    let replacing = queue.spec(json!({"unique_key": key, "unique_on_conflict": "replace"}));
    queue.server.enqueue(&replacing).await.expect(202);
    let answer = within(AT_ONCE, "the answer", held).await.expect("answered");
    let code = text(&answer.expect(409)["code"]).to_owned();
    assert!(["lease_lost", "job_terminal"].contains(&code.as_str()), "{code}");

    let queue = Queue::own(&queue.server);
    let slow =
        queue.running(json!({"timeout_ms": 700, "backoff": {"initial_ms": 3_600_000, "max_ms": 3_600_000}})).await;
    let begun = Instant::now();
    let answer = slow.hold(20_000).send().await;
    answer.problem(409, "lease_lost");
    assert!(begun.elapsed() < Duration::from_secs(4), "the sweep took the lease: {:?}", begun.elapsed());
    assert_eq!(slow.types().await, ["queued", "started", "retrying"]);
}

async fn held_heartbeat_answers_at_once_on_drain(store: Store) {
    let server = store.serve(&["--drain-ms", "8000"]).await;
    let job = Queue::own(&server).running(json!({})).await;
    let held = tokio::spawn(job.hold(30_000).send());
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.sigterm();
    let answer = within(Duration::from_secs(2), "the answer", held).await.expect("answered");
    assert!([200, 503].contains(&answer.status()), "{}", answer.text());
    assert_eq!(server.exit(PATIENCE).await.code(), Some(0));
    server.restart().await;
    job.complete().await;
    assert_eq!(job.types().await, ["queued", "started", "completed"], "a drain takes no lease");
}

async fn held_heartbeat_keeps_the_lease_alive(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let job = queue.job(json!({})).await;
    let run = queue.worker().with_lease(1_000).take().await;
    let begun = Instant::now();
    let answer = run.hold(4_500).send().await.expect(200);
    assert!(begun.elapsed() >= Duration::from_millis(4_400), "nothing was to be said before");
    assert_eq!((&answer["cancel_requested"], &answer["seq"]), (&json!(false), &json!(2)));
    let left = number(&answer["lease"]["expires_in_ms"]);
    assert!((1..=1_000).contains(&left), "{left} ms left of a lease of a second");
    run.complete().await;
    assert_eq!(job.types().await, ["queued", "started", "completed"]);
    let lost = queue.job(json!({"max_attempts": 1})).await;
    let run = queue.worker().with_lease(1_000).take().await;
    run.hold(2_500).send().await.expect(200);
    assert_eq!(lost.ended().await.0["error"]["code"], "lease_expired", "the lease counts again from the answer");
}

/// What an open line request was answered with, though its body has not ended.
async fn answered(lines: &mut Connection) -> Answer {
    within(AT_ONCE, "the answer", lines.answer("POST")).await.expect("an answer")
}

async fn lines_in_progress_are_answered_at_once_on_cancel(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let job = queue.running(json!({})).await;
    let mut stream = job.resume(2).await;
    let mut lines = job.open_lines().await;
    for word in ["one ", "two "] {
        let line = json!({"type": "output", "data": {"text": word}}).to_string() + "\n";
        lines.write_chunk(line.as_bytes()).await.expect("the server reads");
        stream.expect("output").await;
    }
    job.cancel(json!({"grace_ms": 60_000})).await.expect(202);
    let answer = answered(&mut lines).await.expect(200);
    assert_eq!((&answer["cancel_requested"], &answer["stored"]), (&json!(true), &json!(2)));
    assert!(number(&answer["seq"]) >= 4, "{answer}");
    assert_eq!(job.types().await, ["queued", "started", "output", "output", "cancel_requested"]);
    job.append(json!({"type": "cancelled"})).await;
}

async fn lines_in_progress_are_refused_at_once_when_the_lease_is_revoked(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let key = unique("key");
    let job = queue.running(json!({"unique_key": key})).await;
    let mut stream = job.resume(2).await;
    let mut lines = job.open_lines().await;
    lines.write_chunk(b"{\"type\":\"output\",\"data\":{\"text\":\"x\"}}\n").await.expect("the server reads");
    stream.expect("output").await;
    let replacing = queue.spec(json!({"unique_key": key, "unique_on_conflict": "replace"}));
    queue.server.enqueue(&replacing).await.expect(202);
    let answer = answered(&mut lines).await;
    assert_eq!(answer.expect(409)["stored"], 1);
    assert_eq!(job.types().await, ["queued", "started", "output", "cancelled"]);
}

async fn cancel_comes_through_while_a_thousand_jobs_wait(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let worker = queue.worker();
    let running = queue.running_at(&worker, json!({})).await;
    let streaming = queue.running_at(&worker, json!({})).await;
    queue.jobs(1_000, json!({})).await;
    let mut signals = worker.signals().await;
    signals.expect("state").await;
    let held = tokio::spawn(running.hold(10_000).send());
    let mut lines = streaming.open_lines().await;
    let mut stream = streaming.resume(2).await;
    lines.write_chunk(b"{\"type\":\"output\",\"data\":{\"text\":\"x\"}}\n").await.expect("the server reads");
    stream.expect("output").await;
    for job in [&running, &streaming] {
        job.cancel(json!({"grace_ms": 60_000})).await.expect(202);
        let told = within(AT_ONCE, "the signal", signals.expect("cancel")).await.json();
        assert_eq!(told["job"], *job.id);
    }
    let answer = within(AT_ONCE, "the answer", held).await.expect("answered").expect(200);
    assert_eq!(answer["cancel_requested"], true);
    assert_eq!(answered(&mut lines).await.expect(200)["cancel_requested"], true);
    assert_eq!(queue.count("/purge", json!({})).await, 1_000);
}

async fn silent_worker_is_ended_by_force_at_its_grace(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let job = queue.running(json!({})).await;
    let mut stream = job.resume(2).await;
    job.cancel(json!({"reason": "user left", "grace_ms": 700})).await.expect(202);
    let asked = stream.expect("cancel_requested").await.json();
    // A heart that beats is no answer.
    job.append(json!([])).await;
    let ended = stream.expect("cancelled").await.json();
    stream.expect("end").await;
    let took = instant(&ended["at"]) - instant(&asked["at"]);
    assert!((700..2_800).contains(&took), "ended {took} ms after the request, with a grace of 700");
    assert_eq!(ended["data"]["reason"], "user left");
    assert_revoked(&job).await;
    assert_eq!(job.folded().await["state"], "cancelled");
    queue.worker().finds_nothing().await;
}

async fn slot_of_a_job_ended_by_force_is_free_at_once(store: Store) {
    let queue = Queue::own(&store.shared().await);
    queue.set(json!({"concurrency": 1})).await;
    let job = queue.running(json!({})).await;
    let next = queue.job(json!({})).await;
    let parked = queue.worker().park().await;
    job.cancel(json!({"grace_ms": 300})).await.expect(202);
    job.ended().await;
    let given = within(AT_ONCE, "the claim", parked).await.expect("answered");
    assert_eq!(given.first().map(|given| &given.id), Some(&next.id));
}

async fn completion_within_the_grace_wins(store: Store) {
    let job = asked(&Queue::own(&store.shared().await), json!({})).await;
    let end = json!({"type": "completed", "data": {"data": 5}});
    let answer = job.try_append(&end).await.expect(200);
    assert_eq!(answer["lease"], Value::Null);
    let state = job.folded().await;
    assert_eq!((&state["state"], &state["cancel_requested"]), (&json!("completed"), &json!(true)));
    assert_eq!(job.get("/result").send().await.expect(200), json!(5));
    job.untouched(async {
        job.cancel(json!({})).await.problem(409, "job_terminal");
        assert_eq!(job.try_append(&end).await.expect(200)["seq"], answer["seq"], "asked twice, answered twice");
    })
    .await;
    assert_eq!(job.types().await, ["queued", "started", "cancel_requested", "completed"]);
}

async fn run_that_ends_any_other_way_ends_as_cancelled(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let failing = asked(&queue, json!({})).await;
    failing.fail(json!({"code": "boom", "message": "m", "details": {"x": 1}})).await;
    let final_failure = asked(&queue, json!({"max_attempts": 1})).await;
    final_failure.fail(json!({"code": "boom", "message": "m", "retryable": false})).await;
    let released = asked(&queue, json!({})).await;
    released.append(json!({"type": "released", "data": {"reason": "shutting down"}})).await;
    let snoozed = asked(&queue, json!({})).await;
    snoozed.append(json!({"type": "released", "data": {"delay_ms": 60_000}})).await;
    let timed_out = asked(&queue, json!({"timeout_ms": 1_500})).await;
    let late = asked(&queue, json!({"deadline_ms": 2_500})).await;
    let lost = queue.job(json!({})).await;
    let run = queue.worker().with_lease(1_000).take().await;
    run.note("then silence").await;
    lost.cancel(json!({"reason": "user left", "grace_ms": 120_000})).await.expect(202);
    for (job, code) in [
        (&failing, "boom"),
        (&final_failure, "boom"),
        (&timed_out, "timed_out"),
        (&late, "deadline"),
        (&lost, "lease_expired"),
    ] {
        job.ended().await;
        let state = job.folded().await;
        assert_eq!((&state["state"], &state["error"]["code"]), (&json!("cancelled"), &json!(code)));
        let log = job.log().await;
        let end = log.last().expect("a log");
        assert_eq!((&end["type"], &end["data"]["error"]["code"]), (&json!("cancelled"), &json!(code)));
        assert_eq!(end["data"]["reason"], "user left", "{code}");
        assert_eq!(ends(&job.types().await), 1);
    }
    // No work went wrong here: there is nothing to keep but the reason.
    for job in [&released, &snoozed] {
        assert_eq!(job.folded().await["state"], "cancelled");
        assert_eq!(job.log().await.last().expect("a log")["data"]["reason"], "user left");
        assert_eq!(job.types().await, ["queued", "started", "cancel_requested", "cancelled"]);
    }
    assert_eq!(failing.state().await["error"]["details"], json!({"x": 1}), "the error is kept whole");
    queue.worker().finds_nothing().await;
}

async fn second_cancel_only_shortens(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let job = asked(&queue, json!({})).await;
    job.untouched(async {
        let again = job.cancel(json!({"reason": "other", "grace_ms": 300_000})).await.expect(202);
        assert_eq!(again["cancel_requested"], true);
    })
    .await;
    job.cancel(json!({"reason": "other", "grace_ms": 200})).await.expect(202);
    job.cancel(json!({"grace_ms": 90_000})).await.expect(202);
    assert_eq!(job.ended().await.0["state"], "cancelled");
    let log = job.log().await;
    assert_eq!(job.types().await, ["queued", "started", "cancel_requested", "cancelled"]);
    assert_eq!(log[3]["data"]["reason"], "user left", "the first who asked is the one who is named");
    assert_revoked(&job).await;
}

async fn worker_may_cancel_unasked(store: Store) {
    let job = Queue::own(&store.shared().await).running(json!({})).await;
    job.append(json!({"type": "cancelled", "data": {"reason": "input is gone"}})).await;
    let state = job.folded().await;
    assert_eq!((&state["state"], &state["cancel_requested"]), (&json!("cancelled"), &json!(false)));
    assert_eq!(job.log().await[2]["data"]["reason"], "input is gone");
    assert_revoked(&job).await;
}

async fn waiting_job_is_cancelled_at_once_and_never_handed_out(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let queued = queue.job(json!({"priority": -1})).await;
    let scheduled = queue.job(json!({"delay_ms": 400})).await;
    let retrying = queue.running(json!({})).await;
    retrying.fail(json!({"code": "c", "message": "m", "retry_after_ms": 400})).await;
    let released = queue.running(json!({})).await;
    released.append(json!({"type": "released", "data": {"delay_ms": 400}})).await;
    let jobs = [queued, scheduled, retrying, released];
    for job in &jobs {
        let state = job.cancel(json!({"reason": "r"})).await.expect(202);
        assert_eq!((&state["state"], &state["cancel_requested"]), (&json!("cancelled"), &json!(false)));
        assert_eq!(state, job.folded().await);
    }
    // Past the time of those that were to run later.
    let worker = queue.worker();
    assert!(worker.given(&worker.claim(10, 2_000).send().await).is_empty());
    for job in &jobs {
        assert_eq!(job.types().await.last().map(String::as_str), Some("cancelled"));
        assert_eq!(job.cancel(json!({})).await.expect(200)["state"], "cancelled");
    }
}

async fn replaced_job_loses_its_lease(store: Store) {
    let queue = Queue::own(&store.shared().await);
    queue.set(json!({"concurrency": 1})).await;
    let key = unique("key");
    let old = queue.running(json!({"unique_key": key})).await;
    old.output("half an ans").await;
    let mut stream = old.resume(3).await;
    let parked = queue.worker().park().await;
    let replacing = queue.spec(json!({"unique_key": key, "unique_on_conflict": "replace"}));
    let answer = queue.server.enqueue(&replacing).await.expect(202);
    let new = Job::new(&queue.server, text(&answer["job"]["id"]));
    assert_eq!((&answer["replaced"], &answer["created"]), (&json!(old.id), &json!(true)));
    let event = stream.expect("cancelled").await.json();
    assert_eq!(event["data"], json!({"reason": "replaced", "replaced_by": new.id}));
    stream.expect("end").await;
    assert_revoked(&old).await;
    assert_eq!(old.folded().await["state"], "cancelled");
    let given = within(AT_ONCE, "the claim", parked).await.expect("answered");
    assert_eq!(given.first().map(|given| &given.id), Some(&new.id), "its slot is free at once");
    given[0].complete().await;
    assert_eq!(old.types().await, ["queued", "started", "output", "cancelled"]);
}

async fn request_outlives_the_process(store: Store) {
    let server = store.serve(&[]).await;
    let queue = Queue::own(&server);
    let told = asked(&queue, json!({})).await;
    let silent = queue.running(json!({})).await;
    silent.cancel(json!({"grace_ms": 1_500})).await.expect(202);
    server.kill9();
    server.restart().await;
    assert_eq!(told.try_append(&json!([])).await.expect(200)["cancel_requested"], true);
    told.append(json!({"type": "cancelled"})).await;
    assert_eq!(silent.ended().await.0["state"], "cancelled");
    assert_revoked(&silent).await;
}

async fn race_of_cancel_and_complete_has_one_end(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let mut random = Random::new();
    for round in 0..80 {
        let job = queue.running(json!({})).await;
        let (cancelling, completing) = (job.clone(), job.clone());
        let (mut first, mut second) = (random.fork(), random.fork());
        let grace = [0, 60_000][round % 2];
        let cancel = tokio::spawn(async move {
            first.pause(3).await;
            cancelling.cancel(json!({"grace_ms": grace})).await
        });
        let complete = tokio::spawn(async move {
            second.pause(3).await;
            completing.try_append(&json!({"type": "completed", "data": {"data": 1}})).await
        });
        let (cancel, complete) = (cancel.await.expect("answered"), complete.await.expect("answered"));
        let state = job.ended().await.0;
        let won = state["state"] == "completed";
        assert_eq!(complete.status(), if won { 200 } else { 409 }, "{}: {}", state, complete.text());
        match cancel.status() {
            202 => {}
            409 => assert!(won && cancel.json()["code"] == "job_terminal", "{}", cancel.text()),
            other => panic!("{other}: {}", cancel.text()),
        }
        assert!(won || grace == 0, "a completion within its grace wins");
        job.untouched(async {
            for late in ["progress", "log", "failed", "completed"] {
                let event = json!({"type": late, "data": {"message": "late"}});
                assert_eq!(job.try_append(&event).await.status(), 409);
            }
        })
        .await;
        let types = job.types().await;
        assert_eq!((ends(&types), types.last().map(String::as_str)), (1, state["state"].as_str()), "{types:?}");
    }
}

async fn race_of_cancel_and_claim_has_one_answer(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let mut random = Random::new();
    for _ in 0..80 {
        let job = queue.job(json!({})).await;
        let (cancelling, worker) = (job.clone(), queue.worker());
        let (mut first, mut second) = (random.fork(), random.fork());
        let cancel = tokio::spawn(async move {
            first.pause(3).await;
            cancelling.cancel(json!({"grace_ms": 60_000})).await
        });
        let claim = tokio::spawn(async move {
            second.pause(3).await;
            worker.take_up_to(1).await
        });
        let cancelled = cancel.await.expect("answered").expect(202);
        let given = claim.await.expect("answered");
        match given.first() {
            Some(run) => {
                assert_eq!((&cancelled["state"], &cancelled["cancel_requested"]), (&json!("running"), &json!(true)));
                assert_eq!(run.try_append(&json!([])).await.expect(200)["cancel_requested"], true);
                run.append(json!({"type": "cancelled"})).await;
                assert_eq!(job.types().await, ["queued", "started", "cancel_requested", "cancelled"]);
            }
            None => {
                assert_eq!(cancelled["state"], "cancelled");
                assert_eq!(job.types().await, ["queued", "cancelled"]);
                queue.worker().finds_nothing().await;
            }
        }
    }
}

/// Cancels one job after the other until the server is gone; the ids of those that are known to be cancelled.
async fn cancel_until_gone(jobs: Vec<Job>, count: Arc<AtomicUsize>) -> Vec<String> {
    let mut known = Vec::new();
    for job in jobs {
        match job.post("/cancel").json(&json!({"grace_ms": 60_000})).try_send().await {
            Ok(answer) if answer.expect(202)["state"] == "cancelled" => {
                known.push(job.id);
                count.fetch_add(1, Ordering::Relaxed);
            }
            Ok(_) => {}
            Err(_) => break,
        }
    }
    known
}

async fn nothing_cancelled_is_handed_out_after_a_crash(store: Store) {
    let server = store.serve(&[]).await;
    let queue = Queue::own(&server);
    let mut random = Random::new();
    for _ in 0..3 {
        let jobs = queue.jobs(400, json!({})).await;
        let count = Arc::new(AtomicUsize::new(0));
        let cancelling: Vec<_> =
            jobs.chunks(100).map(|jobs| tokio::spawn(cancel_until_gone(jobs.to_vec(), count.clone()))).collect();
        let worker = queue.worker();
        let claiming = tokio::spawn(async move { while worker.claim(1, 0).try_send().await.is_ok() {} });
        let enough = 10 + random.below(50) as usize;
        eventually(PATIENCE, "a crash in the middle", async || (count.load(Ordering::Relaxed) > enough).then_some(()))
            .await;
        server.kill9();
        let mut known = Vec::new();
        for task in cancelling {
            known.extend(task.await.expect("ends with the server"));
        }
        claiming.await.expect("ends with the server");
        server.restart().await;
        let mut given: Vec<String> = Vec::new();
        loop {
            let part = queue.worker().take_up_to(100).await;
            if part.is_empty() {
                break;
            }
            given.extend(part.into_iter().map(|job| job.id));
        }
        assert!(!given.is_empty(), "the crash came too late to show anything");
        assert!(!given.iter().any(|id| known.contains(id)), "a cancelled job was handed out");
        for job in &jobs {
            let types = job.types().await;
            let end = types.iter().position(|kind| kind == "cancelled");
            assert!(end.is_none_or(|at| at == types.len() - 1), "something follows the end: {types:?}");
            assert!(!known.contains(&job.id) || end.is_some(), "an acknowledged cancel was lost: {types:?}");
        }
    }
}
