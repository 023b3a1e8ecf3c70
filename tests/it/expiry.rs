//! The end of a lease that nobody renewed: by the database's clock, soon in the log, and told apart from a failure
//! of the work as long as the worker may never have heard of the job.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    lost_lease_is_in_the_log_and_on_streams_soon,
    lease_ends_at_its_time_and_not_at_the_sweep,
    deadline_ends_a_run_at_its_time_and_not_at_the_sweep,
    each_lease_ends_at_its_own_time,
    run_that_was_never_heard_of_goes_back_at_once,
    fourth_silent_run_in_a_row_is_a_lost_attempt,
    heartbeat_ends_the_count_of_silent_runs,
    redrive_ends_the_count_of_silent_runs,
    run_that_was_heard_of_loses_an_attempt,
    last_lost_attempt_is_failed,
    expired_lease_wakes_a_parked_claim,
);

/// A spec whose lost attempts may run again at once.
fn quick(max_attempts: u64) -> Value {
    json!({"max_attempts": max_attempts, "backoff": {"initial_ms": 0}})
}

/// The event is in the log at most `SWEEP` after the lease ended at `end`, and never before.
#[track_caller]
fn assert_soon(event: &Value, end: i64) {
    let late = instant(&event["at"]) - end;
    assert!((0..=SWEEP.as_millis() as i64).contains(&late), "{late} ms after the end of the lease: {event}");
}

async fn lost_lease_is_in_the_log_and_on_streams_soon(store: Store) {
    let lane = Lane::shared(store).await;
    lane.jobs([quick(2), quick(2)]).await;
    let leases = lane.take_all(2, json!({"lease_ms": 1_000})).await;
    let [silent, heard] = [&leases[0], &leases[1]];
    let sent = now_ms();
    heard.beat().await;
    for (lease, kind, from) in [(silent, "released", instant(&silent.expires_at)), (heard, "retrying", sent + 1_000)] {
        let mut stream = lease.job.resume(2).await;
        let event = stream.expect(kind).await.json();
        let delivered = now_ms() - instant(&event["at"]);
        assert!(delivered < 1_000, "on the stream {delivered} ms after it was in the log");
        assert_soon(&event, from);
        let log = assert_folds(&lease.job).await;
        assert_eq!(log[2], event);
        assert_eq!(lease.job.state().await["worker"], Value::Null);
    }
    assert_eq!(silent.job.log().await[2]["data"], json!({"reason": "lease_expired"}));
    let lost = &heard.job.log().await[2]["data"];
    assert_eq!((&lost["error"]["code"], &lost["attempt"]), (&json!("lease_expired"), &json!(1)));
}

/// The sweep comes once a second; most of these leases end between two of them.
async fn lease_ends_at_its_time_and_not_at_the_sweep(store: Store) {
    let lane = Lane::shared(store).await;
    lane.jobs((0..24).map(|_| quick(2))).await;
    let mut workers = Vec::new();
    for n in 0..24 {
        let lease = lane.take(json!({"lease_ms": 1_000})).await;
        workers.push(tokio::spawn(async move {
            lease.sleep_past_end(Duration::from_millis(15)).await;
            let body = [json!([]), json!({"type": "own"}), json!({"type": "completed"})][n % 3].clone();
            lease.try_append(&body).await.problem(409, "lease_lost");
            lease.lapsed().await;
            assert_eq!(lease.job.types().await, ["queued", "started", "released"]);
        }));
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    for worker in workers {
        worker.await.expect("what comes after the end is refused");
    }
}

/// So does the deadline of its job, whatever its worker still says.
async fn deadline_ends_a_run_at_its_time_and_not_at_the_sweep(store: Store) {
    let lane = Lane::shared(store).await;
    let mut workers = Vec::new();
    for n in 0..24 {
        let job = lane.job(json!({"deadline_ms": 1_000})).await;
        let lease = lane.take(json!({})).await;
        let end = instant(&job.state().await["created_at"]) + 1_000;
        workers.push(tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis((end + 15 - now_ms()).max(0) as u64)).await;
            let body = [json!([]), json!({"type": "own"}), json!({"type": "completed"})][n % 3].clone();
            lease.try_append(&body).await.problem(409, "lease_lost");
            let (state, _) = lease.job.ended().await;
            assert_eq!((&state["state"], &state["error"]["code"]), (&json!("failed"), &json!("deadline")));
        }));
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    for worker in workers {
        worker.await.expect("what comes after the deadline is refused");
    }
}

async fn each_lease_ends_at_its_own_time(store: Store) {
    let lane = Lane::shared(store).await;
    lane.jobs((0..3).map(|_| json!({}))).await;
    let mut leases = Vec::new();
    for lease_ms in [3_500, 1_000, 60_000] {
        leases.push(lane.take(json!({"lease_ms": lease_ms})).await);
    }
    for index in [1, 0] {
        leases[index].lapsed().await;
        assert_soon(&leases[index].job.log().await[2], instant(&leases[index].expires_at));
    }
    assert_eq!(leases[2].job.types().await, ["queued", "started"]);
    leases[2].complete().await;
}

async fn run_that_was_never_heard_of_goes_back_at_once(store: Store) {
    let lane = Lane::shared(store).await;
    let job = lane.job(json!({"max_attempts": 1, "backoff": {"initial_ms": 3_600_000}})).await;
    let first = lane.take(json!({"lease_ms": 1_000})).await;
    let state = first.lapsed().await;
    assert_eq!((&state["state"], &state["attempt"], &state["error"]), (&json!("queued"), &json!(0), &Value::Null));
    let second = lane.take(json!({"wait_ms": 0})).await;
    assert_eq!((&second.job.id, second.run, &second.document["attempt"]), (&job.id, 2, &json!(1)));
    second.complete().await;
    assert_eq!(
        tries(&assert_folds(&job).await),
        [("queued", 0), ("started", 1), ("released", 0), ("started", 1), ("completed", 1)]
    );
}

/// Claims and keeps silent, until the lease has ended.
async fn be_silent(lane: &Lane) {
    lane.take(json!({"lease_ms": 1_000})).await.lapsed().await;
}

async fn fourth_silent_run_in_a_row_is_a_lost_attempt(store: Store) {
    let lane = Lane::shared(store).await;
    let job = lane.job(quick(2)).await;
    for _ in 0..4 {
        be_silent(&lane).await;
    }
    let log = assert_folds(&job).await;
    let expected = "queued started released started released started released started retrying";
    assert_eq!(job.types().await.join(" "), expected);
    assert_eq!(tries(&log)[7..], [("started", 1), ("retrying", 1)]);
    assert_eq!((&log[8]["data"]["error"]["code"], &log[8]["data"]["attempt"]), (&json!("lease_expired"), &json!(1)));
    let state = job.state().await;
    assert_eq!((&state["state"], &state["error"]["code"]), (&json!("retrying"), &json!("lease_expired")));
    let last = lane.take(json!({})).await;
    assert_eq!((last.run, &last.document["attempt"], &last.document["error"]), (5, &json!(2), &Value::Null));
    last.complete().await;
}

async fn heartbeat_ends_the_count_of_silent_runs(store: Store) {
    let lane = Lane::shared(store).await;
    let job = lane.job(quick(1)).await;
    be_silent(&lane).await;
    be_silent(&lane).await;
    let heard = lane.take(json!({})).await;
    heard.beat().await;
    heard.release(json!({"reason": "deploy"})).await;
    for _ in 0..3 {
        be_silent(&lane).await;
        assert_eq!(job.state().await["state"], "queued");
    }
    be_silent(&lane).await;
    let log = assert_folds(&job).await;
    assert_eq!((job.types().await.len(), &log[log.len() - 1]["type"]), (15, &json!("failed")));
    assert_eq!(log[14]["data"]["code"], "lease_expired");
}

async fn redrive_ends_the_count_of_silent_runs(store: Store) {
    let lane = Lane::shared(store).await;
    let job = lane.job(quick(1)).await;
    for _ in 0..4 {
        be_silent(&lane).await;
    }
    assert_eq!(job.state().await["state"], "failed");
    job.post("/retry").send().await.expect(202);
    be_silent(&lane).await;
    let state = job.state().await;
    assert_eq!((&state["state"], &state["attempt"]), (&json!("queued"), &json!(0)));
    let lease = lane.take(json!({})).await;
    assert_eq!(lease.run, 6, "the run never falls");
    lease.complete().await;
    assert_folds(&job).await;
}

async fn run_that_was_heard_of_loses_an_attempt(store: Store) {
    let lane = Lane::shared(store).await;
    let signs = [json!([]), json!({"type": "own"}), json!({"type": "progress", "data": {"percent": 50}})];
    let jobs = lane.jobs(signs.iter().map(|_| quick(3))).await;
    for (lease, sign) in lane.take_all(3, json!({"lease_ms": 1_000})).await.iter().zip(&signs) {
        lease.append(sign.clone()).await;
    }
    for job in &jobs {
        let state = job.until("the end of the lease", PATIENCE, |state| state["state"] != "running").await;
        assert_eq!(
            (&state["state"], &state["attempt"], &state["error"]["code"]),
            (&json!("retrying"), &json!(1), &json!("lease_expired"))
        );
    }
    for lease in lane.take_all(3, json!({})).await {
        assert_eq!((lease.run, &lease.document["attempt"]), (2, &json!(2)));
        lease.complete().await;
        assert_folds(&lease.job).await;
    }
}

async fn last_lost_attempt_is_failed(store: Store) {
    let lane = Lane::shared(store).await;
    let job = lane.job(quick(2)).await;
    let mut stream = job.resume(1).await;
    for end in ["retrying", "failed"] {
        let lease = lane.take(json!({"lease_ms": 1_000})).await;
        let sent = now_ms();
        lease.beat().await;
        stream.expect("started").await;
        assert_soon(&stream.expect(end).await.json(), sent + 1_000);
    }
    stream.expect("end").await;
    let log = assert_folds(&job).await;
    assert_eq!(
        tries(&log),
        [("queued", 0), ("started", 1), ("retrying", 1), ("started", 2), ("failed", 2)],
        "never `failed` before the end"
    );
    let state = job.state().await;
    assert_eq!((&log[4]["data"]["code"], &state["error"]), (&json!("lease_expired"), &log[4]["data"]));
    lane.assert_none().await;
}

async fn expired_lease_wakes_a_parked_claim(store: Store) {
    let lane = Lane::shared(store).await;
    lane.jobs([json!({}), json!({})]).await;
    let leases = lane.take_all(2, json!({"lease_ms": 1_000})).await;
    let parked = [lane.park(json!({})), lane.park(json!({}))];
    for claim in parked {
        let (again, _) = claim.await.expect("answered");
        let late = instant(&again[0].document["started_at"]) - instant(&leases[1].expires_at);
        assert!((0..=SWEEP.as_millis() as i64 + 500).contains(&late), "handed out again after {late} ms");
        assert_eq!(again[0].run, 2);
    }
}
