//! What the gateway says of a queue: that it exists, how many jobs stand where, how long they wait and run.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    queue_exists_from_its_first_use_on,
    shape_is_exact_and_a_new_queue_has_no_settings,
    counts_follow_a_job_through_its_life,
    due_jobs_count_as_queued_without_an_event,
    counts_agree_with_the_list_whatever_happens,
    oldest_queued_is_the_one_that_waits_longest,
    times_of_waiting_and_running_are_those_of_the_jobs,
    throughput_counts_what_ended,
    held_queue_says_until_when,
    bad_requests_are_refused,
    head_is_get_without_the_body,
);

/// The five counts, as they stand in the contract.
fn counts(scheduled: u64, queued: u64, running: u64, retrying: u64, failed: u64) -> Value {
    json!({"scheduled": scheduled, "queued": queued, "running": running, "retrying": retrying, "failed": failed})
}

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value.as_object().expect("an object").keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

async fn listed(queue: &Queue) -> Option<Value> {
    let body = queue.server.get("/v1/queues").send().await.expect(200);
    assert_eq!(keys(&body), ["queues"]);
    let all = body["queues"].as_array().expect("queues is a list");
    let mut found = all.iter().filter(|one| one["name"] == *queue.name);
    let one = found.next().cloned();
    assert!(found.next().is_none(), "a queue is listed once");
    one
}

async fn queue_exists_from_its_first_use_on(store: Store) {
    let server = store.shared().await;
    for way in ["enqueue", "batch", "pause", "patch"] {
        let queue = Queue::own(&server);
        queue.get().send().await.problem(404, "not_found");
        assert_eq!(listed(&queue).await, None);
        let refused = server.enqueue(&queue.spec(json!({"max_attempts": 0}))).await;
        refused.problem(422, "invalid_request");
        queue.get().send().await.problem(404, "not_found");
        match way {
            "enqueue" => drop(queue.job(json!({})).await),
            "batch" => drop(queue.jobs(1, json!({})).await),
            "pause" => drop(queue.post("/pause", json!({})).await.expect(200)),
            _ => drop(queue.set(json!({})).await),
        }
        let read = queue.read().await;
        assert_eq!(read["name"], *queue.name, "{way}");
        let listed = listed(&queue).await.unwrap_or_else(|| panic!("{way} makes a queue that is listed"));
        assert_eq!(keys(&listed), keys(&read));
    }
}

async fn shape_is_exact_and_a_new_queue_has_no_settings(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let patched = queue.set(json!({})).await;
    let expected = json!({
        "name": queue.name, "paused": null, "concurrency": null, "concurrency_per_key": null, "rate_limit": null,
        "defaults": {}, "held_until": null, "counts": counts(0, 0, 0, 0, 0), "oldest_queued_at": null,
        "wait_ms": {"p50": null, "p95": null}, "run_ms": {"p50": null, "p95": null}, "finished_per_min": patched["finished_per_min"],
    });
    assert_eq!(patched, expected);
    assert_eq!(patched["finished_per_min"].as_f64(), Some(0.0));
    let answer = queue.get().send().await;
    assert_eq!(answer.expect(200), expected);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(listed(&queue).await, Some(expected));
}

async fn counts_follow_a_job_through_its_life(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let count = async || queue.read().await["counts"].clone();
    let worker = queue.worker();
    queue.job(json!({"delay_ms": 3_600_000})).await;
    assert_eq!(count().await, counts(1, 0, 0, 0, 0));
    queue.jobs(4, json!({"max_attempts": 2})).await;
    assert_eq!(count().await, counts(1, 4, 0, 0, 0));
    let [first, second, third, fourth] = &worker.take_up_to(4).await[..] else { panic!("four jobs were queued") };
    assert_eq!(count().await, counts(1, 0, 4, 0, 0));
    first.complete().await;
    assert_eq!(count().await, counts(1, 0, 3, 0, 0));
    second.fail(json!({"code": "c", "message": "m", "retry_after_ms": 3_600_000})).await;
    assert_eq!(count().await, counts(1, 0, 2, 1, 0));
    third.fail(json!({"code": "c", "message": "m", "retryable": false})).await;
    assert_eq!(count().await, counts(1, 0, 1, 1, 1));
    fourth.append(json!({"type": "released", "data": {}})).await;
    assert_eq!(count().await, counts(1, 1, 0, 1, 1));
    worker.take().await.append(json!({"type": "released", "data": {"delay_ms": 3_600_000}})).await;
    assert_eq!(count().await, counts(2, 0, 0, 1, 1));
    fourth.cancel(json!({})).await.expect(202);
    assert_eq!(count().await, counts(1, 0, 0, 1, 1));
    third.retry().await.expect(202);
    assert_eq!(count().await, counts(1, 1, 0, 1, 0));
    third.cancel(json!({})).await.expect(202);
    third.delete().await.expect_empty(204);
    assert_eq!(count().await, counts(1, 0, 0, 1, 0));
}

async fn due_jobs_count_as_queued_without_an_event(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let retrying = queue.running(json!({})).await;
    retrying.fail(json!({"code": "c", "message": "m", "retry_after_ms": 600})).await;
    let scheduled = queue.job(json!({"delay_ms": 600})).await;
    let read = queue.read().await;
    assert_eq!((&read["counts"], &read["oldest_queued_at"]), (&counts(1, 0, 0, 1, 0), &Value::Null));
    let read = queue
        .until("both to be due", PATIENCE, |read| {
            let of = |state: &str| number(&read["counts"][state]);
            assert_eq!(of("scheduled") + of("retrying") + of("queued"), 2, "a job was counted nowhere, or twice");
            read["counts"] == counts(0, 2, 0, 0, 0)
        })
        .await;
    assert_ne!(read["oldest_queued_at"], Value::Null);
    assert_eq!(scheduled.types().await, ["queued"]);
    assert_eq!(scheduled.state().await["state"], "scheduled");
    assert_eq!(retrying.types().await, ["queued", "started", "retrying"]);
}

/// What the list says of a queue in which no waiting job's time comes while the test runs.
async fn counted_from_the_list(queue: &Queue) -> Value {
    let mut found = counts(0, 0, 0, 0, 0);
    for job in queue.server.list(&format!("queue={}", queue.name)).await {
        if let Some(count) = found.get_mut(text(&job["state"])) {
            *count = (number(count) + 1).into();
        }
    }
    found
}

async fn counts_agree_with_the_list_whatever_happens(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let (worker, mut random) = (queue.worker(), Random::new());
    let mut held: Vec<Job> = Vec::new();
    for _ in 0..80 {
        let running = (!held.is_empty()).then(|| random.below(held.len() as u64) as usize);
        match (random.below(9), running) {
            (0, _) => drop(queue.job(json!({"delay_ms": 3_600_000})).await),
            (1 | 2, _) => drop(queue.jobs(2, json!({"max_attempts": 2})).await),
            (3, _) => held.extend(worker.take_up_to(2).await),
            (4, Some(at)) => drop(held.swap_remove(at).complete().await),
            (5, Some(at)) => {
                let error = json!({"code": "c", "message": "m", "retry_after_ms": 3_600_000});
                held.swap_remove(at).fail(error).await;
            }
            (6, Some(at)) => {
                held.swap_remove(at).append(json!({"type": "released", "data": {"delay_ms": 0}})).await;
            }
            (7, Some(at)) => {
                let job = held.swap_remove(at);
                job.cancel(json!({"grace_ms": 60_000})).await.expect(202);
                job.append(json!({"type": "cancelled", "data": {}})).await;
            }
            _ => {
                if let Some(id) = queue.ids("state=scheduled,retrying,failed,cancelled").await.first() {
                    let job = Job::new(&queue.server, id);
                    match job.state().await["terminal"] == true {
                        true => job.retry().await.expect(202),
                        false => job.cancel(json!({})).await.expect(202),
                    };
                }
            }
        }
        if let Some(one) = listed(&queue).await {
            assert_eq!(one["counts"], counted_from_the_list(&queue).await);
        }
    }
}

async fn oldest_queued_is_the_one_that_waits_longest(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let oldest = async || queue.read().await["oldest_queued_at"].clone();
    let worker = queue.worker();
    queue.job(json!({"delay_ms": 3_600_000})).await;
    assert_eq!(oldest().await, Value::Null, "it does not wait before its time");
    let first = queue.job(json!({})).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    let second = queue.job(json!({"priority": 5})).await;
    assert_eq!(oldest().await, first.state().await["created_at"]);
    assert_eq!(worker.take().await.id, second.id);
    assert_eq!(oldest().await, first.state().await["created_at"]);
    let running = worker.take().await;
    assert_eq!(oldest().await, Value::Null);
    running.append(json!({"type": "released", "data": {}})).await;
    let again = instant(&oldest().await);
    assert!(again >= instant(&first.state().await["created_at"]), "a job that was given back waits again");
}

async fn times_of_waiting_and_running_are_those_of_the_jobs(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let worker = queue.worker();
    queue.jobs(8, json!({})).await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    let jobs = worker.take_up_to(8).await;
    let (slow, quick) = jobs.split_at(2);
    for job in quick {
        job.complete().await;
    }
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    for job in slow {
        job.complete().await;
    }
    let read = queue.read().await;
    let of = |times: &str, part: &str| read[times][part].as_f64().unwrap_or_else(|| panic!("{read}"));
    let mut waits = Vec::new();
    let mut runs = Vec::new();
    for job in &jobs {
        let state = job.state().await;
        waits.push((instant(&state["started_at"]) - instant(&state["created_at"])) as f64);
        runs.push((instant(&state["finished_at"]) - instant(&state["started_at"])) as f64);
    }
    for (times, truth) in [("wait_ms", &mut waits), ("run_ms", &mut runs)] {
        truth.sort_by(f64::total_cmp);
        // Left open: which of the ways to cut a small sample is taken, and how finely times are told apart.
        let within = |least: f64, most: f64| 0.9 * least - 1.0..=1.1 * most + 1.0;
        let (p50, p95, most) = (of(times, "p50"), of(times, "p95"), truth[truth.len() - 1]);
        assert!(within(truth[0], truth[5]).contains(&p50), "{times} of {truth:?}: {read}");
        assert!(within(truth[5], most).contains(&p95), "{times} of {truth:?}: {read}");
    }
    assert!(of("wait_ms", "p50") >= 550.0 && of("run_ms", "p95") >= 1_350.0, "{read}");
    assert!(of("run_ms", "p50") < 1_350.0, "most were quick: {read}");
}

async fn throughput_counts_what_ended(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let rate = async || queue.read().await["finished_per_min"].as_f64().expect("a number");
    queue.jobs(6, json!({})).await;
    assert_eq!(rate().await, 0.0, "nothing has ended");
    let jobs = queue.worker().take_up_to(6).await;
    assert_eq!(rate().await, 0.0, "nothing has ended");
    for job in &jobs[..3] {
        job.complete().await;
    }
    let few = rate().await;
    assert!(few > 0.0);
    for job in &jobs[3..] {
        job.complete().await;
    }
    assert!(rate().await > few);
}

async fn held_queue_says_until_when(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let job = queue.running(json!({})).await;
    job.fail(json!({"code": "429", "message": "slow down", "retry_after_ms": 1_500, "scope": "queue"})).await;
    let failed_at = instant(&job.log().await[2]["at"]);
    let until = instant(&queue.read().await["held_until"]);
    assert!((failed_at + 1_400..failed_at + 2_500).contains(&until), "{failed_at} and held until {until}");
    assert_eq!(instant(&listed(&queue).await.expect("listed")["held_until"]), until);
    queue.until("the end of the hold", PATIENCE, |read| read["held_until"].is_null()).await;
}

async fn bad_requests_are_refused(store: Store) {
    let server = store.shared().await;
    let queue = Queue::own(&server);
    queue.set(json!({})).await;
    for path in ["/v1/queues?nope=1".to_owned(), queue.path("?nope=1"), queue.path("?include=jobs")] {
        server.get(&path).send().await.problem(422, "invalid_request");
    }
    for name in ["%00", "a%20b", "%F0%9F%98%80", "..%2F..%2Fx", &"x".repeat(65), &"x".repeat(10_000)] {
        let answer = server.get(&format!("/v1/queues/{name}")).send().await;
        answer.problem(404, "not_found");
    }
    for (method, path) in [("POST", "/v1/queues".to_owned()), ("DELETE", queue.path("")), ("GET", queue.path("/pause"))]
    {
        let answer = server.request(method, &path).send().await;
        answer.problem(405, "method_not_allowed");
        assert!(answer.header("allow").is_some(), "{method} {path}");
    }
}

async fn head_is_get_without_the_body(store: Store) {
    let queue = Queue::own(&store.shared().await);
    queue.set(json!({})).await;
    for path in ["/v1/queues", &queue.path("")] {
        let answer = queue.server.request("HEAD", path).send().await;
        answer.expect_empty(200);
        assert_eq!(answer.header("content-type"), Some("application/json"));
    }
    queue.server.request("HEAD", "/v1/queues/nobody-knows-it").send().await.expect_empty(404);
}
