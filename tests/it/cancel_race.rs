//! Cancel against a worker with a lease: who asked first, who was told what, and one end in every case.

use serde_json::json;

use crate::harness::*;

on_both_stores!(
    cancel_against_complete_has_one_end_and_consistent_answers,
    lost_lease_of_a_cancelled_run_ends_it,
    race_of_cancel_and_claim_has_one_winner,
);

/// `MILEPOST_TEST_RACES` sets the number; the default keeps a debug build to some seconds.
fn rounds(default: usize) -> usize {
    std::env::var("MILEPOST_TEST_RACES").map_or(default, |text| text.parse().expect("MILEPOST_TEST_RACES is a number"))
}

async fn one_race(lease: Lease, grace_ms: u64, mut random: Random) {
    let job = lease.job.clone();
    let (cancelling, completing) = (job.clone(), lease.clone());
    let (mut first, mut second) = (random.fork(), random.fork());
    let cancel = tokio::spawn(async move {
        first.pause(4).await;
        cancelling.cancel(json!({"grace_ms": grace_ms})).await
    });
    let complete = tokio::spawn(async move {
        second.pause(4).await;
        completing.try_append(&json!({"type": "completed", "data": {"note": "done"}})).await
    });
    let (cancel, complete) = (cancel.await.expect("answered"), complete.await.expect("answered"));
    let (state, _) = job.ended().await;
    let late =
        [json!({"type": "progress", "data": {"percent": 60}}), json!({"type": "log"}), json!({"type": "failed"})];
    job.untouched(async {
        for body in late {
            let answer = lease.try_append(&body).await;
            assert!([409, 422].contains(&answer.status()), "{}", answer.text());
        }
    })
    .await;
    let types = job.types().await;
    match complete.status() {
        200 => {
            assert_eq!(state["state"], "completed", "{types:?}");
            match cancel.status() {
                202 => assert_eq!(types, ["queued", "started", "cancel_requested", "completed"]),
                _ => {
                    cancel.problem(409, "job_terminal");
                    assert_eq!(types, ["queued", "started", "completed"]);
                }
            }
        }
        _ => {
            assert!(["job_terminal", "lease_lost"].contains(&text(&complete.expect(409)["code"])));
            assert_eq!(cancel.status(), 202, "{}", cancel.text());
            assert_eq!(types, ["queued", "started", "cancel_requested", "cancelled"]);
        }
    }
    assert_folds(&job).await;
}

async fn cancel_against_complete_has_one_end_and_consistent_answers(store: Store) {
    let lane = Lane::shared(store).await;
    let mut random = Random::new();
    let count = rounds(200);
    lane.jobs((0..count).map(|_| json!({}))).await;
    let mut left = count;
    while left > 0 {
        let leases = lane.claim(json!({"max": 10, "lease_ms": 60_000})).await;
        left -= leases.len();
        let races: Vec<_> = leases
            .into_iter()
            .enumerate()
            // Mostly no grace, so that the force is a third runner in the race.
            .map(|(n, lease)| tokio::spawn(one_race(lease, [0, 0, 5, 60_000][n % 4], random.fork())))
            .collect();
        for race in races {
            race.await.expect("one end, and answers that agree with it");
        }
    }
}

async fn lost_lease_of_a_cancelled_run_ends_it(store: Store) {
    let lane = Lane::shared(store).await;
    let jobs = lane.jobs([json!({}), json!({}), json!({"timeout_ms": 1_000}), json!({"deadline_ms": 1_000})]).await;
    let leases = lane.take_all(4, json!({"lease_ms": 1_000})).await;
    leases[1].beat().await;
    for job in &jobs {
        job.cancel(json!({"grace_ms": 3_600_000})).await.expect(202);
    }
    for (job, code) in jobs.iter().zip(["lease_expired", "lease_expired", "timed_out", "deadline"]) {
        let state = job.ended().await.0;
        assert_eq!(state["state"], "cancelled");
        let log = assert_folds(job).await;
        assert_eq!(job.types().await, ["queued", "started", "cancel_requested", "cancelled"]);
        let said = text(&log[3]["data"]["error"]["code"]);
        // Two of them have two reasons, which came due together.
        assert!(said == code || said == "lease_expired", "{said} for {code}");
    }
    lane.assert_none().await;
}

async fn race_of_cancel_and_claim_has_one_winner(store: Store) {
    let lane = Lane::shared(store).await;
    let mut random = Random::new();
    for _ in 0..6 {
        let jobs = lane.jobs((0..20).map(|_| json!({}))).await;
        let cancels: Vec<_> = jobs
            .iter()
            .map(|job| {
                let (job, mut random) = (job.clone(), random.fork());
                tokio::spawn(async move {
                    random.pause(30).await;
                    job.cancel(json!({"grace_ms": 60_000})).await
                })
            })
            .collect();
        let claims: Vec<_> = (0..20)
            .map(|_| {
                let (lane, mut random) = (lane.clone(), random.fork());
                tokio::spawn(async move {
                    random.pause(30).await;
                    lane.claim(json!({"max": 1})).await
                })
            })
            .collect();
        let mut taken = Vec::new();
        for claim in claims {
            taken.extend(claim.await.expect("answered"));
        }
        for (job, cancel) in jobs.iter().zip(cancels) {
            let state = cancel.await.expect("answered").expect(202);
            let mine = taken.iter().find(|lease| lease.job.id == job.id);
            assert_eq!(state["state"] == "running", mine.is_some(), "{state}");
            match mine {
                Some(lease) => drop(lease.append(json!({"type": "cancelled"})).await),
                None => assert_eq!(job.types().await, ["queued", "cancelled"]),
            }
        }
        lane.assert_none().await;
    }
}
