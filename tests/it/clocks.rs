//! Three more clocks than the lease: how long one run may take, until when a job must start, and until when all of it
//! must be over. The log says which one ran out, and no heartbeat moves them.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    run_that_takes_too_long_is_timed_out_though_it_beats,
    last_timed_out_attempt_is_failed,
    each_run_has_the_whole_timeout,
    run_within_its_timeout_is_left_alone,
    deadline_ends_a_job_that_beats_and_has_attempts_left,
    deadline_fails_what_has_started_once_and_waits_again,
    ttl_binds_until_the_first_start_only,
    job_never_starts_after_its_ttl,
    job_never_starts_after_its_deadline,
    clocks_start_anew_on_redrive,
);

/// Beats until the lease is lost; when that was.
async fn beat_until_lost(lease: Lease) -> i64 {
    loop {
        let answer = lease.try_append(&json!([])).await;
        if answer.status() != 200 {
            assert_eq!(answer.status(), 409, "{}", answer.text());
            return now_ms();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// `event` stands in the log at most `SWEEP` after `due`, and never before.
#[track_caller]
fn assert_soon(event: &Value, due: i64) {
    let late = instant(&event["at"]) - due;
    assert!((0..=SWEEP.as_millis() as i64).contains(&late), "{late} ms after its time: {event}");
}

async fn run_that_takes_too_long_is_timed_out_though_it_beats(store: Store) {
    let lane = Lane::shared(store).await;
    let job = lane.job(json!({"timeout_ms": 1_200, "max_attempts": 2, "backoff": {"initial_ms": 0}})).await;
    let lease = lane.take(json!({"lease_ms": 60_000})).await;
    let mut stream = job.resume(2).await;
    beat_until_lost(lease.clone()).await;
    let event = stream.expect("retrying").await.json();
    assert_soon(&event, instant(&lease.document["started_at"]) + 1_200);
    assert_eq!((&event["data"]["error"]["code"], &event["attempt"]), (&json!("timed_out"), &json!(1)));
    assert_eq!(assert_folds(&job).await[2], event);
    for body in [json!([]), json!({"type": "completed"})] {
        assert_lost(&job, lease.post().json(&body)).await;
    }
    let again = lane.take(json!({})).await;
    assert_eq!((again.run, &again.document["attempt"]), (2, &json!(2)));
    again.complete().await;
}

async fn last_timed_out_attempt_is_failed(store: Store) {
    let lane = Lane::shared(store).await;
    let job = lane.job(json!({"timeout_ms": 300, "max_attempts": 1})).await;
    let lease = lane.take(json!({"lease_ms": 60_000})).await;
    beat_until_lost(lease.clone()).await;
    let (state, _) = job.ended().await;
    assert_eq!((&state["state"], &state["error"]["code"]), (&json!("failed"), &json!("timed_out")));
    let log = assert_folds(&job).await;
    assert_soon(&log[2], instant(&lease.document["started_at"]) + 300);
    assert_eq!((log.len(), &log[2]["data"]["code"]), (3, &json!("timed_out")));
    lane.assert_none().await;
}

async fn each_run_has_the_whole_timeout(store: Store) {
    let lane = Lane::shared(store).await;
    let job = lane.job(json!({"timeout_ms": 3_000})).await;
    for _ in 0..4 {
        let lease = lane.take(json!({})).await;
        tokio::time::sleep(Duration::from_millis(1_000)).await;
        lease.release(json!({})).await;
    }
    let lease = lane.take(json!({})).await;
    beat_until_lost(lease.clone()).await;
    lease.lapsed().await;
    let log = assert_folds(&job).await;
    let last = log.last().expect("a log has events");
    assert_eq!((&last["type"], &last["data"]["error"]["code"]), (&json!("retrying"), &json!("timed_out")));
    assert_soon(last, instant(&lease.document["started_at"]) + 3_000);
}

async fn run_within_its_timeout_is_left_alone(store: Store) {
    let lane = Lane::shared(store).await;
    lane.job(json!({"timeout_ms": 60_000})).await;
    let lease = lane.take(json!({"lease_ms": 1_500})).await;
    for _ in 0..12 {
        lease.beat().await;
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    lease.complete().await;
    assert_eq!(lease.job.types().await, ["queued", "started", "completed"]);
}

async fn deadline_ends_a_job_that_beats_and_has_attempts_left(store: Store) {
    let lane = Lane::shared(store).await;
    let job = lane.job(json!({"deadline_ms": 1_200, "max_attempts": 5})).await;
    let lease = lane.take(json!({"lease_ms": 60_000})).await;
    let mut stream = job.resume(2).await;
    beat_until_lost(lease.clone()).await;
    let event = stream.expect("failed").await.json();
    assert_eq!((&event["data"]["code"], &event["attempt"]), (&json!("deadline"), &json!(1)));
    stream.expect("end").await;
    let log = assert_folds(&job).await;
    assert_soon(&log[2], instant(&log[0]["at"]) + 1_200);
    job.untouched(async {
        let late = lease.try_append(&json!({"type": "completed"})).await;
        assert_eq!(late.status(), 409, "{}", late.text());
    })
    .await;
    lane.assert_none().await;
}

async fn deadline_fails_what_has_started_once_and_waits_again(store: Store) {
    let lane = Lane::shared(store).await;
    let spec = json!({"deadline_ms": 1_500, "backoff": {"initial_ms": 3_600_000}});
    let jobs = lane.jobs([spec.clone(), spec.clone(), spec.clone(), spec]).await;
    let leases = lane.take_all(4, json!({"max": 4})).await;
    leases[0].release(json!({})).await;
    leases[1].release(json!({"delay_ms": 3_600_000})).await;
    leases[2].fail(json!({"code": "c"})).await;
    leases[3].complete().await;
    for job in &jobs[..3] {
        let (state, _) = job.ended().await;
        assert_eq!((&state["state"], &state["error"]["code"]), (&json!("failed"), &json!("deadline")));
        let log = assert_folds(job).await;
        assert_soon(&log[3], instant(&log[0]["at"]) + 1_500);
    }
    assert_eq!(jobs[3].types().await, ["queued", "started", "completed"]);
}

async fn ttl_binds_until_the_first_start_only(store: Store) {
    let lane = Lane::shared(store).await;
    let spec = json!({"ttl_ms": 1_500, "max_attempts": 2, "backoff": {"initial_ms": 2_000, "jitter": 0}});
    let jobs = lane.jobs([spec.clone(), spec.clone(), spec.clone(), spec]).await;
    let leases = lane.take_all(3, json!({"max": 3})).await;
    leases[0].release(json!({"delay_ms": 2_500})).await;
    leases[1].fail(json!({"code": "c"})).await;
    let (state, _) = jobs[3].ended().await;
    assert_eq!(state["state"], "expired");
    // Two sweeps at least.
    tokio::time::sleep(Duration::from_millis(2_200)).await;
    assert_eq!(jobs[2].state().await["state"], "running", "it has started in time");
    leases[2].complete().await;
    for run in lane.take_all(2, json!({})).await {
        assert_eq!(run.run, 2);
        run.complete().await;
        assert_folds(&run.job).await;
    }
}

/// Claims all the time, over and beyond the moment after which the jobs must not start any more.
async fn claim_around(lane: &Lane, jobs: &[Job], limit_ms: i64, reason: &str) {
    let mut leases = Vec::new();
    let begun = std::time::Instant::now();
    while begun.elapsed() < Duration::from_millis(limit_ms as u64 + 300) {
        leases.extend(lane.claim(json!({"max": 1})).await);
        tokio::time::sleep(Duration::from_millis(15)).await;
    }
    let mut expired = 0;
    for job in jobs {
        job.until("a start or an end", PATIENCE, |state| state["state"] != "queued").await;
        let log = assert_folds(job).await;
        let age = instant(&log[1]["at"]) - instant(&log[0]["at"]);
        match text(&log[1]["type"]) {
            "started" => assert!(age <= limit_ms, "started {age} ms after it was posted, with {limit_ms} ms to start"),
            _ => {
                assert_eq!((&log[1]["type"], &log[1]["data"]["reason"]), (&json!("expired"), &json!(reason)));
                assert!(age >= limit_ms, "expired after {age} ms of {limit_ms}");
                expired += 1;
            }
        }
    }
    assert!(leases.len() + expired == jobs.len() && expired > 0, "{} started, {expired} expired", leases.len());
}

async fn job_never_starts_after_its_ttl(store: Store) {
    let lane = Lane::shared(store).await;
    let jobs = lane.jobs((0..100).map(|_| json!({"ttl_ms": 400}))).await;
    claim_around(&lane, &jobs, 400, "ttl").await;
}

async fn job_never_starts_after_its_deadline(store: Store) {
    let lane = Lane::shared(store).await;
    let jobs = lane.jobs((0..100).map(|_| json!({"deadline_ms": 400}))).await;
    claim_around(&lane, &jobs, 400, "deadline").await;
}

async fn clocks_start_anew_on_redrive(store: Store) {
    let lane = Lane::shared(store).await;
    let [unstarted, started] = [json!({"ttl_ms": 700}), json!({"deadline_ms": 700})];
    let (unstarted, started) = (lane.job(unstarted).await, lane.job(started).await);
    assert_eq!(unstarted.ended().await.0["state"], "expired");
    assert_eq!(started.ended().await.0["state"], "expired");
    for job in [&unstarted, &started] {
        job.post("/retry").send().await.expect(202);
    }
    let leases = lane.take_all(2, json!({})).await;
    for lease in &leases {
        assert_eq!((lease.run, &lease.document["attempt"]), (1, &json!(1)));
    }
    let (state, _) = started.ended().await;
    assert_eq!((&state["state"], &state["error"]["code"]), (&json!("failed"), &json!("deadline")));
    let log = assert_folds(&started).await;
    assert_soon(log.last().expect("a log has events"), instant(&log[2]["at"]) + 700);
    let mine = leases.iter().find(|lease| lease.job.id == unstarted.id).expect("it was handed out");
    mine.complete().await;
}
