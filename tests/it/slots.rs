//! A slot is free the moment its run has ended, in whichever way (case 13): counted from live leases, so that there
//! is nothing that could leak.

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    every_end_frees_the_slot_of_the_queue_at_once,
    every_end_frees_the_slot_of_the_key_at_once,
    ends_that_the_gateway_makes_free_the_slot_soon,
    slots_survive_kill_9,
);

const ROUNDS: usize = 20;

/// A job at a time, and always a next one that waits for the slot.
async fn bounded(lane: &Lane, settings: Value) -> Lease {
    lane.set(settings).await;
    next_waits(lane).await;
    next_waits(lane).await;
    next(lane, "the beginning").await
}

async fn next_waits(lane: &Lane) {
    let backoff = json!({"initial_ms": 3_600_000});
    lane.job(json!({"concurrency_key": "k", "max_attempts": 2, "backoff": backoff})).await;
}

/// Exactly one job is claimable, and at once.
async fn next(lane: &Lane, after: &str) -> Lease {
    let mut leases = lane.claim(json!({"max": 10})).await;
    assert_eq!(leases.len(), 1, "one slot is free after {after}");
    lane.assert_none().await;
    next_waits(lane).await;
    leases.remove(0)
}

async fn every_end_frees_its_slot(lane: Lane, settings: Value) {
    let mut lease = bounded(&lane, settings).await;
    for _ in 0..ROUNDS {
        lease.complete().await;
        lease = next(&lane, "completed").await;
        lease.fail(json!({"code": "c", "retryable": false})).await;
        lease = next(&lane, "failed").await;
        lease.fail(json!({"code": "c"})).await;
        lease = next(&lane, "retrying").await;
        lease.release(json!({"delay_ms": 3_600_000})).await;
        lease = next(&lane, "released").await;
        lease.job.cancel(json!({"grace_ms": 60_000})).await.expect(202);
        lane.assert_none().await;
        lease.append(json!({"type": "cancelled"})).await;
        lease = next(&lane, "cancelled").await;
        lease.job.cancel(json!({"grace_ms": 60_000})).await.expect(202);
        lease.release(json!({})).await;
        lease = next(&lane, "cancelled by a release").await;
        lease.complete().await;
        lease.job.delete().await.expect_empty(204);
        lease = next(&lane, "deleted").await;
        lease.fail(json!({"code": "c", "retryable": false})).await;
        lease.job.post("/retry").send().await.expect(202);
        lease = next(&lane, "redriven").await;
        // Given back at once it is claimable at once, with its slot.
        lease.release(json!({})).await;
        lease = next(&lane, "released at once").await;
    }
}

async fn every_end_frees_the_slot_of_the_queue_at_once(store: Store) {
    every_end_frees_its_slot(Lane::shared(store).await, json!({"concurrency": 1})).await;
}

async fn every_end_frees_the_slot_of_the_key_at_once(store: Store) {
    every_end_frees_its_slot(Lane::shared(store).await, json!({"concurrency_per_key": 1})).await;
}

/// Ends that need a time to pass: twenty queues beside each other.
async fn ends_that_the_gateway_makes_free_the_slot_soon(store: Store) {
    let server = store.shared().await;
    let mut lanes = Vec::new();
    for n in 0..ROUNDS {
        let lane = Lane::on(&server);
        lane.set([json!({"concurrency": 1}), json!({"concurrency_per_key": 1})][n / 4 % 2].clone()).await;
        let more = match n % 4 {
            0 => json!({"timeout_ms": 300}),
            1 => json!({"deadline_ms": 1_200}),
            _ => json!({}),
        };
        lane.job(merged(json!({"concurrency_key": "k", "priority": 1, "backoff": {"initial_ms": 3_600_000}}), more))
            .await;
        let waiting = lane.job(json!({"concurrency_key": "k"})).await;
        let lease_ms = if n % 4 == 2 { 1_000 } else { 60_000 };
        let lease = lane.take(json!({"lease_ms": lease_ms})).await;
        lease.beat().await;
        lane.assert_none().await;
        if n % 4 == 3 {
            lease.job.cancel(json!({"grace_ms": 300})).await.expect(202);
        }
        lanes.push((lane.park(json!({})), waiting, lease));
    }
    for (n, (claim, waiting, before)) in lanes.into_iter().enumerate() {
        let (leases, _) = claim.await.expect("answered");
        assert_eq!(leases.iter().map(|lease| &lease.job.id).collect::<Vec<_>>(), [&waiting.id], "way {}", n % 4);
        let ended = before.job.log().await.pop().expect("a log has events");
        let after = instant(&leases[0].document["started_at"]) - instant(&ended["at"]);
        assert!((0..=1_000).contains(&after), "way {}: {after} ms after {ended}", n % 4);
        leases[0].complete().await;
    }
}

async fn slots_survive_kill_9(store: Store) {
    let server = store.serve(&[]).await;
    let lane = Lane::on(&server);
    lane.set(json!({"concurrency": 2})).await;
    lane.jobs((0..4).map(|_| json!({}))).await;
    let leases = lane.take_all(2, json!({"lease_ms": 60_000})).await;
    server.kill9();
    server.restart().await;
    lane.assert_none().await;
    leases[0].complete().await;
    lane.take_all(1, json!({})).await;
    lane.assert_none().await;
}
