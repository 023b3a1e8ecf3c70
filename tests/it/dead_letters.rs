//! Failed jobs are the dead letters: found by queue and error code, put back one by one, with their history.

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    dead_letters_are_found_by_queue_and_error_code,
    error_code_is_one_filter_among_others,
    bad_error_code_is_refused,
    retry_puts_a_dead_letter_back_with_its_history,
    attempts_are_counted_anew_after_a_retry,
    retry_wakes_a_parked_claimer,
    result_of_a_retried_job_is_its_last,
    retry_is_refused_to_what_has_no_second_life,
    retry_names_the_live_job_that_holds_the_key,
);

/// A job that ended as failed, with this code.
async fn dead(queue: &Queue, code: &str, spec: Value) -> Job {
    let job = queue.running(spec).await;
    job.fail(json!({"code": code, "message": "m", "retryable": false})).await;
    assert_eq!(job.state().await["state"], "failed");
    job
}

async fn dead_letters_are_found_by_queue_and_error_code(store: Store) {
    let server = store.shared().await;
    let (queue, other) = (Queue::own(&server), Queue::own(&server));
    let first = dead(&queue, "boom", json!({})).await;
    let second = dead(&queue, "boom", json!({})).await;
    let third = dead(&queue, "http.500", json!({})).await;
    let elsewhere = dead(&other, "boom", json!({})).await;
    queue.job(json!({})).await;
    let found = async |query: &str| queue.ids(query).await;
    assert_eq!(found("state=failed").await, [&*third.id, &second.id, &first.id]);
    assert_eq!(found("state=failed&error_code=boom").await, [&*second.id, &first.id]);
    assert_eq!(found("state=failed&error_code=http.500").await, [&*third.id]);
    assert_eq!(found("state=failed&error_code=boo").await, [] as [&str; 0], "the whole code counts");
    assert_eq!(found("state=failed&error_code=BOOM").await, [] as [&str; 0]);
    assert_eq!(other.ids("state=failed&error_code=boom").await, [elsewhere.id]);
    let listed = server.list(&format!("queue={}&error_code=boom&state=failed", queue.name)).await;
    assert_eq!(listed[0], second.state().await, "a list holds state documents");
}

async fn error_code_is_one_filter_among_others(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let wanted = dead(&queue, "boom", json!({"kind": "a", "subject": "s:1"})).await;
    dead(&queue, "boom", json!({"kind": "b", "subject": "s:1"})).await;
    dead(&queue, "other", json!({"kind": "a", "subject": "s:1"})).await;
    let timed_out = queue.job(json!({"kind": "a", "tracked": true, "timeout_ms": 100})).await;
    assert_eq!(timed_out.ended().await.0["state"], "failed");
    for query in ["error_code=boom&kind=a", "error_code=boom&kind=a&subject=s%3A1&state=failed,completed"] {
        assert_eq!(queue.ids(query).await, [&*wanted.id], "{query}");
    }
    assert_eq!(queue.ids("error_code=timed_out").await, [&*timed_out.id], "codes of the gateway's own, too");
    assert_eq!(queue.ids("error_code=boom&active=true").await, [] as [&str; 0]);
    let mut pages = Vec::new();
    let mut cursor = String::new();
    loop {
        let path = format!("/v1/jobs?queue={}&error_code=boom&limit=1{cursor}", queue.name);
        let page = queue.server.get(&path).send().await.expect(200);
        pages.extend(page["jobs"].as_array().expect("a list").iter().map(|job| job["kind"].clone()));
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(pages, ["b", "a"]);
}

async fn bad_error_code_is_refused(store: Store) {
    let server = store.shared().await;
    for query in ["error_code=a%00b", "error_code=%00"] {
        server.get(&format!("/v1/jobs?{query}")).send().await.problem(422, "invalid_request");
    }
}

async fn retry_puts_a_dead_letter_back_with_its_history(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let job = queue.running(json!({"payload": {"p": 1}, "max_attempts": 1})).await;
    job.output("some text").await;
    job.append(json!({"type": "progress", "data": {"percent": 50}})).await;
    job.fail(json!({"code": "boom", "message": "m"})).await;
    let before = job.log().await;
    let mut reader = job.resume(number(&job.state().await["seq"]) - 1).await;
    reader.expect("failed").await;
    reader.expect("end").await;
    let state = job.retry().await.expect(202);
    assert_eq!(state, job.folded().await);
    assert_eq!((&state["state"], &state["attempt"], &state["terminal"]), (&json!("queued"), &json!(0), &json!(false)));
    for cleared in ["error", "outcome", "started_at", "finished_at", "worker", "progress"] {
        assert_eq!(state[cleared], Value::Null, "{cleared}");
    }
    assert_eq!(state["output"], json!({"bytes": 0}));
    let log = job.log().await;
    let (requeued, history) = log.split_last().expect("the log goes on");
    assert_eq!(history, before);
    assert_eq!((&requeued["type"], &requeued["attempt"], &requeued["seq"]), (&json!("requeued"), &json!(0), &json!(6)));
    assert!(!text(&requeued["data"]["by"]).is_empty(), "{requeued}");
    assert_eq!(job.resume(5).await.told().await.json(), *requeued, "a reader of the old life goes on in the new one");
    let again = queue.worker().take().await;
    assert_eq!((again.id.as_str(), again.run()), (job.id.as_str(), 2));
    assert_eq!(again.get("?include=payload").send().await.expect(200)["payload"], json!({"p": 1}));
    job.untouched(job.try_append(&json!({"type": "completed"}))).await.problem(409, "lease_lost");
    again.complete().await;
    assert_eq!(again.folded().await["state"], "completed");
}

async fn attempts_are_counted_anew_after_a_retry(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let worker = queue.worker();
    let job = queue.job(json!({"max_attempts": 2, "backoff": {"initial_ms": 1, "jitter": 0}})).await;
    for life in 0..2 {
        for attempt in 1..=2 {
            let run = worker.next().await;
            assert_eq!((run.state().await["attempt"].clone(), run.run()), (json!(attempt), life * 2 + attempt));
            run.fail(json!({"code": "boom", "message": "m"})).await;
        }
        assert_eq!(job.folded().await["state"], "failed");
        job.retry().await.expect(202);
    }
    let life = ["started", "retrying", "started", "failed", "requeued"];
    assert_eq!(job.types().await, [&["queued"][..], &life, &life].concat());
}

async fn retry_wakes_a_parked_claimer(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let job = dead(&queue, "boom", json!({})).await;
    let parked = queue.worker().park().await;
    job.retry().await.expect(202);
    let given = within(std::time::Duration::from_secs(1), "the claim", parked).await.expect("answered");
    assert_eq!(given.first().map(|given| &given.id), Some(&job.id));
}

async fn result_of_a_retried_job_is_its_last(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let job = dead(&queue, "boom", json!({})).await;
    job.get("/result").send().await.problem(404, "no_result");
    job.retry().await.expect(202);
    job.get("/result").send().await.problem(409, "not_finished");
    let again = queue.worker().take().await;
    again.append(json!({"type": "completed", "data": {"data": {"n": 2}}})).await;
    assert_eq!(job.get("/result").send().await.expect(200), json!({"n": 2}));
    assert_eq!(job.folded().await["error"], Value::Null);
}

async fn retry_is_refused_to_what_has_no_second_life(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let running = queue.running(json!({})).await;
    let completed = queue.running(json!({})).await;
    completed.complete().await;
    let queued = queue.job(json!({})).await;
    let tracked = queue.job(json!({"tracked": true})).await;
    tracked.fail(json!({"code": "c", "message": "m"})).await;
    for job in [&running, &completed, &queued, &tracked] {
        job.untouched(job.retry()).await.problem(409, "not_retryable");
    }
}

async fn retry_names_the_live_job_that_holds_the_key(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let key = unique("key");
    let old = dead(&queue, "boom", json!({"unique_key": key})).await;
    let live = queue.job(json!({"unique_key": key})).await;
    let problem = old.untouched(old.retry()).await.problem(409, "unique_conflict");
    assert_eq!(problem["job"], *live.id);
    live.cancel(json!({})).await.expect(202);
    old.retry().await.expect(202);
}
