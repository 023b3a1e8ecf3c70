//! A program in a process group of its own, so that it can be stopped with everything it has started.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::process::Stdio;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin, Command};

use super::guard::Guard;

/// How often a group is looked at that has been told to go.
const LOOK: Duration = Duration::from_millis(50);

/// What a program reads.
#[derive(Clone, Debug)]
pub enum Input {
    /// What we read ourselves.
    Inherit,
    /// These bytes, then the end.
    Bytes(Vec<u8>),
}

impl Input {
    /// Whether the program would read a person's keyboard.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        match self {
            Self::Inherit => io::stdin().is_terminal(),
            Self::Bytes(_) => false,
        }
    }
}

/// A program and what it is started with.
#[derive(Clone, Debug)]
pub struct Program {
    /// The program and its arguments; the first is looked up in `PATH`.
    pub command: Vec<OsString>,
    /// Variables set on top of ours; `None` removes one.
    pub environment: Vec<(&'static str, Option<OsString>)>,
    /// Its standard input.
    pub input: Input,
    /// Who stops it if we are killed.
    pub guard: Option<Guard>,
}

/// The process group of a started program.
#[derive(Clone, Copy, Debug)]
pub struct Group(Pid);

impl Program {
    /// The name to speak of it by.
    #[must_use]
    pub fn name(&self) -> String {
        self.command.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Starts it with piped output, leading a new process group.
    ///
    /// # Errors
    /// The operating system's: not found, not executable, out of something.
    pub fn start(&self) -> io::Result<(Child, Group)> {
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no command"));
        };
        let mut command = Command::new(program);
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        for (name, value) in &self.environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.stdin(match self.input {
            Input::Inherit => Stdio::inherit(),
            Input::Bytes(_) => Stdio::piped(),
        });
        if let Some(guard) = &self.guard {
            guard.accompany(&mut command);
        }
        let mut child = command.spawn()?;
        let id = child.id().expect("a child that was never waited for has an id");
        if let (Input::Bytes(bytes), Some(stdin)) = (&self.input, child.stdin.take()) {
            tokio::spawn(feed(stdin, bytes.clone()));
        }
        Ok((child, Group(Pid::from_raw(id as i32))))
    }

    /// It has ended; what it has left behind in its group may go on.
    pub(super) fn has_ended(&self, group: Group) {
        if let Some(guard) = &self.guard {
            guard.dismiss(group);
        }
    }
}

/// Ends by itself: at the latest when the program is gone, its pipe breaks.
async fn feed(mut stdin: ChildStdin, bytes: Vec<u8>) {
    // A program need not read what it is given.
    let _ = stdin.write_all(&bytes).await;
    let _ = stdin.shutdown().await;
}

impl Group {
    /// The group of this process, which leads one.
    #[must_use]
    pub fn led_by(leader: Pid) -> Self {
        Self(leader)
    }

    /// The group's number, which is its leader's.
    #[must_use]
    pub fn id(self) -> Pid {
        self.0
    }

    /// Sends SIGTERM, so that it is heard.
    pub fn ask_to_stop(self) {
        self.signal(Signal::SIGTERM);
        // A stopped process would hear it only when continued.
        self.signal(Signal::SIGCONT);
    }

    /// Signals every process of the group; one that is gone is no fault.
    pub fn signal(self, signal: Signal) {
        let _ = killpg(self.0, signal);
    }

    /// Whether the program has been stopped, as the terminal does with those who read it from the background.
    /// Known on Linux alone.
    #[cfg(target_os = "linux")]
    #[must_use]
    pub fn is_stopped(self) -> bool {
        use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
        // WNOWAIT leaves everything as it is for whoever waits for the end.
        let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        matches!(waitid(Id::Pid(self.0), flags), Ok(WaitStatus::Stopped(..)))
    }

    /// Known on Linux alone.
    #[cfg(not(target_os = "linux"))]
    #[must_use]
    pub fn is_stopped(self) -> bool {
        false
    }

    /// Whether any process of the group is left.
    #[must_use]
    pub fn is_alive(self) -> bool {
        killpg(self.0, None) != Err(Errno::ESRCH)
    }

    /// Waits until the group is gone.
    pub async fn gone(self) {
        while self.is_alive() {
            tokio::time::sleep(LOOK).await;
        }
    }
}
