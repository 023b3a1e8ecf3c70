//! Speed, as ratios measured side by side in one run: `cargo bench --bench spine`, or a part: `… -- append`.
//!
//! Parts: `append` (durable appends over HTTP against the same writes batched by hand on the same store), `latency`
//! (from POST to the stream, against one bare commit), `fanout` (server CPU per delivered event with 1,000 streams,
//! against a bare socket writer), `idle` (memory per idle stream). Each runs on SQLite, and on Postgres if
//! `MILEPOST_TEST_POSTGRES` names a maintenance database. Nothing is asserted: figures depend on the machine, ratios
//! less so. The server runs on the first core, everything else on the second.

mod bare;
#[path = "../common/http.rs"]
mod http;
#[path = "../common/server.rs"]
#[expect(dead_code, reason = "the other bench asks for the database")]
mod server;
mod store;
mod stream;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use server::{Server, Store};

const EVENT: &str = r#"{"type":"progress","data":{"percent":41.5,"current":83,"total":200,"unit":"pages","phase":"drafting","message":"page 83 of two hundred, with some words to make it as long as usual"}}"#;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    if words.first().is_some_and(|word| word == "bare-writer") {
        return bare::write_for_ever(words[1].parse().expect("a number of readers"));
    }
    server::pin(std::process::id(), 1);
    let wants = |part: &str| words.is_empty() || words.iter().any(|word| word == part);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        for store in Store::all() {
            println!("\n## {store}");
            if wants("append") {
                append(&store).await;
            }
            if wants("latency") {
                latency(&store).await;
            }
            if wants("fanout") {
                fanout(&store).await;
            }
            if wants("idle") {
                idle(&store).await;
            }
        }
    });
}

/// A gateway on the first core.
async fn start(store: &Store, flags: &[&str]) -> Server {
    let server = Server::start(store, flags).await;
    server::pin(server.id(), 0);
    server
}

/// How long each rate is measured.
const MEASURED: Duration = Duration::from_secs(4);

async fn append(store: &Store) {
    for (in_flight, array) in [(1, 1), (32, 1), (128, 1), (8, 100)] {
        let server = start(store, &[]).await;
        let body = match array {
            1 => EVENT.to_owned(),
            n => format!("[{}]", vec![EVENT; n].join(",")),
        };
        let mut posters = Vec::new();
        let until = Instant::now() + MEASURED;
        for _ in 0..in_flight {
            let job = server.tracked().await;
            let (address, body) = (server.address, body.clone());
            posters.push(tokio::spawn(async move { post_until(address, &job, &body, until).await }));
        }
        let (begun, cpu) = (Instant::now(), server.cpu());
        let mut answered = 0;
        for poster in posters {
            answered += poster.await.expect("a poster does not panic");
        }
        let events = (answered * array) as f64;
        let rate = events / begun.elapsed().as_secs_f64();
        let cpu = (server.cpu() - cpu).as_secs_f64() / events * 1e6;
        drop(server);
        let raw = store::raw_rate(store, in_flight, array, MEASURED).await;
        println!(
            "append: {in_flight:>3} in flight, arrays of {array:>3}: {rate:>8.0} events/s over HTTP ({cpu:.0} CPU-s/M), \
             {raw:>8.0} by hand, ratio {:.2}",
            rate / raw
        );
    }
}

/// Posts one after the other; returns how many were answered with 200.
async fn post_until(address: SocketAddr, job: &str, body: &str, until: Instant) -> usize {
    let mut poster = http::Poster::connect(address).await;
    let mut answered = 0;
    while Instant::now() < until {
        assert_eq!(poster.post(job, body).await, 200);
        answered += 1;
    }
    answered
}

async fn latency(store: &Store) {
    let server = start(store, &[]).await;
    let job = server.tracked().await;
    let mut stream = stream::Stream::open(server.address, &job).await;
    let mut poster = http::Poster::connect(server.address).await;
    let mut times = Vec::new();
    for _ in 0..400 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        let begun = Instant::now();
        let (posted, ()) = tokio::join!(poster.post(&job, EVENT), stream.next_frame());
        assert_eq!(posted, 200);
        times.push(begun.elapsed());
    }
    drop(server);
    let ours = median(times);
    let bare = median(store::bare_commits(store, 400).await);
    println!(
        "latency: POST to stream {:.2} ms, one bare commit {:.2} ms, ratio {:.2}",
        ours.as_secs_f64() * 1e3,
        bare.as_secs_f64() * 1e3,
        ours.as_secs_f64() / bare.as_secs_f64()
    );
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

const STREAMS: usize = 1_000;

async fn fanout(store: &Store) {
    let server = start(store, &[]).await;
    let job = server.tracked().await;
    let mut counters = Vec::new();
    for _ in 0..STREAMS {
        let stream = stream::Stream::open(server.address, &job).await;
        counters.push(tokio::spawn(stream.count_bytes(MEASURED + Duration::from_secs(2))));
    }
    let mut poster = http::Poster::connect(server.address).await;
    let (begun, cpu) = (Instant::now(), server.cpu());
    let mut events = 0;
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    while begun.elapsed() < MEASURED {
        tick.tick().await;
        assert_eq!(poster.post(&job, EVENT).await, 200);
        events += 1;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let cpu = (server.cpu() - cpu).as_secs_f64();
    let mut bytes = 0;
    for counter in counters {
        bytes += counter.await.expect("a counter does not panic");
    }
    let delivered = (events * STREAMS) as f64;
    let ours = cpu / delivered * 1e6;
    let bare = bare::cpu_per_million(STREAMS, MEASURED, bytes / (events * STREAMS)).await;
    println!(
        "fanout: {STREAMS} streams, 10 events/s: {ours:.1} CPU-s per million deliveries, a bare writer {bare:.1}, ratio {:.2}",
        ours / bare
    );
}

async fn idle(store: &Store) {
    let server = start(store, &["--max-streams", "10000"]).await;
    let job = server.tracked().await;
    let warm = stream::Stream::open(server.address, &job).await;
    let before = server.memory();
    let mut streams = vec![warm];
    for _ in 0..4_000 {
        streams.push(stream::Stream::open(server.address, &job).await);
    }
    let per_stream = (server.memory() - before) as f64 / 4_000.0 / 1024.0;
    println!("idle: {per_stream:.1} KB of memory per idle stream (budget 2 KB with socket handover)");
    drop(streams);
}
