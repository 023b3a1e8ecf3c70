//! The server under test: the release binary on a store of its own.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

use crate::http::Poster;

/// Which store to measure.
#[derive(Clone)]
pub enum Store {
    Sqlite,
    /// URL of a maintenance database.
    Postgres(String),
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sqlite => "SQLite",
            Self::Postgres(_) => "Postgres",
        })
    }
}

impl Store {
    pub fn all() -> Vec<Self> {
        let postgres = std::env::var("MILEPOST_TEST_POSTGRES").ok();
        if postgres.is_none() {
            println!("MILEPOST_TEST_POSTGRES is not set: Postgres is not measured");
        }
        [Some(Self::Sqlite), postgres.map(Self::Postgres)].into_iter().flatten().collect()
    }

    /// Where a fresh database of this kind is: a directory that goes with the guard, and its URL.
    pub async fn fresh(&self) -> (Scratch, String) {
        let scratch = Scratch::new();
        match self {
            Self::Sqlite => {
                let url = format!("sqlite:{}", scratch.0.join("bench.db").display());
                (scratch, url)
            }
            Self::Postgres(maintenance) => {
                let name = format!("milepost_bench_{:016x}", rand::random::<u64>());
                let mut connection = PgConnection::connect(maintenance).await.expect("Postgres answers");
                let create = AssertSqlSafe(format!("create database {name}"));
                connection.execute(create).await.expect("a database can be made");
                let (server, _) = maintenance.rsplit_once('/').expect("the URL names a database");
                (scratch, format!("{server}/{name}"))
            }
        }
    }
}

/// A directory that is removed in the end.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Self {
        let path = std::env::temp_dir().join(format!("milepost-bench-{:016x}", rand::random::<u64>()));
        std::fs::create_dir_all(&path).expect("a directory can be made");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Binds a process, with all threads it will have, to one core, where `taskset` is there to do it.
pub fn pin(pid: u32, core: usize) {
    let _ = Command::new("taskset")
        .args(["-a", "-c", "-p", &core.to_string(), &pid.to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}

/// CPU time of a process so far, user and system.
pub fn cpu_of(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process runs");
    let (_, after_name) = stat.rsplit_once(')').expect("the name is in parentheses");
    let ticks: u64 = after_name.split_whitespace().skip(11).take(2).map(|t| t.parse::<u64>().expect("ticks")).sum();
    // USER_HZ is 100 wherever Linux runs.
    Duration::from_millis(ticks * 10)
}

/// A gateway.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    /// Of its database.
    pub url: String,
    _scratch: Scratch,
}

impl Server {
    pub async fn start(store: &Store, flags: &[&str]) -> Self {
        let (scratch, url) = store.fresh().await;
        let mut child = Command::new(env!("CARGO_BIN_EXE_milepost"))
            .args(["serve", "--listen", "127.0.0.1:0", "--log", "error"])
            .args(flags)
            .env("DATABASE_URL", &url)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("stdout is piped");
        BufReader::new(stdout).read_line(&mut line).expect("the server says where it is");
        let address = line.trim().rsplit_once("http://").expect("a URL").1.parse().expect("an address");
        Self { child, address, url, _scratch: scratch }
    }

    /// A new tracked job's id.
    pub async fn tracked(&self) -> String {
        Poster::connect(self.address).await.enqueue(r#"{"kind":"bench","tracked":true,"timeout_ms":600000}"#).await
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn cpu(&self) -> Duration {
        cpu_of(self.id())
    }

    /// Resident memory, in bytes.
    pub fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("the server runs");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("memory is told");
        line.split_whitespace().nth(1).expect("a number").parse::<u64>().expect("kB") * 1024
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
