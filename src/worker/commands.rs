//! One command, run once per job (`milepost work`): the payload on its standard input, the rest as for `milepost run`.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::command::{self, Cause, Finished, Run};
use super::entry::Entry;
use super::exit::Exit;
use super::guard::Guard;
use super::job::{Claimed, JobInfo};
use super::lines::Cut;
use super::pool::{Handler, Phase, Slot};
use super::process::{Input, Program};
use super::reporter::{Delivery, Notice};

/// How long a program may take to stop when its job is given back. Those who stop a worker wait for it, and have waited
/// for its grace time already.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Runs a command for each job.
pub struct Commands {
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// Who stops commands if we are killed.
    pub guard: Option<Guard>,
    /// The gateway's address, which the command is told.
    pub url: String,
    /// What becomes of lines that are no events.
    pub cut: Cut,
    /// Who is told about trouble.
    pub notice: Notice,
    /// Who is told what begins and ends.
    pub progress: Notice,
}

#[async_trait]
impl Handler for Commands {
    async fn handle(&self, job: Claimed, _slot: Slot, phase: watch::Receiver<Phase>) {
        let Claimed { info, payload, whole: _, report } = job;
        let name = format!("{} {}", info.kind, info.id);
        (self.progress)(&format!("{name}: started{}", attempt(&info)));
        let run = Run {
            program: Program {
                command: self.command.clone(),
                environment: info.environment(&self.url),
                input: Input::Bytes(payload.into_bytes()),
                guard: self.guard.clone(),
            },
            cut: self.cut,
            echo: false,
            interrupted: released(),
            grace: STOP_GRACE,
        };
        let notice: Notice = {
            let (notice, name) = (Arc::clone(&self.notice), name.clone());
            Arc::new(move |text| notice(&format!("{name}: {text}")))
        };
        let begun = Instant::now();
        let (interrupts, interrupted) = mpsc::channel(4);
        let finished = {
            let mut running = std::pin::pin!(command::run(run, report, interrupted, notice));
            tokio::select! {
                finished = &mut running => finished,
                never = interrupt(phase, interrupts) => match never {},
            }
        };
        (self.progress)(&format!("{name}: {} after {:.1} s", outcome(&finished), begun.elapsed().as_secs_f64()));
    }
}

fn attempt(info: &JobInfo) -> String {
    match info.attempt {
        0 | 1 => String::new(),
        attempt => format!(" (attempt {attempt} of {})", info.max_attempts),
    }
}

/// The last event of a job that a worker gives back because it shuts down.
pub(super) fn released() -> Entry {
    Entry::from_event(&json!({"type": "released", "data": {"reason": "worker_shutdown"}}))
}

/// Says what the phases mean for one program: stop, please; then at once, whether or not the gateway answers.
async fn interrupt(mut phase: watch::Receiver<Phase>, interrupts: mpsc::Sender<()>) -> std::convert::Infallible {
    let mut sent = 0;
    loop {
        let wanted = match *phase.borrow_and_update() {
            Phase::Working | Phase::Finishing => 0,
            Phase::Releasing => 1,
            Phase::Leaving => 3,
        };
        while sent < wanted && interrupts.send(()).await.is_ok() {
            sent += 1;
        }
        if phase.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn outcome(finished: &Finished) -> String {
    match (&finished.delivery, &finished.cause, &finished.exit) {
        (Delivery::Undelivered(reason), _, _) => format!("not told how it ended ({reason})"),
        (Delivery::Ended(state), _, _) => format!("had ended already ({state})"),
        (Delivery::Stored, _, _) if finished.completed => "completed".to_owned(),
        (Delivery::Stored, Cause::Cancelled(_) | Cause::Lost, _) => "cancelled".to_owned(),
        (Delivery::Stored, Cause::Interrupted, _) => "given back".to_owned(),
        (Delivery::Stored, Cause::Itself, Exit::Code(code)) => format!("failed, exit code {code},"),
        (Delivery::Stored, Cause::Itself, Exit::Signal(signal)) => format!("failed, killed by signal {signal},"),
        (Delivery::Stored, Cause::Itself, Exit::NotStarted { message, .. }) => format!("failed, {message},"),
    }
}
