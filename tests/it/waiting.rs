//! `?include=waiting`: why a job waits, as an operator would ask.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    job_of_a_paused_queue_says_so,
    job_behind_the_queues_limit_names_who_runs,
    job_behind_its_keys_limit_names_who_runs,
    job_behind_the_rate_limit_says_so,
    job_of_a_held_queue_says_so,
    job_whose_time_has_not_come_says_so,
    job_that_nobody_claims_says_so,
    job_behind_others_says_so,
    reason_follows_what_happens,
    job_that_does_not_wait_has_no_reason,
    answer_is_no_version_of_anything,
    payload_may_be_asked_for_beside_it,
    include_is_checked,
);

async fn waiting_for(job: &Job) -> Value {
    let mut document = job.get("?include=waiting").send().await.expect(200);
    let waiting = document.as_object_mut().expect("an object").remove("waiting_for");
    assert_eq!(document, job.state().await, "the rest is the state document");
    waiting.expect("an answer about waiting says what for")
}

/// The reason; whatever else is said depends on it.
async fn reason(job: &Job) -> String {
    text(&waiting_for(job).await["reason"]).to_owned()
}

async fn job_of_a_paused_queue_says_so(store: Store) {
    let queue = Queue::own(&store.shared().await);
    queue.post("/pause", json!({"reason": "provider down"})).await.expect(200);
    let job = queue.job(json!({})).await;
    let _parked = queue.worker().park().await;
    assert_eq!(reason(&job).await, "paused");
}

async fn job_behind_the_queues_limit_names_who_runs(store: Store) {
    let queue = Queue::own(&store.shared().await);
    queue.set(json!({"concurrency": 2})).await;
    let running = [queue.running(json!({})).await, queue.running(json!({})).await];
    let job = queue.job(json!({})).await;
    let _parked = queue.worker().park().await;
    let waiting = waiting_for(&job).await;
    assert_eq!(
        (&waiting["reason"], &waiting["running"], &waiting["limit"]),
        (&json!("concurrency"), &json!(2), &json!(2))
    );
    assert_names(&waiting, &running);
}

/// The jobs that are in the way, in any order.
#[track_caller]
fn assert_names(waiting: &Value, running: &[Job]) {
    let mut named: Vec<&str> = waiting["jobs"].as_array().expect("jobs is a list").iter().map(text).collect();
    named.sort_unstable();
    let mut ids: Vec<&str> = running.iter().map(|job| job.id.as_str()).collect();
    ids.sort_unstable();
    assert_eq!(named, ids);
}

async fn job_behind_its_keys_limit_names_who_runs(store: Store) {
    let queue = Queue::own(&store.shared().await);
    queue.set(json!({"concurrency_per_key": 2})).await;
    let (mine, other) = (json!({"concurrency_key": "user:7"}), json!({"concurrency_key": "user:8"}));
    let running = [queue.running(mine.clone()).await, queue.running(mine.clone()).await];
    queue.running(other).await;
    let job = queue.job(mine).await;
    let _parked = queue.worker().park().await;
    let waiting = waiting_for(&job).await;
    assert_names(&waiting, &running);
    let expected = json!({
        "reason": "concurrency_key", "key": "user:7", "running": 2, "limit": 2, "jobs": waiting["jobs"],
    });
    assert_eq!(waiting, expected);
}

async fn job_behind_the_rate_limit_says_so(store: Store) {
    let queue = Queue::own(&store.shared().await);
    queue.set(json!({"rate_limit": {"limit": 1, "per_ms": 3_600_000, "burst": 1}})).await;
    queue.running(json!({})).await.complete().await;
    let job = queue.job(json!({})).await;
    let _parked = queue.worker().park().await;
    assert_eq!(reason(&job).await, "rate_limit");
}

async fn job_of_a_held_queue_says_so(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let failing = queue.running(json!({"max_attempts": 1})).await;
    failing.fail(json!({"code": "429", "message": "m", "retry_after_ms": 60_000, "scope": "queue"})).await;
    let job = queue.job(json!({})).await;
    let _parked = queue.worker().park().await;
    assert_eq!(reason(&job).await, "held");
}

async fn job_whose_time_has_not_come_says_so(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let retrying = queue.running(json!({})).await;
    retrying.fail(json!({"code": "c", "message": "m", "retry_after_ms": 60_000})).await;
    let scheduled = queue.job(json!({"delay_ms": 60_000})).await;
    let _parked = queue.worker().park().await;
    for job in [retrying, scheduled] {
        assert_eq!(reason(&job).await, "run_at");
    }
}

async fn job_that_nobody_claims_says_so(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let job = queue.job(json!({})).await;
    assert_eq!(reason(&job).await, "no_worker");
}

async fn job_behind_others_says_so(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let worker = queue.worker();
    let busy = queue.running_at(&worker, json!({})).await;
    queue.jobs(3, json!({})).await;
    let last = queue.job(json!({})).await;
    assert_eq!(reason(&last).await, "ahead", "a worker is there, and has others to do first");
    let urgent = queue.job(json!({"priority": 100})).await;
    assert_ne!(reason(&urgent).await, "ahead", "nobody stands before it");
    busy.complete().await;
}

async fn reason_follows_what_happens(store: Store) {
    let queue = Queue::own(&store.shared().await);
    queue.set(json!({"concurrency": 1})).await;
    let running = queue.running(json!({})).await;
    let job = queue.job(json!({"delay_ms": 700})).await;
    let parked = queue.worker().park().await;
    assert_eq!(reason(&job).await, "run_at");
    eventually(PATIENCE, "its time", async || (reason(&job).await == "concurrency").then_some(())).await;
    queue.post("/pause", json!({})).await.expect(200);
    assert_eq!(reason(&job).await, "paused");
    queue.post("/resume", json!({})).await.expect(200);
    assert_eq!(reason(&job).await, "concurrency");
    assert_eq!(job.types().await, ["queued"], "who asks changes nothing");
    running.complete().await;
    let given = within(PATIENCE, "the claim", parked).await.expect("answered");
    assert_eq!(given.first().map(|given| &given.id), Some(&job.id));
    assert_eq!(waiting_for(&job).await, Value::Null);
}

async fn job_that_does_not_wait_has_no_reason(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let running = queue.running(json!({})).await;
    assert_eq!(waiting_for(&running).await, Value::Null);
    running.complete().await;
    assert_eq!(waiting_for(&running).await, Value::Null);
    let cancelled = queue.job(json!({})).await;
    cancelled.cancel(json!({})).await.expect(202);
    assert_eq!(waiting_for(&cancelled).await, Value::Null);
    assert_eq!(waiting_for(&queue.job(json!({"tracked": true})).await).await, Value::Null);
    assert_eq!(running.state().await.get("waiting_for"), None, "only who asks is told");
}

async fn answer_is_no_version_of_anything(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let job = queue.job(json!({})).await;
    let etag = job.get("").send().await.header("etag").expect("a state has an ETag").to_owned();
    let seq = number(&job.state().await["seq"]);
    let begun = Instant::now();
    for (query, headers) in [
        ("", vec![]),
        ("", vec![("If-None-Match", etag.as_str())]),
        ("", vec![("If-None-Match", "*")]),
        ("&wait=20", vec![("If-None-Match", etag.as_str())]),
        (&format!("&wait=20&after={seq}"), vec![]),
        ("&wait=20", vec![]),
        ("", vec![("Prefer", "wait=20")]),
    ] {
        let request = job.get(&format!("?include=waiting{query}"));
        let answer = headers.iter().fold(request, |request, (name, value)| request.header(name, value)).send().await;
        assert!(answer.expect(200)["waiting_for"].is_object(), "{query}");
        assert_eq!((answer.header("etag"), answer.header("cache-control")), (None, Some("no-store")), "{query}");
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "none of them waited");
}

async fn payload_may_be_asked_for_beside_it(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let job = queue.job(json!({"payload": {"p": 1}, "delay_ms": 60_000})).await;
    for query in ["?include=payload,waiting", "?include=waiting,payload"] {
        let answer = job.get(query).send().await;
        let document = answer.expect(200);
        assert_eq!((&document["payload"], &document["waiting_for"]["reason"]), (&json!({"p": 1}), &json!("run_at")));
        assert_eq!((answer.header("etag"), answer.header("cache-control")), (None, Some("no-store")));
    }
}

async fn include_is_checked(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let job = queue.job(json!({})).await;
    for query in ["?include=nope", "?include=", "?include=Waiting", "?include=waiting&nope=1"] {
        job.get(query).send().await.problem(422, "invalid_request");
    }
    let unknown = Job::new(&queue.server, "0199a0b4-7c1e-7000-8000-000000000000");
    unknown.get("?include=waiting").send().await.problem(404, "job_not_found");
}
