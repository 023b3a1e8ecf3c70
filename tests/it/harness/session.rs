//! A program as a container or a supervisor runs it: a session of its own, which ends with all its processes.

use std::fs;

use nix::sys::signal::{SigHandler, Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, ChildStdout, Command};

use super::{PATIENCE, eventually, within};

pub struct Session {
    child: Child,
    id: Pid,
}

impl Session {
    pub fn start(mut command: Command) -> Self {
        // SAFETY: all three are async-signal-safe and touch nothing but the new process.
        unsafe {
            command.pre_exec(|| {
                nix::sys::signal::signal(Signal::SIGHUP, SigHandler::SigDfl)?;
                nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
                nix::unistd::setsid()?;
                Ok(())
            });
        }
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let id = Pid::from_raw(child.id().expect("it was not waited for") as i32);
        Self { child, id }
    }

    /// What it prints, if that is piped; once.
    pub fn stdout(&mut self) -> ChildStdout {
        self.child.stdout.take().expect("stdout is piped")
    }

    /// As `kill` and a supervisor do: to the one process that was started. It must end well by itself.
    pub async fn terminate(mut self) {
        kill(self.id, Signal::SIGTERM).expect("our child takes a signal");
        let status = within(PATIENCE, "the end of the process", self.child.wait()).await;
        assert_eq!(status.expect("our child can be waited for").code(), Some(0));
        eventually(PATIENCE, "the end of its processes", async || self.members().is_empty().then_some(())).await;
    }

    /// To everything that it has started, too.
    pub fn signal_all(&self, signal: Signal) {
        for member in self.members() {
            let _gone_already = kill(member, signal);
        }
    }

    fn members(&self) -> Vec<Pid> {
        let processes = fs::read_dir("/proc").expect("Linux lists its processes").flatten();
        let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        ids.filter(|id| session_of(*id) == Some(self.id)).map(Pid::from_raw).collect()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // One of them may just be starting another.
        while !self.members().is_empty() {
            self.signal_all(Signal::SIGKILL);
        }
    }
}

/// The session of a process that has not ended.
fn session_of(id: i32) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split(' ').collect();
    if fields[0] == "Z" { None } else { fields[3].parse().ok().map(Pid::from_raw) }
}
