//! Cancel: at once for what waits, with a grace for what runs, and exactly one end whoever is faster.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    waiting_job_is_cancelled_at_once,
    cancel_of_a_cancelled_job_is_200_and_of_an_ended_one_409,
    running_job_is_asked_and_may_answer,
    silent_worker_is_ended_after_its_grace,
    second_cancel_may_only_shorten_the_grace,
    completion_within_the_grace_wins,
    failure_after_the_request_ends_as_cancelled,
    race_of_cancel_and_complete_has_one_end,
    body_is_checked,
);

async fn waiting_job_is_cancelled_at_once(store: Store) {
    let server = store.shared().await;
    for spec in [json!({"kind": "k"}), json!({"kind": "k", "delay_ms": 3_600_000})] {
        let job = server.job(spec).await;
        let mut stream = job.resume(1).await;
        let state = job.cancel(json!({"reason": "not needed"})).await.expect(202);
        assert_eq!(
            (&state["state"], &state["terminal"], &state["seq"]),
            (&json!("cancelled"), &json!(true), &json!(2))
        );
        assert_eq!(state, job.state().await);
        let log = job.log().await;
        assert_eq!((pairs(&log)[1].0, &log[1]["data"]["reason"]), ("cancelled", &json!("not needed")));
        assert_eq!(stream.expect("cancelled").await.json(), log[1]);
        stream.expect("end").await;
    }
    server.job(json!({"kind": "k"})).await.post("/cancel").send().await.expect(202);
}

async fn cancel_of_a_cancelled_job_is_200_and_of_an_ended_one_409(store: Store) {
    let server = store.shared().await;
    let job = server.job(json!({"kind": "k"})).await;
    job.cancel(json!({})).await.expect(202);
    job.untouched(async {
        assert_eq!(job.cancel(json!({"reason": "again"})).await.expect(200), job.state().await);
    })
    .await;
    for end in ["completed", "failed"] {
        let ended = server.tracked().await;
        ended.append(json!({"type": end, "data": {}})).await;
        ended.untouched(ended.cancel(json!({}))).await.problem(409, "job_terminal");
    }
}

async fn running_job_is_asked_and_may_answer(store: Store) {
    let job = store.shared().await.tracked().await;
    let mut stream = job.resume(2).await;
    let state = job.cancel(json!({"reason": "user left", "grace_ms": 60_000})).await.expect(202);
    assert_eq!((&state["state"], &state["cancel_requested"]), (&json!("running"), &json!(true)));
    let asked = stream.expect("cancel_requested").await.json();
    assert_eq!((&asked["data"]["reason"], &asked["data"]["grace_ms"]), (&json!("user left"), &json!(60_000)));
    let answer = job.try_append(&json!([])).await.expect(200);
    assert_eq!(answer["cancel_requested"], true);
    job.append(json!({"type": "cancelled", "data": {"reason": "stopped"}})).await;
    let state = job.state().await;
    assert_eq!((&state["state"], &state["cancel_requested"]), (&json!("cancelled"), &json!(true)));
    assert_eq!(job.types().await, ["queued", "started", "cancel_requested", "cancelled"]);
}

async fn silent_worker_is_ended_after_its_grace(store: Store) {
    let job = store.shared().await.tracked().await;
    let mut stream = job.resume(2).await;
    job.cancel(json!({"reason": "r", "grace_ms": 300})).await.expect(202);
    stream.expect("cancel_requested").await;
    assert_eq!(stream.expect("cancelled").await.json()["data"]["reason"], "r");
    stream.expect("end").await;
    job.untouched(async {
        let late = json!({"type": "completed", "data": {}});
        job.try_append(&late).await.problem(409, "job_terminal");
    })
    .await;
}

async fn second_cancel_may_only_shorten_the_grace(store: Store) {
    let job = store.shared().await.tracked().await;
    job.cancel(json!({"grace_ms": 30_000})).await.expect(202);
    job.untouched(async {
        job.cancel(json!({"grace_ms": 60_000})).await.expect(202);
    })
    .await;
    job.cancel(json!({"grace_ms": 200})).await.expect(202);
    job.cancel(json!({"grace_ms": 50_000})).await.expect(202);
    let (state, _) = job.ended().await;
    assert_eq!(state["state"], "cancelled");
    assert_eq!(job.types().await, ["queued", "started", "cancel_requested", "cancelled"]);
}

async fn completion_within_the_grace_wins(store: Store) {
    let job = store.shared().await.tracked().await;
    job.cancel(json!({"grace_ms": 30_000})).await.expect(202);
    job.complete().await;
    let state = job.state().await;
    assert_eq!((&state["state"], &state["cancel_requested"]), (&json!("completed"), &json!(true)));
    job.cancel(json!({})).await.problem(409, "job_terminal");
}

async fn failure_after_the_request_ends_as_cancelled(store: Store) {
    let job = store.shared().await.tracked().await;
    job.cancel(json!({"reason": "r", "grace_ms": 30_000})).await.expect(202);
    job.append(json!({"type": "failed", "data": {"code": "boom", "message": "m"}})).await;
    let state = job.state().await;
    assert_eq!((&state["state"], &state["error"]["code"]), (&json!("cancelled"), &json!("boom")));
    let stored = job.log().await.pop().expect("stored");
    assert_eq!((&stored["type"], &stored["data"]["error"]["code"]), (&json!("cancelled"), &json!("boom")));
}

async fn race_of_cancel_and_complete_has_one_end(store: Store) {
    let server = store.shared().await;
    let mut random = Random::new();
    for round in 0..60 {
        let job = server.tracked().await;
        let (cancelling, completing) = (job.clone(), job.clone());
        let (mut first, mut second) = (random.fork(), random.fork());
        let end = if round % 2 == 0 { "completed" } else { "cancelled" };
        let cancel = tokio::spawn(async move {
            first.pause(3).await;
            cancelling.cancel(json!({"grace_ms": 0})).await
        });
        let complete = tokio::spawn(async move {
            second.pause(3).await;
            completing.try_append(&json!({"type": end, "data": {}})).await
        });
        let (cancel, complete) = (cancel.await.expect("answered"), complete.await.expect("answered"));
        assert!([200, 202, 409].contains(&cancel.status()), "{}", cancel.text());
        assert!([200, 409].contains(&complete.status()), "{}", complete.text());
        let (state, _) = job.ended().await;
        let seq = number(&state["seq"]);
        job.untouched(async {
            for late in ["progress", "log", "failed"] {
                let event = json!({"type": late, "data": {"message": "late"}});
                job.try_append(&event).await.problem(409, "job_terminal");
            }
        })
        .await;
        let types = job.types().await;
        let ends = types.iter().filter(|kind| ["completed", "failed", "cancelled"].contains(&kind.as_str())).count();
        assert_eq!((ends, types.len() as u64), (1, seq), "{types:?}");
        assert_eq!(types.last().map(String::as_str), state["state"].as_str());
        if complete.status() == 200 {
            assert_eq!(state["state"], end, "who was told 200 was stored");
        }
    }
}

async fn body_is_checked(store: Store) {
    let server = store.shared().await;
    let job = server.tracked().await;
    job.untouched(async {
        let table: [(Value, &str); 6] = [
            (json!({"nope": 1}), "/nope"),
            (json!({"reason": 5}), "/reason"),
            (json!({"grace_ms": -1}), "/grace_ms"),
            (json!({"grace_ms": "5"}), "/grace_ms"),
            (json!({"grace_ms": 1.5}), "/grace_ms"),
            (json!({"grace_ms": 1e300}), "/grace_ms"),
        ];
        for (body, pointer) in table {
            job.cancel(body).await.problem_at(422, "invalid_request", pointer);
        }
        job.post("/cancel").body("{").send().await.problem(400, "invalid_json");
    })
    .await;
    let mut stream = job.resume(2).await;
    stream.frame().await;
    stream.assert_silent(Duration::from_millis(200)).await;
    Job::new(&server, "0199a0b4-7c1e-7000-8000-000000000000").cancel(json!({})).await.problem(404, "job_not_found");
}
