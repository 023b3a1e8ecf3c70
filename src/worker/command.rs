//! One run of any program as a job, from its start to the job's last event.
//!
//! Three tasks move what is printed (stdout, stderr, the reporter); this module supervises: the program's exit, an
//! interruption from outside, and the gateway's orders each lead to exactly one last event. Signals are a parameter,
//! so is the gateway.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;
use tokio::process::Child;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::entry::Entry;
use super::exit::Exit;
use super::lines::Cut;
use super::process::{Group, Program};
use super::pump::{Printed, Pump, Source};
use super::report::{CancelRequest, Report};
use super::reporter::{Delivery, Notice, Order, Reporter};

/// The gateway's own default, until the log says otherwise.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(10);

/// How long the reason of a cancel is waited for.
const REASON_PATIENCE: Duration = Duration::from_secs(2);
/// How often a program at a terminal is looked at.
const LOOK_OUT: Duration = Duration::from_secs(1);

/// How to run a program as a job.
#[derive(Clone, Debug)]
pub struct Run {
    /// What to start.
    pub program: Program,
    /// What becomes of lines that are no events.
    pub cut: Cut,
    /// Whether what is printed also goes to our own stdout and stderr.
    pub echo: bool,
    /// The job's last event when we are interrupted: `cancelled` for a tracked run, `released` for a worker.
    pub interrupted: Entry,
    /// How long the program may take to stop when we are interrupted.
    pub grace: Duration,
}

/// Why the program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// By itself.
    Itself,
    /// We were told to stop.
    Interrupted,
    /// The gateway asked for it.
    Cancelled(CancelRequest),
    /// The job was over, or no longer ours.
    Lost,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// How the program ended.
    pub exit: Exit,
    /// Why.
    pub cause: Cause,
    /// Whether the job ended as `completed`.
    pub completed: bool,
    /// Whether the job knows.
    pub delivery: Delivery,
}

/// Runs the program to its end and tells the job about it. Each item of `interrupts` asks to stop: the first with
/// SIGTERM and grace, the second at once; one more gives up on a gateway that is away.
pub async fn run(run: Run, report: Arc<dyn Report>, mut interrupts: mpsc::Receiver<()>, notice: Notice) -> Finished {
    let (reporter, entries, orders) = Reporter::start(report, Arc::clone(&notice));
    let ended = watch::Sender::new(false);
    let (exit, cause, printed) = match run.program.start() {
        Err(error) => {
            drop(entries);
            let exit = Exit::not_started(&run.program.name(), &error);
            (exit, Cause::Itself, Printed::default())
        }
        Ok((mut child, group)) => {
            let stdout = child.stdout.take().expect("stdout is piped");
            let stderr = child.stderr.take().expect("stderr is piped");
            let pump = |source| Pump::new(source, run.cut, entries.clone(), ended.subscribe());
            let out = tokio::spawn(pump(Source::Stdout).run(stdout, run.echo.then(tokio::io::stdout)));
            let err = tokio::spawn(pump(Source::Stderr).run(stderr, run.echo.then(tokio::io::stderr)));
            drop(entries);
            let looking_out = tokio::spawn(look_out(group, run.program.input.is_terminal(), Arc::clone(&notice)));
            let (exit, cause) = supervise(&mut child, group, run.grace, &mut interrupts, orders.clone()).await;
            run.program.has_ended(group);
            looking_out.abort();
            reporter.program_ended();
            ended.send_replace(true);
            let abandon = reporter.abandon();
            let mut pumped = pin!(async { (out.await, err.await) });
            let printed = tokio::select! {
                printed = &mut pumped => printed,
                Some(()) = interrupts.recv() => {
                    // Pumps that wait for an absent gateway are let go by its reporter.
                    abandon();
                    pumped.await
                }
            };
            let printed = Printed {
                kept: printed.0.ok().and_then(|printed| printed.kept),
                last_words: printed.1.map(|printed| printed.last_words).unwrap_or_default(),
            };
            (exit, cause, printed)
        }
    };
    reporter.program_ended();
    let cause = with_reason(cause, orders).await;
    let last = last_event(&exit, &cause, printed, run.interrupted);
    let completed = last.event_type() == "completed";
    let abandon = reporter.abandon();
    let mut finish = pin!(reporter.finish(last));
    let delivery = tokio::select! {
        delivery = &mut finish => delivery,
        Some(()) = interrupts.recv() => {
            abandon();
            finish.await
        }
    };
    Finished { exit, cause, completed, delivery }
}

/// Waits for the program's exit, and brings it about when somebody asks for it.
async fn supervise(
    child: &mut Child,
    group: Group,
    grace: Duration,
    interrupts: &mut mpsc::Receiver<()>,
    mut orders: watch::Receiver<Order>,
) -> (Exit, Cause) {
    let mut cause = Cause::Itself;
    // Since when the program has been asked to go, and when it is made to.
    let mut asked_at = None;
    let mut kill_at = None;
    let mut orders_end = false;
    let exit = loop {
        let deadline = kill_at;
        tokio::select! {
            // An exit that is already there is the program's own, whatever came in the same moment.
            biased;
            status = child.wait() => break match status {
                Ok(status) => Exit::from_status(status),
                // Nobody else waits for our children.
                Err(error) => Exit::not_started("the command's end", &error),
            },
            () = until(deadline) => {
                group.signal(Signal::SIGKILL);
                kill_at = None;
            }
            Some(()) = interrupts.recv() => {
                if asked_at.is_some() {
                    kill_at = Some(Instant::now());
                } else {
                    cause = Cause::Interrupted;
                    asked_at = Some(ask(group));
                    kill_at = Some(Instant::now() + grace);
                }
            }
            changed = orders.changed(), if !orders_end => {
                orders_end = changed.is_err();
                let order = orders.borrow_and_update().clone();
                match order {
                    Order::Go => {}
                    Order::Cancel(request) => {
                        if cause == Cause::Interrupted {
                            continue;
                        }
                        let since = *asked_at.get_or_insert_with(|| ask(group));
                        kill_at = Some(since + request.grace.unwrap_or(DEFAULT_GRACE));
                        cause = Cause::Cancelled(request);
                    }
                    Order::Stop => {
                        // Its time is over: the grace has passed, or another runs it.
                        if cause == Cause::Itself {
                            cause = Cause::Lost;
                        }
                        asked_at.get_or_insert_with(|| ask(group));
                        kill_at = Some(Instant::now() + Duration::from_secs(1));
                    }
                }
            }
        }
    };
    if asked_at.is_some() {
        // What the program has started is stopped with it, and has the same time for it.
        let kill_at = kill_at.unwrap_or_else(Instant::now);
        if tokio::time::timeout_at(kill_at, group.gone()).await.is_err() {
            group.signal(Signal::SIGKILL);
        }
    }
    (exit, cause)
}

/// A program may be gone before the log has said why it had to go.
async fn with_reason(cause: Cause, mut orders: watch::Receiver<Order>) -> Cause {
    let Cause::Cancelled(request) = &cause else {
        return cause;
    };
    if *request != CancelRequest::default() {
        return cause;
    }
    let is_told = |order: &Order| matches!(order, Order::Cancel(request) if *request != CancelRequest::default());
    let told = tokio::time::timeout(REASON_PATIENCE, orders.wait_for(is_told)).await;
    if let Ok(Ok(order)) = told
        && let Order::Cancel(request) = &*order
    {
        return Cause::Cancelled(request.clone());
    }
    cause
}

/// A program in a group of its own is stopped when it reads the terminal, and would wait for ever without a word.
async fn look_out(group: Group, terminal: bool, notice: Notice) {
    if !terminal {
        return;
    }
    while !group.is_stopped() {
        tokio::time::sleep(LOOK_OUT).await;
    }
    notice("the command is stopped: it wants to read the terminal, which it cannot; give it its input by < or |");
}

fn ask(group: Group) -> Instant {
    group.ask_to_stop();
    Instant::now()
}

pub(super) async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// The one event that ends the job.
fn last_event(exit: &Exit, cause: &Cause, printed: Printed, interrupted: Entry) -> Entry {
    let Printed { kept, last_words } = printed;
    let kept_as = kept.as_ref().map(|entry| entry.event_type().to_owned());
    // A program that says it has done its work and exits as if it had, has: the cancel came too late.
    let did_complete = exit.is_success() && kept_as.as_deref() == Some("completed");
    let own = kept.filter(|_| match cause {
        Cause::Itself => did_complete || kept_as.as_deref() != Some("completed"),
        Cause::Interrupted => did_complete,
        Cause::Cancelled(_) | Cause::Lost => did_complete || kept_as.as_deref() == Some("cancelled"),
    });
    if let Some(own) = own {
        return own;
    }
    match cause {
        Cause::Itself => Entry::from_event(&exit.event(&last_words)),
        Cause::Interrupted => interrupted,
        Cause::Cancelled(request) => {
            let data = match &request.reason {
                Some(reason) => json!({"reason": reason}),
                None => json!({}),
            };
            Entry::from_event(&json!({"type": "cancelled", "data": data}))
        }
        Cause::Lost => Entry::from_event(&json!({"type": "cancelled", "data": {"reason": "lost"}})),
    }
}

#[cfg(test)]
mod tests;
