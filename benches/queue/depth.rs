//! What a claim costs, with few and with many jobs waiting, and after many have ended.

use std::time::{Duration, Instant};

use crate::cpu::cpu_of_family;
use crate::databases::Postgres;
use crate::http::Poster;
use crate::server::{Server, Store};
use crate::workers::{self, Claiming};
use crate::{analyze, percentiles};

/// Claims measured at each depth, one after the other and again ten at a time.
const CLAIMS: usize = 400;

pub async fn measure(store: &Store, postgres: &Postgres) {
    // MILEPOST_BENCH_DEPTH=10000 makes it short.
    let deepest = std::env::var("MILEPOST_BENCH_DEPTH").map_or(1_000_000, |depth| depth.parse().expect("a number"));
    let server = Server::start(store, &[]).await;
    println!("\n## Claims by depth, {store}\n");
    println!(
        "| waiting | ended | claim p50 ms | p99 ms | CPU-s per 1,000 jobs: gateway | database | jobs/s, 10 at a time |"
    );
    println!("|---|---|---|---|---|---|---|");
    let (mut waiting, mut ended) = (0, 0);
    for depth in [1_000, 10_000, 100_000, 1_000_000].into_iter().filter(|depth| *depth <= deepest) {
        let begun = Instant::now();
        let enqueued = workers::enqueue_by_thousands(server.address, depth - waiting).await;
        note_rate("enqueue", enqueued, begun);
        waiting += enqueued;
        analyze(&server).await;
        row(&server, postgres, waiting, ended).await;
        (waiting, ended) = (waiting - 2 * CLAIMS, ended + 2 * CLAIMS);
    }
    let begun = Instant::now();
    // Those that were cut short with the last workers are leased still.
    let all = [1, waiting - 50];
    let limit = Duration::from_secs(300);
    let done = workers::drain(server.address, Claiming::Ahead, 50, 0, all, limit, || ()).await;
    note_rate("end", done.jobs, begun);
    (waiting, ended) = (waiting - done.jobs, ended + done.jobs);
    waiting += workers::enqueue_by_thousands(server.address, 1_000).await;
    analyze(&server).await;
    row(&server, postgres, waiting, ended).await;
}

fn note_rate(what: &str, jobs: usize, begun: Instant) {
    let time = begun.elapsed();
    eprintln!("({what} {jobs} jobs: {time:.1?}, {:.0}/s)", jobs as f64 / time.as_secs_f64());
}

async fn row(server: &Server, postgres: &Postgres, waiting: usize, ended: usize) {
    let mut poster = Poster::connect(server.address).await;
    let mut times = Vec::new();
    let cpu = || (server.cpu(), cpu_of_family(postgres.id()));
    let began = cpu();
    for _ in 0..CLAIMS {
        let begun = Instant::now();
        let handed = workers::claim(&mut poster, 1, 0).await;
        times.push(begun.elapsed());
        handed[0].finish(&mut poster, 0).await;
    }
    let end = cpu();
    let [gateway, database] = [end.0 - began.0, end.1 - began.1].map(|time| time.as_secs_f64() / CLAIMS as f64 * 1e3);
    let together =
        workers::drain(server.address, Claiming::Singly, 10, 0, [1, CLAIMS - 11], Duration::from_secs(20), || ());
    let together = together.await;
    let rate = together.jobs as f64 / together.time.as_secs_f64();
    let [p50, p99] = percentiles(&mut times);
    println!("| {waiting} | {ended} | {p50:.2} | {p99:.2} | {gateway:.2} | {database:.2} | {rate:.0} |");
}
