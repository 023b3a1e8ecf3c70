//! What the sweep finds out about a run reaches readers who are there, as ordinary events, soon after its time.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    lost_lease_reaches_readers,
    lost_lease_of_a_run_that_never_spoke_is_a_release,
    lost_lease_of_the_last_attempt_is_the_end,
    timeout_of_a_lively_run_reaches_readers,
    timeout_is_told_from_a_lost_lease,
    deadline_of_a_run_reaches_readers_and_takes_the_lease,
    deadline_of_a_waiting_job_reaches_readers,
    ttl_reaches_readers_and_binds_only_the_first_start,
    stream_goes_on_into_the_next_attempt,
    many_at_once_are_not_late,
    poll_is_answered_by_the_sweep_too,
);

/// How late the sweep may be, in milliseconds.
const LATE: i64 = 2_000;

/// So far away that a retry does not come in the way.
fn later() -> Value {
    json!({"initial_ms": 3_600_000, "max_ms": 3_600_000})
}

/// A stream that has begun, behind everything that has happened so far.
async fn follow(job: &Job) -> Stream {
    let mut stream = job.resume(number(&job.state().await["seq"])).await;
    assert_eq!(stream.frame().await.kind(), "ping", "nothing is behind");
    stream
}

/// The next event of the log, which must be of this type and not be late for its time: neither in the log, by the
/// gateway's clock, nor on the stream. Not a millisecond early either.
async fn swept(job: &Job, stream: &mut Stream, kind: &str, due: i64) -> Value {
    let frame = stream.expect(kind).await;
    let event = frame.json();
    let at = instant(&event["at"]);
    assert!((due..=due + LATE).contains(&at), "{kind} came {} ms after its time", at - due);
    // The log has it, and so has the state: one transaction.
    assert_eq!(job.log().await[frame.seq() as usize - 1], event);
    assert_eq!(job.folded().await["state"], kind_to_state(kind));
    event
}

fn kind_to_state(kind: &str) -> &str {
    if kind == "released" { "queued" } else { kind }
}

/// A run that has said something, under a lease of a second; when that ends, in the gateway's own time.
async fn silent(queue: &Queue, spec: Value) -> (Job, i64) {
    let job = queue.job(spec).await;
    let run = queue.worker().with_lease(1_000).take().await;
    run.note("then silence").await;
    let spoke = instant(&job.log().await[2]["at"]);
    (run, spoke + 1_000)
}

async fn lost_lease_reaches_readers(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let (job, due) = silent(&queue, json!({"backoff": later()})).await;
    let event = swept(&job, &mut follow(&job).await, "retrying", due).await;
    assert_eq!((&event["data"]["error"]["code"], &event["data"]["attempt"]), (&json!("lease_expired"), &json!(1)));
    let state = job.state().await;
    assert_eq!((&state["worker"], &state["run_at"]), (&Value::Null, &event["data"]["run_at"]));
    job.untouched(job.try_append(&json!([]))).await.problem(409, "lease_lost");
}

async fn lost_lease_of_a_run_that_never_spoke_is_a_release(store: Store) {
    let queue = Queue::own(&store.shared().await);
    queue.job(json!({})).await;
    let run = queue.worker().with_lease(1_000).take().await;
    let due = instant(&run.lease().expires_at);
    let event = swept(&run, &mut follow(&run).await, "released", due).await;
    assert_eq!((&event["data"]["reason"], &event["attempt"]), (&json!("lease_expired"), &json!(0)));
    let again = queue.worker().take().await;
    assert_eq!((again.id.as_str(), again.run()), (run.id.as_str(), 2), "claimable at once");
}

async fn lost_lease_of_the_last_attempt_is_the_end(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let (job, due) = silent(&queue, json!({"max_attempts": 1})).await;
    let mut stream = follow(&job).await;
    let event = swept(&job, &mut stream, "failed", due).await;
    assert_eq!(event["data"]["code"], "lease_expired");
    assert_eq!(stream.expect("end").await.json(), json!({"state": "failed"}));
    stream.expect_end().await;
}

async fn timeout_of_a_lively_run_reaches_readers(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let job = queue.running(json!({"timeout_ms": 1_200, "backoff": later()})).await;
    let due = instant(&job.state().await["started_at"]) + 1_200;
    let mut stream = follow(&job).await;
    let beating = job.clone();
    let heart = tokio::spawn(async move {
        loop {
            let answer = beating.try_append(&json!([])).await;
            if answer.status() != 200 {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let event = swept(&job, &mut stream, "retrying", due).await;
    assert_eq!(event["data"]["error"]["code"], "timed_out");
    heart.await.expect("the heart stops").problem(409, "lease_lost");
}

async fn timeout_is_told_from_a_lost_lease(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let slow = queue.running(json!({"timeout_ms": 800, "max_attempts": 1})).await;
    let slow_due = instant(&slow.state().await["started_at"]) + 800;
    let mut slow_stream = follow(&slow).await;
    let (gone, gone_due) = silent(&queue, json!({"timeout_ms": 60_000, "max_attempts": 1})).await;
    let mut gone_stream = follow(&gone).await;
    assert_eq!(swept(&slow, &mut slow_stream, "failed", slow_due).await["data"]["code"], "timed_out");
    assert_eq!(swept(&gone, &mut gone_stream, "failed", gone_due).await["data"]["code"], "lease_expired");
}

async fn deadline_of_a_run_reaches_readers_and_takes_the_lease(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let job = queue.running(json!({"deadline_ms": 1_500, "max_attempts": 5})).await;
    let due = instant(&job.state().await["created_at"]) + 1_500;
    let mut stream = follow(&job).await;
    let held = tokio::spawn(job.hold(20_000).send());
    let event = swept(&job, &mut stream, "failed", due).await;
    assert_eq!(event["data"]["code"], "deadline");
    stream.expect("end").await;
    let answer = within(Duration::from_secs(2), "the answer", held).await.expect("answered");
    assert_eq!(answer.status(), 409, "{}", answer.text());
    queue.worker().finds_nothing().await;
}

async fn deadline_of_a_waiting_job_reaches_readers(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let waiting = queue.job(json!({"deadline_ms": 700})).await;
    let due = instant(&waiting.state().await["created_at"]) + 700;
    let mut stream = follow(&waiting).await;
    assert_eq!(swept(&waiting, &mut stream, "expired", due).await["data"]["reason"], "deadline");
    let retrying = queue.running(json!({"deadline_ms": 1_500, "backoff": later()})).await;
    let due = instant(&retrying.state().await["created_at"]) + 1_500;
    retrying.fail(json!({"code": "c", "message": "m"})).await;
    let mut stream = follow(&retrying).await;
    let event = swept(&retrying, &mut stream, "failed", due).await;
    assert_eq!(event["data"]["code"], "deadline", "it had started");
}

async fn ttl_reaches_readers_and_binds_only_the_first_start(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let started = queue.running(json!({"ttl_ms": 700, "backoff": later()})).await;
    started.fail(json!({"code": "c", "message": "m"})).await;
    let waiting = queue.job(json!({"ttl_ms": 700})).await;
    let due = instant(&waiting.state().await["run_at"]) + 700;
    let mut stream = follow(&waiting).await;
    assert_eq!(swept(&waiting, &mut stream, "expired", due).await["data"]["reason"], "ttl");
    stream.expect("end").await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(started.state().await["state"], "retrying", "it did start within its ttl");
}

async fn stream_goes_on_into_the_next_attempt(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let (job, due) = silent(&queue, json!({"backoff": {"initial_ms": 100, "jitter": 0}, "max_attempts": 2})).await;
    let mut stream = follow(&job).await;
    swept(&job, &mut stream, "retrying", due).await;
    let again = queue.worker().next().await;
    let started = stream.expect("started").await.json();
    assert_eq!((&started["attempt"], &started["data"]["run"]), (&json!(2), &json!(2)));
    let seq = again.complete().await;
    assert_eq!(stream.expect("completed").await.seq(), seq);
    stream.expect("end").await;
    assert_eq!(job.types().await, ["queued", "started", "log", "retrying", "started", "completed"]);
}

async fn many_at_once_are_not_late(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let jobs = queue.jobs(400, json!({"ttl_ms": 2_000})).await;
    let runs = queue.worker().with_lease(1_500).take_up_to(100).await;
    for job in &jobs {
        job.until("its end or its release", PATIENCE, |state| state["seq"] != 1 && state["state"] != "running").await;
    }
    let mut expired = 0;
    for job in &jobs {
        let log = job.log().await;
        let (queued, swept) = (&log[0], &log[log.len() - 1]);
        let given = runs.iter().find(|run| run.id == job.id);
        let (kind, due) = match given {
            Some(run) => ("released", instant(&run.lease().expires_at)),
            None => ("expired", instant(&queued["at"]) + 2_000),
        };
        let swept = if given.is_some() { &log[2] } else { swept };
        let late = instant(&swept["at"]) - due;
        assert!(swept["type"] == kind && (0..=LATE).contains(&late), "{late} ms late: {swept}");
        expired += usize::from(given.is_none());
    }
    assert_eq!(expired, 300);
}

async fn poll_is_answered_by_the_sweep_too(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let (job, due) = silent(&queue, json!({"backoff": later()})).await;
    let (state, page) = tokio::join!(job.get("?wait=20&after=3").send(), job.get("/events?wait=20&after=3").send());
    assert_eq!(state.expect(200)["state"], "retrying");
    let event = page.expect(200)["events"][0].clone();
    assert_eq!(event["type"], "retrying");
    let late = instant(&event["at"]) - due;
    assert!((0..=LATE).contains(&late), "{late} ms late");
}
