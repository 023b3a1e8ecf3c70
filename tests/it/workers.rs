//! `GET /v1/workers`: who is there, and what each has in hand.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    running_jobs_stand_under_their_worker,
    parked_worker_is_listed_with_empty_hands,
    cancel_shows_at_the_worker,
    heartbeat_moves_the_expiry_that_is_shown,
    run_that_is_over_is_not_listed,
    processes_of_one_name_are_one_worker,
    bad_query_is_refused,
);

async fn found(worker: &Worker) -> Option<Value> {
    let body = worker.queue.server.get("/v1/workers").send().await.expect(200);
    assert_eq!(body.as_object().map(|fields| fields.len()), Some(1), "{body}");
    let all = body["workers"].as_array().expect("workers is a list");
    let mut found = all.iter().filter(|one| one["worker"] == *worker.name);
    let one = found.next().cloned();
    assert!(found.next().is_none(), "a worker is listed once");
    one
}

async fn jobs(worker: &Worker) -> Value {
    found(worker).await.expect("the worker is listed")["jobs"].clone()
}

/// The jobs in hand are these, whose leases nobody has renewed.
#[track_caller]
fn assert_hands(listed: &Value, expected: &[&Job]) {
    let mut listed = listed.as_array().expect("jobs is a list").clone();
    listed.sort_by_key(|job| text(&job["id"]).to_owned());
    assert_eq!(listed.len(), expected.len(), "{listed:?}");
    for (job, expected) in listed.iter().zip(expected) {
        let (told, kept) = (instant(&expected.lease().expires_at), instant(&job["expires_at"]));
        // The moment of a claim is read twice, by the one who answers and by the one who stores.
        assert!((told - 5..told + 50).contains(&kept), "the claim said {told}, the list says {kept}");
        let shown = json!({
            "id": expected.id, "run": expected.run(), "expires_at": job["expires_at"], "cancel_requested": false,
        });
        assert_eq!(*job, shown);
    }
}

async fn running_jobs_stand_under_their_worker(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let (worker, other) = (queue.worker(), queue.worker());
    assert_eq!(found(&worker).await, None);
    let first = queue.running_at(&worker, json!({})).await;
    let entry = found(&worker).await.expect("the worker is listed");
    let mut keys: Vec<&str> = entry.as_object().expect("an object").keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["jobs", "seen_at", "worker"]);
    let (seen, started) = (instant(&entry["seen_at"]), instant(&first.state().await["started_at"]));
    assert!((started - 2_000..started + 10_000).contains(&seen), "seen at {seen}, claimed at {started}");
    assert_hands(&entry["jobs"], &[&first]);
    let second = queue.running_at(&worker, json!({})).await;
    let foreign = queue.running_at(&other, json!({})).await;
    assert_hands(&jobs(&worker).await, &[&first, &second]);
    assert_hands(&jobs(&other).await, &[&foreign]);
}

async fn parked_worker_is_listed_with_empty_hands(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let worker = queue.worker();
    let parked = worker.park().await;
    assert_eq!(jobs(&worker).await, json!([]));
    let job = queue.job(json!({})).await;
    let given = within(PATIENCE, "the claim", parked).await.expect("answered");
    assert_eq!(given.first().map(|given| &given.id), Some(&job.id));
    assert_hands(&jobs(&worker).await, &[&given[0]]);
}

async fn cancel_shows_at_the_worker(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let worker = queue.worker();
    let job = queue.running_at(&worker, json!({})).await;
    job.cancel(json!({"grace_ms": 60_000})).await.expect(202);
    assert_eq!(jobs(&worker).await[0]["cancel_requested"], true);
}

async fn heartbeat_moves_the_expiry_that_is_shown(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let worker = queue.worker();
    let job = queue.running_at(&worker, json!({})).await;
    let claimed = instant(&jobs(&worker).await[0]["expires_at"]);
    tokio::time::sleep(Duration::from_millis(300)).await;
    job.append(json!([])).await;
    let renewed = instant(&jobs(&worker).await[0]["expires_at"]);
    assert!(renewed >= claimed + 250, "{claimed} became {renewed}");
}

async fn run_that_is_over_is_not_listed(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let worker = queue.worker().with_lease(1_000);
    let hands = async || found(&worker).await.map_or(json!([]), |entry| entry["jobs"].clone());
    let ends = [
        json!({"type": "completed"}),
        json!({"type": "failed", "data": {"code": "c", "message": "m", "retryable": false}}),
        json!({"type": "failed", "data": {"code": "c", "message": "m", "retry_after_ms": 3_600_000}}),
        json!({"type": "cancelled"}),
        json!({"type": "released", "data": {"delay_ms": 3_600_000}}),
    ];
    for end in ends {
        let job = queue.running_at(&worker, json!({})).await;
        assert_eq!(hands().await[0]["id"], *job.id);
        job.append(end.clone()).await;
        assert_eq!(hands().await, json!([]), "after {end}");
    }
    let lost = queue.running_at(&worker, json!({"max_attempts": 1})).await;
    lost.note("then silence").await;
    lost.ended().await;
    assert_eq!(hands().await, json!([]), "after a lost lease");
}

async fn processes_of_one_name_are_one_worker(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let worker = queue.worker();
    let twin = worker.clone();
    let _parked = worker.park().await;
    let job = queue.job(json!({})).await;
    eventually(PATIENCE, "the job in hand", async || (jobs(&worker).await != json!([])).then_some(())).await;
    let _parked = twin.park().await;
    let listed = jobs(&twin).await;
    assert_eq!((listed.as_array().map(Vec::len), &listed[0]["id"]), (Some(1), &json!(job.id)));
}

async fn bad_query_is_refused(store: Store) {
    let server = store.shared().await;
    server.get("/v1/workers?nope=1").send().await.problem(422, "invalid_request");
    let head = server.request("HEAD", "/v1/workers").send().await;
    head.expect_empty(200);
    server.post("/v1/workers").send().await.problem(405, "method_not_allowed");
}
