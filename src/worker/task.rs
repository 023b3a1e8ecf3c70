//! One run of a Rust future as a job, from its start to the job's last event: what [`super::command`] is to programs.
//!
//! The future is polled in the job's own task, so that dropping it stops it at its next `.await`, and a panic in it is
//! caught and told. What it sends goes through the reporter, which also keeps the lease and hears what the gateway
//! wants.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use super::command::{DEFAULT_GRACE, until};
use super::commands::released;
use super::context::Context;
use super::entry::Entry;
use super::job::Claimed;
use super::outcome::{Failure, Outcome};
use super::pool::{Phase, Slot, panicked, reached};
use super::report::CancelRequest;
use super::reporter::{Notice, Order, Reporter};

/// How long a handler may still take when its job is given back. Those who stop a worker wait for it, and have waited
/// for its grace time already.
const LAST_MOMENT: Duration = Duration::from_secs(1);

/// A handler's future.
pub(super) type Work = Pin<Box<dyn Future<Output = Result<Outcome, Failure>> + Send>>;

/// What came of a handler.
enum End {
    Returned(Result<Outcome, Failure>),
    Panicked(Box<dyn Any + Send>),
    /// Its time was over.
    Dropped,
}

/// Why it had to stop.
#[derive(Debug, PartialEq, Eq)]
enum Cause {
    Itself,
    Shutdown,
    Cancelled(CancelRequest),
    Lost,
}

/// Runs the future that `begin` makes to its end, and tells the job about it.
pub(super) async fn run(
    job: Claimed,
    begin: impl FnOnce(Context, String) -> Work + Send,
    slot: Slot,
    mut phase: watch::Receiver<Phase>,
    notice: Notice,
) {
    let Claimed { info, payload, whole, report } = job;
    let (reporter, entries, mut orders) = Reporter::start(report, notice);
    let stop = watch::Sender::new(false);
    let (context, way) = Context::new(info, whole, entries, stop.subscribe());
    let (end, cause) = {
        // The beginning is inside: it may panic, too.
        let work = async move { begin(context, payload).await };
        let mut work = pin!(AssertUnwindSafe(work).catch_unwind());
        let mut cause = Cause::Itself;
        let mut drop_at = None;
        let (mut orders_end, mut phases_end) = (false, false);
        let end = loop {
            tokio::select! {
                // What it has done by now counts, whatever came in the same moment.
                biased;
                returned = &mut work => break match returned {
                    Ok(returned) => End::Returned(returned),
                    Err(panic) => End::Panicked(panic),
                },
                () = until(drop_at) => break End::Dropped,
                changed = orders.changed(), if !orders_end => {
                    orders_end = changed.is_err();
                    match orders.borrow_and_update().clone() {
                        Order::Go => {}
                        Order::Cancel(request) => {
                            if cause == Cause::Shutdown {
                                continue;
                            }
                            stop.send_replace(true);
                            // Told twice: at once, and then with what the request said.
                            let grace = request.grace.unwrap_or(DEFAULT_GRACE);
                            drop_at = Some(Instant::now() + grace);
                            cause = Cause::Cancelled(request);
                        }
                        Order::Stop => {
                            stop.send_replace(true);
                            way.close();
                            cause = Cause::Lost;
                            break End::Dropped;
                        }
                    }
                }
                changed = phase.changed(), if !phases_end => {
                    phases_end = changed.is_err();
                    let last_moment = match *phase.borrow_and_update() {
                        Phase::Working | Phase::Finishing => continue,
                        Phase::Releasing => LAST_MOMENT,
                        Phase::Leaving => Duration::ZERO,
                    };
                    stop.send_replace(true);
                    if cause == Cause::Itself {
                        cause = Cause::Shutdown;
                    }
                    drop_at = Some(Instant::now() + last_moment);
                }
            }
        };
        (end, cause)
    };
    way.close();
    // The next job need not wait until this one's end is stored.
    drop(slot);
    reporter.program_ended();
    let abandon = reporter.abandon();
    let mut finish = pin!(reporter.finish(last_event(end, cause)));
    tokio::select! {
        _ = &mut finish => {}
        // A gateway that is away is waited for only as long as the worker has time.
        () = reached(&mut phase, Phase::Releasing) => {
            abandon();
            let _ = finish.await;
        }
    }
}

/// The one event that ends the run. A job that is lost takes none.
fn last_event(end: End, cause: Cause) -> Entry {
    let failure = match end {
        End::Returned(Ok(outcome)) => return outcome.into_entry(),
        End::Panicked(panic) => return Entry::from_event(&panicked(&*panic)),
        End::Returned(Err(failure)) => Some(failure),
        End::Dropped => None,
    };
    match (cause, failure) {
        (Cause::Shutdown, _) => released(),
        // A real fault is told; the gateway keeps it with the cancel.
        (Cause::Itself | Cause::Cancelled(_), Some(failure)) if !failure.is_obedience => failure.into_entry(),
        (Cause::Itself, failure) => failure.unwrap_or_else(Failure::cancelled).into_entry(),
        (Cause::Cancelled(CancelRequest { reason: Some(reason), .. }), _) => {
            Entry::from_event(&json!({"type": "cancelled", "data": {"reason": reason}}))
        }
        (Cause::Cancelled(_) | Cause::Lost, _) => Entry::from_event(&json!({"type": "cancelled"})),
    }
}

/// A notice for those who read this process's logs.
pub(super) fn logged(id: &str) -> Notice {
    let id = id.to_owned();
    Arc::new(move |text| tracing::warn!(job.id = %id, "{text}"))
}
