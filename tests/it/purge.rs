//! Purge cancels what waits in a queue and never what runs, each job by an event of its own.

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    purge_cancels_what_waits_and_never_what_runs,
    purged_jobs_say_who_and_tell_their_readers,
    limit_bounds_a_purge,
    dry_run_counts_and_changes_nothing,
    purge_reaches_thousands_of_jobs,
    purged_job_is_never_handed_out,
    purge_of_an_unknown_queue_is_404,
    body_is_checked,
    purge_on_start_comes_before_the_first_answer,
);

async fn purge_cancels_what_waits_and_never_what_runs(store: Store) {
    let server = store.shared().await;
    let (queue, other) = (Queue::own(&server), Queue::own(&server));
    let running = queue.running(json!({})).await;
    let tracked = queue.job(json!({"tracked": true})).await;
    let retrying = queue.running(json!({})).await;
    retrying.fail(json!({"code": "c", "message": "m", "retry_after_ms": 3_600_000})).await;
    let failed = queue.running(json!({"max_attempts": 1})).await;
    failed.fail(json!({"code": "c", "message": "m"})).await;
    let completed = queue.running(json!({})).await;
    completed.complete().await;
    let scheduled = queue.job(json!({"delay_ms": 3_600_000})).await;
    let queued = queue.job(json!({})).await;
    let elsewhere = other.job(json!({})).await;
    let untouched = [&running, &tracked, &failed, &completed, &elsewhere];
    let mut before = Vec::new();
    for job in untouched {
        before.push(job.log().await);
    }
    assert_eq!(queue.count("/purge", json!({})).await, 3);
    for job in [&retrying, &scheduled, &queued] {
        assert_eq!(job.folded().await["state"], "cancelled");
    }
    let mut after = Vec::new();
    for job in untouched {
        after.push(job.log().await);
    }
    assert_eq!(after, before);
    assert_eq!(queue.count("/purge", json!({})).await, 0, "there is nothing left");
    running.complete().await;
    assert_eq!(retrying.state().await["error"]["code"], "c", "why it failed is not forgotten");
}

async fn purged_jobs_say_who_and_tell_their_readers(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let job = queue.job(json!({})).await;
    let mut stream = job.resume(1).await;
    stream.frame().await;
    queue.count("/purge", json!({})).await;
    let event = stream.expect("cancelled").await.json();
    assert_eq!(stream.expect("end").await.json(), json!({"state": "cancelled"}));
    assert_eq!(job.log().await, [job.log().await[0].clone(), event.clone()]);
    // As a cancel of this job by the same caller would say it.
    let by_hand = queue.job(json!({})).await;
    by_hand.cancel(json!({})).await.expect(202);
    let cancelled = by_hand.log().await.remove(1);
    assert!(!text(&cancelled["data"]["by"]).is_empty(), "{cancelled}");
    assert_eq!(event["data"]["by"], cancelled["data"]["by"]);
    assert!(event["data"]["reason"].is_string(), "the log tells a purge from a cancel: {event}");
}

async fn limit_bounds_a_purge(store: Store) {
    let queue = Queue::own(&store.shared().await);
    queue.jobs(5, json!({})).await;
    assert_eq!(queue.count("/purge", json!({"limit": 2})).await, 2);
    assert_eq!(queue.read().await["counts"]["queued"], 3);
    assert_eq!(queue.ids("state=cancelled").await.len(), 2);
    assert_eq!(queue.count("/purge", json!({"limit": 100})).await, 3);
}

async fn dry_run_counts_and_changes_nothing(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let jobs = queue.jobs(3, json!({})).await;
    queue.running(json!({"priority": 50})).await;
    for (body, count) in [
        (json!({"dry_run": true}), 3),
        (json!({"dry_run": true, "limit": 2}), 2),
        (json!({"dry_run": true, "limit": 50}), 3),
    ] {
        assert_eq!(queue.count("/purge", body).await, count);
    }
    for job in &jobs {
        assert_eq!(job.types().await, ["queued"]);
    }
    assert_eq!(queue.count("/purge", json!({"dry_run": false})).await, 3);
}

async fn purge_reaches_thousands_of_jobs(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let waiting = queue.jobs(1_700, json!({})).await;
    let later = queue.jobs(800, json!({"delay_ms": 3_600_000})).await;
    assert_eq!(queue.count("/purge", json!({"dry_run": true})).await, 2_500);
    assert_eq!(queue.count("/purge", json!({})).await, 2_500);
    let counts = queue.read().await["counts"].clone();
    assert_eq!((&counts["queued"], &counts["scheduled"]), (&json!(0), &json!(0)));
    for job in [&waiting[0], &waiting[1_699], &later[0], &later[799]] {
        assert_eq!(job.types().await, ["queued", "cancelled"]);
    }
}

async fn purged_job_is_never_handed_out(store: Store) {
    let queue = Queue::own(&store.shared().await);
    for _ in 0..5 {
        queue.jobs(60, json!({})).await;
        let claimers: Vec<_> = (0..4)
            .map(|_| {
                let worker = queue.worker();
                tokio::spawn(async move { worker.take_up_to(10).await })
            })
            .collect();
        let purged = queue.count("/purge", json!({})).await;
        let mut given = Vec::new();
        for claimer in claimers {
            given.extend(claimer.await.expect("a claimer ends"));
        }
        given.extend(queue.worker().take_up_to(100).await);
        assert_eq!(purged + given.len() as u64, 60, "each was either purged or handed out");
        for job in given {
            assert_eq!(job.types().await, ["queued", "started"]);
            job.complete().await;
        }
    }
}

async fn purge_of_an_unknown_queue_is_404(store: Store) {
    let queue = Queue::own(&store.shared().await);
    for body in [json!({}), json!({"dry_run": true})] {
        queue.post("/purge", body).await.problem(404, "not_found");
    }
    queue.get().send().await.problem(404, "not_found");
}

async fn body_is_checked(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let job = queue.job(json!({})).await;
    let table: [(Value, &str); 7] = [
        (json!({"nope": 1}), "/nope"),
        (json!({"limit": -1}), "/limit"),
        (json!({"limit": "5"}), "/limit"),
        (json!({"limit": 1.5}), "/limit"),
        (json!({"dry_run": "yes"}), "/dry_run"),
        (json!({"dry_run": 1}), "/dry_run"),
        (json!({"error_code": 5}), "/error_code"),
    ];
    job.untouched(async {
        for (body, pointer) in table {
            queue.post("/purge", body).await.problem_at(422, "invalid_request", pointer);
        }
        queue.post("/purge", json!([])).await.problem(422, "invalid_request");
        queue.post("/purge?dry_run=true", json!({})).await.problem(422, "invalid_request");
        queue.server.post(&queue.path("/purge")).body("{").send().await.problem(400, "invalid_json");
    })
    .await;
    let bare = queue.server.post(&queue.path("/purge")).send().await;
    assert_eq!(bare.expect(200), json!({"count": 1}), "no body asks for everything");
}

async fn purge_on_start_comes_before_the_first_answer(store: Store) {
    let (purged, kept) = (unique("queue"), unique("queue"));
    // The first start knows no such queue, and that is no reason not to start.
    let server = store.serve(&["--purge-on-start", &purged]).await;
    let queue = |name: &str| Queue { server: server.clone(), name: name.to_owned() };
    let (purged, kept) = (queue(&purged), queue(&kept));
    let running = purged.running(json!({})).await;
    running.note("begun").await;
    let waiting = purged.jobs(30, json!({})).await;
    let later = purged.job(json!({"delay_ms": 3_600_000})).await;
    let elsewhere = kept.job(json!({})).await;
    server.kill9();
    server.restart().await;
    for job in [&waiting[0], &waiting[29], &later] {
        assert_eq!(job.folded().await["state"], "cancelled");
        assert!(!text(&job.log().await[1]["data"]["by"]).is_empty());
    }
    purged.worker().finds_nothing().await;
    running.complete().await;
    assert_eq!(elsewhere.types().await, ["queued"]);
    let new = purged.running(json!({})).await;
    assert_eq!(new.state().await["state"], "running", "what comes after the start is not purged");
}
