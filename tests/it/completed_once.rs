//! One outcome, whatever is repeated: a request whose answer was lost, an attempt, a whole job.

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    repeated_end_with_the_same_words_is_answered_again,
    repeated_end_with_other_words_is_refused,
    many_repetitions_at_once_store_one_end,
    key_answers_again_after_the_lease_has_gone,
    key_of_an_append_with_another_body_is_a_mismatch,
    key_of_a_refused_append_is_free,
    retried_attempt_and_redrive_show_one_outcome,
    completed_job_is_not_redriven,
);

async fn repeated_end_with_the_same_words_is_answered_again(store: Store) {
    let lane = Lane::shared(store).await;
    let ends = [
        json!({"type": "completed", "data": {"note": "n", "data": {"a": 1, "b": 2}}}),
        json!({"type": "failed", "data": {"code": "c", "retryable": false}}),
        json!({"type": "cancelled", "data": {"reason": "r"}}),
        json!([{"type": "log", "data": {"message": "m"}}, {"type": "completed", "data": {}}]),
    ];
    for end in ends {
        lane.job(json!({})).await;
        let lease = lane.take(json!({})).await;
        let first = lease.append(end.clone()).await;
        assert_eq!(first["lease"], Value::Null);
        lease
            .job
            .untouched(async {
                for _ in 0..2 {
                    let again = lease.append(end.clone()).await;
                    assert_eq!((&again["seq"], &again["lease"]), (&first["seq"], &Value::Null));
                }
                // The same words without the lease are nobody's.
                let stranger = lease.job.post("/events").json(&end).send().await;
                assert_eq!(stranger.status(), 409, "{}", stranger.text());
            })
            .await;
    }
    // Equal as JSON values is the same, whatever the spelling.
    lane.job(json!({})).await;
    let lease = lane.take(json!({})).await;
    lease.append(json!({"type": "completed", "data": {"data": {"a": 1, "b": "ü"}}})).await;
    let spelled = "{ \"data\": {\"data\":{\"b\":\"\\u00fc\", \"a\":1}}, \"type\": \"completed\" }";
    lease.job.untouched(lease.post().body(spelled).send()).await.expect_ok();
}

async fn repeated_end_with_other_words_is_refused(store: Store) {
    let lane = Lane::shared(store).await;
    lane.job(json!({})).await;
    let lease = lane.take(json!({})).await;
    lease.append(json!({"type": "completed", "data": {"data": "first"}})).await;
    let others = [
        json!({"type": "completed", "data": {"data": "second"}}),
        json!({"type": "completed", "data": {}}),
        json!({"type": "failed", "data": {"code": "c"}}),
        json!({"type": "cancelled"}),
        json!({"type": "released"}),
        json!({"type": "own"}),
        json!([]),
    ];
    lease
        .job
        .untouched(async {
            for other in others {
                let answer = lease.try_append(&other).await;
                assert!(
                    ["job_terminal", "lease_lost"].contains(&text(&answer.expect(409)["code"])),
                    "{}",
                    answer.text()
                );
            }
        })
        .await;
    assert_eq!(lease.job.get("/result").send().await.expect(200), "first");
}

async fn many_repetitions_at_once_store_one_end(store: Store) {
    let lane = Lane::shared(store).await;
    for keyed in [false, true] {
        lane.job(json!({})).await;
        let lease = lane.take(json!({})).await;
        let end = json!({"type": "completed", "data": {"data": 7}});
        let request = match keyed {
            true => lease.post().header("Idempotency-Key", "k").json(&end),
            false => lease.post().json(&end),
        };
        let callers: Vec<_> = (0..20).map(|_| tokio::spawn(request.clone().send())).collect();
        for caller in callers {
            let answer = caller.await.expect("answered");
            match answer.status() {
                409 if keyed => drop(answer.problem(409, "idempotency_in_flight")),
                _ => assert_eq!(answer.expect(200)["seq"], 3),
            }
        }
        assert_eq!(lease.job.types().await, ["queued", "started", "completed"]);
    }
}

async fn key_answers_again_after_the_lease_has_gone(store: Store) {
    let lane = Lane::shared(store).await;
    let job = lane.job(json!({"backoff": {"initial_ms": 0}})).await;
    let lease = lane.take(json!({"lease_ms": 1_000})).await;
    let words = json!([{"type": "log", "data": {"message": "once"}}, {"type": "output", "data": {"text": "t"}}]);
    let keyed = |lease: &Lease, key: &str, body: &Value| lease.post().header("Idempotency-Key", key).json(body);
    let first = keyed(&lease, "words", &words).send().await.expect(200);
    lease.lapsed().await;
    job.untouched(async {
        assert_eq!(keyed(&lease, "words", &words).send().await.expect(200)["seq"], first["seq"]);
        keyed(&lease, "new", &words).send().await.problem(409, "lease_lost");
    })
    .await;
    let heir = lane.take(json!({})).await;
    let failure = json!({"type": "failed", "data": {"code": "c"}});
    let answer = keyed(&heir, "failure", &failure).send().await.expect(200);
    assert_eq!(job.state().await["state"], "retrying");
    let last = lane.take(json!({})).await;
    let end = json!({"type": "completed", "data": {"data": "last"}});
    let ended = keyed(&last, "end", &end).send().await.expect(200);
    job.untouched(async {
        assert_eq!(keyed(&heir, "failure", &failure).send().await.expect(200)["seq"], answer["seq"]);
        assert_eq!(keyed(&last, "end", &end).send().await.expect(200)["seq"], ended["seq"]);
    })
    .await;
    assert_eq!(job.types().await[2..], ["log", "output", "retrying", "started", "retrying", "started", "completed"]);
}

async fn key_of_an_append_with_another_body_is_a_mismatch(store: Store) {
    let lane = Lane::shared(store).await;
    lane.job(json!({})).await;
    let lease = lane.take(json!({})).await;
    let send = |body: Value| lease.post().header("Idempotency-Key", "k").json(&body).send();
    send(json!({"type": "own"})).await.expect_ok();
    lease.job.untouched(send(json!({"type": "other"}))).await.problem(422, "idempotency_mismatch");
    lease.complete().await;
    lease.job.untouched(send(json!({"type": "other"}))).await.problem(422, "idempotency_mismatch");
}

async fn key_of_a_refused_append_is_free(store: Store) {
    let lane = Lane::shared(store).await;
    lane.job(json!({})).await;
    let lease = lane.take(json!({})).await;
    let own = json!({"type": "own"});
    let stranger = lease.job.post("/events").header("Idempotency-Key", "k").json(&own);
    assert_lost(&lease.job, stranger).await;
    let request = lease.post().header("Idempotency-Key", "k").json(&own);
    assert_eq!(request.send().await.expect(200)["seq"], 3, "what was refused has not taken the key");
}

async fn retried_attempt_and_redrive_show_one_outcome(store: Store) {
    let lane = Lane::shared(store).await;
    let job = lane.job(json!({"max_attempts": 2, "backoff": {"initial_ms": 0}})).await;
    let done = |n: u64| json!({"type": "completed", "data": {"note": format!("run {n}"), "data": n}});
    let first = lane.take(json!({"lease_ms": 1_000})).await;
    first.beat().await;
    first.lapsed().await;
    let second = lane.take(json!({})).await;
    // The attempt was retried, and both its workers come to an end.
    assert_lost(&job, first.post().json(&done(1))).await;
    second.fail(json!({"code": "c"})).await;
    assert_eq!(job.state().await["state"], "failed");
    job.untouched(async {
        for late in [&first, &second] {
            let answer = late.try_append(&done(late.run)).await;
            assert_eq!(answer.status(), 409, "{}", answer.text());
        }
    })
    .await;
    job.post("/retry").send().await.expect(202);
    let third = lane.take(json!({})).await;
    for _ in 0..2 {
        third.append(done(3)).await;
    }
    for late in [&first, &second] {
        job.untouched(async {
            let answer = late.try_append(&done(late.run)).await;
            assert_eq!(answer.status(), 409, "{}", answer.text());
        })
        .await;
    }
    let state = job.state().await;
    assert_eq!(
        (&state["state"], &state["outcome"]["note"], &state["error"]),
        (&json!("completed"), &json!("run 3"), &Value::Null)
    );
    assert_eq!(job.get("/result").send().await.expect(200), 3);
    let log = assert_folds(&job).await;
    let outcomes: Vec<&Value> = log.iter().filter(|event| event["type"] == "completed").collect();
    assert_eq!((outcomes.len(), &outcomes[0]["seq"]), (1, &state["seq"]));
}

async fn completed_job_is_not_redriven(store: Store) {
    let lane = Lane::shared(store).await;
    let job = lane.job(json!({})).await;
    job.untouched(job.post("/retry").send()).await.problem(409, "not_retryable");
    let lease = lane.take(json!({})).await;
    job.untouched(job.post("/retry").send()).await.problem(409, "not_retryable");
    lease.complete().await;
    job.untouched(job.post("/retry").send()).await.problem(409, "not_retryable");
    lane.assert_none().await;
}
