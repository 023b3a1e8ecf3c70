//! `POST /v1/jobs/batch`: one transaction, a result per item, a bad item fails alone.

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    results_come_in_order_and_a_bad_item_fails_alone,
    thousand_items_are_the_most,
    envelope_is_checked,
    items_of_one_batch_see_each_others_unique_key,
);

async fn send(server: &Server, body: &Value) -> Answer {
    server.post("/v1/jobs/batch").json(body).send().await
}

async fn results_come_in_order_and_a_bad_item_fails_alone(store: Store) {
    let server = store.shared().await;
    let queue = server.own_queue();
    let jobs = json!([
        {"kind": "a", "queue": queue}, {"kind": "b c", "queue": queue}, {"kind": "c", "queue": queue, "tracked": true},
        {"kind": "d", "queue": queue, "backoff": {"jitter": 9}}, 5, {"kind": "f", "queue": queue, "nope": 1},
        {"kind": "g", "queue": queue, "delay_ms": 60000},
    ]);
    let body = send(&server, &json!({"jobs": jobs})).await.expect(200);
    let results = body["results"].as_array().expect("results is a list");
    let pointers =
        [None, Some("/jobs/1/kind"), None, Some("/jobs/3/backoff/jitter"), Some("/jobs/4"), Some("/jobs/5/nope"), None];
    assert_eq!(results.len(), pointers.len());
    for (result, pointer) in results.iter().zip(pointers) {
        match pointer {
            Some(pointer) => {
                assert_eq!(result["status"], 422);
                assert_problem(&result["error"], 422, "invalid_request");
                assert_eq!(result["error"]["pointer"], pointer);
            }
            None => {
                let job = Job::new(&server, text(&result["job"]["id"]));
                assert_eq!((&result["status"], &result["created"]), (&json!(202), &json!(true)));
                assert_eq!(result["urls"]["job"], job.path(""));
                assert_eq!(result["job"], job.state().await);
            }
        }
    }
    let stored = server.list(&format!("queue={queue}")).await;
    let kinds: Vec<&str> = stored.iter().map(|job| text(&job["kind"])).collect();
    assert_eq!(kinds, ["g", "c", "a"], "newest first");
    assert_eq!(stored[1]["state"], "running");
}

async fn thousand_items_are_the_most(store: Store) {
    let server = store.shared().await;
    let queue = server.own_queue();
    let jobs = |count: usize| json!({"jobs": vec![json!({"kind": "k", "queue": queue}); count]});
    send(&server, &jobs(1001)).await.problem(422, "invalid_request");
    assert_eq!(server.list(&format!("queue={queue}")).await, [] as [Value; 0]);
    let body = send(&server, &jobs(1000)).await.expect(200);
    let results = body["results"].as_array().expect("results is a list");
    assert!(results.len() == 1000 && results.iter().all(|result| result["status"] == 202));
    let big = json!({"jobs": vec![json!({"kind": "k", "queue": queue, "payload": "x".repeat(10_000)}); 1000]});
    send(&server, &big).await.problem(413, "payload_too_large");
}

async fn envelope_is_checked(store: Store) {
    let server = store.shared().await;
    for (body, pointer) in
        [(json!({}), "/jobs"), (json!({"jobs": 5}), "/jobs"), (json!({"jobs": [], "nope": 1}), "/nope")]
    {
        send(&server, &body).await.problem_at(422, "invalid_request", pointer);
    }
    send(&server, &json!([])).await.problem(422, "invalid_request");
    server.post("/v1/jobs/batch").body("{").send().await.problem(400, "invalid_json");
}

async fn items_of_one_batch_see_each_others_unique_key(store: Store) {
    let server = store.shared().await;
    let spec = json!({"kind": "k", "unique_key": unique("key")});
    let body = send(&server, &json!({"jobs": [spec, spec]})).await.expect(200);
    let [first, second] = [&body["results"][0], &body["results"][1]];
    assert_eq!((&first["status"], &second["status"]), (&json!(202), &json!(200)));
    assert_eq!(first["job"]["id"], second["job"]["id"]);
    assert_eq!(second["created"], false);
}
