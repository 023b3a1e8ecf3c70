//! Several gateways on one database: a queue is one queue, whichever node is asked.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::*;

/// Nodes tell the time by their readings of the database's clock, which may differ by a little.
const CLOCKS_MS: i64 = 50;

/// A queue as two nodes see it.
async fn on_two_nodes() -> [Lane; 2] {
    let first = Lane::on(&Store::Postgres.serve(&[]).await);
    let second = Lane { server: first.server.beside().await, name: first.name.clone() };
    [first, second]
}

/// Claims and completes at one node, or claims at one and completes at the other, until nothing comes any more.
async fn work(claims: Lane, completes: Lane, max: usize) -> Vec<String> {
    let mut done = Vec::new();
    let mut idle = 0;
    while idle < 2 {
        let leases = claims.claim(json!({"max": max, "wait_ms": 1_500})).await;
        idle = if leases.is_empty() { idle + 1 } else { 0 };
        for lease in leases {
            let there = Job::new(&completes.server, &lease.job.id).post("/events");
            let end = there.header("Lease-Token", &lease.token).json(&json!({"type": "completed"}));
            end.send().await.expect(200);
            done.push(lease.job.id);
        }
    }
    done
}

#[test]
fn two_nodes_hand_each_job_out_once_within_the_limits() {
    run(async {
        let lanes = on_two_nodes().await;
        lanes[0].set(json!({"concurrency": 12})).await;
        let jobs = lanes[1].jobs((0..400).map(|_| json!({}))).await;
        let workers: Vec<_> =
            (0..16).map(|n| tokio::spawn(work(lanes[n % 2].clone(), lanes[n / 2 % 2].clone(), 1 + n % 5))).collect();
        let mut handed_out = HashSet::new();
        for worker in workers {
            for id in worker.await.expect("a worker ends") {
                assert!(handed_out.insert(id.clone()), "{id} was handed out twice");
            }
        }
        assert_eq!(handed_out.len(), 400);
        let mut all = Vec::new();
        for job in &jobs {
            all.extend(runs(&job.log().await));
        }
        for run in &mut all {
            run.to -= CLOCKS_MS.min(run.to - run.from);
        }
        assert!(most_at_once(&all) <= 12, "{} at once, of at most 12", most_at_once(&all));
    });
}

#[test]
fn lease_of_one_node_is_the_lease_of_every_node() {
    run(async {
        let [here, there] = on_two_nodes().await;
        here.job(json!({"backoff": {"initial_ms": 0}})).await;
        let lease = here.take(json!({"lease_ms": 1_500})).await;
        let through = |lane: &Lane, lease: &Lease, body: &Value| {
            let request = Job::new(&lane.server, &lease.job.id).post("/events");
            request.header("Lease-Token", &lease.token).json(body).send()
        };
        for n in 0..12 {
            through([&here, &there][n % 2], &lease, &json!([])).await.expect(200);
            there.assert_none().await;
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        lease.lapsed().await;
        let heir = there.take(json!({"worker": "b"})).await;
        for lane in [&here, &there] {
            through(lane, &lease, &json!({"type": "completed"})).await.problem(409, "lease_lost");
        }
        through(&here, &heir, &json!({"type": "completed", "data": {"note": "b"}})).await.expect(200);
        assert_eq!(there.claim(json!({})).await.len(), 0);
        assert_eq!(lease.job.state().await["outcome"]["note"], "b");
    });
}

#[test]
fn node_that_dies_takes_no_lease_with_it() {
    run(async {
        let [here, there] = on_two_nodes().await;
        here.jobs([json!({}), json!({})]).await;
        let leases = here.take_all(2, json!({"lease_ms": 2_000})).await;
        here.server.kill9();
        for _ in 0..10 {
            let beat = Job::new(&there.server, &leases[0].job.id).post("/events");
            beat.header("Lease-Token", &leases[0].token).json(&json!([])).send().await.expect(200);
            tokio::time::sleep(Duration::from_millis(400)).await;
        }
        // The other nodes sweep for it, and know that there was no outage.
        let heir = there.take(json!({"wait_ms": 0})).await;
        assert_eq!((&heir.job.id, heir.run), (&leases[1].job.id, 2));
        assert_eq!(Job::new(&there.server, &leases[0].job.id).types().await, ["queued", "started"]);
    });
}

#[test]
fn job_of_one_node_wakes_a_claim_that_is_parked_on_the_other() {
    run(async {
        let [here, there] = on_two_nodes().await;
        for _ in 0..3 {
            let parked = there.park(json!({}));
            tokio::time::sleep(Duration::from_millis(200)).await;
            let job = here.job(json!({})).await;
            let begun = std::time::Instant::now();
            let (leases, answered) = parked.await.expect("answered");
            assert_eq!(leases[0].job.id, job.id);
            // A hint that is lost costs at most 2 s.
            let took = answered.saturating_duration_since(begun);
            assert!(took < Duration::from_millis(2_500), "{took:?} from one node to the other");
        }
    });
}
