//! Claims that wait: who is woken and how soon, and that a claimer who has gone takes nothing with it.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::*;

on_both_stores!(
    enqueue_wakes_a_parked_claim_at_once,
    every_parked_claimer_gets_a_job_of_its_own,
    claim_of_many_is_answered_as_soon_as_there_is_one,
    claim_over_many_queues_wakes_for_any_of_them,
    every_way_to_become_claimable_wakes,
    claimer_that_hung_up_takes_nothing,
    claimer_that_hangs_up_meanwhile_loses_no_job,
    parked_claims_hold_no_connection_to_the_store,
    parked_claims_are_answered_when_the_gateway_drains,
);

/// How soon a claim that waits has to hear of a job: well under a second, on a machine under load.
const SOON: Duration = Duration::from_millis(600);

/// Time enough for a request that was sent to be parked, or for a hang-up to be noticed.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(200)).await;
}

async fn enqueue_wakes_a_parked_claim_at_once(store: Store) {
    let lane = Lane::shared(store).await;
    for _ in 0..10 {
        let parked = lane.park(json!({}));
        settle().await;
        let job = lane.job(json!({})).await;
        let begun = Instant::now();
        let (leases, answered) = parked.await.expect("answered");
        assert_eq!(leases.iter().map(|lease| &lease.job.id).collect::<Vec<_>>(), [&job.id]);
        let took = answered.saturating_duration_since(begun);
        assert!(took < SOON, "{took:?} from the enqueue to the claim");
    }
}

async fn every_parked_claimer_gets_a_job_of_its_own(store: Store) {
    let lane = Lane::shared(store).await;
    let parked: Vec<_> = (0..30).map(|n| lane.park(json!({"worker": format!("w{n}")}))).collect();
    settle().await;
    let jobs = lane.jobs((0..30).map(|_| json!({}))).await;
    let begun = Instant::now();
    let mut handed_out = HashSet::new();
    for claim in parked {
        let (leases, answered) = claim.await.expect("answered");
        assert_eq!(leases.len(), 1, "one job each");
        assert!(handed_out.insert(leases[0].job.id.clone()), "{} was handed out twice", leases[0].job.id);
        let took = answered.saturating_duration_since(begun);
        assert!(took < Duration::from_secs(2), "{took:?} from the enqueue to the claim");
    }
    assert_eq!(handed_out, jobs.into_iter().map(|job| job.id).collect());
}

async fn claim_of_many_is_answered_as_soon_as_there_is_one(store: Store) {
    let lane = Lane::shared(store).await;
    let parked = lane.park(json!({"max": 100}));
    settle().await;
    let job = lane.job(json!({})).await;
    let begun = Instant::now();
    let (leases, answered) = parked.await.expect("answered");
    assert_eq!(leases.iter().map(|lease| &lease.job.id).collect::<Vec<_>>(), [&job.id]);
    assert!(answered.saturating_duration_since(begun) < SOON, "it does not wait for ninety-nine more");
}

async fn claim_over_many_queues_wakes_for_any_of_them(store: Store) {
    let server = store.shared().await;
    let lanes: Vec<Lane> = (0..20).map(|_| Lane::on(&server)).collect();
    let names: Vec<&str> = lanes.iter().map(|lane| lane.name.as_str()).collect();
    for lane in [&lanes[0], &lanes[19], &lanes[7]] {
        let parked = lane.park(json!({"queues": names}));
        settle().await;
        let job = lane.job(json!({})).await;
        let begun = Instant::now();
        let (leases, answered) = parked.await.expect("answered");
        assert_eq!(leases[0].job.id, job.id);
        assert!(answered.saturating_duration_since(begun) < SOON, "any queue of the list wakes");
    }
}

async fn every_way_to_become_claimable_wakes(store: Store) {
    let server = store.shared().await;
    // Each a queue of its own with a job that is not claimable yet, and what makes it so.
    let lanes: Vec<Lane> = (0..5).map(|_| Lane::on(&server)).collect();
    for lane in &lanes {
        lane.job(json!({"max_attempts": 2, "backoff": {"initial_ms": 0, "jitter": 0}})).await;
    }
    let mut leases = Vec::new();
    for lane in &lanes {
        leases.push(lane.take(json!({})).await);
    }
    leases[3].fail(json!({"code": "c", "retryable": false})).await;
    leases[4].job.cancel(json!({"grace_ms": 0})).await.expect(202);
    leases[4].job.ended().await;
    let parked: Vec<_> = lanes.iter().map(|lane| lane.park(json!({}))).collect();
    settle().await;
    leases[0].release(json!({})).await;
    leases[1].release(json!({"delay_ms": 200})).await;
    leases[2].fail(json!({"code": "c"})).await;
    for ended in &leases[3..] {
        ended.job.post("/retry").send().await.expect(202);
    }
    let begun = Instant::now();
    for (index, (claim, before)) in parked.into_iter().zip(&leases).enumerate() {
        let (again, answered) = claim.await.expect("answered");
        assert_eq!((&again[0].job.id, again[0].run), (&before.job.id, 2), "way {index}");
        let took = answered.saturating_duration_since(begun);
        assert!(took < Duration::from_millis(1_500), "way {index}: {took:?}");
    }
}

async fn claimer_that_hung_up_takes_nothing(store: Store) {
    let lane = Lane::shared(store).await;
    let mut gone = Vec::new();
    for max in [1, 1, 10, 100, 1] {
        let request = lane.request(json!({"max": max, "wait_ms": 50_000}));
        let mut connection = Connection::open(lane.server.address()).await.expect("the server accepts");
        let body = lane.wish(json!({"max": max, "wait_ms": 50_000})).to_string();
        connection.write(&[request.head(), body.into_bytes()].concat()).await.expect("the server reads");
        gone.push(connection);
    }
    settle().await;
    drop(gone);
    settle().await;
    let jobs = lane.jobs((0..5).map(|_| json!({}))).await;
    let leases = lane.take_all(5, json!({})).await;
    for (job, lease) in jobs.iter().zip(leases) {
        assert_eq!((&lease.job.id, lease.run), (&job.id, 1), "nobody had it before");
        assert_eq!(job.types().await, ["queued", "started"]);
    }
}

/// Hang-ups that cross the hand-out on its way. What was written to a socket that nobody reads any more is caught by
/// its lease, which is short here.
async fn claimer_that_hangs_up_meanwhile_loses_no_job(store: Store) {
    let lane = Lane::shared(store).await;
    let mut random = Random::new();
    let quitters: Vec<_> = (0..40)
        .map(|_| {
            let (request, mut random) = (lane.request(json!({"wait_ms": 50_000, "lease_ms": 1_000})), random.fork());
            tokio::spawn(async move {
                let patience = Duration::from_millis(150 + random.below(100));
                drop(tokio::time::timeout(patience, request.try_send()).await);
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let jobs = lane.jobs((0..40).map(|_| json!({}))).await;
    for quitter in quitters {
        quitter.await.expect("a quitter ends");
    }
    let mut left: HashSet<String> = jobs.iter().map(|job| job.id.clone()).collect();
    let begun = Instant::now();
    while !left.is_empty() {
        for lease in lane.claim(json!({"max": 100, "wait_ms": 500})).await {
            assert_eq!(lease.document["attempt"], 1, "a hang-up is no attempt");
            left.remove(&lease.job.id);
        }
        assert!(begun.elapsed() < Duration::from_secs(6), "{} jobs went with those who hung up", left.len());
    }
    for job in jobs {
        for event in assert_folds(&job).await {
            if event["type"] == "released" {
                let reason = text(&event["data"]["reason"]);
                assert!(["undelivered", "lease_expired"].contains(&reason), "{event}");
            }
        }
    }
}

async fn parked_claims_hold_no_connection_to_the_store(store: Store) {
    let server = store.serve(&["--pool", "4"]).await;
    let lane = Lane::on(&server);
    let parked: Vec<_> = (0..100).map(|_| lane.park(json!({"wait_ms": 8_000}))).collect();
    settle().await;
    for _ in 0..5 {
        let begun = Instant::now();
        let elsewhere = Lane::on(&server);
        elsewhere.job(json!({})).await;
        elsewhere.take(json!({})).await.complete().await;
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?} beside a hundred parked claims", begun.elapsed());
    }
    lane.jobs((0..100).map(|_| json!({}))).await;
    let mut handed_out = HashSet::new();
    for claim in parked {
        handed_out.extend(claim.await.expect("answered").0.into_iter().map(|lease| lease.job.id));
    }
    assert_eq!(handed_out.len(), 100);
}

async fn parked_claims_are_answered_when_the_gateway_drains(store: Store) {
    let server = store.serve(&["--drain-ms", "4000"]).await;
    let (lane, busy) = (Lane::on(&server), Lane::on(&server));
    let parked: Vec<_> = (0..20).map(|_| tokio::spawn(lane.request(json!({"wait_ms": 50_000})).send())).collect();
    let waiting = busy.jobs((0..10).map(|_| json!({}))).await;
    // Streams draw the drain out, so that there is a while in which a claim must not be served any more.
    let watched = server.tracked().await;
    let mut streams = Vec::new();
    for _ in 0..60 {
        streams.push(watched.stream().await);
    }
    settle().await;
    server.sigterm();
    let begun = Instant::now();
    for claim in parked {
        assert_turned_away(&claim.await.expect("answered"));
    }
    assert!(begun.elapsed() < SOON * 2, "parked claims do not hold up the end: {:?}", begun.elapsed());
    while let Ok(answer) = busy.request(json!({"wait_ms": 5_000, "max": 10})).try_send().await {
        assert_turned_away(&answer);
    }
    assert_eq!(server.exit(Duration::from_secs(8)).await.code(), Some(0));
    server.restart().await;
    for job in waiting {
        assert_eq!(job.types().await, ["queued"], "no job is handed out by a gateway that goes");
    }
}

/// An empty answer, or words that say when to come back.
#[track_caller]
fn assert_turned_away(answer: &Answer) {
    match answer.status() {
        200 => assert_eq!(answer.json(), json!({"jobs": []})),
        _ => {
            answer.problem(503, "shutting_down");
            assert!(answer.header("retry-after").is_some(), "a 503 says when to come back");
        }
    }
}
