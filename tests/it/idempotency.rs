//! `Idempotency-Key`: one job, one event, however often and from however many callers the request comes.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    fifty_callers_make_one_job,
    same_value_in_another_spelling_is_the_same_request,
    other_body_is_a_mismatch,
    key_is_one_line_of_visible_ascii,
    key_of_a_batch_covers_the_whole_request,
    append_is_stored_once_and_answered_again,
    key_of_an_append_belongs_to_its_job,
    key_of_an_append_belongs_to_its_run,
    lines_take_no_key,
    key_outlives_the_process,
);

fn enqueue(server: &Server, key: impl AsRef<[u8]>, spec: &Value) -> Request {
    server.post("/v1/jobs").header("Idempotency-Key", key).json(spec)
}

async fn fifty_callers_make_one_job(store: Store) {
    let server = store.shared().await;
    let (queue, key) = (server.own_queue(), unique("key"));
    let spec = json!({"kind": "k", "queue": queue});
    let callers: Vec<_> = (0..50).map(|_| tokio::spawn(enqueue(&server, &key, &spec).send())).collect();
    let (mut ids, mut created) = (HashSet::new(), 0);
    for caller in callers {
        let answer = caller.await.expect("answered");
        match answer.status() {
            409 => drop(answer.problem(409, "idempotency_in_flight")),
            status => {
                let body = answer.expect(if status == 202 { 202 } else { 200 });
                assert_eq!(body["created"], status == 202);
                created += usize::from(status == 202);
                ids.insert(text(&body["job"]["id"]).to_owned());
            }
        }
    }
    assert_eq!((ids.len(), created), (1, 1));
    assert_eq!(server.list(&format!("queue={queue}")).await.len(), 1);
    let again = enqueue(&server, &key, &spec).send().await.expect(200);
    assert_eq!(Job::new(&server, text(&again["job"]["id"])).types().await, ["queued"]);
}

async fn same_value_in_another_spelling_is_the_same_request(store: Store) {
    let server = store.shared().await;
    let key = unique("key");
    let bodies = [
        r#"{"kind":"k","payload":{"a":1,"b":["ü"]},"meta":{"x":{"y":1,"z":2}}}"#,
        "{ \"meta\": {\"x\":{\"z\":2,\"y\":1}},\n\t\"payload\":{\"b\":[\"\\u00fc\"],\"a\":1}, \"kind\":\"k\" }",
    ];
    let mut ids = HashSet::new();
    for (body, status) in bodies.iter().zip([202, 200]) {
        let answer = server.post("/v1/jobs").header("Idempotency-Key", &key).body(*body).send().await;
        ids.insert(text(&answer.expect(status)["job"]["id"]).to_owned());
    }
    assert_eq!(ids.len(), 1);
}

async fn other_body_is_a_mismatch(store: Store) {
    let server = store.shared().await;
    let (queue, key) = (server.own_queue(), unique("key"));
    enqueue(&server, &key, &json!({"kind": "k", "queue": queue})).send().await.expect(202);
    for spec in [json!({"kind": "k2", "queue": queue}), json!({"kind": "k", "queue": queue, "priority": 1})] {
        enqueue(&server, &key, &spec).send().await.problem(422, "idempotency_mismatch");
    }
    assert_eq!(server.list(&format!("queue={queue}")).await.len(), 1);
    let other_key = unique("key");
    enqueue(&server, other_key, &json!({"kind": "k", "queue": queue})).send().await.expect(202);
}

async fn key_is_one_line_of_visible_ascii(store: Store) {
    let server = store.shared().await;
    let queue = server.own_queue();
    let spec = json!({"kind": "k", "queue": queue});
    let bad: [&[u8]; 6] = [b"", &[b'x'; 256], &[b'x'; 10_000], "schlüssel".as_bytes(), b"\xff", b"two words"];
    for key in bad {
        enqueue(&server, key, &spec).send().await.problem(422, "invalid_request");
    }
    let twice = enqueue(&server, "a", &spec).header("Idempotency-Key", "a");
    twice.send().await.problem(422, "invalid_request");
    assert_eq!(server.list(&format!("queue={queue}")).await, [] as [Value; 0]);
    let longest = format!("{:x<255}", unique("k"));
    for (key, status) in [(&*longest, 202), (&*longest, 200), (&*format!("!~\"{queue}"), 202)] {
        enqueue(&server, key, &spec).send().await.expect(status);
    }
}

async fn key_of_a_batch_covers_the_whole_request(store: Store) {
    let server = store.shared().await;
    let (queue, key) = (server.own_queue(), unique("key"));
    let batch = json!({"jobs": [{"kind": "a", "queue": queue}, {"kind": "b", "queue": queue}]});
    let send = |body: &Value| server.post("/v1/jobs/batch").header("Idempotency-Key", &key).json(body).send();
    let ids = |body: &Value| {
        let results = body["results"].as_array().expect("results").clone();
        results.iter().map(|result| result["job"]["id"].clone()).collect::<Vec<_>>()
    };
    let first = send(&batch).await.expect(200);
    let again = send(&batch).await.expect(200);
    assert_eq!(ids(&first), ids(&again));
    assert_eq!(server.list(&format!("queue={queue}")).await.len(), 2);
    send(&json!({"jobs": [{"kind": "a", "queue": queue}]})).await.problem(422, "idempotency_mismatch");
    enqueue(&server, &key, &json!({"kind": "a", "queue": queue})).send().await.expect(202);
}

async fn append_is_stored_once_and_answered_again(store: Store) {
    let job = store.shared().await.tracked().await;
    let event = json!([{"type": "log", "data": {"message": "once"}}, {"type": "output", "data": {"text": "t"}}]);
    let send = |body: &Value| job.post("/events").header("Idempotency-Key", "k1").json(body).send();
    let first = send(&event).await.expect(200);
    job.untouched(async {
        let again = send(&event).await.expect(200);
        assert_eq!(again["seq"], first["seq"]);
        send(&json!([])).await.problem(422, "idempotency_mismatch");
    })
    .await;
    let callers: Vec<_> = (0..20)
        .map(|_| {
            let request = job.post("/events").header("Idempotency-Key", "k2").json(&event);
            tokio::spawn(request.send())
        })
        .collect();
    for caller in callers {
        let answer = caller.await.expect("answered");
        assert!([200, 409].contains(&answer.status()), "{}", answer.text());
    }
    assert_eq!(job.log().await.len(), 6);
    job.complete().await;
    job.untouched(async {
        assert_eq!(send(&event).await.expect(200)["seq"], first["seq"], "even after the end");
    })
    .await;
}

async fn key_of_an_append_belongs_to_its_job(store: Store) {
    let server = store.shared().await;
    for _ in 0..2 {
        let job = server.tracked().await;
        let event = json!({"type": "log", "data": {"message": "m"}});
        let answer = job.post("/events").header("Idempotency-Key", "same").json(&event).send().await;
        assert_eq!(answer.expect(200)["seq"], 3);
    }
}

async fn lines_take_no_key(store: Store) {
    let job = store.shared().await.tracked().await;
    let lines = "{\"type\":\"log\",\"data\":{\"message\":\"m\"}}\n";
    let request = job.post("/events").header("Idempotency-Key", "k").ndjson(lines);
    job.untouched(request.send()).await.problem(422, "invalid_request");
}

async fn key_outlives_the_process(store: Store) {
    let server = store.serve(&[]).await;
    let spec = json!({"kind": "k"});
    let first = enqueue(&server, "key", &spec).send().await.expect(202);
    server.kill9();
    server.restart().await;
    let again = enqueue(&server, "key", &spec).send().await.expect(200);
    assert_eq!(again["job"]["id"], first["job"]["id"]);
}

/// A worker that names its requests alike in every run must not have the second run's taken for the first's.
async fn key_of_an_append_belongs_to_its_run(store: Store) {
    let lane = Lane::shared(store).await;
    let job = lane.job(json!({"max_attempts": 2, "backoff": {"initial_ms": 0}})).await;
    let failed = json!({"type": "failed", "data": {"message": "m"}});
    let mut ends = Vec::new();
    for run in 1..=2 {
        let lease = lane.take(json!({"wait_ms": 10_000})).await;
        let end = lease.post().header("Idempotency-Key", "end").json(&failed);
        let answer = end.clone().send().await.expect(200);
        assert_eq!(answer["lease"], Value::Null, "the end of run {run}");
        ends.push((end, answer));
    }
    assert_eq!(job.types().await, ["queued", "started", "retrying", "started", "failed"]);
    for (end, answer) in ends {
        assert_eq!(end.send().await.expect(200), answer, "each is answered again as it was");
    }
}
