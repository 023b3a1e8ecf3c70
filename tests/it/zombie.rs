//! A worker that slept through the end of its lease (case 11): whatever it says when it wakes, and whenever that is,
//! it is 409, and neither log nor stream nor result knows of it.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    zombie_changes_nothing_whatever_it_says_and_whenever,
    zombie_is_told_also_after_the_end,
    request_under_way_when_the_lease_ends_is_answered,
    held_heartbeat_of_a_revoked_lease_is_answered_at_once,
    race_at_the_end_of_the_lease_has_one_winner,
);

/// What a worker that woke up may try, each with its own mark.
fn bodies() -> Vec<Value> {
    vec![
        json!([]),
        json!({"type": "progress", "data": {"percent": 90, "message": "zombie"}}),
        json!({"type": "log", "data": {"message": "zombie"}}),
        json!({"type": "output", "data": {"text": "zombie"}}),
        json!({"type": "zombie"}),
        json!([{"type": "log", "data": {"message": "zombie"}}, {"type": "completed", "data": {"note": "zombie"}}]),
        json!({"type": "completed", "data": {"note": "zombie", "data": "zombie"}}),
        json!({"type": "failed", "data": {"code": "zombie"}}),
        json!({"type": "failed", "data": {"code": "zombie", "retryable": false}}),
        json!({"type": "cancelled", "data": {"reason": "zombie"}}),
        json!({"type": "released", "data": {"reason": "zombie"}}),
    ]
}

/// Everything that a zombie may try is refused and leaves no trace; `codes` are the refusals that are right.
async fn assert_powerless(zombie: &Lease, codes: &[&str]) {
    let job = &zombie.job;
    let before = (job.state().await, job.log().await);
    for body in bodies() {
        let mut requests = vec![zombie.post().json(&body)];
        match &body {
            Value::Array(events) if events.is_empty() => {
                requests.push(zombie.post().ndjson("\n"));
                requests.push(job.post("/events?wait_ms=5000").header("Lease-Token", &zombie.token).body("[]"));
            }
            Value::Array(_) => requests.push(zombie.post().header("Idempotency-Key", "zombie").json(&body)),
            _ => requests.push(zombie.post().ndjson(format!("{body}\n"))),
        }
        for request in requests {
            let answer = request.send().await;
            let refusal = answer.expect(409);
            assert!(codes.contains(&text(&refusal["code"])), "{refusal} for {body}");
        }
    }
    assert_eq!((job.state().await, job.log().await), before, "a zombie left a trace");
}

async fn zombie_changes_nothing_whatever_it_says_and_whenever(store: Store) {
    let lane = Lane::shared(store).await;
    let spec = json!({"max_attempts": 3, "backoff": {"initial_ms": 0}});
    let jobs = lane.jobs((0..4).map(|_| spec.clone())).await;
    let mut streams = Vec::new();
    for job in &jobs {
        streams.push(job.stream().await);
    }
    let zombies = lane.take_all(4, json!({"lease_ms": 1_000, "worker": "a"})).await;
    for zombie in &zombies {
        zombie
            .append(json!([{"type": "progress", "data": {"percent": 50}}, {"type": "output", "data": {"text": "a"}}]))
            .await;
    }
    for zombie in &zombies {
        zombie.sleep_past_end(Duration::from_millis(100)).await;
    }
    // First before the job is anybody's, then beside the one who has it.
    for zombie in &zombies[..2] {
        zombie.lapsed().await;
        assert_powerless(zombie, &["lease_lost"]).await;
    }
    for zombie in &zombies[2..] {
        zombie.lapsed().await;
    }
    let heirs = lane.take_all(4, json!({"worker": "b"})).await;
    for (index, heir) in heirs.iter().enumerate() {
        let zombie = zombies.iter().find(|zombie| zombie.job.id == heir.job.id).expect("it was A's");
        assert_powerless(zombie, &["lease_lost"]).await;
        let state = heir.job.state().await;
        assert_eq!(
            (&state["attempt"], &state["progress"], &state["output"]["bytes"]),
            (&json!(2), &Value::Null, &json!(0))
        );
        heir.append(json!({"type": "progress", "data": {"percent": 5}})).await;
        assert_powerless(zombie, &["lease_lost"]).await;
        assert_eq!(heir.job.state().await["progress"]["percent"], 5);
        heir.append(json!({"type": "completed", "data": {"note": "b", "data": index}})).await;
        // The job has ended, and the zombie has lost its lease: both are true.
        assert_powerless(zombie, &["lease_lost", "job_terminal"]).await;
    }
    for (job, stream) in jobs.iter().zip(&mut streams) {
        let log = assert_folds(job).await;
        let expected = [
            ("queued", 0),
            ("started", 1),
            ("progress", 1),
            ("output", 1),
            ("retrying", 1),
            ("started", 2),
            ("progress", 2),
            ("completed", 2),
        ];
        assert_eq!(tries(&log), expected);
        assert_eq!(job.state().await["outcome"]["note"], "b");
        let index = heirs.iter().position(|heir| heir.job.id == job.id).expect("it was B's");
        assert_eq!(job.get("/result").send().await.expect(200), index);
        let frames = stream.rest().await;
        assert_covers(&frames[1..], &log, 1);
    }
}

async fn zombie_is_told_also_after_the_end(store: Store) {
    let lane = Lane::shared(store).await;
    let spec = json!({"max_attempts": 1, "timeout_ms": 300});
    let jobs = lane.jobs([spec.clone(), json!({}), json!({})]).await;
    let leases = lane.take_all(3, json!({})).await;
    let [timed_out, cancelled, redriven] = [&leases[0], &leases[1], &leases[2]];
    jobs[0].ended().await;
    cancelled.job.cancel(json!({"grace_ms": 0})).await.expect(202);
    cancelled.job.ended().await;
    for zombie in [timed_out, cancelled] {
        assert_powerless(zombie, &["lease_lost", "job_terminal"]).await;
    }
    redriven.fail(json!({"code": "c", "retryable": false})).await;
    redriven.job.post("/retry").send().await.expect(202);
    assert_powerless(redriven, &["lease_lost"]).await;
    let heir = lane.take(json!({})).await;
    assert_eq!((heir.run, &heir.document["attempt"]), (2, &json!(1)));
    assert_powerless(redriven, &["lease_lost"]).await;
    heir.complete().await;
    assert_eq!(heir.job.types().await, ["queued", "started", "failed", "requeued", "started", "completed"]);
}

async fn request_under_way_when_the_lease_ends_is_answered(store: Store) {
    let lane = Lane::shared(store).await;
    lane.job(json!({"max_attempts": 2, "backoff": {"initial_ms": 0}})).await;
    let lease = lane.take(json!({"lease_ms": 1_000})).await;
    let mut lines = Connection::open(lane.server.address()).await.expect("the server accepts");
    let head = lease.post().header("Content-Type", "application/x-ndjson").header("Transfer-Encoding", "chunked");
    lines.write(&head.head()).await.expect("the server reads");
    lines.write_chunk(b"{\"type\":\"own\"}\n{\"type\":\"own\"}\n").await.expect("the server reads");
    lease.job.until("the lines", PATIENCE, |state| state["seq"] == 4).await;
    let heir = lane.take(json!({"worker": "b"})).await;
    assert_eq!(heir.run, 2);
    // In the middle of a line, in a new one: it is too late for both.
    let _may_be_closed = lines.write_chunk(b"{\"type\":\"zombie\"}\n").await;
    let refusal = within(Duration::from_secs(3), "an answer", lines.answer("POST")).await.expect("an answer");
    assert_eq!(refusal.problem(409, "lease_lost")["stored"], 2);
    heir.complete().await;
    let types = lease.job.types().await;
    assert_eq!(types, ["queued", "started", "own", "own", "retrying", "started", "completed"]);
}

async fn held_heartbeat_of_a_revoked_lease_is_answered_at_once(store: Store) {
    let lane = Lane::shared(store).await;
    let jobs = lane.jobs([json!({"timeout_ms": 600, "max_attempts": 1}), json!({}), json!({})]).await;
    let leases = lane.take_all(3, json!({"lease_ms": 2_000})).await;
    let held: Vec<_> = leases
        .iter()
        .map(|lease| {
            let request = lease.job.post("/events?wait_ms=30000").header("Lease-Token", &lease.token).body("[]");
            tokio::spawn(async move { (request.send().await, now_ms()) })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    jobs[1].cancel(json!({"grace_ms": 60_000})).await.expect(202);
    let mut answers = Vec::new();
    for (index, heartbeat) in held.into_iter().enumerate() {
        if index == 2 {
            leases[2].release(json!({})).await;
        }
        answers.push(heartbeat.await.expect("answered"));
    }
    for index in [0, 2] {
        let (answer, at) = &answers[index];
        assert_eq!(answer.status(), 409, "{}", answer.text());
        let end = jobs[index].log().await.pop().expect("a log has events");
        let took = at - instant(&end["at"]);
        assert!(took < 1_000, "answered {took} ms after {end}");
    }
    assert_eq!(answers[1].0.expect(200)["cancel_requested"], true);
}

/// Completions that arrive within a few milliseconds of the end, while somebody else claims what comes free.
async fn race_at_the_end_of_the_lease_has_one_winner(store: Store) {
    let lane = Lane::shared(store).await;
    let mut random = Random::new();
    let jobs = lane.jobs((0..60).map(|_| json!({"backoff": {"initial_ms": 0}}))).await;
    let mut late = Vec::new();
    for _ in 0..6 {
        for lease in lane.take_all(10, json!({"max": 10, "lease_ms": 1_000, "worker": "a"})).await {
            let mut random = random.fork();
            late.push(tokio::spawn(async move {
                // The work of a round of ten is sent one after the other: what counts is that both sides are met.
                let left = instant(&lease.expires_at) - now_ms() - 60 + random.below(90) as i64;
                tokio::time::sleep(Duration::from_millis(left.max(0) as u64)).await;
                let body = json!({"type": "completed", "data": {"note": "a"}});
                (lease.job.id.clone(), lease.try_append(&body).await)
            }));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let rival = {
        let lane = lane.clone();
        tokio::spawn(async move {
            let begun = std::time::Instant::now();
            while begun.elapsed() < Duration::from_secs(5) {
                for lease in lane.claim(json!({"max": 100, "wait_ms": 200, "worker": "b"})).await {
                    lease.append(json!({"type": "completed", "data": {"note": "b"}})).await;
                }
            }
        })
    };
    let mut in_time = 0;
    let mut stored = std::collections::HashMap::new();
    for completion in late {
        let (id, answer) = completion.await.expect("answered");
        assert!([200, 409].contains(&answer.status()), "{}", answer.text());
        in_time += usize::from(answer.status() == 200);
        stored.insert(id, answer.status() == 200);
    }
    rival.await.expect("the rival ends");
    for job in &jobs {
        let log = assert_folds(job).await;
        let ends: Vec<&Value> = log.iter().filter(|event| event["type"] == "completed").collect();
        assert_eq!(ends.len(), 1, "{log:?}");
        let winner = if stored[&job.id] { "a" } else { "b" };
        assert_eq!(ends[0]["data"]["note"], winner, "whoever was told 200 was stored: {log:?}");
        assert_eq!(log.len(), if stored[&job.id] { 3 } else { 5 }, "{log:?}");
    }
    println!("{in_time} of {} were in time", jobs.len());
}
