//! `PATCH /v1/queues/{q}`: what is said stays said, `null` takes it back, and a bad setting changes nothing.

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    settings_are_answered_and_kept,
    setting_left_out_stays_and_null_clears_it,
    defaults_are_replaced_whole,
    limit_of_rate_fills_in_what_is_left_out,
    bad_settings_point_at_their_fault_and_change_nothing,
    refused_settings_create_no_queue,
    settings_outlive_the_process,
    settings_of_one_queue_are_its_own,
    raised_limit_wakes_parked_claimers,
);

/// Every setting, each with a value unlike its default.
fn everything() -> Value {
    json!({
        "concurrency": 7,
        "concurrency_per_key": 2,
        "rate_limit": {"limit": 100, "per_ms": 60_000, "burst": 10, "per_key": true},
        "defaults": {
            "timeout_ms": 1_000, "ttl_ms": 2_000, "deadline_ms": 3_000, "max_attempts": 4, "priority": -5,
            "backoff": {"initial_ms": 10, "factor": 3.0, "max_ms": 500, "jitter": 0.0},
        },
    })
}

/// What of a queue can be set.
fn settings(queue: &Value) -> Value {
    let names = ["concurrency", "concurrency_per_key", "rate_limit", "defaults"];
    plain(&names.into_iter().map(|name| (name.to_owned(), queue[name].clone())).collect())
}

/// No setting at all.
fn nothing() -> Value {
    json!({"concurrency": null, "concurrency_per_key": null, "rate_limit": null, "defaults": {}})
}

async fn settings_are_answered_and_kept(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let answered = queue.set(everything()).await;
    assert_eq!(settings(&answered), plain(&everything()));
    assert_eq!(answered, queue.read().await);
    queue.set(json!({})).await;
    assert_eq!(settings(&queue.read().await), plain(&everything()), "an empty patch changes nothing");
}

async fn setting_left_out_stays_and_null_clears_it(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let mut expected = everything();
    queue.set(everything()).await;
    for (name, empty) in nothing().as_object().expect("an object") {
        let answered = queue.set(json!({ name: null })).await;
        expected[name] = empty.clone();
        assert_eq!(settings(&answered), plain(&expected), "after {name}: null");
        assert_eq!(settings(&queue.read().await), plain(&expected), "after {name}: null");
    }
    queue.set(json!({"concurrency": 3})).await;
    expected["concurrency"] = 3.into();
    assert_eq!(settings(&queue.read().await), plain(&expected));
}

async fn defaults_are_replaced_whole(store: Store) {
    let queue = Queue::own(&store.shared().await);
    queue.set(json!({"defaults": {"timeout_ms": 1_000, "max_attempts": 4}})).await;
    let answered = queue.set(json!({"defaults": {"priority": 9}})).await;
    assert_eq!(answered["defaults"], json!({"priority": 9}));
    queue.set(json!({"concurrency": 1})).await;
    assert_eq!(queue.read().await["defaults"], json!({"priority": 9}));
    assert_eq!(queue.set(json!({"defaults": {}})).await["defaults"], json!({}));
}

async fn limit_of_rate_fills_in_what_is_left_out(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let answered = queue.set(json!({"rate_limit": {"limit": 5, "per_ms": 1_000}})).await["rate_limit"].clone();
    assert_eq!((&answered["limit"], &answered["per_ms"]), (&json!(5), &json!(1_000)));
    assert_eq!(answered["per_key"], false);
    assert!(number(&answered["burst"]) >= 1, "{answered}");
    let answered = queue.set(json!({"rate_limit": {"limit": 6, "per_ms": 2_000, "per_key": true}})).await;
    assert_eq!(answered["rate_limit"]["per_key"], true);
}

async fn bad_settings_point_at_their_fault_and_change_nothing(store: Store) {
    let server = store.shared().await;
    let queue = Queue::own(&server);
    queue.set(everything()).await;
    let before = settings(&queue.read().await);
    let rate = |name: &str, value: Value| {
        let mut rate = json!({"limit": 1, "per_ms": 1_000, "burst": 1, "per_key": false});
        rate[name] = value;
        json!({ "rate_limit": rate })
    };
    let table = [
        (json!({"nope": 1}), "/nope"),
        (json!({"concurrency": 9, "nope": null}), "/nope"),
        (json!({"name": "other"}), "/name"),
        (json!({"counts": {"queued": 0}}), "/counts"),
        (json!({"oldest_queued_at": null}), "/oldest_queued_at"),
        (json!({"concurrency": -1}), "/concurrency"),
        (json!({"concurrency": 1.5}), "/concurrency"),
        (json!({"concurrency": "5"}), "/concurrency"),
        (json!({"concurrency": 1e300}), "/concurrency"),
        (json!({"concurrency": true}), "/concurrency"),
        (json!({"concurrency": 9, "concurrency_per_key": -1}), "/concurrency_per_key"),
        (json!({"concurrency_per_key": [1]}), "/concurrency_per_key"),
        (json!({"rate_limit": 5}), "/rate_limit"),
        (json!({"rate_limit": {"per_ms": 1_000}}), "/rate_limit/limit"),
        (json!({"rate_limit": {"limit": 1}}), "/rate_limit/per_ms"),
        (rate("limit", json!(0)), "/rate_limit/limit"),
        (rate("limit", json!(-1)), "/rate_limit/limit"),
        (rate("limit", json!("1")), "/rate_limit/limit"),
        (rate("per_ms", json!(0)), "/rate_limit/per_ms"),
        (rate("per_ms", json!(1e300)), "/rate_limit/per_ms"),
        (rate("burst", json!(0)), "/rate_limit/burst"),
        (rate("burst", json!(1.5)), "/rate_limit/burst"),
        (rate("per_key", json!("yes")), "/rate_limit/per_key"),
        (rate("nope", json!(1)), "/rate_limit/nope"),
        (json!({"defaults": 5}), "/defaults"),
        (json!({"defaults": []}), "/defaults"),
        (json!({"defaults": {"nope": 1}}), "/defaults/nope"),
        (json!({"defaults": {"kind": "k"}}), "/defaults/kind"),
        (json!({"defaults": {"queue": "q"}}), "/defaults/queue"),
        (json!({"defaults": {"delay_ms": 1}}), "/defaults/delay_ms"),
        (json!({"defaults": {"tracked": true}}), "/defaults/tracked"),
        (json!({"defaults": {"timeout_ms": 0}}), "/defaults/timeout_ms"),
        (json!({"defaults": {"timeout_ms": -1}}), "/defaults/timeout_ms"),
        (json!({"defaults": {"ttl_ms": "1"}}), "/defaults/ttl_ms"),
        (json!({"defaults": {"deadline_ms": 1.5}}), "/defaults/deadline_ms"),
        (json!({"defaults": {"max_attempts": 0}}), "/defaults/max_attempts"),
        (json!({"defaults": {"priority": 101}}), "/defaults/priority"),
        (json!({"defaults": {"backoff": 5}}), "/defaults/backoff"),
        (json!({"defaults": {"backoff": {"jitter": 9}}}), "/defaults/backoff/jitter"),
        (json!({"defaults": {"backoff": {"nope": 9}}}), "/defaults/backoff/nope"),
    ];
    for (body, pointer) in table {
        queue.patch(&body).await.problem_at(422, "invalid_request", pointer);
        assert_eq!(settings(&queue.read().await), before, "{body}");
    }
    let patch = || server.request("PATCH", &queue.path(""));
    queue.patch(&json!([])).await.problem(422, "invalid_request");
    queue.patch(&json!(null)).await.problem(422, "invalid_request");
    patch().header("Content-Type", "application/json").body("{").send().await.problem(400, "invalid_json");
    patch().header("Content-Type", "text/plain").body("{}").send().await.problem(415, "unsupported_media_type");
    server.request("PATCH", &queue.path("?nope=1")).json(&json!({})).send().await.problem(422, "invalid_request");
    assert_eq!(settings(&queue.read().await), before);
}

async fn refused_settings_create_no_queue(store: Store) {
    let server = store.shared().await;
    let queue = Queue::own(&server);
    queue.patch(&json!({"concurrency": -1})).await.problem(422, "invalid_request");
    queue.post("/pause", json!({"reason": 5})).await.problem(422, "invalid_request");
    queue.get().send().await.problem(404, "not_found");
    for name in ["a%20b", "%00", &"x".repeat(65)] {
        let patch = server.request("PATCH", &format!("/v1/queues/{name}")).json(&json!({}));
        let answer = patch.send().await;
        assert!([404, 422].contains(&answer.status()), "{name}: {}", answer.text());
    }
}

async fn settings_outlive_the_process(store: Store) {
    let server = store.serve(&[]).await;
    let queue = Queue::own(&server);
    queue.set(everything()).await;
    queue.post("/pause", json!({"reason": "r"})).await.expect(200);
    let before = queue.read().await;
    server.kill9();
    server.restart().await;
    assert_eq!(queue.read().await, before);
}

async fn settings_of_one_queue_are_its_own(store: Store) {
    let server = store.shared().await;
    let (one, other) = (Queue::own(&server), Queue::own(&server));
    one.set(everything()).await;
    other.set(json!({})).await;
    assert_eq!(settings(&other.read().await), nothing());
    assert_eq!(other.job(json!({})).await.state().await["max_attempts"], 3);
}

async fn raised_limit_wakes_parked_claimers(store: Store) {
    let queue = Queue::own(&store.shared().await);
    queue.set(json!({"concurrency": 1})).await;
    queue.running(json!({})).await;
    let waiting = queue.job(json!({})).await;
    let parked = queue.worker().park().await;
    queue.set(json!({"concurrency": null})).await;
    let given = within(std::time::Duration::from_secs(2), "the claim", parked).await.expect("answered");
    assert_eq!(given.first().map(|job| &job.id), Some(&waiting.id));
}
