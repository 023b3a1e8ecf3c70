//! What the gateway does by itself when a time has passed: each time an ordinary event, seen on open streams.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    silence_of_a_tracked_job_is_timed_out,
    heartbeat_keeps_a_tracked_job_alive,
    waiting_job_expires_by_its_ttl,
    ttl_counts_from_run_at,
    deadline_expires_what_never_started,
    deadline_fails_what_runs,
    times_pass_while_the_server_is_down,
    outage_of_the_gateway_is_no_runners_silence,
    ended_jobs_go_after_retention_and_live_ones_stay,
    scheduled_job_needs_no_event_to_become_due,
    job_that_nobody_watches_any_more_is_cancelled,
);

/// The event that the sweep wrote, as the stream saw it, which must also be the last of the log.
async fn swept(job: &Job, kind: &str) -> Value {
    let mut stream = job.resume(1).await;
    let event = loop {
        let frame = stream.told().await;
        if frame.kind() == kind {
            break frame.json();
        }
        assert!(frame.is_log(), "{frame:?} instead of {kind}");
    };
    let state = text(&event["type"]).to_owned();
    assert_eq!(stream.expect("end").await.json(), json!({"state": state}));
    assert_eq!(job.log().await.last(), Some(&event));
    let document = job.state().await;
    assert_eq!((&document["state"], &document["finished_at"]), (&event["type"], &event["at"]));
    event
}

async fn silence_of_a_tracked_job_is_timed_out(store: Store) {
    let job = store.shared().await.job(json!({"kind": "k", "tracked": true, "timeout_ms": 400})).await;
    job.note("then silence").await;
    let event = swept(&job, "failed").await;
    assert_eq!(event["data"]["code"], "timed_out");
    assert_eq!(job.state().await["error"]["code"], "timed_out");
    job.untouched(job.try_append(&json!({"type": "completed", "data": {}}))).await.problem(409, "job_terminal");
}

async fn heartbeat_keeps_a_tracked_job_alive(store: Store) {
    let job = store.shared().await.job(json!({"kind": "k", "tracked": true, "timeout_ms": 3_000})).await;
    for _ in 0..25 {
        job.append(json!([])).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(job.state().await["state"], "running");
    assert_eq!(swept(&job, "failed").await["data"]["code"], "timed_out");
}

async fn waiting_job_expires_by_its_ttl(store: Store) {
    let job = store.shared().await.job(json!({"kind": "k", "ttl_ms": 300})).await;
    assert_eq!(swept(&job, "expired").await["data"]["reason"], "ttl");
    let state = job.post("/retry").send().await.expect(202);
    assert_eq!(state["state"], "queued");
    job.ended().await;
    assert_eq!(job.types().await, ["queued", "expired", "requeued", "expired"], "the ttl counts anew");
}

async fn ttl_counts_from_run_at(store: Store) {
    let server = store.shared().await;
    let later = server.job(json!({"kind": "k", "ttl_ms": 100, "delay_ms": 600_000})).await;
    let soon = server.job(json!({"kind": "k", "ttl_ms": 100, "delay_ms": 300})).await;
    assert_eq!(swept(&soon, "expired").await["data"]["reason"], "ttl");
    assert_eq!(later.state().await["state"], "scheduled");
}

async fn deadline_expires_what_never_started(store: Store) {
    let server = store.shared().await;
    for spec in [json!({"kind": "k", "deadline_ms": 300}), json!({"kind": "k", "deadline_ms": 300, "delay_ms": 60_000})]
    {
        let job = server.job(spec).await;
        assert_eq!(swept(&job, "expired").await["data"]["reason"], "deadline");
    }
}

async fn deadline_fails_what_runs(store: Store) {
    let job = store.shared().await.job(json!({"kind": "k", "tracked": true, "deadline_ms": 600})).await;
    let beating = job.clone();
    let heart = tokio::spawn(async move {
        while beating.try_append(&json!([])).await.status() == 200 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    assert_eq!(swept(&job, "failed").await["data"]["code"], "deadline", "a heartbeat does not move the deadline");
    heart.await.expect("the heart stops");

    let asked = job.server.job(json!({"kind": "k", "tracked": true, "deadline_ms": 1_500})).await;
    asked.cancel(json!({"grace_ms": 60_000})).await.expect(202);
    let event = swept(&asked, "cancelled").await;
    assert_eq!(event["data"]["error"]["code"], "deadline", "once asked to stop, it ends as cancelled");
}

async fn times_pass_while_the_server_is_down(store: Store) {
    let server = store.serve(&[]).await;
    let waiting = server.job(json!({"kind": "k", "ttl_ms": 1})).await;
    let asked = server.tracked().await;
    asked.cancel(json!({"grace_ms": 100})).await.expect(202);
    server.kill9();
    server.restart().await;
    assert_eq!(waiting.ended().await.0["state"], "expired");
    assert_eq!(asked.ended().await.0["state"], "cancelled");
}

async fn outage_of_the_gateway_is_no_runners_silence(store: Store) {
    let server = store.serve(&[]).await;
    let job = server.job(json!({"kind": "k", "tracked": true, "timeout_ms": 4_000})).await;
    server.kill9();
    // Longer than the runner may be silent, and than the gateway may be away unnoticed.
    tokio::time::sleep(Duration::from_millis(5_500)).await;
    server.restart().await;
    // Two sweeps at least, before the runner comes back.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(job.state().await["state"], "running");
    job.note("still here").await;
    assert_eq!(swept(&job, "failed").await["data"]["code"], "timed_out", "its own silence still counts");
}

async fn ended_jobs_go_after_retention_and_live_ones_stay(store: Store) {
    let server = store.serve(&["--keep", "1s"]).await;
    let (live, ended, waiting) =
        (server.tracked().await, server.tracked().await, server.job(json!({"kind": "k"})).await);
    live.output("kept").await;
    ended.output("gone").await;
    ended.append(json!({"type": "completed", "data": {"data": 5}})).await;
    eventually(Duration::from_secs(90), "retention", async || {
        (ended.get("").send().await.status() == 404).then_some(())
    })
    .await;
    for route in ["/events", "/output", "/result"] {
        ended.get(route).send().await.problem(404, "job_not_found");
    }
    assert_eq!(live.state().await["state"], "running");
    assert_eq!(live.log().await.len(), 3);
    assert_eq!(waiting.state().await["state"], "queued");
}

async fn job_that_nobody_watches_any_more_is_cancelled(store: Store) {
    let server = store.shared().await;
    let spec = |tracked: bool| json!({"kind": "k", "tracked": tracked, "cancel_if_unwatched_ms": 500});
    let (running, waiting) = (server.job(spec(true)).await, server.job(spec(false)).await);
    let (never, watched) = (server.job(spec(true)).await, server.job(spec(true)).await);
    running.stream().await.expect("state").await;
    waiting.stream().await.expect("state").await;
    let mut eye = watched.stream().await;
    eye.expect("state").await;
    // Looking at the list is not watching: a plain GET of a job would count for ten seconds.
    eventually(PATIENCE, "the cancel", async || {
        let cancelled = server.list("state=cancelled&kind=k").await;
        cancelled.iter().any(|job| job["id"] == waiting.id).then_some(())
    })
    .await;
    assert_eq!(waiting.log().await[1]["data"]["reason"], "unwatched");
    eventually(PATIENCE, "the request to stop", async || {
        let live = server.list("active=true&kind=k").await;
        live.iter().any(|job| job["id"] == running.id && job["cancel_requested"] == true).then_some(())
    })
    .await;
    assert_eq!(running.log().await[2]["data"]["reason"], "unwatched");
    assert_eq!(watched.types().await, ["queued", "started"], "somebody watches");
    assert_eq!(never.types().await, ["queued", "started"], "nobody has begun to watch");
}

async fn scheduled_job_needs_no_event_to_become_due(store: Store) {
    let job = store.shared().await.job(json!({"kind": "k", "delay_ms": 200})).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(job.types().await, ["queued"]);
    assert_eq!(job.cancel(json!({})).await.expect(202)["state"], "cancelled");
}
