//! A Postgres and a Redis of the bench's own: on loopback, on a free port, gone with the guard.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::server::Scratch;

/// A process that is ended with its guard, by this signal.
struct Process(Child, Signal);

impl Drop for Process {
    fn drop(&mut self) {
        let _gone_already = kill(Pid::from_raw(self.0.id() as i32), self.1);
        let _reaped_already = self.0.wait();
    }
}

/// A cluster with the settings that `initdb` gives it: default durability.
pub struct Postgres {
    process: Process,
    /// Of the maintenance database.
    pub url: String,
    _scratch: Scratch,
}

impl Postgres {
    /// `None` if this machine has no Postgres.
    pub fn start() -> Option<Self> {
        let bin = bin()?;
        let scratch = Scratch::new();
        // The server refuses to be root.
        let is_root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
        let user = if is_root { id_of("postgres").or(id_of("nobody")) } else { None };
        if let Some((uid, gid)) = user {
            chown(&scratch.0, Some(uid), Some(gid)).expect("root may give away");
        }
        let command = |name: &str| {
            let mut command = Command::new(bin.join(name));
            command.current_dir(&scratch.0).stdout(Stdio::null()).stderr(Stdio::null());
            if let Some((uid, gid)) = user {
                command.uid(uid).gid(gid);
            }
            command
        };
        let data = scratch.0.join("pg");
        let made = command("initdb")
            .args(["--username", "milepost", "--auth", "trust", "--encoding", "UTF8", "--locale", "C.UTF-8"])
            .arg("--pgdata")
            .arg(&data)
            .status();
        assert!(made.is_ok_and(|status| status.success()), "initdb fails");
        let port = free_port();
        let server = command("postgres")
            .args(["-h", "127.0.0.1", "-p", &port.to_string(), "-c", "max_connections=300", "-D"])
            .arg(&data)
            .arg("-k")
            .arg(&scratch.0)
            .spawn();
        // An immediate end, of its children too: nothing in it is worth a checkpoint.
        let process = Process(server.expect("Postgres starts"), Signal::SIGQUIT);
        let ready = || {
            let mut ask = command("pg_isready");
            ask.args(["-q", "-h", "127.0.0.1", "-p", &port.to_string()]).status().is_ok_and(|status| status.success())
        };
        wait_until("Postgres", ready);
        Some(Self { process, url: format!("postgres://milepost@127.0.0.1:{port}/postgres"), _scratch: scratch })
    }

    pub fn id(&self) -> u32 {
        self.process.0.id()
    }
}

/// Debian keeps the servers out of PATH, one directory for each major version; the newest is taken.
fn bin() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).max();
    let debian = newest.map(|version| Path::new("/usr/lib/postgresql").join(version.to_string()).join("bin"));
    let path = std::env::var_os("PATH")?;
    debian.into_iter().chain(std::env::split_paths(&path)).find(|bin| bin.join("initdb").exists())
}

/// User and group.
fn id_of(user: &str) -> Option<(u32, u32)> {
    let users = fs::read_to_string("/etc/passwd").ok()?;
    let mut fields = users.lines().find(|line| line.split(':').next() == Some(user))?.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// When Redis writes to its disk.
#[derive(Clone, Copy)]
pub enum Flush {
    /// Nothing is written.
    Never,
    /// The append-only file, as BullMQ's documentation wants it.
    EverySecond,
    /// Before each answer, as the others do.
    Always,
}

/// An empty Redis.
pub struct Redis {
    process: Process,
    pub url: String,
    _scratch: Scratch,
}

impl Redis {
    /// `None` if this machine has no Redis.
    pub fn start(flush: Flush) -> Option<Self> {
        let scratch = Scratch::new();
        let port = free_port();
        let (file, when) = match flush {
            Flush::Never => ("no", "no"),
            Flush::EverySecond => ("yes", "everysec"),
            Flush::Always => ("yes", "always"),
        };
        let server = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
            .args(["--appendonly", file, "--appendfsync", when, "--dir"])
            .arg(&scratch.0)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let process = Process(server.ok()?, Signal::SIGKILL);
        wait_until("Redis", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Some(Self { process, url: format!("redis://127.0.0.1:{port}"), _scratch: scratch })
    }

    pub fn id(&self) -> u32 {
        self.process.0.id()
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("an address").port()
}

fn wait_until(what: &str, ready: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !ready() {
        assert!(Instant::now() < deadline, "{what} does not come up");
        std::thread::sleep(Duration::from_millis(50));
    }
}
