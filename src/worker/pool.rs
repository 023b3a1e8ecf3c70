//! The one worker loop: takes work while it has a free hand, and sees each job through.
//!
//! One claim is under way at a time, for as many jobs as there are free slots, so that never more jobs are held than
//! are worked on; while it is parked, jobs run and end beside it. A handler may give its [`Slot`] back when all that is
//! left of a job is to store its end: then the next jobs are claimed meanwhile. Workers of many short jobs claim a few
//! ahead ([`super::hands`]); one that waits too long for its slot, or whose worker stops, is given back. What a job is worked on *with* is a [`Handler`]; its
//! heartbeat, the cancel and the lost lease are the business of the reporter that the handler works through
//! ([`super::reporter`]). A gateway that is away or busy is asked again, with growing and jittered delays.
//!
//! The end has three steps ([`Phase`]): nothing more is taken, what runs may finish; after the grace time what still
//! runs is stopped and given back; asked to stop once more, all of it at once.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

pub use super::hands::Slot;
use super::hands::{Hands, Pace, Waiting};
use super::job::Claimed;
use super::report::Trouble;
use super::reporter::Notice;
use super::source::Source;
use crate::client::{self, Backoff};
use crate::domain::ClaimRequest;

/// Between two claims while the gateway is away.
const RETRY_BASE: Duration = Duration::from_millis(200);
const RETRY_CAP: Duration = Duration::from_secs(5);
/// An empty answer that came before its time: a gateway that is about to stop. It is asked again after this.
const EARLY: Duration = Duration::from_secs(1);
/// Trouble that lasts shorter than this is nobody's business.
const QUIET: Duration = Duration::from_secs(2);
/// How long a job that was claimed ahead waits for a slot, at most; less if its lease is short.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// Jobs without a slot whose end is still being stored: more are not let pile up while a gateway is away.
pub(super) const MAX_ENDING: usize = 500;

/// How far a worker's end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Work is taken and done.
    Working,
    /// No more is taken; what runs may finish.
    Finishing,
    /// What still runs is to stop, and to be given back.
    Releasing,
    /// At once.
    Leaving,
}

/// Completes when the end has come so far.
pub(super) async fn reached(phase: &mut watch::Receiver<Phase>, least: Phase) {
    if phase.wait_for(|phase| *phase >= least).await.is_err() {
        std::future::pending().await
    }
}

/// What a job is worked on with.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Sees one job through to its last event: done, failed, given back when `phase` says so, or lost. `slot` may be
    /// dropped before, once nothing but that event is left to do.
    async fn handle(&self, job: Claimed, slot: Slot, phase: watch::Receiver<Phase>);
}

/// A worker: where work comes from, what is done with it, and how much at a time.
pub struct Pool {
    /// Where work comes from.
    pub source: Arc<dyn Source>,
    /// What is asked for; `max` is of no account.
    pub request: ClaimRequest,
    /// What is done with it.
    pub handler: Arc<dyn Handler>,
    /// Jobs that are worked on at a time, at most.
    pub concurrency: usize,
    /// Whether short jobs are claimed ahead.
    pub is_ahead: bool,
    /// How long what runs may go on once nothing more is taken.
    pub grace: Duration,
    /// Who is told about trouble with the gateway.
    pub notice: Notice,
}

/// One claim and its repetitions.
struct Ask {
    request: ClaimRequest,
    key: String,
}

impl Pool {
    /// Works until told to stop: by the first item of `stops`, gracefully; by a second one, at once.
    ///
    /// # Errors
    /// The gateway's refusal to give this worker any work: a wrong credential, say. What runs is finished first.
    pub async fn run(self, mut stops: mpsc::Receiver<()>) -> Result<(), Trouble> {
        let phase = watch::Sender::new(Phase::Working);
        let mut jobs = JoinSet::new();
        let ended = self.take_work(&mut stops, &mut jobs, &phase).await;
        phase.send_replace(Phase::Finishing);
        let release_at = Instant::now() + self.grace;
        while !jobs.is_empty() {
            let is_patient = *phase.borrow() < Phase::Releasing;
            tokio::select! {
                _ = jobs.join_next() => {}
                () = tokio::time::sleep_until(release_at), if is_patient => {
                    phase.send_replace(Phase::Releasing);
                }
                Some(()) = stops.recv() => {
                    phase.send_replace(Phase::Leaving);
                }
            }
        }
        ended
    }

    /// Ends when told to stop, or when nothing more is to be had.
    async fn take_work(
        &self,
        stops: &mut mpsc::Receiver<()>,
        jobs: &mut JoinSet<()>,
        phase: &watch::Sender<Phase>,
    ) -> Result<(), Trouble> {
        let mut stopped = pin!(async {
            tokio::select! {
                Some(()) = stops.recv() => {}
                () = self.source.closed() => {}
            }
        });
        let mut away = Away::new(Arc::clone(&self.notice));
        // A claim whose answer was lost is made again as it was: its jobs may be ours already.
        let mut again: Option<Ask> = None;
        let (hands, mut pace) = (Hands::new(self.concurrency), Pace::new());
        loop {
            let Some(room) = self.room(&hands, &mut pace, jobs, &mut stopped).await else {
                return Ok(());
            };
            let ask = again.take().unwrap_or_else(|| self.ask(room));
            let begun = Instant::now();
            let answer = meanwhile(self.source.claim(&ask.request, &ask.key), jobs, &mut stopped).await;
            let pause = match answer {
                None => return Ok(()),
                Some(Ok(claimed)) => {
                    away.is_over();
                    let is_early = claimed.is_empty() && begun.elapsed() < EARLY.min(self.wait());
                    for job in claimed {
                        let patience = MAX_WAIT.min(Duration::from_millis(self.request.lease_ms / 3));
                        let (handler, waiting) = (Arc::clone(&self.handler), hands.wait());
                        jobs.spawn(see_through(handler, job, waiting, patience, phase.subscribe()));
                    }
                    is_early.then(|| EARLY.mul_f64(0.5 + rand::random::<f64>()))
                }
                Some(Err(Trouble::Passing { reason, retry_after })) => {
                    again = Some(ask);
                    Some(away.next_delay(&reason, retry_after))
                }
                Some(Err(trouble)) => return Err(trouble),
            };
            if let Some(pause) = pause
                && meanwhile(tokio::time::sleep(pause), jobs, &mut stopped).await.is_none()
            {
                return Ok(());
            }
        }
    }

    /// Waits until more jobs may be taken, and says how many; `None` when told to stop first.
    async fn room(
        &self,
        hands: &Hands,
        pace: &mut Pace,
        jobs: &mut JoinSet<()>,
        stopped: &mut (impl Future<Output = ()> + Unpin),
    ) -> Option<usize> {
        loop {
            while jobs.try_join_next().is_some() {}
            let ahead = if self.is_ahead { pace.ahead(hands) } else { 0 };
            let room = hands.room(ahead);
            if room > 0 && jobs.len() < self.concurrency + ahead + MAX_ENDING {
                return Some(room);
            }
            tokio::select! {
                Some(_) = jobs.join_next() => {}
                // Short jobs end one right after the other: one claim for all of them, not one for the first.
                () = hands.changed() => tokio::task::yield_now().await,
                () = &mut *stopped => return None,
            }
        }
    }

    fn wait(&self) -> Duration {
        Duration::from_millis(self.request.wait_ms)
    }

    fn ask(&self, free: usize) -> Ask {
        let request = ClaimRequest { max: free.clamp(1, self.source.max_claim()), ..self.request.clone() };
        Ask { request, key: client::idempotency_key() }
    }
}

/// The future's answer, while jobs end beside it; `None` when told to stop first.
async fn meanwhile<T>(
    future: impl Future<Output = T>,
    jobs: &mut JoinSet<()>,
    stopped: &mut (impl Future<Output = ()> + Unpin),
) -> Option<T> {
    let mut future = pin!(future);
    loop {
        tokio::select! {
            answer = &mut future => return Some(answer),
            () = &mut *stopped => return None,
            Some(_) = jobs.join_next() => {}
        }
    }
}

/// A gateway's absence, as it is waited for and told about.
struct Away {
    backoff: Backoff,
    since: Option<Instant>,
    is_told: bool,
    notice: Notice,
}

impl Away {
    fn new(notice: Notice) -> Self {
        Self { backoff: Backoff::new(RETRY_BASE, RETRY_CAP), since: None, is_told: false, notice }
    }

    fn next_delay(&mut self, reason: &str, retry_after: Option<Duration>) -> Duration {
        let since = *self.since.get_or_insert_with(Instant::now);
        if !self.is_told && since.elapsed() >= QUIET {
            self.is_told = true;
            (self.notice)(&format!("no work can be claimed: {reason}; trying again"));
        }
        self.backoff.next_delay(retry_after)
    }

    fn is_over(&mut self) {
        if std::mem::take(&mut self.is_told) {
            (self.notice)("the gateway is back");
        }
        self.since = None;
        self.backoff.reset();
    }
}

/// A handler that panics outside of what it catches itself must not leave the job to its lease.
async fn see_through(
    handler: Arc<dyn Handler>,
    job: Claimed,
    waiting: Waiting,
    patience: Duration,
    mut phase: watch::Receiver<Phase>,
) {
    let report = Arc::clone(&job.report);
    // Each of these is one try: the lease is the net below.
    let slot = tokio::select! {
        biased;
        slot = waiting.slot() => slot,
        reason = given_up(&mut phase, patience) => {
            let released = json!([{"type": "released", "data": {"reason": reason}}]);
            let _ = report.append(released.to_string(), None).await;
            return;
        }
    };
    let handled = AssertUnwindSafe(handler.handle(job, slot, phase)).catch_unwind().await;
    if let Err(panic) = handled {
        let _ = report.append(json!([panicked(&*panic)]).to_string(), None).await;
    }
}

/// Completes when a job is to wait for a slot no longer; why.
async fn given_up(phase: &mut watch::Receiver<Phase>, patience: Duration) -> &'static str {
    tokio::select! {
        () = reached(phase, Phase::Finishing) => "worker_shutdown",
        () = tokio::time::sleep(patience) => "worker_busy",
    }
}

/// The last event of a job whose handler panicked.
pub(super) fn panicked(panic: &(dyn Any + Send)) -> Value {
    let text = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    let message = format!("the handler panicked: {}", text.unwrap_or("without a message"));
    json!({"type": "failed", "data": {"code": "panicked", "message": message}})
}
