//! Failure with attempts left is `retrying`, with the error kept and a back-off that grows; `failed` is the end.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    failure_with_attempts_left_is_retrying_and_keeps_its_error,
    last_failure_is_failed_and_history_is_kept,
    error_that_is_not_retryable_fails_at_once,
    backoff_grows_by_its_factor_up_to_its_cap,
    jitter_spreads_within_its_bounds,
    retry_waits_for_its_time_and_wakes_a_parked_claim,
    worker_may_say_when_to_retry,
    scope_queue_holds_the_whole_queue_back,
    held_queue_holds_back_no_other,
    redrive_counts_attempts_anew_and_the_run_goes_on,
    cancel_ends_a_job_between_two_attempts,
    progress_and_output_start_anew_with_the_run,
    resume_frees_a_queue_that_a_worker_holds,
    option_that_was_not_set_costs_no_run_its_end,
);

fn instantly(max_attempts: u64) -> Value {
    json!({"max_attempts": max_attempts, "backoff": {"initial_ms": 0}})
}

/// How long the back-off of this `retrying` is.
#[track_caller]
fn delay(event: &Value) -> i64 {
    assert_eq!(event["type"], "retrying", "{event}");
    instant(&event["data"]["run_at"]) - instant(&event["at"])
}

/// Fails as it was told to, and gives the event that the log has of it.
async fn failed(lease: &Lease, data: Value) -> Value {
    lease.fail(data).await;
    lease.job.log().await.pop().expect("a log has events")
}

async fn failure_with_attempts_left_is_retrying_and_keeps_its_error(store: Store) {
    let lane = Lane::shared(store).await;
    let job = lane.job(json!({"max_attempts": 2, "backoff": {"initial_ms": 60_000}})).await;
    let lease = lane.take(json!({})).await;
    let mut stream = job.resume(2).await;
    let details = json!({"status": 502, "body": ["x"]});
    let error = json!({"code": "upstream", "message": "bad gateway", "details": details});
    let answer = lease.fail(error.clone()).await;
    assert_eq!((&answer["seq"], &answer["lease"]), (&json!(3), &Value::Null));
    let event = stream.expect("retrying").await.json();
    assert_eq!((&keys(&event["data"])[..], &event["attempt"]), (&["attempt", "error", "run_at"][..], &json!(1)));
    assert_eq!(event["data"]["attempt"], 1);
    let kept = &event["data"]["error"];
    for field in ["code", "message", "details"] {
        assert_eq!(kept[field], error[field]);
    }
    let state = job.state().await;
    assert_eq!(
        (&state["state"], &state["terminal"], &state["error"], &state["run_at"], &state["attempt"]),
        (&json!("retrying"), &json!(false), kept, &event["data"]["run_at"], &json!(1))
    );
    assert_eq!((&state["worker"], &state["finished_at"]), (&Value::Null, &Value::Null));
    assert_folds(&job).await;
    lane.assert_none().await;
}

async fn last_failure_is_failed_and_history_is_kept(store: Store) {
    let lane = Lane::shared(store).await;
    let job = lane.job(instantly(3)).await;
    for n in 1..=3 {
        let lease = lane.take(json!({})).await;
        assert_eq!((lease.run, &lease.document["attempt"], &lease.document["error"]), (n, &json!(n), &Value::Null));
        lease.append(json!({"type": "log", "data": {"message": format!("try {n}")}})).await;
        lease.fail(json!({"code": format!("c{n}"), "message": format!("m{n}")})).await;
    }
    let log = assert_folds(&job).await;
    let expected = [
        ("queued", 0),
        ("started", 1),
        ("log", 1),
        ("retrying", 1),
        ("started", 2),
        ("log", 2),
        ("retrying", 2),
        ("started", 3),
        ("log", 3),
        ("failed", 3),
    ];
    assert_eq!(tries(&log), expected);
    assert_eq!([3, 6].map(|n| text(&log[n]["data"]["error"]["code"]).to_owned()), ["c1", "c2"]);
    let state = job.state().await;
    assert_eq!((&state["state"], &state["error"]["code"]), (&json!("failed"), &json!("c3")));
    assert_eq!(state["error"], log[9]["data"]);
    lane.assert_none().await;
}

async fn error_that_is_not_retryable_fails_at_once(store: Store) {
    let lane = Lane::shared(store).await;
    let jobs = lane.jobs([instantly(5), instantly(1), instantly(5)]).await;
    let leases = lane.take_all(3, json!({})).await;
    leases[0].fail(json!({"code": "bad_input", "retryable": false})).await;
    leases[1].fail(json!({"code": "c", "retryable": true})).await;
    leases[2].fail(json!({"code": "c", "retryable": false, "retry_after_ms": 10, "scope": "job"})).await;
    for job in jobs {
        assert_eq!(job.types().await, ["queued", "started", "failed"]);
    }
    lane.assert_none().await;
}

async fn backoff_grows_by_its_factor_up_to_its_cap(store: Store) {
    let lane = Lane::shared(store).await;
    let table = [
        (json!({"initial_ms": 50, "factor": 2.0, "max_ms": 300, "jitter": 0}), [50, 100, 200, 300, 300]),
        (json!({"initial_ms": 40, "factor": 1, "jitter": 0}), [40; 5]),
        (json!({"initial_ms": 10, "factor": 2.5, "max_ms": 100, "jitter": 0}), [10, 25, 63, 100, 100]),
        (json!({"initial_ms": 200, "max_ms": 20, "jitter": 0}), [20; 5]),
        (json!({"initial_ms": 0, "jitter": 1}), [0; 5]),
    ];
    for (backoff, delays) in table {
        lane.job(json!({"max_attempts": 6, "backoff": backoff})).await;
        for expected in delays {
            let event = failed(&lane.take(json!({})).await, json!({"code": "c"})).await;
            assert!((delay(&event) - expected).abs() <= 1, "{} ms, not {expected}: {backoff}", delay(&event));
        }
        assert_eq!(failed(&lane.take(json!({})).await, json!({"code": "c"})).await["type"], "failed");
    }
    // Far beyond what a number of milliseconds could hold, the cap still holds.
    lane.job(json!({"max_attempts": 40, "backoff": {"initial_ms": 1, "factor": 100, "max_ms": 3, "jitter": 0}})).await;
    for _ in 0..39 {
        assert!(delay(&failed(&lane.take(json!({})).await, json!({"code": "c"})).await) <= 4);
    }
}

async fn jitter_spreads_within_its_bounds(store: Store) {
    let table = [
        (json!({}), 1_000, 0.2),
        (json!({"initial_ms": 50_000, "jitter": 0.5}), 50_000, 0.5),
        (json!({"initial_ms": 600_000}), 300_000, 0.2),
        (json!({"initial_ms": 20_000, "jitter": 1}), 20_000, 1.0),
    ];
    for (backoff, expected, jitter) in table {
        let lane = Lane::shared(store).await;
        lane.jobs((0..30).map(|_| json!({"backoff": backoff}))).await;
        let mut delays = Vec::new();
        for lease in lane.take_all(30, json!({})).await {
            delays.push(delay(&failed(&lease, json!({"code": "c"})).await));
        }
        let spread = expected as f64 * jitter + 1.0;
        let bounds = (expected as f64 - spread) as i64..=(expected as f64 + spread) as i64;
        assert!(delays.iter().all(|ms| *ms >= 0 && bounds.contains(ms)), "{delays:?} outside {bounds:?}");
        let distinct: HashSet<&i64> = delays.iter().collect();
        assert!(distinct.len() > 10, "retries of one moment spread out: {delays:?}");
    }
}

async fn retry_waits_for_its_time_and_wakes_a_parked_claim(store: Store) {
    let lane = Lane::shared(store).await;
    lane.job(json!({"backoff": {"initial_ms": 900, "jitter": 0}})).await;
    let event = failed(&lane.take(json!({})).await, json!({"code": "c"})).await;
    lane.assert_none().await;
    let (leases, _) = lane.park(json!({})).await.expect("answered");
    let late = instant(&leases[0].document["started_at"]) - instant(&event["data"]["run_at"]);
    assert!((0..=1_500).contains(&late), "started {late} ms after its time");
    assert_eq!((leases[0].run, &leases[0].document["attempt"]), (2, &json!(2)));
}

async fn worker_may_say_when_to_retry(store: Store) {
    let lane = Lane::shared(store).await;
    lane.jobs([json!({"backoff": {"initial_ms": 1}}), json!({"backoff": {"initial_ms": 1}})]).await;
    let leases = lane.take_all(2, json!({})).await;
    let hour = failed(&leases[0], json!({"code": "rate_limited", "retry_after_ms": 3_600_000})).await;
    assert!((3_600_000..=4_320_000).contains(&delay(&hour)), "{} ms", delay(&hour));
    let soon = failed(&leases[1], json!({"code": "rate_limited", "retry_after_ms": 700})).await;
    assert!((700..=850).contains(&delay(&soon)), "{} ms", delay(&soon));
    lane.assert_none().await;
    let again = lane.take(json!({})).await;
    assert_eq!(again.job.id, leases[1].job.id);
    assert!(instant(&again.document["started_at"]) >= instant(&soon["data"]["run_at"]));
    for wrong in [json!(-1), json!("700"), json!(1.5)] {
        let body = json!({"type": "failed", "data": {"code": "c", "retry_after_ms": wrong}});
        let refusal = again.job.untouched(again.try_append(&body)).await;
        refusal.problem_at(422, "invalid_request", "/data/retry_after_ms");
    }
}

async fn scope_queue_holds_the_whole_queue_back(store: Store) {
    let lane = Lane::shared(store).await;
    lane.jobs((0..3).map(|_| json!({}))).await;
    let lease = lane.take(json!({})).await;
    assert_eq!(lane.settings().await["held_until"], Value::Null);
    let parked = lane.park(json!({"max": 1}));
    let first = parked.await.expect("answered").0.remove(0);
    let data = json!({"code": "provider_429", "retry_after_ms": 1_500, "scope": "queue"});
    let event = failed(&lease, data).await;
    let held = instant(&lane.settings().await["held_until"]) - instant(&event["at"]);
    // The log's clock and that of the hold may differ by a little.
    assert!((1_450..=1_900).contains(&held), "held for {held} ms");
    lane.assert_none().await;
    let parked = [lane.park(json!({})), lane.park(json!({}))];
    first.append(json!({"type": "log", "data": {"message": "what runs goes on"}})).await;
    let newcomer = lane.job(json!({"priority": 100})).await;
    let mut ids = HashSet::new();
    for claim in parked {
        let (leases, _) = claim.await.expect("answered");
        let after = instant(&leases[0].document["started_at"]) - instant(&event["at"]);
        assert!((1_450..=3_500).contains(&after), "handed out {after} ms after the provider said no");
        ids.insert(leases[0].job.id.clone());
    }
    assert!(ids.contains(&newcomer.id), "priority holds after the hold");
    first.complete().await;
}

async fn held_queue_holds_back_no_other(store: Store) {
    let (lane, other) = (Lane::shared(store).await, Lane::shared(store).await);
    lane.jobs([json!({}), json!({})]).await;
    let lease = lane.take(json!({})).await;
    lease.fail(json!({"code": "c", "retry_after_ms": 3_600_000, "scope": "queue"})).await;
    let elsewhere = other.job(json!({})).await;
    let both = lane.take(json!({"queues": [lane.name, other.name]})).await;
    assert_eq!(both.job.id, elsewhere.id);
    // Of one job alone: its queue goes on.
    other.jobs([json!({}), json!({})]).await;
    other.take(json!({})).await.fail(json!({"code": "c", "retry_after_ms": 3_600_000, "scope": "job"})).await;
    assert_eq!(other.settings().await["held_until"], Value::Null);
    other.take_all(1, json!({})).await;
}

async fn redrive_counts_attempts_anew_and_the_run_goes_on(store: Store) {
    let lane = Lane::shared(store).await;
    let job = lane.job(instantly(2)).await;
    for run in [1, 2] {
        let lease = lane.take(json!({})).await;
        assert_eq!(lease.run, run);
        lease.fail(json!({"code": "c"})).await;
    }
    let state = job.post("/retry").send().await.expect(202);
    assert_eq!(
        (&state["state"], &state["attempt"], &state["error"], &state["finished_at"]),
        (&json!("queued"), &json!(0), &Value::Null, &Value::Null)
    );
    for (run, attempt) in [(3, 1), (4, 2)] {
        let lease = lane.take(json!({})).await;
        assert_eq!((lease.run, &lease.document["attempt"]), (run, &json!(attempt)));
        lease.fail(json!({"code": "again"})).await;
    }
    let log = assert_folds(&job).await;
    assert_eq!(
        tries(&log)[4..],
        [("failed", 2), ("requeued", 0), ("started", 1), ("retrying", 1), ("started", 2), ("failed", 2)]
    );
    assert_eq!(job.state().await["error"]["code"], "again");
}

async fn cancel_ends_a_job_between_two_attempts(store: Store) {
    let lane = Lane::shared(store).await;
    let spec = json!({"backoff": {"initial_ms": 500}});
    let jobs = lane.jobs([spec.clone(), spec]).await;
    for lease in lane.take_all(2, json!({})).await {
        lease.fail(json!({"code": "c"})).await;
    }
    jobs[0].cancel(json!({"reason": "enough"})).await.expect(202);
    let again = lane.take(json!({})).await;
    assert_eq!(again.job.id, jobs[1].id);
    tokio::time::sleep(Duration::from_millis(700)).await;
    lane.assert_none().await;
    let state = jobs[0].state().await;
    assert_eq!((&state["state"], &state["error"]["code"]), (&json!("cancelled"), &json!("c")), "the error is kept");
    assert_folds(&jobs[0]).await;
}

async fn progress_and_output_start_anew_with_the_run(store: Store) {
    let lane = Lane::shared(store).await;
    let job = lane.job(instantly(2)).await;
    let first = lane.take(json!({})).await;
    let half = json!({"type": "progress", "data": {"percent": 90, "phase": "x"}});
    first.append(json!([half, {"type": "output", "data": {"text": "first"}}])).await;
    first.fail(json!({"code": "c"})).await;
    let between = job.state().await;
    assert_eq!((&between["progress"]["percent"], &between["output"]["bytes"]), (&json!(90), &json!(5)));
    let second = lane.take(json!({})).await;
    assert_eq!((&second.document["progress"], &second.document["output"]["bytes"]), (&Value::Null, &json!(0)));
    second
        .append(json!([{"type": "progress", "data": {"percent": 10}}, {"type": "output", "data": {"text": "2nd"}}]))
        .await;
    let log = assert_folds(&job).await;
    assert_eq!((&log[7]["data"]["offset"], &log[7]["attempt"]), (&json!(0), &json!(2)));
    second.complete().await;
    assert_eq!(job.get("/output").send().await.text(), "2nd");
    assert_eq!(job.state().await["progress"]["percent"], 10);
}

async fn resume_frees_a_queue_that_a_worker_holds(store: Store) {
    let queue = Queue::own(&store.shared().await);
    queue.jobs(2, json!({})).await;
    let worker = queue.worker();
    let job = worker.take().await;
    job.fail(json!({"message": "429", "retry_after_ms": 3_600_000, "scope": "queue"})).await;
    worker.finds_nothing().await;
    let parked = worker.park().await;
    let resumed = queue.post("/resume", json!({})).await.expect(200);
    assert_eq!(resumed["held_until"], Value::Null);
    let taken = within(PATIENCE, "a job for the worker that waits", parked).await.expect("answered");
    assert_eq!(taken.len(), 1);
}

/// Serializers write `null` for an option that was not set.
async fn option_that_was_not_set_costs_no_run_its_end(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let failed = json!({"code": "boom", "message": "m", "retryable": false, "retry_after_ms": null, "scope": null, "details": null});
    let job = queue.running(json!({})).await;
    job.fail(failed).await;
    let error = job.state().await["error"].clone();
    assert_eq!((&error["code"], &error["message"]), (&json!("boom"), &json!("m")));
    let job = queue.running(json!({})).await;
    let outcome = json!({"ok": null, "items": null, "status": null, "metrics": null, "note": null, "artifacts": null, "data": null});
    job.append(json!({"type": "completed", "data": outcome})).await;
    assert_eq!(job.state().await["outcome"]["ok"], true);
}
