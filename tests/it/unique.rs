//! `unique_key`: at most one job that has not ended per queue and key.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    second_enqueue_answers_with_the_live_job,
    fifty_enqueues_make_one_live_job,
    key_is_free_again_after_the_end,
    replace_ends_the_live_job_in_the_same_step,
    replace_ends_a_running_job_too,
    many_replaces_leave_one_live_job,
    retry_names_the_live_job_that_is_in_its_way,
);

fn spec(key: &str, more: Value) -> Value {
    let mut spec = json!({"kind": "k", "unique_key": key});
    spec.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    spec
}

fn replacing(key: &str) -> Value {
    spec(key, json!({"unique_on_conflict": "replace"}))
}

async fn second_enqueue_answers_with_the_live_job(store: Store) {
    let server = store.shared().await;
    let key = unique("key");
    for more in [json!({}), json!({"queue": "other", "tracked": true})] {
        let job = server.job(spec(&key, more.clone())).await;
        let answer = server.enqueue(&spec(&key, more)).await;
        let again = answer.expect(200);
        assert_eq!((&again["job"], &again["created"]), (&job.state().await, &json!(false)));
        assert_eq!(answer.header("location"), Some(&*job.path("")));
        assert_eq!(text(&again["urls"]["job"]), job.path(""));
    }
}

async fn fifty_enqueues_make_one_live_job(store: Store) {
    let server = store.shared().await;
    let spec = spec(&unique("key"), json!({"queue": server.own_queue()}));
    let callers: Vec<_> = (0..50)
        .map(|_| {
            let (server, spec) = (server.clone(), spec.clone());
            tokio::spawn(async move { server.enqueue(&spec).await })
        })
        .collect();
    let mut ids = HashSet::new();
    let mut created = 0;
    for caller in callers {
        let answer = caller.await.expect("answered");
        created += usize::from(answer.status() == 202);
        ids.insert(answer.expect(if answer.status() == 202 { 202 } else { 200 })["job"]["id"].clone());
    }
    assert_eq!((ids.len(), created), (1, 1));
}

async fn key_is_free_again_after_the_end(store: Store) {
    let server = store.shared().await;
    let key = unique("key");
    let waiting = server.job(spec(&key, json!({}))).await;
    waiting.cancel(json!({})).await.expect(202);
    let running = server.job(spec(&key, json!({"tracked": true}))).await;
    running.complete().await;
    let third = server.job(spec(&key, json!({}))).await;
    assert_ne!(third.id, running.id);
}

async fn replace_ends_the_live_job_in_the_same_step(store: Store) {
    let server = store.shared().await;
    let key = unique("key");
    let first = server.enqueue(&replacing(&key)).await.expect(202);
    assert_eq!((first.get("replaced"), &first["created"]), (None, &json!(true)));
    let old = Job::new(&server, text(&first["job"]["id"]));
    let second = server.enqueue(&replacing(&key)).await.expect(202);
    assert_eq!((&second["replaced"], &second["created"]), (&json!(old.id), &json!(true)));
    assert_ne!(second["job"]["id"], old.id);
    let log = old.log().await;
    let (kind, data) = pairs(&log)[1];
    assert_eq!((kind, data), ("cancelled", &json!({"reason": "replaced", "replaced_by": second["job"]["id"]})));
    assert_eq!(old.state().await["state"], "cancelled");
}

async fn replace_ends_a_running_job_too(store: Store) {
    let server = store.shared().await;
    let key = unique("key");
    let old = server.job(spec(&key, json!({"tracked": true}))).await;
    let mut stream = old.resume(2).await;
    let parked = tokio::spawn(old.get("?wait=20&after=2").send());
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    server.enqueue(&replacing(&key)).await.expect(202);
    assert_eq!(stream.expect("cancelled").await.json()["data"]["reason"], "replaced");
    assert_eq!(stream.expect("end").await.json(), json!({"state": "cancelled"}));
    assert_eq!(parked.await.expect("answered").expect(200)["state"], "cancelled");
    old.untouched(async {
        old.try_append(&json!({"type": "completed", "data": {}})).await.problem(409, "job_terminal");
    })
    .await;
}

async fn many_replaces_leave_one_live_job(store: Store) {
    let server = store.shared().await;
    let (key, queue) = (unique("key"), server.own_queue());
    let spec = spec(&key, json!({"unique_on_conflict": "replace", "queue": queue}));
    let callers: Vec<_> = (0..30)
        .map(|_| {
            let (server, spec) = (server.clone(), spec.clone());
            tokio::spawn(async move { server.enqueue(&spec).await.expect(202) })
        })
        .collect();
    let mut replaced = HashSet::new();
    for caller in callers {
        if let Some(id) = caller.await.expect("answered").get("replaced") {
            assert!(replaced.insert(id.clone()), "{id} was replaced twice");
        }
    }
    assert_eq!(replaced.len(), 29);
    assert_eq!(server.list(&format!("queue={queue}&active=true")).await.len(), 1);
    for ended in server.list(&format!("queue={queue}&state=cancelled")).await {
        assert_eq!(Job::new(&server, text(&ended["id"])).types().await, ["queued", "cancelled"]);
    }
}

async fn retry_names_the_live_job_that_is_in_its_way(store: Store) {
    let server = store.shared().await;
    let key = unique("key");
    let old = server.job(spec(&key, json!({}))).await;
    old.untouched(old.post("/retry").send()).await.problem(409, "not_retryable");
    old.cancel(json!({})).await.expect(202);
    let live = server.job(spec(&key, json!({}))).await;
    let refusal = old.untouched(old.post("/retry").send()).await.problem(409, "unique_conflict");
    assert_eq!(refusal["job"], live.id);
    live.cancel(json!({})).await.expect(202);
    let state = old.post("/retry").send().await.expect(202);
    assert_eq!((&state["state"], &state["seq"], &state["attempt"]), (&json!("queued"), &json!(3), &json!(0)));
    assert_eq!((&state["finished_at"], &state["id"]), (&Value::Null, &json!(old.id)));
    assert_eq!(old.types().await, ["queued", "cancelled", "requeued"]);
    assert_eq!(server.enqueue(&spec(&key, json!({}))).await.expect(200)["job"]["id"], old.id);
}
