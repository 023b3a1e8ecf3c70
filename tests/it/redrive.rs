//! `POST /v1/queues/{q}/redrive`: dead letters go back in bulk, oldest first, without breaking what holds for one.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    redrive_puts_failed_jobs_back_and_nothing_else,
    error_code_and_limit_choose_oldest_first,
    dry_run_counts_and_changes_nothing,
    history_is_kept_and_attempts_are_counted_anew,
    tracked_jobs_are_passed_over,
    key_that_a_live_job_holds_is_passed_over,
    one_of_several_with_the_same_key_comes_back,
    redrive_wakes_parked_claimers,
    hundreds_come_back_in_one_call,
    two_redrives_at_once_put_each_job_back_once,
    redrive_of_an_unknown_queue_is_404,
    body_is_checked,
);

/// A job that ended as failed, with this code.
async fn dead(queue: &Queue, code: &str, spec: Value) -> Job {
    let job = queue.running(spec).await;
    job.fail(json!({"code": code, "message": "m", "retryable": false})).await;
    job
}

/// Jobs that ended as failed, oldest first.
async fn many_dead(queue: &Queue, count: usize) -> Vec<Job> {
    let worker = queue.worker();
    let mut dead = Vec::new();
    for _ in 0..count.div_ceil(100) {
        queue.jobs((count - dead.len()).min(100), json!({})).await;
        for job in worker.take_up_to(100).await {
            job.fail(json!({"code": "boom", "message": "m", "retryable": false})).await;
            dead.push(job);
        }
    }
    assert_eq!(queue.read().await["counts"]["failed"], count);
    dead
}

async fn redrive_puts_failed_jobs_back_and_nothing_else(store: Store) {
    let server = store.shared().await;
    let (queue, other) = (Queue::own(&server), Queue::own(&server));
    let failed = dead(&queue, "boom", json!({})).await;
    let completed = queue.running(json!({})).await;
    completed.complete().await;
    let retrying = queue.running(json!({})).await;
    retrying.fail(json!({"code": "boom", "message": "m", "retry_after_ms": 3_600_000})).await;
    let expired = queue.job(json!({"ttl_ms": 1})).await;
    assert_eq!(expired.ended().await.0["state"], "expired");
    let cancelled = queue.job(json!({})).await;
    cancelled.cancel(json!({})).await.expect(202);
    let elsewhere = dead(&other, "boom", json!({})).await;
    let untouched = [&completed, &retrying, &expired, &cancelled, &elsewhere];
    let mut before = Vec::new();
    for job in untouched {
        before.push(job.log().await);
    }
    assert_eq!(queue.count("/redrive", json!({})).await, 1);
    assert_eq!(failed.folded().await["state"], "queued");
    let mut after = Vec::new();
    for job in untouched {
        after.push(job.log().await);
    }
    assert_eq!(after, before);
    assert_eq!(queue.count("/redrive", json!({})).await, 0);
}

async fn error_code_and_limit_choose_oldest_first(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let mut boom = Vec::new();
    let mut other = Vec::new();
    for _ in 0..4 {
        boom.push(dead(&queue, "boom", json!({})).await);
        other.push(dead(&queue, "other", json!({})).await);
    }
    let states = async |jobs: &[Job]| {
        let mut states = Vec::new();
        for job in jobs {
            states.push(text(&job.state().await["state"]).to_owned());
        }
        states
    };
    assert_eq!(queue.count("/redrive", json!({"error_code": "none"})).await, 0);
    assert_eq!(queue.count("/redrive", json!({"error_code": "boom", "limit": 3})).await, 3);
    assert_eq!(states(&boom).await, ["queued", "queued", "queued", "failed"]);
    assert_eq!(states(&other).await, ["failed"; 4]);
    assert_eq!(queue.count("/redrive", json!({"limit": 1})).await, 1);
    assert_eq!(states(&other).await, ["queued", "failed", "failed", "failed"], "the oldest of all that are left");
    assert_eq!(queue.count("/redrive", json!({"limit": 1000})).await, 4);
}

async fn dry_run_counts_and_changes_nothing(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let jobs = [dead(&queue, "boom", json!({})).await, dead(&queue, "other", json!({})).await];
    let tracked = queue.job(json!({"tracked": true})).await;
    tracked.fail(json!({"code": "boom", "message": "m"})).await;
    let mut before = Vec::new();
    for job in &jobs {
        before.push((job.state().await, job.log().await));
    }
    for (body, count) in [
        (json!({"dry_run": true}), 2),
        (json!({"dry_run": true, "limit": 1}), 1),
        (json!({"dry_run": true, "error_code": "boom"}), 1),
        (json!({"dry_run": true, "error_code": "none"}), 0),
    ] {
        assert_eq!(queue.count("/redrive", body).await, count);
    }
    let mut after = Vec::new();
    for job in &jobs {
        after.push((job.state().await, job.log().await));
    }
    assert_eq!(after, before);
    queue.worker().finds_nothing().await;
    assert_eq!(queue.count("/redrive", json!({"dry_run": false})).await, 2, "a dry run promises what a run does");
}

async fn history_is_kept_and_attempts_are_counted_anew(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let worker = queue.worker();
    let job = queue.job(json!({"max_attempts": 2, "backoff": {"initial_ms": 1, "jitter": 0}})).await;
    for _ in 0..2 {
        worker.next().await.fail(json!({"code": "boom", "message": "m"})).await;
    }
    let before = job.log().await;
    assert_eq!(queue.count("/redrive", json!({})).await, 1);
    let log = job.log().await;
    let (requeued, history) = log.split_last().expect("the log goes on");
    assert_eq!(history, before);
    assert_eq!((&requeued["type"], &requeued["attempt"]), (&json!("requeued"), &json!(0)));
    assert!(!text(&requeued["data"]["by"]).is_empty(), "{requeued}");
    assert_eq!(job.folded().await["state"], "queued");
    let mut run = worker.take().await;
    for attempt in 1..=2 {
        assert_eq!((run.state().await["attempt"].clone(), run.run()), (json!(attempt), attempt + 2));
        run.fail(json!({"code": "boom", "message": "m"})).await;
        if attempt == 1 {
            assert_eq!(run.state().await["state"], "retrying");
            run = worker.next().await;
        }
    }
    assert_eq!(job.folded().await["state"], "failed");
}

async fn tracked_jobs_are_passed_over(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let tracked = queue.job(json!({"tracked": true})).await;
    tracked.fail(json!({"code": "boom", "message": "m"})).await;
    let failed = dead(&queue, "boom", json!({})).await;
    tracked.untouched(async { assert_eq!(queue.count("/redrive", json!({"limit": 1})).await, 1) }).await;
    assert_eq!(failed.state().await["state"], "queued", "what is passed over takes no place");
    tracked.untouched(async { assert_eq!(queue.count("/redrive", json!({})).await, 0) }).await;
}

async fn key_that_a_live_job_holds_is_passed_over(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let key = unique("key");
    let taken = dead(&queue, "boom", json!({"unique_key": key})).await;
    let free = dead(&queue, "boom", json!({"unique_key": unique("key")})).await;
    let live = queue.job(json!({"unique_key": key})).await;
    assert_eq!(queue.count("/redrive", json!({"dry_run": true})).await, 1);
    taken.untouched(async { assert_eq!(queue.count("/redrive", json!({})).await, 1) }).await;
    assert_eq!(free.folded().await["state"], "queued");
    assert_eq!(live.types().await, ["queued"]);
}

async fn one_of_several_with_the_same_key_comes_back(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let spec = json!({"unique_key": unique("key")});
    let older = dead(&queue, "boom", spec.clone()).await;
    let newer = dead(&queue, "boom", spec.clone()).await;
    assert_eq!(queue.count("/redrive", json!({"dry_run": true})).await, 1);
    newer.untouched(async { assert_eq!(queue.count("/redrive", json!({})).await, 1) }).await;
    assert_eq!(older.folded().await["state"], "queued");
    let same = queue.server.enqueue(&queue.spec(spec)).await.expect(200);
    assert_eq!(same["job"]["id"], *older.id, "the key is held again");
    queue.worker().take().await.complete().await;
    assert_eq!(queue.count("/redrive", json!({})).await, 1);
    assert_eq!(newer.state().await["state"], "queued");
}

async fn redrive_wakes_parked_claimers(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let jobs = many_dead(&queue, 3).await;
    let mut parked = Vec::new();
    for _ in 0..3 {
        parked.push(queue.worker().park().await);
    }
    assert_eq!(queue.count("/redrive", json!({})).await, 3);
    let mut given = Vec::new();
    for claim in parked {
        let claimed = within(Duration::from_secs(1), "the claim", claim).await.expect("answered");
        given.extend(claimed.into_iter().map(|job| job.id));
    }
    given.sort_unstable();
    let ids: Vec<String> = jobs.into_iter().map(|job| job.id).collect();
    assert_eq!(given, ids);
}

async fn hundreds_come_back_in_one_call(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let jobs = many_dead(&queue, 300).await;
    assert_eq!(queue.count("/redrive", json!({"dry_run": true})).await, 300);
    assert_eq!(queue.count("/redrive", json!({})).await, 300);
    for job in [&jobs[0], &jobs[150], &jobs[299]] {
        assert_eq!(job.types().await, ["queued", "started", "failed", "requeued"]);
    }
    let counts = queue.read().await["counts"].clone();
    assert_eq!((&counts["failed"], &counts["queued"]), (&json!(0), &json!(300)));
}

async fn two_redrives_at_once_put_each_job_back_once(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let jobs = many_dead(&queue, 60).await;
    let (first, second) = (queue.clone(), queue.clone());
    let (first, second) = tokio::join!(
        tokio::spawn(async move { first.count("/redrive", json!({})).await }),
        tokio::spawn(async move { second.count("/redrive", json!({})).await }),
    );
    assert_eq!(first.expect("answered") + second.expect("answered"), 60);
    for job in jobs {
        assert_eq!(job.types().await, ["queued", "started", "failed", "requeued"]);
    }
}

async fn redrive_of_an_unknown_queue_is_404(store: Store) {
    let queue = Queue::own(&store.shared().await);
    queue.post("/redrive", json!({})).await.problem(404, "not_found");
    queue.get().send().await.problem(404, "not_found");
}

async fn body_is_checked(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let job = dead(&queue, "boom", json!({})).await;
    let table: [(Value, &str); 7] = [
        (json!({"nope": 1}), "/nope"),
        (json!({"limit": -1}), "/limit"),
        (json!({"limit": "5"}), "/limit"),
        (json!({"limit": 1.5}), "/limit"),
        (json!({"error_code": 5}), "/error_code"),
        (json!({"error_code": ["boom"]}), "/error_code"),
        (json!({"dry_run": "yes"}), "/dry_run"),
    ];
    job.untouched(async {
        for (body, pointer) in table {
            queue.post("/redrive", body).await.problem_at(422, "invalid_request", pointer);
        }
        queue.post("/redrive", json!([])).await.problem(422, "invalid_request");
        queue.post("/redrive?nope=1", json!({})).await.problem(422, "invalid_request");
        queue.server.post(&queue.path("/redrive")).body("{").send().await.problem(400, "invalid_json");
    })
    .await;
    let bare = queue.server.post(&queue.path("/redrive")).send().await;
    assert_eq!(bare.expect(200), json!({"count": 1}), "no body asks for everything");
}
