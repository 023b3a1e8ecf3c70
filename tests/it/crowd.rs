//! Fifty claimers at once: each job is handed out once, limits hold at every moment, nobody stands still.
//!
//! `MILEPOST_TEST_CROWD` sets the number of jobs; the default keeps a debug build to some seconds.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    fifty_claimers_take_each_job_once_within_the_limits,
    claimers_over_the_same_queues_in_any_order_do_not_deadlock,
    claim_of_one_yields_one_beside_many_waiting_jobs,
);

const CLAIMERS: u64 = 50;
const KEYS: usize = 8;

fn crowd(default: usize) -> usize {
    std::env::var("MILEPOST_TEST_CROWD").map_or(default, |text| text.parse().expect("MILEPOST_TEST_CROWD is a number"))
}

/// A worker over one kept connection, as workers are. It ends when nothing has come for a while.
struct Claimer {
    connection: Connection,
    wish: Request,
    max: usize,
    slowest: Duration,
    /// Job, run and token of each hand-out.
    taken: Vec<(String, u64, String)>,
}

impl Claimer {
    async fn new(lane: &Lane, max: usize, more: Value) -> Self {
        let connection = Connection::open(lane.server.address()).await.expect("the server accepts");
        let wish = lane.request(merged(json!({"max": max, "wait_ms": 1_500}), more));
        Self { connection, wish, max, slowest: Duration::ZERO, taken: Vec::new() }
    }

    async fn work(mut self, lane: Lane) -> Self {
        loop {
            let begun = Instant::now();
            let answer = within(PATIENCE, "a claim", self.wish.send_over(&mut self.connection)).await;
            let leases = Lease::all(&lane.server, &answer.expect("a claim is answered"));
            assert!(leases.len() <= self.max, "{} of at most {}", leases.len(), self.max);
            if leases.is_empty() {
                return self;
            }
            self.slowest = self.slowest.max(begun.elapsed());
            for lease in leases {
                let end = json!([{"type": "progress", "data": {"percent": 100}}, {"type": "completed"}]);
                let end = lease.post().json(&end);
                let answer = within(PATIENCE, "an append", end.send_over(&mut self.connection)).await;
                assert_eq!(answer.expect("an append is answered").expect(200)["lease"], Value::Null);
                self.taken.push((lease.job.id, lease.run, lease.token));
            }
        }
    }
}

/// The ids that were handed out, each once, each run and token of its own.
fn taken_once(claimers: &[Claimer]) -> HashSet<&str> {
    let (mut ids, mut tokens) = (HashSet::new(), HashSet::new());
    for (id, run, token) in claimers.iter().flat_map(|claimer| &claimer.taken) {
        assert!(ids.insert(id.as_str()), "{id} was handed out twice");
        assert_eq!(*run, 1, "{id}");
        assert!(tokens.insert(token), "one token for two runs");
    }
    ids
}

async fn work_all(lane: &Lane, claimers: Vec<Claimer>) -> Vec<Claimer> {
    let working: Vec<_> = claimers.into_iter().map(|claimer| tokio::spawn(claimer.work(lane.clone()))).collect();
    let mut done = Vec::new();
    for claimer in working {
        done.push(claimer.await.expect("a claimer ends"));
    }
    done
}

async fn fifty_claimers_take_each_job_once_within_the_limits(store: Store) {
    let lane = Lane::on(&store.serve(&[]).await);
    lane.set(json!({"concurrency": 60, "concurrency_per_key": 9})).await;
    let count = crowd(1_500);
    let specs = (0..count).map(|n| match n % (KEYS + 1) {
        KEYS => json!({"priority": n % 5}),
        key => json!({"priority": n % 5, "concurrency_key": format!("key-{key}")}),
    });
    let jobs = lane.jobs(specs).await;
    let mut claimers = Vec::new();
    for n in 0..CLAIMERS {
        claimers.push(Claimer::new(&lane, 1 + n as usize % 10, json!({"worker": format!("w{n}")})).await);
    }
    let begun = Instant::now();
    let watching = tokio::spawn(watch(lane.clone()));
    let claimers = work_all(&lane, claimers).await;
    let took = begun.elapsed();
    watching.abort();
    assert_eq!(taken_once(&claimers).len(), count);
    let idle = claimers.iter().filter(|claimer| claimer.taken.is_empty()).count();
    assert_eq!(idle, 0, "somebody stood by and got nothing");
    let slowest = claimers.iter().map(|claimer| claimer.slowest).max().expect("there are claimers");
    println!("{count} jobs in {took:?}, slowest claim {slowest:?}");

    let (mut all, mut of_key) = (Vec::new(), HashMap::<usize, Vec<Run>>::new());
    let mut connection = Connection::open(lane.server.address()).await.expect("the server accepts");
    for (index, job) in jobs.iter().enumerate() {
        let page = job.get("/events").send_over(&mut connection).await.expect("an answer").expect(200);
        let log = page["events"].as_array().expect("events is a list");
        assert_eq!(tries(log), [("queued", 0), ("started", 1), ("progress", 1), ("completed", 1)]);
        let runs = runs(log);
        all.extend(runs.clone());
        of_key.entry(index % (KEYS + 1)).or_default().extend(runs);
    }
    let most = most_at_once(&all);
    assert!(most <= 60, "{most} at once, of at most 60");
    for key in 0..KEYS {
        assert!(most_at_once(&of_key[&key]) <= 9, "{} at once of key {key}", most_at_once(&of_key[&key]));
    }
    let counts = &lane.settings().await["counts"];
    assert_eq!((&counts["queued"], &counts["running"]), (&json!(0), &json!(0)));
}

/// What an operator sees meanwhile is within the limit, too.
async fn watch(lane: Lane) {
    loop {
        let running = number(&lane.settings().await["counts"]["running"]);
        assert!(running <= 60, "{running} run, of at most 60");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn claimers_over_the_same_queues_in_any_order_do_not_deadlock(store: Store) {
    let server = store.serve(&[]).await;
    let lanes: Vec<Lane> = (0..6).map(|_| Lane::on(&server)).collect();
    let mut count = 0;
    for (n, lane) in lanes.iter().enumerate() {
        if n % 2 == 0 {
            lane.set(json!({"concurrency": 5})).await;
        }
        count += lane.jobs((0..60).map(|_| json!({}))).await.len();
    }
    let mut random = Random::new();
    let mut claimers = Vec::new();
    for n in 0..30 {
        let mut names: Vec<&str> = lanes.iter().map(|lane| lane.name.as_str()).collect();
        for place in (1..names.len()).rev() {
            names.swap(place, random.below(place as u64 + 1) as usize);
        }
        claimers.push(Claimer::new(&lanes[0], 1 + n % 4, json!({"queues": names})).await);
    }
    let claimers = work_all(&lanes[0], claimers).await;
    assert_eq!(taken_once(&claimers).len(), count);
    for lane in &lanes {
        lane.assert_none().await;
    }
}

async fn claim_of_one_yields_one_beside_many_waiting_jobs(store: Store) {
    let lane = Lane::on(&store.serve(&[]).await);
    let jobs = lane.jobs((0..crowd(4_000)).map(|n| json!({"priority": n % 3}))).await;
    let mut seen = HashSet::new();
    for _ in 0..30 {
        let lease = lane.take(json!({"wait_ms": 0})).await;
        assert_eq!(lease.document["priority"], 2);
        assert!(seen.insert(lease.job.id.clone()), "{} was handed out twice", lease.job.id);
    }
    let running = lane.server.list(&format!("queue={}&state=running", lane.name)).await;
    assert_eq!(running.len(), 30, "nothing runs that nobody was told of");
    assert!(jobs.len() > 1_000, "that is not many");
}
