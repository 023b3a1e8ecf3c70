//! SQLite, embedded: the store that one command starts. One node, one writer, as many readers as asked for.
//!
//! Write-ahead log with `synchronous=FULL`: an answered write survives power loss. The database file is locked, and a
//! second gateway on it refuses to start.

mod backlog;
mod claim;
mod pulse;
mod queues;
mod read;
mod script;
mod tidy;
mod waiting;
mod workers;
mod write;

use std::fs::File;
use std::path::Path;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection};
use tokio::sync::Mutex;

use super::clock::Presence;
use super::{
    Backlog, BacklogExtent, BacklogJob, BacklogRange, Batch, Claimed, Commit, Committed, EventRange, JobFilter, Lookup,
    Part, Resolved, Sighting, Store, StoreError, Wish, Worker, schema,
};
use crate::domain::waiting::WaitingFor;
use crate::domain::{
    CancelSignal, Defaults, Event, Job, JobId, Json, LeaseSecret, Queue, QueueChange, QueueName, QueueSlot, Timestamp,
    WorkerName,
};

const MIGRATIONS: &[(&str, &str)] =
    &[("spine", include_str!("sqlite/0001_spine.sql")), ("queue", include_str!("sqlite/0002_queue.sql"))];

/// The store in a SQLite file.
pub struct SqliteStore {
    /// The one connection that writes. SQLite lets one transaction write at a time anyway; queueing here instead of
    /// in its busy handler is fair and wakes at once. Held across awaits on purpose.
    writer: Mutex<SqliteConnection>,
    readers: SqlitePool,
    presence: Presence,
    epoch: String,
    lease_secret: LeaseSecret,
    /// This life of the gateway: what an earlier one said of itself stays apart.
    node: String,
    /// Locked as long as this store lives.
    _lock: File,
}

impl SqliteStore {
    /// Opens or creates the database file and brings its schema up to date. Opens `connections` for reading.
    pub async fn open(path: &Path, connections: u32) -> Result<Self, StoreError> {
        let lock = lock(path)?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(Duration::from_secs(5));
        let unusable = |error| StoreError::Unusable(format!("{} cannot be opened: {error}", path.display()));
        let mut writer = options.connect().await.map_err(unusable)?;
        schema::migrate(&mut writer, None, MIGRATIONS).await?;
        sqlx::query(
            "insert into epoch (value) select lower(hex(randomblob(6))) where not exists (select 1 from epoch)",
        )
        .execute(&mut writer)
        .await?;
        let epoch = sqlx::query_scalar("select value from epoch").fetch_one(&mut writer).await?;
        sqlx::query("update epoch set lease_secret = randomblob(32) where lease_secret is null")
            .execute(&mut writer)
            .await?;
        let secret: Vec<u8> = sqlx::query_scalar("select lease_secret from epoch").fetch_one(&mut writer).await?;
        let lease_secret = schema::lease_secret(secret)?;
        let readers = SqlitePoolOptions::new()
            .max_connections(connections.max(1))
            .acquire_timeout(Duration::from_secs(5))
            // It is a file: it does not go away.
            .test_before_acquire(false)
            .connect_with(options.create_if_missing(false).read_only(true))
            .await?;
        let node = format!("{:016x}", rand::random::<u64>());
        let store = Self {
            writer: Mutex::new(writer),
            readers,
            presence: Presence::new(),
            epoch,
            lease_secret,
            node,
            _lock: lock,
        };
        store.probe().await?;
        Ok(store)
    }
}

fn lock(path: &Path) -> Result<File, StoreError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let unusable = |error: &dyn std::fmt::Display| {
        StoreError::Unusable(format!("{} cannot be locked: {error}", Path::new(&name).display()))
    };
    let file = File::options().create(true).append(true).open(&name).map_err(|error| unusable(&error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => {
            Err(StoreError::Unusable(format!("another gateway is using {}", path.display())))
        }
        Err(std::fs::TryLockError::Error(error)) => Err(unusable(&error)),
    }
}

impl SqliteStore {
    /// Before a lease is judged: what this node's absence cost its holder is given back.
    async fn be_present(&self) -> Result<(), StoreError> {
        if self.presence.was_away() { self.probe().await } else { Ok(()) }
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn now(&self) -> Timestamp {
        // The database is this process: its clock is the machine's.
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_millis(since_epoch.as_millis() as i64)
    }

    fn epoch(&self) -> &str {
        &self.epoch
    }

    fn lease_secret(&self) -> &LeaseSecret {
        &self.lease_secret
    }

    fn committers(&self) -> usize {
        1
    }

    fn has_peers(&self) -> bool {
        // The file is locked.
        false
    }

    async fn moved(&self, jobs: &[(JobId, u64)]) -> Result<Vec<JobId>, StoreError> {
        read::moved(&self.readers, jobs).await
    }

    async fn resolve(&self, lookup: &Lookup) -> Result<Resolved, StoreError> {
        self.be_present().await?;
        read::resolve(&self.readers, lookup, self.now()).await
    }

    async fn commit(&self, batch: &Batch) -> Result<Commit, StoreError> {
        self.be_present().await?;
        let now = self.now();
        let mut writer = self.writer.lock().await;
        let mut transaction = writer.begin_with("begin immediate").await?;
        // One writer: only what raced with a removal is rolled back, and folded again.
        if write::commit(&mut transaction, batch, now).await? {
            transaction.commit().await?;
            Ok(Commit { committed: Committed::of_changes(batch.changes.iter()), ..Commit::default() })
        } else {
            transaction.rollback().await?;
            Ok(Commit::rolled_back())
        }
    }

    async fn claim(&self, wishes: &[Wish]) -> Result<Claimed, StoreError> {
        self.be_present().await?;
        let mut writer = self.writer.lock().await;
        let mut transaction = writer.begin_with("begin immediate").await?;
        // Not before the lock is held: else a run would begin, by the log, before the one has ended that made room.
        let now = self.now();
        let claimed = claim::claim(&mut transaction, wishes, now).await?;
        transaction.commit().await?;
        Ok(claimed)
    }

    async fn promote(&self) -> Result<Vec<QueueName>, StoreError> {
        let now = self.now();
        let mut writer = self.writer.lock().await;
        let mut transaction = writer.begin_with("begin immediate").await?;
        let queues = claim::promote(&mut transaction, now).await?;
        transaction.commit().await?;
        Ok(queues)
    }

    async fn remove(&self, jobs: &[(JobId, u64)]) -> Result<Committed, StoreError> {
        let mut writer = self.writer.lock().await;
        let mut transaction = writer.begin_with("begin immediate").await?;
        let removed = write::remove(&mut transaction, jobs).await?;
        transaction.commit().await?;
        Ok(removed)
    }

    async fn events(&self, id: JobId, range: &EventRange) -> Result<Vec<Event>, StoreError> {
        read::events(&self.readers, id, range).await
    }

    async fn part(&self, id: JobId, part: Part) -> Result<Option<Json>, StoreError> {
        read::part(&self.readers, id, part).await
    }

    async fn list(&self, filter: &JobFilter, limit: u32) -> Result<Vec<Job>, StoreError> {
        read::list(&self.readers, filter, limit).await
    }

    async fn queues(&self, only: Option<&QueueName>) -> Result<Vec<Queue>, StoreError> {
        queues::queues(&self.readers, only, self.now()).await
    }

    async fn queue_defaults(&self) -> Result<Vec<(QueueName, Defaults)>, StoreError> {
        queues::queue_defaults(&self.readers).await
    }

    async fn change_queue(&self, name: &QueueName, change: &QueueChange) -> Result<bool, StoreError> {
        let mut writer = self.writer.lock().await;
        let mut transaction = writer.begin_with("begin immediate").await?;
        let changed = queues::change_queue(&mut transaction, name, change).await?;
        transaction.commit().await?;
        Ok(changed)
    }

    async fn store_statistics(&self, slots: &[QueueSlot]) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        queues::store_statistics(&mut writer, &self.node, slots).await
    }

    async fn statistics(&self, queues: &[&QueueName], since: i64) -> Result<Vec<QueueSlot>, StoreError> {
        queues::statistics(&self.readers, &self.node, queues, since).await
    }

    async fn waiting_for(
        &self,
        id: JobId,
        is_asked_for: bool,
    ) -> Result<Option<(Job, Option<WaitingFor>)>, StoreError> {
        waiting::waiting_for(&mut *self.readers.acquire().await?, id, is_asked_for, self.now()).await
    }

    async fn backlog_extent(&self, backlog: &Backlog) -> Result<BacklogExtent, StoreError> {
        backlog::extent(&self.readers, backlog).await
    }

    async fn backlog(&self, backlog: &Backlog, range: &BacklogRange) -> Result<Vec<BacklogJob>, StoreError> {
        backlog::page(&self.readers, backlog, range).await
    }

    async fn note_watched(&self, jobs: &[(JobId, u64)]) -> Result<(), StoreError> {
        let now = self.now();
        let jobs: Vec<(JobId, i64)> = jobs.iter().map(|(id, ms)| (*id, now.plus_millis(*ms).as_millis())).collect();
        let mut writer = self.writer.lock().await;
        pulse::note_watched(&mut writer, &jobs).await
    }

    async fn note_workers(&self, seen: &[Sighting]) -> Result<(), StoreError> {
        let now = self.now();
        let mut writer = self.writer.lock().await;
        workers::note(&mut writer, seen, now).await
    }

    async fn workers(&self, within_ms: u64) -> Result<Vec<Worker>, StoreError> {
        let after = self.now().as_millis() - within_ms as i64;
        workers::list(&self.readers, Timestamp::from_millis(after)).await
    }

    async fn cancels(&self, workers: &[WorkerName]) -> Result<Vec<(WorkerName, CancelSignal)>, StoreError> {
        workers::cancels(&self.readers, workers, self.now()).await
    }

    async fn overdue(&self, limit: u32) -> Result<Vec<JobId>, StoreError> {
        self.be_present().await?;
        read::overdue(&self.readers, self.now(), limit).await
    }

    async fn retired(&self, keep_ms: u64, limit: u32) -> Result<Vec<(JobId, u64)>, StoreError> {
        let before = Timestamp::from_millis(self.now().as_millis().saturating_sub(keep_ms.min(i64::MAX as u64) as i64));
        read::retired(&self.readers, before, limit).await
    }

    async fn tidy(&self, _keep_ms: u64) -> Result<(), StoreError> {
        let now = self.now();
        let mut writer = self.writer.lock().await;
        let mut transaction = writer.begin_with("begin immediate").await?;
        tidy::tidy(&mut transaction, now).await?;
        transaction.commit().await?;
        Ok(())
    }

    async fn probe(&self) -> Result<(), StoreError> {
        let now = self.now();
        let mut writer = self.writer.lock().await;
        let mut transaction = writer.begin_with("begin immediate").await?;
        pulse::pulse(&mut transaction, now).await?;
        transaction.commit().await?;
        self.presence.shown();
        Ok(())
    }
}
