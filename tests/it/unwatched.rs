//! `cancel_if_unwatched_ms` of a job that a worker runs: nobody but readers keeps it going.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    last_watcher_gone_asks_the_worker_to_stop,
    runner_does_not_watch_its_own_job,
    open_stream_keeps_it_going,
    polls_keep_it_going,
    plain_get_counts_for_ten_seconds,
    job_that_nobody_ever_watched_goes_on,
    worker_that_does_not_listen_is_ended_by_force,
    waiting_job_that_nobody_watches_is_not_handed_out,
);

/// Longer than the sweep takes to find that nobody watches.
const LONG: Duration = Duration::from_millis(4_000);

fn spec() -> Value {
    json!({"cancel_if_unwatched_ms": 500})
}

async fn watch_and_leave(job: &Job) {
    job.stream().await.expect("state").await;
}

/// Whether the runner is asked to stop, learned as the runner learns it: by no request that watches.
async fn asked(job: &Job) -> bool {
    job.try_append(&json!([])).await.expect(200)["cancel_requested"] == true
}

async fn until_asked(job: &Job, limit: Duration) {
    eventually(limit, "the request to stop", async || asked(job).await.then_some(())).await;
}

async fn last_watcher_gone_asks_the_worker_to_stop(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let worker = queue.worker();
    let mut signals = worker.signals().await;
    signals.expect("state").await;
    let job = queue.running_at(&worker, spec()).await;
    let (mut one, mut other) = (job.stream().await, job.stream().await);
    one.expect("state").await;
    other.expect("state").await;
    drop(one);
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert!(!asked(&job).await, "somebody is still there");
    let held = tokio::spawn(job.hold(20_000).send());
    drop(other);
    let told = within(LONG, "the signal", signals.expect("cancel")).await.json();
    let expected = json!({"job": job.id, "run": job.run(), "reason": "unwatched", "grace_ms": 10_000});
    assert_eq!(told, expected);
    let answer = within(LONG, "the answer", held).await.expect("answered").expect(200);
    assert_eq!(answer["cancel_requested"], true);
    let requested = job.log().await.pop().expect("a log");
    assert_eq!(requested["type"], "cancel_requested");
    assert_eq!((&requested["data"]["reason"], &requested["data"]["grace_ms"]), (&json!("unwatched"), &json!(10_000)));
    job.append(json!({"type": "cancelled"})).await;
    assert_eq!(job.folded().await["state"], "cancelled");
}

async fn runner_does_not_watch_its_own_job(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let worker = queue.worker();
    let mut signals = worker.signals().await;
    signals.expect("state").await;
    let job = queue.running_at(&worker, spec()).await;
    watch_and_leave(&job).await;
    let busy = job.clone();
    let running = tokio::spawn(async move {
        for n in 0.. {
            let events = json!([{"type": "output", "data": {"text": "x"}}, {"type": "log", "data": {"message": "m"}}]);
            let answer = match n % 3 {
                0 => busy.try_append(&events).await,
                1 => busy.hold(100).send().await,
                _ => busy.post("/events").ndjson("\n{\"type\":\"own\"}\n").send().await,
            };
            if answer.expect(200)["cancel_requested"] == true {
                return;
            }
        }
    });
    within(LONG, "the request to stop", running).await.expect("the runner ends");
    assert_eq!(signals.expect("cancel").await.json()["reason"], "unwatched");
}

async fn open_stream_keeps_it_going(store: Store) {
    let job = Queue::own(&store.shared().await).running(spec()).await;
    watch_and_leave(&job).await;
    let mut stream = job.stream().await;
    stream.expect("state").await;
    tokio::time::sleep(LONG).await;
    assert!(!asked(&job).await);
    drop(stream);
    until_asked(&job, LONG).await;
}

async fn polls_keep_it_going(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let (state, log) = (queue.running(spec()).await, queue.running(spec()).await);
    let seq = number(&state.state().await["seq"]);
    for _ in 0..3 {
        let (one, other) = tokio::join!(
            state.get(&format!("?wait=4&after={seq}")).send(),
            log.get(&format!("/events?wait=4&after={seq}")).send(),
        );
        one.expect(200);
        other.expect(200);
        assert!(!asked(&state).await && !asked(&log).await, "a parked poll watches");
    }
}

async fn plain_get_counts_for_ten_seconds(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let (state, log) = (queue.running(spec()).await, queue.running(spec()).await);
    state.get("").send().await.expect(200);
    log.get("/events").send().await.expect(200);
    tokio::time::sleep(Duration::from_millis(8_500)).await;
    for job in [&state, &log] {
        assert!(!asked(job).await, "a plain GET counts for ten seconds");
    }
    for job in [&state, &log] {
        until_asked(job, Duration::from_secs(7)).await;
        assert_eq!(job.log().await.last().expect("a log")["data"]["reason"], "unwatched");
    }
}

async fn job_that_nobody_ever_watched_goes_on(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let worker = queue.worker();
    let job = queue.running_at(&worker, spec()).await;
    job.hold(3_000).send().await.expect(200);
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    queue.ids("state=running").await;
    queue.read().await;
    assert!(!asked(&job).await, "lists, queues and its own runner are no watchers");
    job.complete().await;
    assert_eq!(job.types().await, ["queued", "started", "completed"]);
}

async fn worker_that_does_not_listen_is_ended_by_force(store: Store) {
    let job = Queue::own(&store.shared().await).running(spec()).await;
    watch_and_leave(&job).await;
    until_asked(&job, LONG).await;
    let shortened = job.cancel(json!({"grace_ms": 200})).await.expect(202);
    assert_eq!(shortened["state"], "running");
    let (state, _) = job.ended().await;
    assert_eq!(state["state"], "cancelled");
    assert_eq!(job.log().await.last().expect("a log")["data"]["reason"], "unwatched");
    assert_eq!(job.try_append(&json!({"type": "completed"})).await.status(), 409);
}

async fn waiting_job_that_nobody_watches_is_not_handed_out(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let job = queue.job(spec()).await;
    watch_and_leave(&job).await;
    eventually(PATIENCE, "the cancel", async || (!queue.ids("state=cancelled").await.is_empty()).then_some(())).await;
    queue.worker().finds_nothing().await;
    assert_eq!(job.types().await, ["queued", "cancelled"]);
    assert_eq!(job.log().await[1]["data"]["reason"], "unwatched");
}
