//! What becomes of programs whose runner is killed: a second process, the guard, ends what the first has left running.
//!
//! Nobody can handle SIGKILL, and a program that prints nothing would never notice that it works for nobody. So a
//! runner starts a guard and tells it of every program over a socket; the socket's end, which the kernel brings about
//! however the runner dies, is the guard's signal to stop the process groups that are still there: SIGTERM, and
//! SIGKILL five seconds later.
//!
//! A program is announced by its own process between `fork` and `exec`. That process holds the socket open until then,
//! so there is no moment in which a program runs and a guard does not know it. (The kernel's own PR_SET_PDEATHSIG would
//! reach the first process of a group only, and is bound to the *thread* that started it.) Out of reach is a process
//! that has left its group (`setsid`), and everything when the guard is killed, too.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::sys::socket::{MsgFlags, send};
use nix::unistd::{Pid, getpid};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::process::Group;

/// How long a program may take to stop when its runner is gone.
const GRACE: Duration = Duration::from_secs(5);

/// A runner's way to its guard. The guard goes to work when the last clone is gone.
#[derive(Clone, Debug)]
pub struct Guard(Arc<UnixStream>);

impl Guard {
    /// Starts the guard: `program` must pass its standard input to [`watch`].
    ///
    /// # Errors
    /// The operating system's.
    pub fn start(mut program: std::process::Command) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        program
            .stdin(OwnedFd::from(theirs))
            // Whoever reads what the runner prints must not wait for the guard.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // What stops the runner from a terminal must not stop the guard first.
            .process_group(0)
            .current_dir("/")
            .spawn()?;
        Ok(Self(Arc::new(ours)))
    }

    /// Has the program announced before it runs. It must lead a process group of its own.
    pub(super) fn accompany(&self, command: &mut tokio::process::Command) {
        let way = Arc::clone(&self.0);
        // SAFETY: `getpid` and `send` are async-signal-safe, and nothing is allocated.
        unsafe {
            command.pre_exec(move || {
                tell(&way, getpid().as_raw());
                Ok(())
            });
        }
    }

    /// The program has ended, or has been stopped: what is left of its group may stay.
    pub(super) fn dismiss(&self, group: Group) {
        tell(&self.0, -group.id().as_raw());
    }
}

/// A group's id when it begins, its negative when it ends. A guard that is gone, or that has stopped reading, is no
/// reason not to do the work.
fn tell(way: &UnixStream, group: i32) {
    // Without the first flag a guard that is gone would kill whoever tells it something.
    let _ = send(way.as_raw_fd(), &group.to_ne_bytes(), MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT);
}

/// The guard's whole life: listens until the runner is gone, then stops what it has left behind.
pub async fn watch(mut runner: impl AsyncRead + Unpin) {
    let mut begun = HashMap::new();
    let mut message = [0; 4];
    while runner.read_exact(&mut message).await.is_ok() {
        match i32::from_ne_bytes(message) {
            group @ 1.. => drop(begun.insert(group, Beginning::of(group))),
            group => drop(begun.remove(&-group)),
        }
    }
    let left = begun.into_iter().filter(|(group, beginning)| beginning.is_of(*group));
    let left: Vec<Group> = left.map(|(group, _)| Group::led_by(Pid::from_raw(group))).collect();
    for group in &left {
        group.ask_to_stop();
    }
    let all_gone = async {
        for group in &left {
            group.gone().await;
        }
    };
    if tokio::time::timeout(GRACE, all_gone).await.is_err() {
        for group in &left {
            group.signal(Signal::SIGKILL);
        }
    }
}

/// When a process began, in the kernel's ticks: numbers of processes come again, together with this they do not. Known
/// on Linux alone.
#[derive(Debug, PartialEq, Eq)]
struct Beginning(Option<u64>);

impl Beginning {
    fn of(process: i32) -> Self {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok();
        // The name, in parentheses, may hold anything.
        let after_name = stat.as_deref().and_then(|stat| stat.rsplit_once(") "));
        Self(after_name.and_then(|(_, fields)| fields.split(' ').nth(19)?.parse().ok()))
    }

    /// Whether the process of this number, if there is one, is the one that began then. One that has ended may have left
    /// others in its group.
    fn is_of(&self, process: i32) -> bool {
        let now = Self::of(process);
        now.0.is_none() || now == *self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that ignores SIGTERM if `deaf`, in a group of its own.
    fn program(deaf: bool) -> std::process::Child {
        let script = if deaf { "trap '' TERM; echo up; while :; do sleep 1; done" } else { "echo up; sleep 1000" };
        let mut command = std::process::Command::new("sh");
        let mut child =
            command.args(["-c", script]).process_group(0).stdout(Stdio::piped()).spawn().expect("sh starts");
        let mut up = [0; 3];
        io::Read::read_exact(child.stdout.as_mut().expect("piped"), &mut up).expect("it says so");
        child
    }

    fn signal_of(mut child: std::process::Child) -> Option<i32> {
        std::os::unix::process::ExitStatusExt::signal(&child.wait().expect("our child"))
    }

    #[tokio::test]
    async fn what_is_left_is_stopped_and_what_was_dismissed_is_not() {
        let (polite, deaf, mut done) = (program(false), program(true), program(false));
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        for child in [&polite, &deaf, &done] {
            tell(&ours, child.id() as i32);
        }
        tell(&ours, -(done.id() as i32));
        drop(ours);
        theirs.set_nonblocking(true).expect("it can be");
        watch(tokio::net::UnixStream::from_std(theirs).expect("a socket")).await;
        assert_eq!(signal_of(polite), Some(Signal::SIGTERM as i32));
        assert_eq!(signal_of(deaf), Some(Signal::SIGKILL as i32));
        assert_eq!(done.try_wait().expect("our child"), None);
        Group::led_by(Pid::from_raw(done.id() as i32)).signal(Signal::SIGKILL);
        signal_of(done);
    }

    #[test]
    fn a_number_that_comes_again_is_another_process() {
        let own = getpid().as_raw();
        assert!(Beginning::of(own).is_of(own));
        assert!(!Beginning(Some(0)).is_of(own), "it began at another time");
        assert!(!Beginning(None).is_of(own), "it was gone by then");
        assert!(Beginning(Some(0)).is_of(i32::MAX), "there is none: only its group may be left");
    }
}
