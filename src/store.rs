//! The store: one durable log per job, and the state that is its fold.
//!
//! All rules live in `domain`; a store carries finished [`Change`]s out, guarded by the `seq` they were folded on, and
//! answers with a [`Committed`], which nobody else can make: what the bus publishes is durable, by type. A guard that
//! no longer holds is no error but said in the [`Commit`]: the journal reads again, folds again, and tries again.
//!
//! Two implementations with the same behaviour: [`PostgresStore`] for production, [`SqliteStore`] embedded.

mod backlog;
mod claim;
mod clock;
mod error;
mod listing;
mod postgres;
mod row;
mod schema;
mod sqlite;
#[cfg(test)]
mod tests;
mod waiting;
mod workers;

use async_trait::async_trait;

pub use backlog::{Backlog, BacklogExtent, BacklogJob, BacklogPart, BacklogRange};
pub use claim::{Claimed, Taken, Wish, WishAnswer};
pub use error::StoreError;
use error::is_conflict;
pub use postgres::PostgresStore;
pub use sqlite::SqliteStore;
pub use workers::{HeldJob, Sighting, Worker};

use crate::domain::rules::Step;
use crate::domain::waiting::WaitingFor;
use crate::domain::{
    CancelSignal, Clocks, Defaults, Event, Identity, Interest, Job, JobId, Json, LeaseSecret, Queue, QueueChange,
    QueueName, QueueSlot, Record, State, Timestamp, WorkerName,
};

/// What both stores can do. Every method is one statement or one named transaction.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The database's clock, as this process last read it and carried on by the machine's monotonic one.
    fn now(&self) -> Timestamp;

    /// A random value written when the store was created or restored; validators (`ETag`) are bound to it.
    fn epoch(&self) -> &str;

    /// What lease tokens are made with; written when the store was created.
    fn lease_secret(&self) -> &LeaseSecret;

    /// How many commits run side by side without waiting for each other. If several, the last one is for new jobs that
    /// nothing else depends on.
    fn committers(&self) -> usize;

    /// Whether other processes write here, too, as far as the last pulse knows.
    fn has_peers(&self) -> bool;

    /// Which of these jobs are not at the given seq any more, or are gone.
    async fn moved(&self, jobs: &[(JobId, u64)]) -> Result<Vec<JobId>, StoreError>;

    /// Reads jobs and keys, as they are now.
    async fn resolve(&self, lookup: &Lookup) -> Result<Resolved, StoreError>;

    /// Writes changes and remembered requests. Durable on return (`fsync`). What conflicts is not written.
    async fn commit(&self, batch: &Batch) -> Result<Commit, StoreError>;

    /// Hands waiting jobs to those who ask, in one transaction per call: limits are judged and runs begin under the
    /// locks of the queues asked for. Durable on return. Who asks for nothing that is there gets nothing.
    async fn claim(&self, wishes: &[Wish]) -> Result<Claimed, StoreError>;

    /// Makes jobs whose `run_at` has come claimable, a bounded number; returns the queues that gained some.
    async fn promote(&self) -> Result<Vec<QueueName>, StoreError>;

    /// Removes ended jobs whose `seq` is still the given one, with everything that belongs to them.
    async fn remove(&self, jobs: &[(JobId, u64)]) -> Result<Committed, StoreError>;

    /// Reads a stretch of one job's log.
    async fn events(&self, id: JobId, range: &EventRange) -> Result<Vec<Event>, StoreError>;

    /// Reads one of a job's large parts.
    async fn part(&self, id: JobId, part: Part) -> Result<Option<Json>, StoreError>;

    /// Lists jobs, newest first.
    async fn list(&self, filter: &JobFilter, limit: u32) -> Result<Vec<Job>, StoreError>;

    /// Queues with their counts, by name: all of them, or one.
    async fn queues(&self, only: Option<&QueueName>) -> Result<Vec<Queue>, StoreError>;

    /// What queues give to specs that leave it out; a queue that is missing gives nothing. Cheap.
    async fn queue_defaults(&self) -> Result<Vec<(QueueName, Defaults)>, StoreError>;

    /// Changes a queue under its lock; `false`: there is no such queue, and the change makes none.
    async fn change_queue(&self, name: &QueueName, change: &QueueChange) -> Result<bool, StoreError>;

    /// Stores this node's slots of statistics, whole: what it stored of a slot before is replaced.
    async fn store_statistics(&self, slots: &[QueueSlot]) -> Result<(), StoreError>;

    /// What other nodes stored of these queues, and this one before it was last started, from slot `since` on.
    async fn statistics(&self, queues: &[&QueueName], since: i64) -> Result<Vec<QueueSlot>, StoreError>;

    /// Reads a job, and says what it waits for, if it waits. `None`: there is no such job. `is_asked_for`: somebody has
    /// asked for work like it, whether or not the store was told already.
    async fn waiting_for(&self, id: JobId, is_asked_for: bool)
    -> Result<Option<(Job, Option<WaitingFor>)>, StoreError>;

    /// How far a queue's backlog reaches.
    async fn backlog_extent(&self, backlog: &Backlog) -> Result<BacklogExtent, StoreError>;

    /// Jobs of a backlog, oldest first.
    async fn backlog(&self, backlog: &Backlog, range: &BacklogRange) -> Result<Vec<BacklogJob>, StoreError>;

    /// Notes that jobs are watched on this node: unless it is said again, each is cancelled after its number of
    /// milliseconds from now.
    async fn note_watched(&self, jobs: &[(JobId, u64)]) -> Result<(), StoreError>;

    /// Notes who asks for work on this node.
    async fn note_workers(&self, seen: &[Sighting]) -> Result<(), StoreError>;

    /// Who was seen within so many milliseconds or holds a job, by name.
    async fn workers(&self, within_ms: u64) -> Result<Vec<Worker>, StoreError>;

    /// Which runs of these workers have been asked to stop, and how long each may still take.
    async fn cancels(&self, workers: &[WorkerName]) -> Result<Vec<(WorkerName, CancelSignal)>, StoreError>;

    /// Jobs for which an instant has passed: TTL, deadline, silence, the grace of a cancel, nobody watching. A bounded
    /// number.
    async fn overdue(&self, limit: u32) -> Result<Vec<JobId>, StoreError>;

    /// Jobs that ended more than `keep_ms` ago, with their seq. A bounded number, oldest first.
    async fn retired(&self, keep_ms: u64, limit: u32) -> Result<Vec<(JobId, u64)>, StoreError>;

    /// Forgets what means nothing any more (idempotency keys, rates, workers, statistics), and keeps storage in shape
    /// (partitions are made ahead, empty old ones dropped).
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

/// A worker that has not asked for work for so long is forgotten, in milliseconds: an hour.
const WORKER_MS: u64 = 60 * 60 * 1_000;

/// An idempotency key in its scope (credential and route, or one job's appends).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestKey {
    /// Where the key counts.
    pub scope: String,
    /// The caller's key.
    pub key: String,
}

/// A caller's idempotency key, with what it stands for.
#[derive(Clone, Debug)]
pub struct Idempotency {
    /// The key in its scope.
    pub request: RequestKey,
    /// Hash of the body, see [`crate::domain::body_hash`].
    pub body_hash: [u8; 32],
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
    /// A sign of life: the lease begins anew with its full length.
    pub renew: bool,
    /// A cancel is carried out by force after this long; an earlier instant stays.
    pub cancel_ms: Option<u64>,
    /// The run is over: the lease goes.
    pub close: bool,
    /// What must be true of the lease for the change to be written.
    pub guard: LeaseGuard,
}

/// A condition on the lease, judged by the database's clock in the statement that writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeaseGuard {
    /// None.
    #[default]
    None,
    /// This run holds it, and none of its instants has passed.
    HeldBy(u64),
    /// It has run out: a sign of life that came meanwhile, through whatever node, counts.
    RunOut,
}

impl LeaseChange {
    fn held_by(&self) -> Option<i64> {
        match self.guard {
            LeaseGuard::HeldBy(run) => Some(run as i64),
            LeaseGuard::None | LeaseGuard::RunOut => None,
        }
    }
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

    fn before_state(&self) -> Option<State> {
        self.before.as_ref().map(|job| job.state)
    }

    /// When the run began that was on before the change.
    fn run_began_at(&self) -> Option<Timestamp> {
        self.before.as_ref().filter(|job| job.state == State::Running)?.started_at
    }

    /// Where the job waited, if it no longer waits there.
    fn leaves(&self) -> Option<Waiting> {
        let before = self.before.as_ref().and_then(Waiting::of)?;
        (Waiting::of(self.job()) != Some(before)).then_some(before)
    }

    /// Where the job comes to wait.
    fn enters(&self) -> Option<Waiting> {
        let after = Waiting::of(self.job())?;
        (self.before.as_ref().and_then(Waiting::of) != Some(after)).then_some(after)
    }

    /// Whether it no longer matters who watches: the job has ended.
    fn forgets_watches(&self) -> bool {
        self.step.record.policy.cancel_if_unwatched_ms.is_some() && self.job().state.is_terminal()
    }

    /// Whether the old result (if any) goes: the job was put back.
    fn drops_result(&self) -> bool {
        self.before.as_ref().is_some_and(|job| job.outcome.is_some()) && self.job().outcome.is_none()
    }

    /// Whether the job comes among the dead letters, and with which error code.
    fn dies(&self) -> Option<String> {
        (self.job().state == State::Failed && self.before_state() != Some(State::Failed))
            .then(|| self.job().error_code())
    }

    /// Whether the job leaves the dead letters.
    fn is_revived(&self) -> bool {
        self.before_state() == Some(State::Failed) && self.job().state != State::Failed
    }

    /// Whether one guarded update, its events and the end of a lease are all there is to write.
    fn is_plain(&self) -> bool {
        self.before.is_some()
            && !self.lease.open
            && self.lease.guard != LeaseGuard::RunOut
            && self.step.result.is_none()
            && self.step.hold_queue_ms.is_none()
            && self.leaves().is_none()
            && self.enters().is_none()
            && self.takes_unique_key().is_none()
            && self.frees_unique_key().is_none()
            && self.dies().is_none()
            && !self.is_revived()
            && !self.forgets_watches()
    }

    /// Whether a job, its log and its place among those that wait are all there is to write.
    fn is_plainly_new(&self) -> bool {
        self.before.is_none()
            && !self.lease.open
            && self.takes_unique_key().is_none()
            && !self.job().state.is_terminal()
    }

    /// The run that ended by somebody else's doing: its worker does not know yet.
    fn revoked(&self) -> Option<Revoked> {
        let before = self.before.as_ref().filter(|job| job.state == State::Running)?;
        let is_over = self.job().state != State::Running || self.job().run != before.run;
        let by_itself = self.step.record.ending.is_some_and(|ending| ending.run == before.run);
        let worker = before.worker.clone().filter(|_| is_over && !by_itself)?;
        Some(Revoked { worker, run: before.run })
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

/// The lane of a job without a concurrency key is `""`.
fn lane(record: &Record) -> &str {
    record.policy.concurrency_key.as_deref().unwrap_or_default()
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
    removed: Vec<Identity>,
}

/// A job as it is now in the store, with the events that were just stored.
#[derive(Clone, Debug)]
pub struct CommittedJob {
    /// The state after the events.
    pub job: Job,
    /// When the run began that was on before them.
    pub began_at: Option<Timestamp>,
    /// The new events, in order.
    pub events: Vec<Event>,
    /// The run that somebody else ended.
    pub revoked: Option<Revoked>,
}

/// A run that ended without its worker's doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revoked {
    /// Who ran it.
    pub worker: String,
    /// Which run.
    pub run: u64,
}

impl Committed {
    fn of_changes<'a>(changes: impl Iterator<Item = &'a Change>) -> Self {
        let jobs = changes
            .filter(|change| !change.step.events.is_empty())
            .map(|change| CommittedJob {
                job: change.job().clone(),
                began_at: change.run_began_at(),
                events: change.step.events.clone(),
                revoked: change.revoked(),
            })
            .collect();
        Self { jobs, removed: Vec::new() }
    }

    fn of_removed(removed: Vec<Identity>) -> Self {
        Self { jobs: Vec::new(), removed }
    }

    /// Jobs that changed.
    pub fn jobs(&self) -> &[CommittedJob] {
        &self.jobs
    }

    /// Jobs that are gone.
    pub fn removed(&self) -> &[Identity] {
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
    /// By what never changes of them.
    pub of: Interest,
    /// Failed, with this error code.
    pub error_code: Option<String>,
    /// In one of these states.
    pub states: Vec<State>,
    /// Not ended.
    pub active: bool,
    /// Not ended, or after this instant.
    pub active_or_finished_after: Option<Timestamp>,
    /// Created after this instant.
    pub created_after: Option<Timestamp>,
    /// Ended after this instant.
    pub finished_after: Option<Timestamp>,
    /// Changed after this instant. No index knows it.
    pub updated_after: Option<Timestamp>,
    /// Older than this job.
    pub before: Option<JobId>,
}
