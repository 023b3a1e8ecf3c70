//! Our own lateness is not a worker's failure: after an outage of the gateway, or of its store, that was longer than a
//! lease, who still works keeps the job, and who has died loses it as ever.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use serde_json::json;

use crate::harness::*;

on_both_stores!(
    healthy_worker_keeps_its_job_over_an_outage,
    dead_worker_loses_its_job_after_an_outage,
    gateway_that_was_stopped_takes_no_job_from_a_healthy_worker,
    outage_extends_neither_ttl_nor_deadline_nor_timeout,
);

/// Longer than the leases here, and than the gateway may be away unnoticed.
const AWAY: Duration = Duration::from_millis(5_500);

async fn away(server: &Server) {
    server.kill9();
    tokio::time::sleep(AWAY).await;
    server.restart().await;
}

async fn healthy_worker_keeps_its_job_over_an_outage(store: Store) {
    let server = store.serve(&[]).await;
    let lane = Lane::on(&server);
    lane.jobs((0..4).map(|_| json!({}))).await;
    let leases = lane.take_all(4, json!({"lease_ms": 3_000})).await;
    for lease in &leases[..3] {
        lease.beat().await;
    }
    away(&server).await;
    // A rival is there first, and two sweeps go by before the workers come back.
    let rival = lane.park(json!({"wait_ms": 1_500, "max": 10, "worker": "rival"}));
    assert_eq!(leases[0].beat().await["seq"], 2);
    assert_eq!(rival.await.expect("answered").0.len(), 0, "nobody's job is free");
    let ways = [json!([]), json!({"type": "own"}), json!([]), json!({"type": "completed"})];
    for (lease, body) in leases.iter().zip(ways) {
        lease.append(body).await;
    }
    for lease in &leases[..3] {
        lease.complete().await;
        assert_folds(&lease.job).await;
    }
    for lease in &leases {
        let starts = lease.job.types().await.iter().filter(|kind| *kind == "started").count();
        assert_eq!((starts, &lease.job.state().await["state"]), (1, &json!("completed")));
    }
}

/// As when its machine slept, or swapped: it finds itself late, with no start that would tell it so.
async fn gateway_that_was_stopped_takes_no_job_from_a_healthy_worker(store: Store) {
    let server = store.serve(&[]).await;
    let lane = Lane::on(&server);
    lane.jobs((0..3).map(|_| json!({}))).await;
    let leases = lane.take_all(3, json!({"lease_ms": 2_500})).await;
    leases[0].beat().await;
    let rival = lane.park(json!({"wait_ms": 7_500, "max": 10, "worker": "rival"}));
    tokio::time::sleep(Duration::from_millis(200)).await;
    kill(server.pid(), Signal::SIGSTOP).expect("our child takes a signal");
    tokio::time::sleep(AWAY).await;
    let beats: Vec<_> = leases.iter().map(|lease| tokio::spawn(lease.post().json(&json!([])).send())).collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    kill(server.pid(), Signal::SIGCONT).expect("our child takes a signal");
    for beat in beats {
        assert_eq!(beat.await.expect("answered").expect(200)["seq"], 2);
    }
    assert_eq!(rival.await.expect("answered").0.len(), 0, "nobody's job is free");
    for lease in &leases {
        lease.complete().await;
        assert_eq!(lease.job.types().await, ["queued", "started", "completed"]);
    }
}

async fn dead_worker_loses_its_job_after_an_outage(store: Store) {
    let server = store.serve(&[]).await;
    let lane = Lane::on(&server);
    lane.jobs([json!({"backoff": {"initial_ms": 0}}), json!({})]).await;
    let leases = lane.take_all(2, json!({"lease_ms": 2_000})).await;
    leases[0].beat().await;
    away(&server).await;
    let back = now_ms();
    for (lease, end) in leases.iter().zip(["retrying", "released"]) {
        lease.lapsed().await;
        let log = assert_folds(&lease.job).await;
        assert_eq!(log[2]["type"], end);
        let after = instant(&log[2]["at"]) - back;
        assert!(after <= 2_000 + SWEEP.as_millis() as i64, "the lease was extended once: lost after {after} ms");
        assert_lost(&lease.job, lease.post().json(&json!([]))).await;
    }
    lane.take_all(2, json!({})).await;
}

async fn outage_extends_neither_ttl_nor_deadline_nor_timeout(store: Store) {
    let server = store.serve(&[]).await;
    let lane = Lane::on(&server);
    let running = lane.jobs([json!({"timeout_ms": 3_000, "max_attempts": 1}), json!({"deadline_ms": 3_000})]).await;
    let leases = lane.take_all(2, json!({"lease_ms": 60_000})).await;
    let waiting = lane.jobs([json!({"ttl_ms": 3_000}), json!({"deadline_ms": 3_000})]).await;
    away(&server).await;
    let back = now_ms();
    lane.assert_none().await;
    for (job, (state, code)) in running.iter().zip([("failed", "timed_out"), ("failed", "deadline")]) {
        let ended = job.ended().await.0;
        assert_eq!((&ended["state"], &ended["error"]["code"]), (&json!(state), &json!(code)));
    }
    for (job, reason) in waiting.iter().zip(["ttl", "deadline"]) {
        job.ended().await;
        let log = job.log().await;
        assert_eq!((&log[1]["type"], &log[1]["data"]["reason"]), (&json!("expired"), &json!(reason)));
    }
    for job in running.iter().chain(&waiting) {
        let end = assert_folds(job).await.pop().expect("a log has events");
        assert!(instant(&end["at"]) - back <= SWEEP.as_millis() as i64, "found soon after the start: {end}");
    }
    for lease in leases {
        let answer = lease.try_append(&json!([])).await;
        assert_eq!(answer.status(), 409, "{}", answer.text());
    }
}

#[test]
fn outage_of_the_store_takes_no_job_from_a_healthy_worker() {
    run(async {
        let server = Store::Postgres.serve(&[]).await;
        let lane = Lane::on(&server);
        lane.jobs([json!({}), json!({})]).await;
        let leases = lane.take_all(2, json!({"lease_ms": 3_000})).await;
        leases[0].beat().await;
        let database = server.setup.database.as_ref().expect("a Postgres server has a database");
        database.away().await;
        let begun = std::time::Instant::now();
        while begun.elapsed() < AWAY {
            let answer = leases[0].try_append(&json!([])).await;
            assert_eq!(answer.status(), 503, "{}", answer.text());
            let claim = lane.request(json!({})).send().await;
            claim.problem(503, "store_unavailable");
            assert!(claim.header("retry-after").is_some(), "a 503 says when to come back");
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        database.back().await;
        for lease in &leases {
            let limit = Duration::from_secs(20);
            let answer = eventually(limit, "the store is back", async || {
                let answer = lease.try_append(&json!([])).await;
                (answer.status() != 503).then_some(answer)
            })
            .await;
            assert_eq!((answer.expect(200)["seq"]).clone(), 2);
        }
        for lease in &leases {
            lease.complete().await;
            assert_eq!(lease.job.types().await, ["queued", "started", "completed"]);
        }
        assert_eq!(lane.claim(json!({})).await.len(), 0);
    });
}

#[test]
fn parked_claim_outlives_an_outage_of_the_store() {
    run(async {
        let server = Store::Postgres.serve(&[]).await;
        let lane = Lane::on(&server);
        let parked = tokio::spawn(lane.request(json!({"wait_ms": 18_000})).send());
        tokio::time::sleep(Duration::from_millis(300)).await;
        let database = server.setup.database.as_ref().expect("a Postgres server has a database");
        database.away().await;
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        database.back().await;
        let spec = lane.spec(json!({}));
        eventually(Duration::from_secs(15), "an enqueue", async || {
            (server.enqueue(&spec).await.status() == 202).then_some(())
        })
        .await;
        // It may have been turned away in words; it must not sit there and see nothing.
        let answer = parked.await.expect("answered");
        match answer.status() {
            503 => drop(answer.problem(503, "store_unavailable")),
            _ => assert_eq!(Lease::all(&server, &answer).len(), 1),
        }
    });
}
