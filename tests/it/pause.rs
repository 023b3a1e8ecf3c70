//! A paused queue gives nothing, takes everything, and says who paused it, when and why.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    pause_says_who_why_and_when_and_resume_ends_it,
    paused_queue_takes_jobs_and_gives_none,
    running_jobs_of_a_paused_queue_go_on,
    resume_wakes_parked_claimers_at_once,
    nothing_is_given_once_the_pause_was_answered,
    claim_over_several_queues_passes_the_paused_one_over,
    pause_outlives_the_process,
    resume_of_an_unknown_queue_is_404,
    body_is_checked,
);

async fn pause_says_who_why_and_when_and_resume_ends_it(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let read = queue.post("/pause", json!({"reason": "provider down"})).await.expect(200);
    assert_eq!(read, queue.read().await, "pause answers the queue, and makes an unknown one");
    let paused = read["paused"].as_object().expect("a paused queue says so");
    let mut keys: Vec<&str> = paused.keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["at", "by", "reason"]);
    assert_eq!(paused["reason"], "provider down");
    let job = queue.job(json!({})).await;
    let (at, created) = (instant(&paused["at"]), instant(&job.state().await["created_at"]));
    assert!((created - 10_000..=created).contains(&at), "paused at {at}, the next job was made at {created}");
    for _ in 0..2 {
        let read = queue.post("/resume", json!({})).await.expect(200);
        assert_eq!(read["paused"], Value::Null, "who resumes twice gets what he wants twice");
        assert_eq!(read, queue.read().await);
    }
    let bare = queue.server.post(&queue.path("/pause")).send().await.expect(200);
    assert_eq!(bare["paused"]["reason"], Value::Null);
    queue.server.post(&queue.path("/resume")).send().await.expect(200);
    assert_eq!(job.types().await, ["queued"], "a pause is no event of a job");
}

async fn paused_queue_takes_jobs_and_gives_none(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let worker = queue.worker();
    let due = queue.running_at(&worker, json!({})).await;
    queue.post("/pause", json!({})).await.expect(200);
    due.fail(json!({"code": "c", "message": "m", "retry_after_ms": 10})).await;
    queue.jobs(3, json!({"priority": 100})).await;
    queue.job(json!({"delay_ms": 10})).await;
    queue.until("all to be due", PATIENCE, |read| read["counts"]["queued"] == 5).await;
    worker.finds_nothing().await;
    let begun = std::time::Instant::now();
    assert!(worker.given(&worker.claim(5, 1_000).send().await).is_empty());
    assert!(begun.elapsed() >= Duration::from_millis(950), "the claim was parked");
    queue.post("/resume", json!({})).await.expect(200);
    assert_eq!(worker.take_up_to(10).await.len(), 5);
}

async fn running_jobs_of_a_paused_queue_go_on(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let worker = queue.worker().with_lease(1_500);
    queue.jobs(2, json!({})).await;
    let [first, second] = &worker.take_up_to(2).await[..] else { panic!("two jobs were queued") };
    queue.post("/pause", json!({})).await.expect(200);
    for _ in 0..10 {
        let answer = first.try_append(&json!([])).await.expect(200);
        assert_eq!(answer["cancel_requested"], false, "a pause asks nobody to stop");
        second.note("working").await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    first.complete().await;
    second.append(json!({"type": "released", "data": {}})).await;
    assert_eq!(first.folded().await["state"], "completed");
    assert_eq!(second.folded().await["state"], "queued");
    worker.finds_nothing().await;
}

async fn resume_wakes_parked_claimers_at_once(store: Store) {
    let queue = Queue::own(&store.shared().await);
    queue.post("/pause", json!({})).await.expect(200);
    let mut jobs: Vec<String> = queue.jobs(3, json!({})).await.into_iter().map(|job| job.id).collect();
    let mut parked = Vec::new();
    for _ in 0..3 {
        parked.push(queue.worker().park().await);
    }
    queue.post("/resume", json!({})).await.expect(200);
    let mut given = Vec::new();
    for claim in parked {
        let claimed = within(Duration::from_secs(1), "the claim", claim).await.expect("answered");
        given.extend(claimed.into_iter().map(|job| job.id));
    }
    jobs.sort_unstable();
    given.sort_unstable();
    assert_eq!(given, jobs);
}

async fn nothing_is_given_once_the_pause_was_answered(store: Store) {
    let queue = Queue::own(&store.shared().await);
    queue.jobs(1_000, json!({})).await;
    let claimers: Vec<_> = (0..8)
        .map(|_| {
            let worker = queue.worker();
            tokio::spawn(async move {
                let mut given = Vec::new();
                // A claim that got nothing is the end: nobody resumes.
                loop {
                    let claimed = worker.take_up_to(3).await;
                    if claimed.is_empty() {
                        return given;
                    }
                    given.extend(claimed);
                }
            })
        })
        .collect();
    queue.until("claims under load", PATIENCE, |read| number(&read["counts"]["running"]) > 20).await;
    queue.post("/pause", json!({"reason": "stop"})).await.expect(200);
    let at_the_answer = number(&queue.read().await["counts"]["running"]);
    let mut given = 0;
    for claimer in claimers {
        given += claimer.await.expect("a claimer ends").len();
    }
    assert!(given < 1_000, "the pause came too late to show anything");
    assert_eq!(given as u64, at_the_answer);
    assert_eq!(queue.read().await["counts"]["queued"], 1_000 - given);
}

async fn claim_over_several_queues_passes_the_paused_one_over(store: Store) {
    let server = store.shared().await;
    let (paused, open) = (Queue::own(&server), Queue::own(&server));
    paused.job(json!({})).await;
    let job = open.job(json!({})).await;
    paused.post("/pause", json!({})).await.expect(200);
    let claim = json!({"queues": [paused.name, open.name], "worker": unique("worker"), "max": 10});
    let answer = server.post("/v1/claims").json(&claim).send().await.expect(200);
    let given: Vec<&Value> = answer["jobs"].as_array().expect("a list").iter().map(|one| &one["job"]["id"]).collect();
    assert_eq!(given, [&json!(job.id)]);
}

async fn pause_outlives_the_process(store: Store) {
    let server = store.serve(&[]).await;
    let queue = Queue::own(&server);
    queue.job(json!({})).await;
    let before = queue.post("/pause", json!({"reason": "r"})).await.expect(200)["paused"].clone();
    server.kill9();
    server.restart().await;
    assert_eq!(queue.read().await["paused"], before);
    queue.worker().finds_nothing().await;
    queue.post("/resume", json!({})).await.expect(200);
    queue.worker().take().await;
}

async fn resume_of_an_unknown_queue_is_404(store: Store) {
    let queue = Queue::own(&store.shared().await);
    queue.post("/resume", json!({})).await.problem(404, "not_found");
    queue.get().send().await.problem(404, "not_found");
}

async fn body_is_checked(store: Store) {
    let queue = Queue::own(&store.shared().await);
    queue.set(json!({})).await;
    for (body, pointer) in [
        (json!({"reason": 5}), "/reason"),
        (json!({"reason": ["r"]}), "/reason"),
        (json!({"nope": 1}), "/nope"),
        (json!({"reason": "r", "by": "somebody else"}), "/by"),
    ] {
        queue.post("/pause", body).await.problem_at(422, "invalid_request", pointer);
    }
    queue.post("/pause", json!([])).await.problem(422, "invalid_request");
    queue.post("/resume", json!({"nope": 1})).await.problem_at(422, "invalid_request", "/nope");
    for rest in ["/pause?nope=1", "/resume?nope=1"] {
        queue.post(rest, json!({})).await.problem(422, "invalid_request");
    }
    queue.server.post(&queue.path("/pause")).body("{").send().await.problem(400, "invalid_json");
    assert_eq!(queue.read().await["paused"], Value::Null);
}
