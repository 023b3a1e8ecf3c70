//! What a queue's `defaults` mean for the jobs that leave those fields out, and for those that do not.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    job_that_leaves_fields_out_gets_those_of_its_queue,
    explicit_null_counts_as_left_out,
    own_value_wins,
    times_of_the_queue_bind_its_jobs,
    backoff_of_the_queue_spaces_its_retries,
    priority_of_the_queue_decides_between_its_jobs,
    defaults_bind_jobs_that_come_after_them,
    tracked_job_is_not_harmed_by_them,
    repeated_request_is_the_same_request_under_other_defaults,
    queue_named_default_has_defaults_too,
    result_of_defaults_and_own_fields_is_checked,
);

async fn job_that_leaves_fields_out_gets_those_of_its_queue(store: Store) {
    let queue = Queue::own(&store.shared().await);
    queue.set(json!({"defaults": {"max_attempts": 7, "priority": -20}})).await;
    let alone = queue.job(json!({})).await;
    let in_a_batch = queue.jobs(1, json!({})).await.remove(0);
    for job in [alone, in_a_batch] {
        let state = job.folded().await;
        assert_eq!((&state["max_attempts"], &state["priority"]), (&json!(7), &json!(-20)));
        let queued = &job.log().await[0]["data"];
        assert_eq!((&queued["max_attempts"], &queued["priority"]), (&json!(7), &json!(-20)));
    }
}

async fn explicit_null_counts_as_left_out(store: Store) {
    let queue = Queue::own(&store.shared().await);
    queue.set(json!({"defaults": {"max_attempts": 7, "priority": -20, "ttl_ms": 200}})).await;
    let job = queue.job(json!({"max_attempts": null, "priority": null, "ttl_ms": null, "backoff": null})).await;
    let state = job.state().await;
    assert_eq!((&state["max_attempts"], &state["priority"]), (&json!(7), &json!(-20)));
    assert_eq!(job.ended().await.0["state"], "expired");
}

async fn own_value_wins(store: Store) {
    let queue = Queue::own(&store.shared().await);
    queue
        .set(json!({"defaults": {
            "max_attempts": 7, "priority": 50, "ttl_ms": 300, "deadline_ms": 300, "timeout_ms": 300,
        }}))
        .await;
    let hour = 3_600_000;
    let job = queue
        .job(json!({"max_attempts": 2, "priority": 0, "ttl_ms": hour, "deadline_ms": hour, "timeout_ms": hour}))
        .await;
    let state = job.state().await;
    assert_eq!((&state["max_attempts"], &state["priority"]), (&json!(2), &json!(0)));
    let running = queue.worker().take().await;
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    running.complete().await;
    assert_eq!(job.types().await, ["queued", "started", "completed"]);
}

async fn times_of_the_queue_bind_its_jobs(store: Store) {
    let server = store.shared().await;
    let queue_with = async |defaults: Value| {
        let queue = Queue::own(&server);
        queue.set(json!({ "defaults": defaults })).await;
        queue
    };
    let (ttl, deadline) = (queue_with(json!({"ttl_ms": 300})).await, queue_with(json!({"deadline_ms": 300})).await);
    let timeout = queue_with(json!({"timeout_ms": 500, "max_attempts": 1})).await;
    let (late, over) = (ttl.job(json!({})).await, deadline.job(json!({})).await);
    let slow = timeout.running(json!({})).await;
    slow.note("working").await;
    assert_eq!(late.ended().await.0["state"], "expired");
    assert_eq!(late.log().await[1]["data"]["reason"], "ttl");
    assert_eq!(over.ended().await.0["state"], "expired");
    assert_eq!(over.log().await[1]["data"]["reason"], "deadline");
    assert_eq!(slow.ended().await.0["error"]["code"], "timed_out");
}

async fn backoff_of_the_queue_spaces_its_retries(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let backoff = json!({"initial_ms": 70_000, "factor": 1.0, "max_ms": 70_000, "jitter": 0.0});
    queue.set(json!({"defaults": {"backoff": backoff, "max_attempts": 5}})).await;
    let job = queue.running(json!({})).await;
    job.fail(json!({"code": "c", "message": "m"})).await;
    let retrying = job.log().await.remove(2);
    assert_eq!(retrying["type"], "retrying");
    assert_eq!(instant(&retrying["data"]["run_at"]) - instant(&retrying["at"]), 70_000);
    let own = queue.running(json!({"backoff": {"initial_ms": 20_000, "factor": 1.0, "jitter": 0.0}})).await;
    own.fail(json!({"code": "c", "message": "m"})).await;
    let retrying = own.log().await.remove(2);
    assert_eq!(instant(&retrying["data"]["run_at"]) - instant(&retrying["at"]), 20_000);
}

async fn priority_of_the_queue_decides_between_its_jobs(store: Store) {
    let queue = Queue::own(&store.shared().await);
    queue.set(json!({"defaults": {"priority": -10}})).await;
    let (heavy, light) = (queue.job(json!({})).await, queue.job(json!({"priority": 0})).await);
    let given: Vec<String> = queue.worker().take_up_to(2).await.into_iter().map(|job| job.id).collect();
    assert_eq!(given, [light.id, heavy.id]);
}

async fn defaults_bind_jobs_that_come_after_them(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let before = queue.job(json!({})).await;
    queue.set(json!({"defaults": {"max_attempts": 9, "ttl_ms": 300}})).await;
    let after = queue.job(json!({})).await;
    queue.set(json!({"defaults": null})).await;
    assert_eq!(after.ended().await.0["state"], "expired");
    assert_eq!(after.state().await["max_attempts"], 9);
    let state = before.state().await;
    assert_eq!((&state["state"], &state["max_attempts"]), (&json!("queued"), &json!(3)));
    assert_eq!(queue.job(json!({})).await.state().await["max_attempts"], 3);
}

async fn tracked_job_is_not_harmed_by_them(store: Store) {
    let queue = Queue::own(&store.shared().await);
    queue.set(json!({"defaults": {"max_attempts": 5, "ttl_ms": 100, "priority": 3}})).await;
    let job = queue.job(json!({"tracked": true})).await;
    let batched = queue.jobs(1, json!({"tracked": true})).await.remove(0);
    tokio::time::sleep(Duration::from_millis(2_000)).await;
    for job in [job, batched] {
        let state = job.folded().await;
        assert_eq!((&state["state"], &state["max_attempts"]), (&json!("running"), &json!(1)));
        job.fail(json!({"code": "c", "message": "m"})).await;
        assert_eq!(job.state().await["state"], "failed", "it has one attempt");
    }
    let refused = queue.server.enqueue(&queue.spec(json!({"tracked": true, "ttl_ms": 5}))).await;
    refused.problem_at(422, "invalid_request", "/ttl_ms");
}

async fn repeated_request_is_the_same_request_under_other_defaults(store: Store) {
    let server = store.shared().await;
    let queue = Queue::own(&server);
    let key = unique("key");
    let request = server.post("/v1/jobs").header("Idempotency-Key", &key).json(&queue.spec(json!({})));
    let first = request.clone().send().await.expect(202);
    queue.set(json!({"defaults": {"max_attempts": 9}})).await;
    let again = request.send().await.expect(200);
    assert_eq!((&again["job"], &again["created"]), (&first["job"], &json!(false)));
}

async fn queue_named_default_has_defaults_too(store: Store) {
    let server = store.serve(&[]).await;
    let patch = server.request("PATCH", "/v1/queues/default").json(&json!({"defaults": {"max_attempts": 6}}));
    patch.send().await.expect(200);
    for spec in [json!({"kind": "k"}), json!({"kind": "k", "queue": null}), json!({"kind": "k", "queue": "default"})] {
        assert_eq!(server.job(spec).await.state().await["max_attempts"], 6);
    }
}

async fn result_of_defaults_and_own_fields_is_checked(store: Store) {
    let queue = Queue::own(&store.shared().await);
    queue.set(json!({"defaults": {"priority": 4}})).await;
    let refused = queue.server.enqueue(&queue.spec(json!({"priority": 101}))).await;
    refused.problem_at(422, "invalid_request", "/priority");
    assert_eq!(queue.ids("").await, [] as [String; 0]);
}
