//! Milepost's workers in the gateway's own process: the bench starts itself once more, without HTTP anywhere.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use milepost::domain::{Limits, Spec};
use milepost::service::{Settings, maintenance};
use milepost::store::{PostgresStore, SqliteStore};
use milepost::{Failure, Gateway, Worker};
use serde_json::{Value, json};
use sqlx::{Connection, Executor, PgConnection};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::Notify;

use crate::cpu::{Cpu, cpu_of_family};
use crate::databases::Postgres;
use crate::peers::Played;
use crate::server::{Store, cpu_of};

/// The first argument of the process that is the gateway and its worker.
pub const NAME: &str = "in-process";

/// Connections of a gateway, as `milepost serve` has them.
const CONNECTIONS: u32 = 8;

/// Plays one part on an empty store: the options are those of the peers.
pub async fn play(store: &Store, postgres: &Postgres, mut options: Value) -> Option<Played> {
    let (_scratch, url) = store.fresh().await;
    options["url"] = url.into();
    let mut child = tokio::process::Command::new(std::env::current_exe().expect("this bench is a file"))
        .args([NAME, &options.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the bench starts once more");
    let id = child.id().expect("it was not waited for");
    let cpu = || Cpu {
        client: Duration::ZERO,
        gateway: cpu_of(id),
        database: if matches!(store, Store::Sqlite) { Duration::ZERO } else { cpu_of_family(postgres.id()) },
    };
    let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
    let play = async {
        let mut began = Cpu::default();
        while let Some(line) = lines.next_line().await.expect("it prints text") {
            let said: Value = serde_json::from_str(&line).expect("it prints JSON");
            match said["what"].as_str() {
                Some("begin") => began = cpu(),
                _ => return Some(Played { cpu: cpu() - began, said }),
            }
        }
        None
    };
    let played = tokio::time::timeout(Duration::from_secs(120), play).await.ok().flatten();
    let _ended_already = child.kill().await;
    played
}

/// What the process does that [`play`] starts.
pub fn run(options: &str) {
    let options: Value = serde_json::from_str(options).expect("the bench writes JSON");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(drain(&options));
    // Whatever is still at work is of no interest.
    std::process::exit(0);
}

async fn drain(options: &Value) {
    let number = |name: &str| options[name].as_u64().expect("a number") as usize;
    let (warm, jobs, reports) = (number("warm"), number("jobs"), number("progress"));
    let gateway = open(options["url"].as_str().expect("a URL")).await;
    fill(&gateway, warm + jobs).await;
    if let Some(url) = options["url"].as_str().filter(|url| url.starts_with("postgres")) {
        let mut connection = PgConnection::connect(url).await.expect("Postgres answers");
        connection.execute("analyze").await.expect("tables can be looked at");
    }
    let done = Arc::new(AtomicUsize::new(0));
    let reached = Arc::new([warm, warm + jobs].map(|mark| (mark, Notify::new())));
    let (counter, marks) = (Arc::clone(&done), Arc::clone(&reached));
    let worker =
        Worker::new(gateway).concurrency(number("concurrency")).handle("noop", move |context, _payload: Value| {
            let (counter, marks) = (Arc::clone(&counter), Arc::clone(&marks));
            async move {
                for n in 1..=reports {
                    context.progress(n as f64 * 25.0).await?;
                }
                let count = counter.fetch_add(1, Ordering::Relaxed) + 1;
                for (mark, reached) in &*marks {
                    if count == *mark {
                        reached.notify_one();
                    }
                }
                Ok::<_, Failure>(())
            }
        });
    tokio::spawn(worker.run(std::future::pending()));
    reached[0].1.notified().await;
    let say = |what: &str, rest: Value| println!("{}", line(what, rest));
    say("begin", json!({}));
    let begun = Instant::now();
    let limit = Duration::from_millis(number("limit_ms") as u64);
    let _limit_comes_first = tokio::time::timeout(limit, reached[1].1.notified()).await;
    let (count, time) = (done.load(Ordering::Relaxed) - warm, begun.elapsed());
    say("end", json!({"jobs": count, "seconds": time.as_secs_f64()}));
}

fn line(what: &str, mut rest: Value) -> Value {
    rest["what"] = what.into();
    rest
}

async fn open(url: &str) -> Gateway {
    let store: Arc<dyn milepost::store::Store> = match url.strip_prefix("sqlite:") {
        Some(path) => Arc::new(SqliteStore::open(path.as_ref(), CONNECTIONS).await.expect("the store opens")),
        None => Arc::new(PostgresStore::connect(url, CONNECTIONS).await.expect("the store opens")),
    };
    let (gateway, _writers) = Gateway::start(store, Limits::default(), Settings::default());
    tokio::spawn(maintenance::run(gateway.clone()));
    gateway
}

async fn fill(gateway: &Gateway, jobs: usize) {
    let limits = Limits::default();
    let spec = || Spec::parse(json!({"kind": "noop", "payload": {}}), &limits).expect("a right spec");
    for _ in 0..jobs.div_ceil(1_000) {
        let specs = std::iter::repeat_with(spec).take(1_000).collect();
        gateway.enqueue(specs, None).await.expect("the store works");
    }
}
