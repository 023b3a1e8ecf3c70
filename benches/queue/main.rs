//! The queue beside its peers, in one run: `cargo bench --bench queue`, or parts of it:
//! `cargo bench --bench queue -- e2e latency`, for some of them: `… -- e2e milepost postgres bullmq 50`.
//!
//! Parts: `e2e` (no-op jobs, waiting already, to their end; without and with three progress reports each), `enqueue`,
//! `latency` (from enqueue to a worker that waits), `depth` (what a claim costs with 10^3 to 10^6 jobs waiting, and after
//! 10^6 have ended). Peers: graphile-worker, pg-boss and BullMQ, npm packages in `peers/`. Nothing is asserted.
//!
//! Every process runs where the kernel puts it, on as many cores as there are: what counts is what the same machine gets
//! done. The workers are one process with one thread, here as with the peers; those in process are threads of the gateway.

mod cpu;
mod databases;
mod depth;
#[path = "../common/http.rs"]
#[allow(dead_code, reason = "each bench uses a part of what they share")]
mod http;
mod in_process;
mod peers;
#[path = "../common/server.rs"]
#[allow(dead_code, reason = "each bench uses a part of what they share")]
mod server;
mod workers;

use std::time::{Duration, Instant};

use serde_json::Value;
use sqlx::{Connection, Executor, PgConnection};

use cpu::{Cpu, cpu_of_family};
use databases::Postgres;
use http::Poster;
use peers::{PEERS, Peer};
use server::{Server, Store, cpu_of};
use workers::Claiming;

/// Jobs a rate is measured over, at most, after the first [`WARM`].
const JOBS: usize = 40_000;

/// Jobs done before measuring begins: connections are open, statements prepared, code compiled.
const WARM: usize = 500;

/// How long a rate is measured, at most.
const LIMIT: Duration = Duration::from_secs(4);

/// Measured latencies.
const SAMPLES: usize = 300;

/// What is to be measured, and with what.
struct Bench {
    words: Vec<String>,
    postgres: Postgres,
    peers: bool,
}

fn main() {
    if let [_, name, options] = &std::env::args().collect::<Vec<_>>()[..]
        && name == in_process::NAME
    {
        return in_process::run(options);
    }
    let words = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let Some(postgres) = Postgres::start() else {
            return println!("Postgres is missing (Debian: postgresql): nothing is measured");
        };
        let peers = peers::prepare();
        if let Err(missing) = &peers {
            println!("Milepost alone is measured: {missing}");
        }
        let bench = Bench { words, postgres, peers: peers.is_ok() };
        if bench.wants("e2e") {
            bench.end_to_end().await;
        }
        if bench.wants("enqueue") {
            bench.enqueue().await;
        }
        if bench.wants("latency") {
            bench.latency().await;
        }
        if bench.wants("depth") {
            for store in bench.stores() {
                depth::measure(&store, &bench.postgres).await;
            }
        }
    });
}

impl Bench {
    fn wants(&self, part: &str) -> bool {
        self.chosen(&["e2e", "enqueue", "latency", "depth"], part)
    }

    /// One of these was asked for, or none of them.
    fn chosen(&self, among: &[&str], one: &str) -> bool {
        let mut asked = self.words.iter().filter(|word| among.contains(&word.as_str())).peekable();
        asked.peek().is_none() || asked.any(|word| word == one)
    }

    fn wants_queue(&self, name: &str) -> bool {
        self.chosen(&["milepost", "graphile-worker", "pg-boss", "bullmq"], &name.to_lowercase())
    }

    fn stores(&self) -> Vec<Store> {
        let mut stores = vec![Store::Postgres(self.postgres.url.clone()), Store::Sqlite];
        stores.retain(|store| {
            let name = store.to_string().to_lowercase();
            self.wants_queue("milepost") && self.chosen(&["postgres", "sqlite"], &name)
        });
        stores
    }

    fn peers(&self) -> impl Iterator<Item = &'static Peer> {
        PEERS.iter().filter(|peer| self.peers && self.wants_queue(peer.name))
    }

    fn cpu(&self, server: &Server) -> Cpu {
        Cpu { client: cpu_of(std::process::id()), gateway: server.cpu(), database: cpu_of_family(self.postgres.id()) }
    }

    async fn end_to_end(&self) {
        for reports in [0, 3] {
            println!("\n## No-op jobs, {reports} progress reports each\n");
            println!(
                "| queue | setting | at a time | jobs/s | CPU-s per 1,000 jobs: workers | gateway | database | on disk |"
            );
            println!("|---|---|---|---|---|---|---|---|");
            for concurrency in [1, 10, 50] {
                if !self.chosen(&["1", "10", "50"], &concurrency.to_string()) {
                    continue;
                }
                for store in self.stores() {
                    self.in_process(&store, concurrency, reports).await;
                    for (claiming, setting) in [(Claiming::Singly, "claims of 1"), (Claiming::Ahead, "claims of 100")] {
                        let server = Server::start(&store, &[]).await;
                        workers::enqueue_by_thousands(server.address, WARM + JOBS).await;
                        analyze(&server).await;
                        let load = [WARM, JOBS];
                        let look = || self.cpu(&server);
                        let done =
                            workers::drain(server.address, claiming, concurrency, reports, load, LIMIT, look).await;
                        let mut cpu = done.ended - done.began;
                        if matches!(store, Store::Sqlite) {
                            cpu.database = Duration::ZERO;
                        }
                        print_rate(
                            &format!("Milepost, {store}"),
                            setting,
                            concurrency,
                            done.jobs,
                            done.time,
                            &cpu,
                            "per job",
                        );
                    }
                }
                for peer in self.peers() {
                    let mut options = drain_options(concurrency, reports);
                    // One job at a time takes the slowest of them a minute to get warm.
                    if peer.setting == "singly" {
                        options["warm"] = 20.into();
                    }
                    match peer.play(&self.postgres, options).await {
                        Some(played) => {
                            let (jobs, time) = counted(&played.said);
                            print_rate(peer.name, peer.setting, concurrency, jobs, time, &played.cpu, peer.flushed);
                        }
                        None => println!("| {} | {} | {concurrency} | did not end |", peer.name, peer.setting),
                    }
                }
            }
        }
    }

    async fn in_process(&self, store: &Store, concurrency: usize, reports: usize) {
        let (name, setting) = (format!("Milepost, {store}"), "in process");
        match in_process::play(store, &self.postgres, drain_options(concurrency, reports)).await {
            Some(played) => {
                let (jobs, time) = counted(&played.said);
                print_rate(&name, setting, concurrency, jobs, time, &played.cpu, "per job");
            }
            None => println!("| {name} | {setting} | {concurrency} | did not end |"),
        }
    }

    async fn enqueue(&self) {
        println!("\n## Enqueue\n");
        println!("| queue | setting | how | jobs/s | CPU-s per 1,000 jobs: callers | gateway | database | on disk |");
        println!("|---|---|---|---|---|---|---|---|");
        for (how, batches) in [("singly, 50 in flight", false), ("by 1,000", true)] {
            for store in self.stores() {
                let server = Server::start(&store, &[]).await;
                workers::enqueue_singly(server.address, WARM, 50).await;
                let (began, begun) = (self.cpu(&server), Instant::now());
                let jobs = match batches {
                    false => workers::enqueue_singly(server.address, JOBS, 50).await,
                    true => workers::enqueue_by_thousands(server.address, 5 * JOBS).await,
                };
                let (time, mut cpu) = (begun.elapsed(), self.cpu(&server) - began);
                if matches!(store, Store::Sqlite) {
                    cpu.database = Duration::ZERO;
                }
                print_rate(&format!("Milepost, {store}"), "", how, jobs, time, &cpu, "each");
            }
            for peer in self.peers().filter(|peer| !["fastest", "work", "singly"].contains(&peer.setting)) {
                let mut options = peers::part("enqueue", 10, 0);
                options["in_flight"] = 50.into();
                options["batches"] = batches.into();
                options["jobs"] = JOBS.into();
                options["limit_ms"] = (LIMIT.as_millis() as u64).into();
                match peer.play(&self.postgres, options).await {
                    Some(played) => {
                        let (jobs, time) = counted(&played.said);
                        let setting = if peer.name == "BullMQ" { peer.setting } else { "" };
                        print_rate(peer.name, setting, how, jobs, time, &played.cpu, peer.flushed);
                    }
                    None => println!("| {} | {} | {how} | did not end |", peer.name, peer.setting),
                }
            }
        }
    }

    async fn latency(&self) {
        println!("\n## From enqueue to a worker that waits\n");
        println!("| queue | setting | p50 ms | p99 ms |\n|---|---|---|---|");
        for store in self.stores() {
            for parked in [1, 50] {
                let times = latencies(&store, parked).await;
                let setting = if parked == 1 { "one waits".to_owned() } else { format!("{parked} wait") };
                print_latency(&format!("Milepost, {store}"), &setting, times);
            }
        }
        for peer in self.peers().filter(|peer| !["singly", "hundreds"].contains(&peer.setting)) {
            let mut options = peers::part("latency", 1, 0);
            // Half a second each.
            options["samples"] = if peer.name == "pg-boss" { 20 } else { SAMPLES }.into();
            match peer.play(&self.postgres, options).await {
                Some(played) => {
                    let times = played.said["times_ms"].as_array().expect("times").iter();
                    let times = times.map(|ms| Duration::from_secs_f64(ms.as_f64().expect("a number") / 1e3)).collect();
                    print_latency(peer.name, peer.setting, times);
                }
                None => println!("| {} | {} | did not end |", peer.name, peer.setting),
            }
        }
    }
}

/// What autovacuum does within a minute: the planner knows its tables. The peers get it too.
pub async fn analyze(server: &Server) {
    if server.url.starts_with("postgres") {
        let mut connection = PgConnection::connect(&server.url).await.expect("Postgres answers");
        connection.execute("analyze").await.expect("tables can be looked at");
    }
}

/// What whoever empties a queue of waiting jobs is told.
fn drain_options(concurrency: usize, reports: usize) -> Value {
    let mut options = peers::part("drain", concurrency, reports);
    options["warm"] = WARM.into();
    options["jobs"] = JOBS.into();
    options["limit_ms"] = (LIMIT.as_millis() as u64).into();
    options
}

/// What a peer counted.
fn counted(said: &Value) -> (usize, Duration) {
    let jobs = said["jobs"].as_u64().expect("a count") as usize;
    (jobs, Duration::from_secs_f64(said["seconds"].as_f64().expect("a time")))
}

fn print_rate(
    name: &str,
    setting: &str,
    how: impl std::fmt::Display,
    jobs: usize,
    time: Duration,
    cpu: &Cpu,
    flushed: &str,
) {
    let rate = jobs as f64 / time.as_secs_f64();
    println!("| {name} | {setting} | {how} | {rate:.0} | {} | {flushed} |", cpu.columns(jobs));
}

fn print_latency(name: &str, setting: &str, mut times: Vec<Duration>) {
    let [p50, p99] = percentiles(&mut times);
    println!("| {name} | {setting} | {p50:.2} | {p99:.2} |");
}

/// p50 and p99, in milliseconds.
fn percentiles(times: &mut [Duration]) -> [f64; 2] {
    times.sort();
    [50, 99].map(|percent| times[(times.len() - 1) * percent / 100].as_secs_f64() * 1e3)
}

/// From the POST of a job to the end of the answer that hands it to one of so many claims that wait.
async fn latencies(store: &Store, parked: usize) -> Vec<Duration> {
    let server = Server::start(store, &[]).await;
    let (sender, mut arrivals) = tokio::sync::mpsc::unbounded_channel();
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..parked {
        let (address, sender) = (server.address, sender.clone());
        waiting.spawn(async move {
            let mut poster = Poster::connect(address).await;
            loop {
                for handed in workers::claim(&mut poster, 1, 30_000).await {
                    sender.send(Instant::now()).expect("somebody measures");
                    handed.finish(&mut poster, 0).await;
                }
            }
        });
    }
    let mut poster = Poster::connect(server.address).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut times = Vec::new();
    for _ in 0..SAMPLES + 10 {
        let begun = Instant::now();
        let enqueuing = poster.enqueue(r#"{"kind":"noop","payload":{}}"#);
        let arriving = tokio::time::timeout(Duration::from_secs(10), arrivals.recv());
        let (_, arrived) = tokio::join!(enqueuing, arriving);
        times.push(arrived.expect("the job arrives").expect("somebody waits") - begun);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    waiting.shutdown().await;
    times.split_off(10)
}
