//! Limits of a queue, enforced inside the claim and judged from the logs: never exceeded, at no moment, and no slower
//! than they have to be.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::*;

on_both_stores!(
    concurrency_bounds_what_runs_at_once,
    free_slot_wakes_a_parked_claim,
    raised_limit_wakes_and_lowered_limit_waits,
    concurrency_per_key_bounds_each_key,
    tracked_jobs_do_not_count,
    limits_are_each_queues_own,
    rivals_never_exceed_a_limit,
    rate_limit_bounds_the_starts_in_any_window,
    rate_limit_holds_for_each_key,
    rate_that_was_not_used_is_not_saved_up,
);

fn ids(leases: &[Lease]) -> Vec<&str> {
    leases.iter().map(|lease| lease.job.id.as_str()).collect()
}

/// The runs of these jobs, whose state and log agree.
async fn all_runs(jobs: &[Job]) -> Vec<Run> {
    let mut all = Vec::new();
    for job in jobs {
        all.extend(runs(&job.log().await));
    }
    all
}

async fn concurrency_bounds_what_runs_at_once(store: Store) {
    let lane = Lane::shared(store).await;
    lane.set(json!({"concurrency": 3})).await;
    let jobs = lane.jobs((0..10).map(|_| json!({}))).await;
    let mut running = lane.take_all(3, json!({})).await;
    assert_eq!(ids(&running), [&*jobs[0].id, &jobs[1].id, &jobs[2].id]);
    lane.assert_none().await;
    for next in &jobs[3..] {
        running.remove(0).complete().await;
        running.push(lane.take_all(1, json!({})).await.remove(0));
        assert_eq!(running[2].job.id, next.id);
        lane.assert_none().await;
    }
    for lease in running {
        lease.complete().await;
    }
    assert_eq!(most_at_once(&all_runs(&jobs).await), 3);
}

async fn free_slot_wakes_a_parked_claim(store: Store) {
    let lane = Lane::shared(store).await;
    lane.set(json!({"concurrency": 1, "concurrency_per_key": 1})).await;
    lane.jobs((0..6).map(|_| json!({"concurrency_key": "a"}))).await;
    let mut running = lane.take(json!({})).await;
    for _ in 0..5 {
        let parked = lane.park(json!({"max": 5}));
        tokio::time::sleep(Duration::from_millis(150)).await;
        running.complete().await;
        let begun = Instant::now();
        let (mut leases, answered) = parked.await.expect("answered");
        assert_eq!(leases.len(), 1);
        let took = answered.saturating_duration_since(begun);
        assert!(took < Duration::from_millis(600), "{took:?} from the end of one to the start of the next");
        running = leases.remove(0);
    }
}

async fn raised_limit_wakes_and_lowered_limit_waits(store: Store) {
    let lane = Lane::shared(store).await;
    lane.set(json!({"concurrency": 1})).await;
    lane.jobs((0..6).map(|_| json!({}))).await;
    let mut running = vec![lane.take(json!({})).await];
    let parked = lane.park(json!({"max": 10}));
    tokio::time::sleep(Duration::from_millis(150)).await;
    let begun = Instant::now();
    lane.set(json!({"concurrency": 4})).await;
    let (leases, answered) = parked.await.expect("answered");
    assert_eq!(leases.len(), 3);
    assert!(answered - begun < Duration::from_secs(2), "{:?} after the limit was raised", answered - begun);
    running.extend(leases);
    lane.set(json!({"concurrency": 2})).await;
    for lease in running.drain(..2) {
        lease.complete().await;
        lane.assert_none().await;
    }
    running.remove(0).complete().await;
    lane.take_all(1, json!({})).await;
    lane.set(json!({"concurrency": null})).await;
    lane.take_all(1, json!({})).await;
}

async fn concurrency_per_key_bounds_each_key(store: Store) {
    let lane = Lane::shared(store).await;
    lane.set(json!({"concurrency_per_key": 2})).await;
    let of = |key: &'static str| (0..5).map(move |_| json!({"concurrency_key": key}));
    let a = lane.jobs(of("a")).await;
    let b = lane.jobs(of("b")).await;
    let free = lane.jobs((0..4).map(|_| json!({}))).await;
    let leases = lane.claim(json!({"max": 100})).await;
    let got = |jobs: &[Job]| jobs.iter().filter(|job| ids(&leases).contains(&&*job.id)).count();
    assert_eq!((got(&a), got(&b), got(&free)), (2, 2, 4), "jobs without a key have no limit by key");
    lane.assert_none().await;
    let of_a = leases.iter().find(|lease| lease.job.id == a[0].id).expect("the oldest comes first");
    of_a.complete().await;
    assert_eq!(ids(&lane.take_all(1, json!({})).await), [&*a[2].id], "the slot belongs to its key");
    lane.assert_none().await;
}

async fn tracked_jobs_do_not_count(store: Store) {
    let lane = Lane::shared(store).await;
    lane.set(json!({"concurrency": 1, "concurrency_per_key": 1})).await;
    for _ in 0..3 {
        lane.job(json!({"tracked": true, "concurrency_key": "a"})).await;
    }
    lane.job(json!({"concurrency_key": "a"})).await;
    lane.take_all(1, json!({})).await;
}

async fn limits_are_each_queues_own(store: Store) {
    let server = store.shared().await;
    let (first, second, free) = (Lane::on(&server), Lane::on(&server), Lane::on(&server));
    for (lane, settings) in [(&first, json!({"concurrency": 2})), (&second, json!({"concurrency_per_key": 1}))] {
        lane.set(settings).await;
    }
    for lane in [&first, &second, &free] {
        lane.jobs((0..4).map(|_| json!({"concurrency_key": "a"}))).await;
    }
    let leases = first.claim(json!({"queues": [first.name, second.name, free.name], "max": 100})).await;
    let from = |lane: &Lane| leases.iter().filter(|lease| lease.document["queue"] == json!(lane.name)).count();
    assert_eq!([&first, &second, &free].map(from), [2, 1, 4], "a full queue is passed over");
}

/// Works a queue empty: claims what it gets, holds it for a moment, ends it in one of several ways.
async fn work(lane: Lane, max: u64, mut random: Random) {
    let mut idle = 0;
    while idle < 2 {
        let leases = lane.claim(json!({"max": max, "wait_ms": 400})).await;
        idle = if leases.is_empty() { idle + 1 } else { 0 };
        for lease in leases {
            random.pause(12).await;
            match random.below(8) {
                0 => drop(lease.release(json!({})).await),
                1 => drop(lease.fail(json!({"code": "c"})).await),
                _ => drop(lease.complete().await),
            }
        }
    }
}

async fn rivals_never_exceed_a_limit(store: Store) {
    let lane = Lane::shared(store).await;
    lane.set(json!({"concurrency": 7, "concurrency_per_key": 2})).await;
    let mut random = Random::new();
    let specs = (0..250).map(|n| {
        let backoff = json!({"initial_ms": 0});
        match n % 6 {
            5 => json!({"backoff": backoff, "max_attempts": 20}),
            key => json!({"concurrency_key": format!("key-{key}"), "backoff": backoff, "max_attempts": 20}),
        }
    });
    let jobs = lane.jobs(specs).await;
    let workers: Vec<_> = (0..20).map(|n| tokio::spawn(work(lane.clone(), 1 + n % 10, random.fork()))).collect();
    for worker in workers {
        worker.await.expect("a worker ends");
    }
    let (mut all, mut of_key) = (Vec::new(), HashMap::<usize, Vec<Run>>::new());
    for (index, job) in jobs.iter().enumerate() {
        let log = job.log().await;
        assert_eq!(log.last().expect("a log has events")["type"], "completed", "{log:?}");
        all.extend(runs(&log));
        of_key.entry(index % 6).or_default().extend(runs(&log));
    }
    let most = most_at_once(&all);
    assert!((4..=7).contains(&most), "{most} at once, of at most 7");
    for key in 0..5 {
        assert!(most_at_once(&of_key[&key]) <= 2, "{} at once of key {key}", most_at_once(&of_key[&key]));
    }
}

/// Claims all there is, as fast as it may, and says when each job was started.
async fn drain(lane: &Lane, jobs: &[Job], claimers: usize) -> Vec<i64> {
    let workers: Vec<_> = (0..claimers)
        .map(|n| {
            let (lane, max) = (lane.clone(), 1 + 3 * (n % 2));
            tokio::spawn(async move {
                let mut empty = 0;
                while empty < 2 {
                    let leases = lane.claim(json!({"max": max, "wait_ms": 1_500})).await;
                    empty = if leases.is_empty() { empty + 1 } else { 0 };
                    for lease in leases {
                        lease.complete().await;
                    }
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.expect("a worker ends");
    }
    all_runs(jobs).await.iter().map(|run| run.from).collect()
}

async fn rate_limit_bounds_the_starts_in_any_window(store: Store) {
    let lane = Lane::shared(store).await;
    lane.set(json!({"rate_limit": {"limit": 10, "per_ms": 1_000, "burst": 3}})).await;
    let jobs = lane.jobs((0..36).map(|_| json!({}))).await;
    let starts = drain(&lane, &jobs, 4).await;
    assert_eq!(starts.len(), 36, "each was started once");
    let most = most_in_a_window(&starts, 1_000);
    assert!(most <= 13, "{most} starts in one window of at most 10, and a burst of 3");
    // Evenly, too: what a fifth of the window lets through is a fifth of the limit.
    let most = most_in_a_window(&starts, 200);
    assert!(most <= 2 + 1 + 3, "{most} starts in 200 ms");
    let span = starts.iter().max().expect("starts") - starts.iter().min().expect("starts");
    assert!((2_250..=5_500).contains(&span), "36 starts at 10 a second took {span} ms");
}

async fn rate_limit_holds_for_each_key(store: Store) {
    let lane = Lane::shared(store).await;
    lane.set(json!({"rate_limit": {"limit": 5, "per_ms": 1_000, "burst": 1, "per_key": true}})).await;
    let keys = ["a", "b", "c"];
    let jobs = lane.jobs((0..36).map(|n| json!({"concurrency_key": keys[n % 3]}))).await;
    let starts = drain(&lane, &jobs, 3).await;
    assert_eq!(starts.len(), 36, "each was started once");
    for (index, key) in keys.iter().enumerate() {
        let own: Vec<i64> = starts.iter().copied().skip(index).step_by(3).collect();
        let most = most_in_a_window(&own, 1_000);
        assert!(most <= 6, "{most} starts of {key} in one window of at most 5, and a burst of 1");
    }
    let span = starts.iter().max().expect("starts") - starts.iter().min().expect("starts");
    assert!(span <= 4_500, "the keys do not wait for each other: {span} ms for 12 starts of each at 5 a second");
}

async fn rate_that_was_not_used_is_not_saved_up(store: Store) {
    let lane = Lane::shared(store).await;
    lane.set(json!({"rate_limit": {"limit": 2, "per_ms": 1_000, "burst": 1}})).await;
    lane.job(json!({})).await;
    lane.take(json!({})).await.complete().await;
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    lane.jobs((0..20).map(|_| json!({}))).await;
    let at_once = lane.claim(json!({"max": 100})).await.len();
    assert!((1..=3).contains(&at_once), "{at_once} at once after a pause");
    assert!(lane.claim(json!({"max": 100})).await.len() <= 1);
}
