//! The client commands of the real binary, as a shell runs them. What they promise does not depend on the store, so
//! their tests use the embedded one alone.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{SigHandler, Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use crate::harness::{Job, PATIENCE, Server, text, within};

/// A command that runs.
pub struct Running {
    child: Child,
    stdout: Captured,
    stderr: Captured,
}

/// How a command ended, and what it printed.
#[derive(Debug)]
pub struct Ended {
    /// As a shell sees it.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// What has been printed so far, growing.
struct Captured {
    bytes: watch::Receiver<Vec<u8>>,
    reading: tokio::task::JoinHandle<()>,
}

impl Captured {
    fn new(mut from: impl AsyncRead + Unpin + Send + 'static) -> Self {
        let (sender, bytes) = watch::channel(Vec::new());
        let reading = tokio::spawn(async move {
            let mut buffer = vec![0; 64 << 10];
            while let Ok(count @ 1..) = from.read(&mut buffer).await {
                sender.send_modify(|all| all.extend_from_slice(&buffer[..count]));
            }
        });
        Self { bytes, reading }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.borrow()).into_owned()
    }

    async fn until(&mut self, what: &str) -> String {
        let bytes = &mut self.bytes;
        let printed = bytes.wait_for(|bytes| String::from_utf8_lossy(bytes).contains(what));
        let printed = within(PATIENCE, &format!("{what:?} in the output"), printed).await;
        String::from_utf8_lossy(&printed.expect("it is printed before the end")).into_owned()
    }
}

/// The messages of a log's log entries.
pub fn messages(log: &[Value]) -> Vec<&str> {
    log.iter().filter(|event| event["type"] == "log").map(|event| text(&event["data"]["message"])).collect()
}

/// Whether a process has ended, reaped or not.
pub fn is_gone(pid: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    stat.map_or(true, |stat| stat.contains(") Z "))
}

/// Starts `milepost` with these arguments against a server.
pub fn milepost(server: &Server, arguments: &[&str]) -> Running {
    milepost_at(&format!("http://{}", server.address()), arguments)
}

/// Starts `milepost` with these arguments and this `MILEPOST_URL`.
pub fn milepost_at(url: &str, arguments: &[&str]) -> Running {
    start(milepost_command(url, arguments))
}

/// `milepost` with these arguments and this `MILEPOST_URL`, not started yet.
pub fn milepost_command(url: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_milepost"));
    command.args(arguments).env("MILEPOST_URL", url).env_remove("MILEPOST_KEY");
    command
}

/// Starts a command with its output captured.
pub fn start(mut command: Command) -> Running {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    // SAFETY: sigaction is async-signal-safe and touches nothing but the new process.
    unsafe {
        command.pre_exec(|| {
            // Whoever runs the tests under `nohup` does not mean the commands they start.
            nix::sys::signal::signal(Signal::SIGHUP, SigHandler::SigDfl)?;
            Ok(())
        });
    }
    let mut child = command.spawn().expect("the command starts");
    let stdout = Captured::new(child.stdout.take().expect("piped"));
    let stderr = Captured::new(child.stderr.take().expect("piped"));
    Running { child, stdout, stderr }
}

impl Running {
    /// Gives it its whole standard input, of which it need not read anything.
    pub async fn input(mut self, text: &str) -> Self {
        let mut stdin = self.child.stdin.take().expect("piped, and given once");
        let _it_has_ended_without_reading = stdin.write_all(text.as_bytes()).await;
        self
    }

    /// Waits for its end.
    pub async fn ended(self) -> Ended {
        self.ended_within(PATIENCE).await
    }

    /// Waits for its end, longer or shorter than usual.
    pub async fn ended_within(mut self, limit: Duration) -> Ended {
        drop(self.child.stdin.take());
        let status = within(limit, "the end of the command", self.child.wait()).await;
        let status = status.expect("our child can be waited for");
        // Both ends of the pipes are closed by now, unless somebody was left behind with them.
        for captured in [&mut self.stdout, &mut self.stderr] {
            let _left_behind = tokio::time::timeout(Duration::from_secs(2), &mut captured.reading).await;
        }
        let code = status.code().or(std::os::unix::process::ExitStatusExt::signal(&status).map(|n| 128 + n));
        Ended { code: code.expect("a code or a signal"), stdout: self.stdout.text(), stderr: self.stderr.text() }
    }

    /// Sends a signal to this one process, as `kill` does.
    pub fn signal(&self, signal: Signal) {
        let id = self.child.id().expect("it runs");
        kill(Pid::from_raw(id as i32), signal).expect("our child takes a signal");
    }

    /// Waits until stdout holds the text.
    pub async fn prints(&mut self, text: &str) -> String {
        self.stdout.until(text).await
    }

    /// Waits until stderr holds the text.
    pub async fn says(&mut self, text: &str) -> String {
        self.stderr.until(text).await
    }

    /// The job of `milepost run`, found as a person finds it: by the page address on stderr.
    pub async fn job(&mut self, server: &Server) -> Job {
        let said = self.says("\n").await;
        let line = said.lines().find(|line| line.contains("/jobs/")).expect("the page address comes first");
        let id = line.rsplit('/').next().expect("a path").split('#').next().expect("an id");
        Job::new(server, id)
    }
}
