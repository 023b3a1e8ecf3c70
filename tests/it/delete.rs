//! DELETE: only what has ended, and then nothing of it can be read.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    live_job_is_not_deleted,
    deleted_job_is_gone_from_every_route,
    reader_of_a_deleted_job_is_told,
    key_of_a_deleted_job_does_not_bring_it_back,
);

async fn live_job_is_not_deleted(store: Store) {
    let server = store.shared().await;
    for spec in [json!({"kind": "k"}), json!({"kind": "k", "tracked": true}), json!({"kind": "k", "delay_ms": 60_000})]
    {
        let job = server.job(spec).await;
        job.untouched(job.delete()).await.problem(409, "not_finished");
    }
}

async fn deleted_job_is_gone_from_every_route(store: Store) {
    let server = store.shared().await;
    let queue = server.own_queue();
    let job = server.job(json!({"kind": "k", "queue": queue, "tracked": true})).await;
    job.output("text").await;
    job.append(json!({"type": "completed", "data": {"data": 5}})).await;
    job.delete().await.expect_empty(204);
    for route in ["", "/events", "/output", "/result", "?wait=20"] {
        job.get(route).send().await.problem(404, "job_not_found");
    }
    let stream = job.get("/events").header("Accept", "text/event-stream").header("Last-Event-ID", "4");
    stream.send().await.problem(404, "job_not_found");
    job.delete().await.problem(404, "job_not_found");
    job.cancel(json!({})).await.problem(404, "job_not_found");
    job.post("/retry").send().await.problem(404, "job_not_found");
    job.try_append(&json!({"type": "completed", "data": {"data": 5}})).await.problem(404, "job_not_found");
    assert_eq!(server.list(&format!("queue={queue}")).await, [] as [Value; 0]);
}

async fn reader_of_a_deleted_job_is_told(store: Store) {
    let server = store.shared().await;
    let job = server.tracked().await;
    let narrow = Connection::narrow(server.address()).await.expect("the server accepts");
    let mut reader = job.get("/events").header("Last-Event-ID", "2").stream_over(narrow).await;
    reader.frame().await;
    let bulk = vec![json!({"type": "log", "data": {"message": "x".repeat(10_000)}}); 100];
    for _ in 0..8 {
        job.append(Value::from(&bulk[..])).await;
    }
    // The reader does not read: most of the 8 MB cannot have been sent when the job goes.
    job.complete().await;
    job.delete().await.expect_empty(204);
    let frames = within(Duration::from_secs(60), "the rest", reader.rest()).await;
    let end = frames.last().expect("a stream says why it ends");
    assert_eq!((end.kind().as_str(), end.json()), ("end", json!({"state": "deleted"})));
    let seqs: Vec<u64> = frames.iter().filter(|frame| frame.is_log()).map(Frame::seq).collect();
    assert!(seqs.iter().enumerate().all(|(n, seq)| *seq == n as u64 + 3), "a hole before the end");
}

async fn key_of_a_deleted_job_does_not_bring_it_back(store: Store) {
    let server = store.shared().await;
    let key = unique("key");
    let spec = json!({"kind": "k", "tracked": true, "unique_key": key});
    let job = server.job(spec.clone()).await;
    job.complete().await;
    job.delete().await.expect_empty(204);
    assert_ne!(server.job(spec).await.id, job.id);
}
