//! The store: one durable log per job, and the state that is its fold.
//!
//! All rules live in `domain`; a store carries finished [`Change`]s out, guarded by the `seq` they were folded on, and
//! answers with a [`Committed`], which nobody else can make: what the bus publishes is durable, by type. A guard that
//! no longer holds is no error but said in the [`Commit`]: the journal reads again, folds again, and tries again.
//!
//! Two implementations with the same behaviour: [`PostgresStore`] for production, [`SqliteStore`] embedded.

mod clock;
mod error;
mod listing;
mod postgres;
mod row;
mod schema;
mod sqlite;
#[cfg(test)]
mod tests;

use async_trait::async_trait;

pub use error::StoreError;
use error::is_conflict;
pub use postgres::PostgresStore;
pub use sqlite::SqliteStore;

use crate::domain::rules::Step;
use crate::domain::{Clocks, Event, Job, JobId, Json, QueueName, Record, State, Timestamp};

/// What both stores can do. Every method is one statement or one named transaction.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The database's clock, as this process last read it and carried on by the machine's monotonic one.
    fn now(&self) -> Timestamp;

    /// A random value written when the store was created or restored; validators (`ETag`) are bound to it.
    fn epoch(&self) -> &str;

    /// How many commits run side by side without waiting for each other.
    fn committers(&self) -> usize;

    /// Reads jobs and keys, as they are now.
    async fn resolve(&self, lookup: &Lookup) -> Result<Resolved, StoreError>;

    /// Writes changes and remembered requests. Durable on return (`fsync`). What conflicts is not written.
    async fn commit(&self, batch: &Batch) -> Result<Commit, StoreError>;

    /// Removes ended jobs whose `seq` is still the given one, with everything that belongs to them.
    async fn remove(&self, jobs: &[(JobId, u64)]) -> Result<Committed, StoreError>;

    /// Reads a stretch of one job's log.
    async fn events(&self, id: JobId, range: &EventRange) -> Result<Vec<Event>, StoreError>;

    /// Reads one of a job's large parts.
    async fn part(&self, id: JobId, part: Part) -> Result<Option<Json>, StoreError>;

    /// Lists jobs, newest first.
    async fn list(&self, filter: &JobFilter, limit: u32) -> Result<Vec<Job>, StoreError>;

    /// Notes that jobs are watched on this node: unless it is said again, each is cancelled after its number of
    /// milliseconds from now.
    async fn note_watched(&self, jobs: &[(JobId, u64)]) -> Result<(), StoreError>;

    /// Jobs for which an instant has passed: TTL, deadline, silence, the grace of a cancel, nobody watching. A bounded
    /// number.
    async fn overdue(&self, limit: u32) -> Result<Vec<JobId>, StoreError>;

    /// Jobs that ended more than `keep_ms` ago, with their seq. A bounded number, oldest first.
    async fn retired(&self, keep_ms: u64, limit: u32) -> Result<Vec<(JobId, u64)>, StoreError>;

    /// Forgets old idempotency keys, and keeps storage in shape (partitions are made ahead, empty old ones dropped).
    async fn tidy(&self, keep_ms: u64) -> Result<(), StoreError>;

    /// This node's pulse, to be called every second: proves that the write path works, by writing, and reads the clock.
    /// Our own lateness is not a runner's failure: if no node had a pulse for more than [`OUTAGE_MS`], every live lease
    /// is extended by that gap, once.
    async fn probe(&self) -> Result<(), StoreError>;
}

/// Nodes without a pulse for longer than this were away, in milliseconds.
pub const OUTAGE_MS: u64 = 3_000;

/// How long an idempotency key is remembered, in milliseconds: 24 hours.
pub const IDEMPOTENCY_MS: u64 = 24 * 60 * 60 * 1_000;

/// An idempotency key in its scope (credential and route, or one job's appends).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestKey {
    /// Where the key counts.
    pub scope: String,
    /// The caller's key.
    pub key: String,
}

/// A request that was answered, so that its repetition is answered alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Remembered {
    /// Its key.
    pub request: RequestKey,
    /// What was asked.
    pub body_hash: [u8; 32],
    /// What was answered, as the service wrote it.
    pub answer: Json,
}

/// A unique key within its queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UniqueKey {
    /// The queue.
    pub queue: QueueName,
    /// The caller's key.
    pub key: String,
}

/// What [`Store::resolve`] is asked for.
#[derive(Debug, Default)]
pub struct Lookup {
    /// Jobs by id.
    pub jobs: Vec<JobId>,
    /// Live jobs by unique key.
    pub unique: Vec<UniqueKey>,
    /// Answered requests.
    pub requests: Vec<RequestKey>,
}

/// What [`Store::resolve`] found; what is missing does not exist.
#[derive(Debug, Default)]
pub struct Resolved {
    /// Jobs asked for, with their clocks.
    pub jobs: Vec<(Record, Clocks)>,
    /// Holders of unique keys.
    pub unique: Vec<(UniqueKey, JobId)>,
    /// Requests of the last 24 hours.
    pub requests: Vec<Remembered>,
}

/// What happens to a running job's lease. Durations count from the database's `now()`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeaseChange {
    /// The run begins: the lease comes into being.
    pub open: bool,
    /// Silence from now on ends the run after this long.
    pub renew_ms: Option<u64>,
    /// A cancel is carried out by force after this long; an earlier instant stays.
    pub cancel_ms: Option<u64>,
    /// The run is over: the lease goes.
    pub close: bool,
}

/// One job's part of a batch.
#[derive(Clone, Debug)]
pub struct Change {
    /// The job as it was when the events were folded; `None`: it is new.
    pub before: Option<Job>,
    /// The job afterwards and its new events. Without events only the lease changes.
    pub step: Step,
    /// What happens to the lease.
    pub lease: LeaseChange,
    /// A new job's payload.
    pub payload: Option<Json>,
}

impl Change {
    /// The seq the job must still have; 0 for a new one.
    fn expected_seq(&self) -> u64 {
        self.before.as_ref().map_or(0, |job| job.seq)
    }

    fn job(&self) -> &Job {
        &self.step.record.job
    }

    /// The unique key that the job comes to hold with this change.
    fn takes_unique_key(&self) -> Option<UniqueKey> {
        let was_live = self.before.as_ref().is_some_and(|job| !job.state.is_terminal());
        self.unique_key().filter(|_| !was_live && !self.job().state.is_terminal())
    }

    /// The unique key that the job gives up with this change.
    fn frees_unique_key(&self) -> Option<UniqueKey> {
        let was_live = self.before.as_ref().is_some_and(|job| !job.state.is_terminal());
        self.unique_key().filter(|_| was_live && self.job().state.is_terminal())
    }

    fn unique_key(&self) -> Option<UniqueKey> {
        let key = self.step.record.policy.unique_key.clone()?;
        Some(UniqueKey { queue: self.job().queue.clone(), key })
    }

    /// Where the job waits before and after: `(leaves, enters)`.
    fn waiting(&self) -> (bool, Option<Waiting>) {
        let before = self.before.as_ref().and_then(Waiting::of);
        let after = Waiting::of(self.job());
        if before == after { (false, None) } else { (before.is_some(), after) }
    }

    /// Whether it no longer matters who watches: the job has ended.
    fn forgets_watches(&self) -> bool {
        self.step.record.policy.cancel_if_unwatched_ms.is_some() && self.job().state.is_terminal()
    }

    /// Whether the old result (if any) goes: the job was put back.
    fn drops_result(&self) -> bool {
        self.before.as_ref().is_some_and(|job| job.outcome.is_some()) && self.job().outcome.is_none()
    }

    /// Whether one guarded update and its events are all there is to write.
    fn is_plain(&self) -> bool {
        self.before.is_some()
            && !self.lease.open
            && !self.lease.close
            && self.step.result.is_none()
            && self.waiting() == (false, None)
            && self.before.as_ref().is_some_and(|job| job.state.is_terminal()) == self.job().state.is_terminal()
    }
}

/// Which table a waiting job stands in.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Waiting {
    /// Claimable now.
    Ready,
    /// Claimable from its `run_at` on.
    Later(Timestamp),
}

impl Waiting {
    fn of(job: &Job) -> Option<Self> {
        match job.state {
            // A tracked job never waits for a claim.
            _ if job.tracked => None,
            State::Queued => Some(Self::Ready),
            State::Scheduled | State::Retrying => Some(Self::Later(job.run_at)),
            State::Running | State::Completed | State::Failed | State::Cancelled | State::Expired => None,
        }
    }
}

/// Changes and remembered requests that are written together.
#[derive(Debug, Default)]
pub struct Batch {
    /// At most one change per job.
    pub changes: Vec<Change>,
    /// Requests to remember.
    pub requests: Vec<Remembered>,
}

/// What a commit did.
#[derive(Debug, Default)]
pub struct Commit {
    /// What is durable now.
    pub committed: Committed,
    /// Jobs whose guard failed; nothing of them is stored.
    pub conflicts: Vec<JobId>,
    /// Some guard failed, and nothing at all is stored.
    pub rolled_back: bool,
}

impl Commit {
    fn rolled_back() -> Self {
        Self { rolled_back: true, ..Self::default() }
    }
}

/// Proof that something is durable. Only a store makes one; the bus takes nothing else.
#[derive(Debug, Default)]
pub struct Committed {
    jobs: Vec<CommittedJob>,
    removed: Vec<JobId>,
}

/// A job as it is now in the store, with the events that were just stored.
#[derive(Clone, Debug)]
pub struct CommittedJob {
    /// The state after the events.
    pub job: Job,
    /// The new events, in order.
    pub events: Vec<Event>,
}

impl Committed {
    fn of_changes<'a>(changes: impl Iterator<Item = &'a Change>) -> Self {
        let jobs = changes
            .filter(|change| !change.step.events.is_empty())
            .map(|change| CommittedJob { job: change.job().clone(), events: change.step.events.clone() })
            .collect();
        Self { jobs, removed: Vec::new() }
    }

    fn of_removed(removed: Vec<JobId>) -> Self {
        Self { jobs: Vec::new(), removed }
    }

    /// Jobs that changed.
    pub fn jobs(&self) -> &[CommittedJob] {
        &self.jobs
    }

    /// Jobs that are gone.
    pub fn removed(&self) -> &[JobId] {
        &self.removed
    }
}

/// A stretch of a log.
#[derive(Clone, Debug)]
pub struct EventRange {
    /// Only events after this seq.
    pub after: u64,
    /// Only events up to this seq.
    pub upto: u64,
    /// Only `output` events.
    pub output_only: bool,
    /// From the end of the stretch towards its beginning.
    pub newest_first: bool,
    /// At most this many.
    pub limit: u32,
}

/// The large parts of a job that its row does not carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// What the worker was given.
    Payload,
    /// The Outcome's `data`.
    Result,
}

/// Which jobs to list; empty lists and `None` mean "any".
#[derive(Clone, Debug, Default)]
pub struct JobFilter {
    /// In this queue.
    pub queue: Option<String>,
    /// Of this kind.
    pub kind: Option<String>,
    /// About this.
    pub subject: Option<String>,
    /// In one of these states.
    pub states: Vec<State>,
    /// Not ended.
    pub active: bool,
    /// Created after this instant.
    pub created_after: Option<Timestamp>,
    /// Ended after this instant.
    pub finished_after: Option<Timestamp>,
    /// Older than this job.
    pub before: Option<JobId>,
}
