//! `kill -9` of the gateway between cancel, claim and completion: what was answered holds, and what was cancelled is
//! never handed out.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    cancelled_job_is_never_handed_out_over_kill_9,
    answered_claims_and_completions_survive_kill_9,
    cancel_of_a_running_job_reaches_its_worker_over_kill_9,
);

/// How many answers have come, so that the kill falls among them.
#[derive(Clone, Default)]
struct Count(Arc<AtomicU64>);

impl Count {
    fn up(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    async fn reaches(&self, goal: u64) {
        eventually(PATIENCE, "a load", async || (self.0.load(Ordering::Relaxed) >= goal).then_some(())).await;
    }
}

/// What one who cancels was told: the state that each answer showed.
async fn cancel_until_gone(jobs: Vec<Job>, mut random: Random, count: Count) -> HashMap<String, String> {
    let mut told = HashMap::new();
    for job in jobs {
        random.pause(8).await;
        match job.post("/cancel").json(&json!({"grace_ms": 400})).try_send().await {
            Ok(answer) if [200, 202].contains(&answer.status()) => {
                told.insert(job.id, text(&answer.json()["state"]).to_owned());
                count.up();
            }
            Ok(answer) => drop(answer.problem(409, "job_terminal")),
            Err(_) => break,
        }
    }
    told
}

/// What a claimer was given until its gateway had gone, and the completions that were answered.
async fn claim_until_gone(lane: Lane, mut random: Random, count: Count) -> (Vec<Lease>, Vec<String>) {
    let (mut leases, mut completed) = (Vec::new(), Vec::new());
    loop {
        let Ok(answer) = lane.request(json!({"max": 2, "wait_ms": 100})).try_send().await else {
            return (leases, completed);
        };
        for lease in Lease::all(&lane.server, &answer) {
            leases.push(lease.clone());
            if random.below(2) == 0 {
                let Ok(answer) = lease.post().json(&json!({"type": "completed"})).try_send().await else {
                    return (leases, completed);
                };
                if answer.status() == 200 {
                    completed.push(lease.job.id);
                    count.up();
                }
            }
        }
        random.pause(10).await;
    }
}

async fn cancelled_job_is_never_handed_out_over_kill_9(store: Store) {
    let server = store.serve(&[]).await;
    let mut random = Random::new();
    for round in 0..4 {
        let lane = Lane::on(&server);
        let jobs = lane.jobs((0..80).map(|_| json!({}))).await;
        let mut backwards = jobs.clone();
        backwards.reverse();
        let (cancels, completions) = (Count::default(), Count::default());
        let cancelling = tokio::spawn(cancel_until_gone(backwards, random.fork(), cancels.clone()));
        let claiming: Vec<_> =
            (0..3).map(|_| tokio::spawn(claim_until_gone(lane.clone(), random.fork(), completions.clone()))).collect();
        cancels.reaches(1 + random.below(12)).await;
        completions.reaches(1 + random.below(6)).await;
        server.kill9();
        let told = cancelling.await.expect("it ends");
        let mut taken = Vec::new();
        for claimer in claiming {
            taken.extend(claimer.await.expect("a claimer ends").0);
        }
        server.restart().await;
        // Whatever can still be claimed is, now and for a while.
        let mut after = Vec::new();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(2_500) {
            after.extend(lane.claim(json!({"max": 100, "wait_ms": 200, "lease_ms": 60_000})).await);
        }
        let mut once: HashSet<&str> = HashSet::new();
        for lease in taken.iter().chain(&after) {
            assert!(once.insert(&lease.job.id), "round {round}: {} was handed out twice", lease.job.id);
        }
        for lease in &after {
            assert!(!told.contains_key(&lease.job.id), "round {round}: {} was cancelled", lease.job.id);
        }
        for lease in &taken {
            assert_ne!(told.get(&lease.job.id).map(String::as_str), Some("cancelled"), "it was running");
        }
        for job in &jobs {
            let log = assert_folds(job).await;
            let asked = log
                .iter()
                .position(|event| ["cancelled", "cancel_requested"].map(Value::from).contains(&event["type"]));
            let starts: Vec<usize> = (0..log.len()).filter(|n| log[*n]["type"] == "started").collect();
            assert!(starts.len() <= 1, "{log:?}");
            if let Some(asked) = asked {
                assert!(starts.iter().all(|start| *start < asked), "handed out after its cancel: {log:?}");
                job.ended().await;
            }
            assert!(asked.is_some() || !told.contains_key(&job.id), "an answered cancel was forgotten: {log:?}");
        }
        assert!(!told.is_empty() && !taken.is_empty(), "the load was no load");
    }
}

async fn answered_claims_and_completions_survive_kill_9(store: Store) {
    let server = store.serve(&[]).await;
    let mut random = Random::new();
    for _ in 0..3 {
        let lane = Lane::on(&server);
        lane.jobs((0..400).map(|_| json!({}))).await;
        let completions = Count::default();
        let claiming: Vec<_> =
            (0..6).map(|_| tokio::spawn(claim_until_gone(lane.clone(), random.fork(), completions.clone()))).collect();
        completions.reaches(10 + random.below(40)).await;
        server.kill9();
        let (mut taken, mut completed) = (Vec::new(), HashSet::new());
        for claimer in claiming {
            let (leases, ended) = claimer.await.expect("a claimer ends");
            taken.extend(leases);
            completed.extend(ended);
        }
        server.restart().await;
        assert!(taken.len() > 6 && !completed.is_empty(), "the load was no load");
        for lease in taken {
            let types = lease.job.types().await;
            if completed.contains(&lease.job.id) {
                assert_eq!(types, ["queued", "started", "completed"]);
                continue;
            }
            // Of a completion that was on its way nobody knows; said again it is answered, whichever it was.
            let answer = lease.try_append(&json!({"type": "completed"})).await;
            assert_eq!(answer.status(), 200, "{} for {:?}", answer.text(), lease.job.log().await);
            assert_eq!(answer.json()["seq"], 3);
            assert_eq!(lease.job.types().await, ["queued", "started", "completed"]);
        }
    }
}

async fn cancel_of_a_running_job_reaches_its_worker_over_kill_9(store: Store) {
    let server = store.serve(&[]).await;
    let lane = Lane::on(&server);
    let jobs = lane.jobs([json!({}), json!({})]).await;
    let leases = lane.take_all(2, json!({"lease_ms": 60_000})).await;
    jobs[0].cancel(json!({"grace_ms": 60_000, "reason": "r"})).await.expect(202);
    jobs[1].cancel(json!({"grace_ms": 100, "reason": "r"})).await.expect(202);
    server.kill9();
    server.restart().await;
    assert_eq!(leases[0].beat().await["cancel_requested"], true, "the flag is a column");
    leases[0].append(json!({"type": "cancelled"})).await;
    assert_eq!(jobs[1].ended().await.0["state"], "cancelled");
    for job in jobs {
        assert_eq!(job.types().await, ["queued", "started", "cancel_requested", "cancelled"]);
    }
    lane.assert_none().await;
}
