//! Group commit: every write of this process goes through here.
//!
//! Requests hand in [`Command`]s; while one batch commits, the next gathers (no timer). A batch is folded in memory,
//! each command on what the one before it left, and stored in one go. Whoever handed in a command is answered after
//! the commit, and after the bus has been told. A bad command fails alone; one whose guard failed (another node was
//! faster) is folded again. Folding, writing and publishing run in the committer's own task: a caller that hangs up
//! neither undoes nor half-does anything.

mod committer;
mod fold;
mod recent;

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::ServiceError;
use super::defaults::QueueDefaults;
use super::queues::Statistics;
use crate::bus::Bus;
use crate::domain::{Job, JobId, Limits, NewEvent, QueueName, Refusal, Spec};
use crate::store::{Idempotency, Store, UniqueKey};
use committer::Committer;
pub(super) use recent::Recent;

/// Commands that wait for one committer. Beyond that callers wait in line, for [`PATIENCE`] at most.
const QUEUE: usize = 2_048;

/// Events and jobs count once per so many bytes.
const WEIGHED_BYTES: usize = 8 * 1024;

/// How long a caller waits for a place in the queue before being told that the gateway is overloaded.
const PATIENCE: Duration = Duration::from_secs(5);

/// What an append did.
#[derive(Clone, Debug)]
pub struct Appended {
    /// The seq of the last event of this append (the job's seq, for a heartbeat).
    pub seq: u64,
    /// How many events were stored.
    pub stored: usize,
    /// Whether the job's runner is asked to stop.
    pub cancel_requested: bool,
    /// How long the runner may be silent from now on, in milliseconds; `None`: for ever, or the run is over.
    pub silence_ms: Option<u64>,
    /// Whether the runner holds a lease (a tracked job's has none) and the run goes on.
    pub leased: bool,
    /// The first event that was refused; only if those before it were to be kept.
    pub refused: Option<Refusal>,
}

/// What a cancel did.
#[derive(Clone, Debug)]
pub enum CancelAnswer {
    /// It had been cancelled before.
    Already(Box<Job>),
    /// It is cancelled, or its runner is asked to stop.
    Accepted(Box<Job>),
    /// It does not wait any more, and only what waits was meant.
    NotWaiting,
}

/// What an enqueue did for one spec.
#[derive(Clone, Debug)]
pub(super) struct Queued {
    /// The job that answers.
    pub id: JobId,
    /// Its state, if this command wrote or read it.
    pub job: Option<Box<Job>>,
    /// Whether it is new.
    pub created: bool,
    /// The live job whose place it took.
    pub replaced: Option<JobId>,
}

/// Where a command's answer goes.
pub(super) type Answer<T> = oneshot::Sender<Result<T, ServiceError>>;

/// One wish to write.
pub(super) enum Command {
    /// New jobs, in one transaction.
    Enqueue { specs: Vec<Spec>, idempotency: Option<Idempotency>, answer: Answer<Vec<Queued>> },
    /// A runner's events; none is a heartbeat.
    Append {
        id: JobId,
        /// The run that the writer has proved to be.
        run: Option<u64>,
        events: Vec<NewEvent>,
        body_hash: [u8; 32],
        idempotency: Option<Idempotency>,
        /// Keep what stands before a refused event.
        keep_before_refused: bool,
        answer: Answer<Appended>,
    },
    /// Stop, please.
    Cancel {
        id: JobId,
        reason: Option<String>,
        grace_ms: u64,
        by: String,
        /// Leave it alone if it runs or has ended.
        only_waiting: bool,
        answer: Answer<CancelAnswer>,
    },
    /// The run's worker never got it: give the job back.
    GiveBack { id: JobId, run: u64, reason: &'static str, answer: Answer<()> },
    /// Once more, please.
    Retry {
        id: JobId,
        by: String,
        /// One of many of this queue, which are to be tried in the order in which they are handed in.
        redrive: Option<QueueName>,
        answer: Answer<Box<Job>>,
    },
    /// Remove a job that has ended.
    Delete { id: JobId, answer: Answer<()> },
    /// Do what is overdue, if anything.
    Sweep { id: JobId, answer: Answer<()> },
}

impl Command {
    /// The job it is about, if it exists already.
    fn job(&self) -> Option<JobId> {
        match self {
            Self::Enqueue { .. } => None,
            Self::Append { id, .. }
            | Self::Cancel { id, .. }
            | Self::Retry { id, .. }
            | Self::Delete { id, .. }
            | Self::GiveBack { id, .. }
            | Self::Sweep { id, .. } => Some(*id),
        }
    }

    /// How much it adds to a batch: jobs and events, large ones several times.
    fn weight(&self) -> usize {
        let of = |bytes: usize| 1 + bytes / WEIGHED_BYTES;
        match self {
            Self::Enqueue { specs, .. } => specs.iter().map(|spec| of(spec.payload.as_str().len())).sum(),
            Self::Append { events, .. } => events.iter().map(|event| of(event.size())).sum::<usize>().max(1),
            Self::Cancel { .. }
            | Self::Retry { .. }
            | Self::Delete { .. }
            | Self::GiveBack { .. }
            | Self::Sweep { .. } => 1,
        }
    }

    fn idempotency(&self) -> Option<&Idempotency> {
        match self {
            Self::Enqueue { idempotency, .. } | Self::Append { idempotency, .. } => idempotency.as_ref(),
            Self::Cancel { .. }
            | Self::Retry { .. }
            | Self::Delete { .. }
            | Self::GiveBack { .. }
            | Self::Sweep { .. } => None,
        }
    }

    fn unique_keys(&self) -> impl Iterator<Item = UniqueKey> {
        let specs: &[Spec] = match self {
            Self::Enqueue { specs, .. } => specs,
            Self::Append { .. }
            | Self::Cancel { .. }
            | Self::Retry { .. }
            | Self::Delete { .. }
            | Self::GiveBack { .. }
            | Self::Sweep { .. } => &[],
        };
        specs
            .iter()
            .filter_map(|spec| Some(UniqueKey { queue: spec.queue.clone(), key: spec.policy.unique_key.clone()? }))
    }

    /// Tells the caller that nothing came of it.
    fn fail(self, error: ServiceError) {
        // A caller that hung up does not want to know.
        match self {
            Self::Enqueue { answer, .. } => drop(answer.send(Err(error))),
            Self::Append { answer, .. } => drop(answer.send(Err(error))),
            Self::Cancel { answer, .. } => drop(answer.send(Err(error))),
            Self::Retry { answer, .. } => drop(answer.send(Err(error))),
            Self::Delete { answer, .. } | Self::GiveBack { answer, .. } | Self::Sweep { answer, .. } => {
                drop(answer.send(Err(error)));
            }
        }
    }
}

/// The way in: hands commands to the committers.
pub(super) struct Journal {
    committers: Vec<mpsc::Sender<Command>>,
    hasher: BuildHasherDefault<DefaultHasher>,
}

impl Journal {
    /// Starts as many committers as the store can use side by side. They end when the journal is dropped and what was
    /// handed in is done.
    pub fn start(
        store: &Arc<dyn Store>,
        bus: &Arc<Bus>,
        limits: &Arc<Limits>,
        recent: &Arc<Recent>,
        defaults: &Arc<QueueDefaults>,
        statistics: &Arc<Statistics>,
    ) -> (Self, Vec<JoinHandle<()>>) {
        let count = store.committers();
        let last_id = Arc::new(AtomicU64::new(0));
        let (mut committers, mut tasks) = (Vec::new(), Vec::new());
        for shard in 0..count {
            let (sender, receiver) = mpsc::channel(QUEUE);
            let committer = Committer {
                store: store.clone(),
                bus: bus.clone(),
                limits: limits.clone(),
                last_id: last_id.clone(),
                recent: recent.clone(),
                defaults: defaults.clone(),
                statistics: statistics.clone(),
            };
            let span = tracing::info_span!("committer", shard);
            tasks.push(tokio::spawn(tracing::Instrument::instrument(committer.run(receiver), span)));
            committers.push(sender);
        }
        (Self { committers, hasher: BuildHasherDefault::default() }, tasks)
    }

    /// Hands a command in and waits for its answer. Dropping the future does not take the command back.
    pub async fn submit<T>(&self, command: impl FnOnce(Answer<T>) -> Command) -> Result<T, ServiceError> {
        let (answer, answered) = oneshot::channel();
        let command = command(answer);
        let committer = &self.committers[self.shard(&command)];
        if let Err(mpsc::error::TrySendError::Full(command)) = committer.try_send(command) {
            match tokio::time::timeout(PATIENCE, committer.send(command)).await {
                Ok(_) => {}
                Err(_) => return Err(ServiceError::Overloaded),
            }
        }
        answered.await.unwrap_or(Err(ServiceError::Internal))
    }

    /// Commands that meet in a key or a job go to one committer, which sees them one after the other. New jobs that meet
    /// nothing go to the last one, and share it with nobody if there are several.
    fn shard(&self, command: &Command) -> usize {
        let last = self.committers.len() - 1;
        let hash = if let Some(key) = command.unique_keys().next() {
            self.hasher.hash_one(key)
        } else if let Command::Retry { redrive: Some(queue), .. } = command {
            // Of several with one unique key the first is to have it, and their keys are not known here.
            self.hasher.hash_one(queue)
        } else if let Some(id) = command.job() {
            self.hasher.hash_one(id)
        } else if let Some(idempotency) = command.idempotency() {
            self.hasher.hash_one(&idempotency.request)
        } else {
            return last;
        };
        (hash % last.max(1) as u64) as usize
    }
}
