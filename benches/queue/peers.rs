//! The peers: npm packages, each through `peers/main.mjs` in a process of its own.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::cpu::{Cpu, cpu_of_family};
use crate::databases::{Flush, Postgres, Redis};
use crate::server::{Store, cpu_of};

/// A queue in one of its settings.
pub struct Peer {
    pub name: &'static str,
    /// The module that speaks to it.
    module: &'static str,
    pub setting: &'static str,
    /// When a job's end is on the disk.
    pub flushed: &'static str,
    /// `None`: Postgres.
    redis: Option<Flush>,
}

#[rustfmt::skip]
pub const PEERS: [Peer; 8] = [
    Peer { name: "graphile-worker", module: "graphile", setting: "default", flushed: "per job", redis: None },
    Peer { name: "graphile-worker", module: "graphile", setting: "fastest", flushed: "per batch", redis: None },
    Peer { name: "pg-boss", module: "pgboss", setting: "work", flushed: "per batch", redis: None },
    Peer { name: "pg-boss", module: "pgboss", setting: "singly", flushed: "per job", redis: None },
    Peer { name: "pg-boss", module: "pgboss", setting: "hundreds", flushed: "per batch", redis: None },
    Peer { name: "BullMQ", module: "bullmq", setting: "no file", flushed: "never", redis: Some(Flush::Never) },
    Peer { name: "BullMQ", module: "bullmq", setting: "everysec", flushed: "each second", redis: Some(Flush::EverySecond) },
    Peer { name: "BullMQ", module: "bullmq", setting: "always", flushed: "per job", redis: Some(Flush::Always) },
];

/// What a peer said in the end, and what it had cost since it began.
pub struct Played {
    pub said: Value,
    pub cpu: Cpu,
}

impl Peer {
    /// Plays one part on an empty database. `None` if the peer did not come to its end.
    pub async fn play(&self, postgres: &Postgres, mut options: Value) -> Option<Played> {
        let redis = self.redis.map(|flush| Redis::start(flush).expect("Redis has started before"));
        let fresh = match &redis {
            Some(_) => None,
            None => Some(Store::Postgres(postgres.url.clone()).fresh().await),
        };
        options["url"] = match (&redis, &fresh) {
            (Some(redis), _) => redis.url.as_str().into(),
            (None, Some((_, url))) => url.as_str().into(),
            (None, None) => unreachable!("one of the two"),
        };
        options["setting"] = self.setting.into();
        let mut child = tokio::process::Command::new("node")
            .arg(directory().join("main.mjs"))
            .args([self.module, &options.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("node starts");
        let id = child.id().expect("it was not waited for");
        let cpu = || Cpu {
            client: cpu_of(id),
            gateway: Duration::ZERO,
            database: redis.as_ref().map_or_else(|| cpu_of_family(postgres.id()), |redis| cpu_of(redis.id())),
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
}

fn directory() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/benches/queue/peers"))
}

/// Makes them runnable; what is missing otherwise.
pub fn prepare() -> Result<(), String> {
    let version = Command::new("node").arg("--version").output().map_err(|_| "node 20 or newer is missing")?;
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let major = version.trim().trim_start_matches('v').split('.').next().and_then(|major| major.parse::<u32>().ok());
    if major.is_none_or(|major| major < 20) {
        return Err(format!("node 20 or newer is needed, this is {version}"));
    }
    Redis::start(Flush::Never).ok_or("redis-server is missing")?;
    let lock = std::fs::read(directory().join("package-lock.json")).map_err(|error| error.to_string())?;
    let stamp = directory().join("node_modules/.milepost-lock");
    if std::fs::read(&stamp).is_ok_and(|installed| installed == lock) {
        return Ok(());
    }
    // No scripts: nothing in there needs to build or fetch anything of its own.
    let mut npm = Command::new("npm");
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]).current_dir(directory());
    match npm.status() {
        Ok(status) if status.success() => std::fs::write(stamp, lock).map_err(|error| error.to_string()),
        _ => Err("npm cannot install the peers".to_owned()),
    }
}

/// Options that every part takes.
pub fn part(name: &str, concurrency: usize, progress: usize) -> Value {
    json!({"part": name, "concurrency": concurrency, "progress": progress})
}
