//! `released`: the job given back without using an attempt, at once or after a while, and not for ever.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    released_job_is_claimable_at_once_and_keeps_its_attempt,
    released_with_delay_is_scheduled,
    released_between_attempts_keeps_those_that_were_used,
    release_is_checked,
    release_ends_the_lease,
    repeated_release_changes_nothing,
    hundred_and_first_release_of_an_attempt_is_a_failure,
);

async fn released_job_is_claimable_at_once_and_keeps_its_attempt(store: Store) {
    let lane = Lane::shared(store).await;
    let job = lane.job(json!({"max_attempts": 1})).await;
    let lease = lane.take(json!({})).await;
    let mut stream = job.resume(2).await;
    let answer = lease.release(json!({"reason": "deploy"})).await;
    assert_eq!(answer, json!({"seq": 3, "lease": null, "cancel_requested": false}));
    let event = stream.expect("released").await.json();
    assert_eq!((&event["data"]["reason"], &event["attempt"]), (&json!("deploy"), &json!(0)));
    let state = job.state().await;
    assert_eq!(
        (&state["state"], &state["attempt"], &state["worker"], &state["run_at"]),
        (&json!("queued"), &json!(0), &Value::Null, &event["at"])
    );
    assert_folds(&job).await;
    let again = lane.take(json!({"wait_ms": 0})).await;
    assert_eq!((again.run, &again.document["attempt"]), (2, &json!(1)));
    again.complete().await;
}

async fn released_with_delay_is_scheduled(store: Store) {
    let lane = Lane::shared(store).await;
    let job = lane.job(json!({})).await;
    lane.take(json!({})).await.release(json!({"delay_ms": 900, "reason": "snooze"})).await;
    let log = assert_folds(&job).await;
    let state = job.state().await;
    assert_eq!(state["state"], "scheduled");
    assert_eq!(instant(&state["run_at"]) - instant(&log[2]["at"]), 900);
    lane.assert_none().await;
    let (leases, _) = lane.park(json!({})).await.expect("answered");
    let late = instant(&leases[0].document["started_at"]) - instant(&state["run_at"]);
    assert!((0..=1_500).contains(&late), "started {late} ms after its time");
    assert_eq!((leases[0].run, &leases[0].document["attempt"]), (2, &json!(1)));
}

async fn released_between_attempts_keeps_those_that_were_used(store: Store) {
    let lane = Lane::shared(store).await;
    let job = lane.job(json!({"max_attempts": 2, "backoff": {"initial_ms": 0}})).await;
    lane.take(json!({})).await.fail(json!({"code": "c"})).await;
    for _ in 0..2 {
        lane.take(json!({})).await.release(json!({})).await;
    }
    lane.take(json!({})).await.fail(json!({"code": "c"})).await;
    let log = assert_folds(&job).await;
    assert_eq!(
        tries(&log)[1..],
        [
            ("started", 1),
            ("retrying", 1),
            ("started", 2),
            ("released", 1),
            ("started", 2),
            ("released", 1),
            ("started", 2),
            ("failed", 2)
        ]
    );
}

async fn release_is_checked(store: Store) {
    let lane = Lane::shared(store).await;
    lane.job(json!({})).await;
    let lease = lane.take(json!({})).await;
    lease
        .job
        .untouched(async {
            let table = [
                (json!({"delay_ms": -1}), "/data/delay_ms"),
                (json!({"delay_ms": "5"}), "/data/delay_ms"),
                (json!({"delay_ms": 1.5}), "/data/delay_ms"),
                (json!({"delay_ms": 1e300}), "/data/delay_ms"),
                (json!({"reason": 5}), "/data/reason"),
            ];
            for (data, pointer) in table {
                let body = json!({"type": "released", "data": data});
                lease.try_append(&body).await.problem_at(422, "invalid_request", pointer);
            }
            let not_last = json!([{"type": "released"}, {"type": "own"}]);
            lease.try_append(&not_last).await.problem(422, "invalid_request");
        })
        .await;
    lease.append(json!([{"type": "own"}, {"type": "released"}])).await;
    assert_eq!(lease.job.types().await, ["queued", "started", "own", "released"]);
}

async fn release_ends_the_lease(store: Store) {
    let lane = Lane::shared(store).await;
    let job = lane.job(json!({})).await;
    let lease = lane.take(json!({"lease_ms": 1_000})).await;
    lease.release(json!({})).await;
    for body in [json!([]), json!({"type": "own"}), json!({"type": "completed"})] {
        assert_lost(&job, lease.post().json(&body)).await;
    }
    // The sweep has nothing to find either.
    tokio::time::sleep(Duration::from_millis(2_300)).await;
    assert_eq!(job.types().await, ["queued", "started", "released"]);
}

async fn repeated_release_changes_nothing(store: Store) {
    let lane = Lane::shared(store).await;
    let job = lane.job(json!({})).await;
    let lease = lane.take(json!({})).await;
    let body = json!({"type": "released", "data": {"reason": "r"}});
    let send = |lease: &Lease| lease.post().header("Idempotency-Key", "k").json(&body).send();
    let first = send(&lease).await.expect(200);
    let second = lane.take(json!({})).await;
    job.untouched(async {
        assert_eq!(send(&lease).await.expect(200)["seq"], first["seq"], "its answer was lost, and is given again");
        // Without a key the same words may be known again or refused, but never stored.
        let answer = lease.try_append(&body).await;
        assert!([200, 409].contains(&answer.status()), "{}", answer.text());
    })
    .await;
    second.complete().await;
    assert_eq!(job.types().await, ["queued", "started", "released", "started", "completed"]);
}

async fn hundred_and_first_release_of_an_attempt_is_a_failure(store: Store) {
    let lane = Lane::shared(store).await;
    let jobs = lane.jobs([1, 2].map(|n| json!({"max_attempts": n, "backoff": {"initial_ms": 0}}))).await;
    for round in 1..=101 {
        for lease in lane.take_all(2, json!({})).await {
            assert_eq!((lease.run, &lease.document["attempt"]), (round, &json!(1)));
            lease.release(json!({})).await;
        }
    }
    let [last, more] = [&jobs[0], &jobs[1]];
    let log = assert_folds(last).await;
    assert_eq!((log.len(), &log[200]["type"], &log[200]["attempt"]), (203, &json!("released"), &json!(0)));
    assert_eq!((&log[202]["type"], &log[202]["data"]["code"]), (&json!("failed"), &json!("too_many_releases")));
    let log = assert_folds(more).await;
    assert_eq!((log.len(), &log[200]["type"], &log[202]["type"]), (203, &json!("released"), &json!("retrying")));
    assert_eq!((&log[202]["data"]["error"]["code"], &log[202]["attempt"]), (&json!("too_many_releases"), &json!(1)));
    // The next attempt has releases of its own.
    let lease = lane.take(json!({})).await;
    assert_eq!((&lease.job.id, &lease.document["attempt"]), (&more.id, &json!(2)));
    lease.release(json!({})).await;
    assert_eq!(more.state().await["state"], "queued");
}
