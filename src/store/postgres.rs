//! Postgres: the store for production and for several nodes. Written for 14 and later.

mod backlog;
mod claim;
mod pulse;
mod queues;
mod read;
mod tidy;
mod waiting;
mod workers;
mod write;

use std::collections::{BTreeSet, HashSet};
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{Connection, Postgres, Transaction};

use super::clock::{Clock, Presence};
use super::{
    Backlog, BacklogExtent, BacklogJob, BacklogRange, Batch, Claimed, Commit, Committed, EventRange, JobFilter, Lookup,
    Part, Resolved, Sighting, Store, StoreError, Wish, Worker, is_conflict, schema,
};
use crate::domain::waiting::WaitingFor;
use crate::domain::{
    CancelSignal, Defaults, Event, Job, JobId, Json, LeaseSecret, Queue, QueueChange, QueueName, QueueSlot, Timestamp,
    WorkerName,
};

const MIGRATIONS: &[(&str, &str)] =
    &[("spine", include_str!("postgres/0001_spine.sql")), ("queue", include_str!("postgres/0002_queue.sql"))];

/// A connection that was used within this is taken to be alive.
const IDLE_UNTESTED: Duration = Duration::from_secs(1);

/// Everything of ours lives in this schema, so that an app can share its database with the gateway.
const SCHEMA: &str = "milepost";

/// The store on a Postgres database.
pub struct PostgresStore {
    pool: PgPool,
    clock: Clock,
    presence: Presence,
    epoch: String,
    lease_secret: LeaseSecret,
    node: String,
    /// Whether other nodes had a pulse lately.
    has_peers: AtomicBool,
    /// Queues that have their row.
    known_queues: Mutex<HashSet<QueueName>>,
}

impl PostgresStore {
    /// Connects, brings the schema up to date, and reads the clock. At most `connections` are ever open.
    pub async fn connect(url: &str, connections: u32) -> Result<Self, StoreError> {
        let options = PgConnectOptions::from_str(url)
            .map_err(|error| StoreError::Unusable(format!("DATABASE_URL is not a Postgres URL: {error}")))?
            .application_name("milepost")
            .options([
                ("search_path", SCHEMA),
                // Our statements are few and their plans do not depend on their values; custom plans cost twice the CPU.
                ("plan_cache_mode", "force_generic_plan"),
                // They touch few rows each. The planner cannot know, and compiling one took 50 ms.
                ("jit", "off"),
                // A statement that takes this long is stuck; whoever waits for it is told to try again.
                ("statement_timeout", "30s"),
            ]);
        let pool = PgPoolOptions::new()
            .max_connections(connections.max(2))
            .acquire_timeout(Duration::from_secs(5))
            // A round trip per use is only worth it for connections that had time to die.
            .test_before_acquire(false)
            .before_acquire(|connection, usage| {
                Box::pin(async move { Ok(usage.idle_for < IDLE_UNTESTED || connection.ping().await.is_ok()) })
            })
            .connect_with(options)
            .await?;
        let mut connection = pool.acquire().await?;
        schema::migrate(&mut *connection, Some(SCHEMA), MIGRATIONS).await?;
        let epoch: String = sqlx::query_scalar(
            "with made as (
                 insert into epoch (value) select substr(md5(random()::text || clock_timestamp()::text), 1, 12)
                 where not exists (select 1 from epoch) returning value)
             select value from made union all select value from epoch limit 1",
        )
        .fetch_one(&mut *connection)
        .await?;
        let secret: Vec<u8> = sqlx::query_scalar(
            "with made as (update epoch set lease_secret = $1 where lease_secret is null returning lease_secret)
             select lease_secret from made union all
             select lease_secret from epoch where lease_secret is not null limit 1",
        )
        .bind(rand::random::<[u8; 32]>().to_vec())
        .fetch_one(&mut *connection)
        .await?;
        let lease_secret = schema::lease_secret(secret)?;
        drop(connection);
        let node = format!("{:016x}", rand::random::<u64>());
        let known_queues = Mutex::default();
        let store = Self {
            pool,
            clock: Clock::new(),
            presence: Presence::new(),
            epoch,
            lease_secret,
            node,
            has_peers: AtomicBool::new(false),
            known_queues,
        };
        store.probe().await?;
        store.tidy(u64::MAX).await?;
        Ok(store)
    }
}

impl PostgresStore {
    /// Before a lease is judged: what this node's absence cost its holder is given back.
    async fn be_present(&self) -> Result<(), StoreError> {
        if self.presence.was_away() { self.probe().await } else { Ok(()) }
    }

    /// A queue has its row from its first job on. Rows never go, so each is made sure of once.
    async fn know_queues(&self, batch: &Batch) -> Result<(), StoreError> {
        let new: Vec<QueueName> = {
            let known = self.known_queues.lock().expect("nobody panics with it");
            let new = batch.changes.iter().filter(|change| change.before.is_none()).map(|change| &change.job().queue);
            new.filter(|queue| !known.contains(queue)).cloned().collect::<BTreeSet<_>>().into_iter().collect()
        };
        if !new.is_empty() {
            sqlx::query("insert into queues (queue) select * from unnest($1::text[]) on conflict do nothing")
                .bind(new.iter().map(QueueName::as_str).collect::<Vec<_>>())
                .execute(&self.pool)
                .await?;
            self.known_queues.lock().expect("nobody panics with it").extend(new);
        }
        Ok(())
    }
}

/// Begins a transaction, in a task of its own, which a caller that hangs up cannot drop: of a `begin` that is dropped on
/// its way sqlx knows nothing, and its connection would go back to the pool with the transaction open. Whoever writes
/// over it next without one of their own would be told of a commit that never comes.
async fn begin(pool: &PgPool) -> Result<Transaction<'static, Postgres>, StoreError> {
    let pool = pool.clone();
    let begun = tokio::spawn(async move { pool.begin().await }).await;
    // Nothing but the end of the process ends the task early.
    Ok(begun.unwrap_or(Err(sqlx::Error::PoolClosed))?)
}

#[async_trait]
impl Store for PostgresStore {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn epoch(&self) -> &str {
        &self.epoch
    }

    fn lease_secret(&self) -> &LeaseSecret {
        &self.lease_secret
    }

    fn committers(&self) -> usize {
        // Two for what happens to jobs. New jobs come by themselves: neither kind waits for the other's statements, and
        // each batch is one statement.
        3
    }

    fn has_peers(&self) -> bool {
        self.has_peers.load(Ordering::Relaxed)
    }

    async fn moved(&self, jobs: &[(JobId, u64)]) -> Result<Vec<JobId>, StoreError> {
        read::moved(&self.pool, jobs).await
    }

    async fn resolve(&self, lookup: &Lookup) -> Result<Resolved, StoreError> {
        self.be_present().await?;
        read::resolve(&self.pool, lookup).await
    }

    async fn commit(&self, batch: &Batch) -> Result<Commit, StoreError> {
        self.be_present().await?;
        self.know_queues(batch).await?;
        match write::commit(&self.pool, batch).await {
            Err(StoreError::Unavailable(error)) if is_conflict(&error) => Ok(Commit::rolled_back()),
            other => other,
        }
    }

    async fn claim(&self, wishes: &[Wish]) -> Result<Claimed, StoreError> {
        self.be_present().await?;
        loop {
            match claim::claim(&self.pool, wishes, &self.clock).await {
                // Given up by the database for another one: nothing was handed out.
                Err(StoreError::Unavailable(error)) if is_conflict(&error) => {}
                other => return other,
            }
        }
    }

    async fn promote(&self) -> Result<Vec<QueueName>, StoreError> {
        claim::promote(&mut *self.pool.acquire().await?, self.now()).await
    }

    async fn remove(&self, jobs: &[(JobId, u64)]) -> Result<Committed, StoreError> {
        write::remove(&self.pool, jobs).await
    }

    async fn events(&self, id: JobId, range: &EventRange) -> Result<Vec<Event>, StoreError> {
        read::events(&self.pool, id, range).await
    }

    async fn part(&self, id: JobId, part: Part) -> Result<Option<Json>, StoreError> {
        read::part(&self.pool, id, part).await
    }

    async fn list(&self, filter: &JobFilter, limit: u32) -> Result<Vec<Job>, StoreError> {
        read::list(&self.pool, filter, limit).await
    }

    async fn queues(&self, only: Option<&QueueName>) -> Result<Vec<Queue>, StoreError> {
        queues::queues(&self.pool, only).await
    }

    async fn queue_defaults(&self) -> Result<Vec<(QueueName, Defaults)>, StoreError> {
        queues::queue_defaults(&self.pool).await
    }

    async fn change_queue(&self, name: &QueueName, change: &QueueChange) -> Result<bool, StoreError> {
        queues::change_queue(&self.pool, name, change).await
    }

    async fn store_statistics(&self, slots: &[QueueSlot]) -> Result<(), StoreError> {
        queues::store_statistics(&self.pool, &self.node, slots).await
    }

    async fn statistics(&self, queues: &[&QueueName], since: i64) -> Result<Vec<QueueSlot>, StoreError> {
        queues::statistics(&self.pool, &self.node, queues, since).await
    }

    async fn waiting_for(
        &self,
        id: JobId,
        is_asked_for: bool,
    ) -> Result<Option<(Job, Option<WaitingFor>)>, StoreError> {
        waiting::waiting_for(&mut *self.pool.acquire().await?, id, is_asked_for, self.now()).await
    }

    async fn backlog_extent(&self, backlog: &Backlog) -> Result<BacklogExtent, StoreError> {
        backlog::extent(&self.pool, backlog).await
    }

    async fn backlog(&self, backlog: &Backlog, range: &BacklogRange) -> Result<Vec<BacklogJob>, StoreError> {
        backlog::page(&self.pool, backlog, range).await
    }

    async fn note_watched(&self, jobs: &[(JobId, u64)]) -> Result<(), StoreError> {
        pulse::note_watched(&self.pool, &self.node, jobs).await
    }

    async fn note_workers(&self, seen: &[Sighting]) -> Result<(), StoreError> {
        workers::note(&self.pool, &self.node, seen).await
    }

    async fn workers(&self, within_ms: u64) -> Result<Vec<Worker>, StoreError> {
        workers::list(&self.pool, within_ms).await
    }

    async fn cancels(&self, workers: &[WorkerName]) -> Result<Vec<(WorkerName, CancelSignal)>, StoreError> {
        workers::cancels(&self.pool, workers, self.now()).await
    }

    async fn overdue(&self, limit: u32) -> Result<Vec<JobId>, StoreError> {
        self.be_present().await?;
        read::overdue(&self.pool, limit).await
    }

    async fn retired(&self, keep_ms: u64, limit: u32) -> Result<Vec<(JobId, u64)>, StoreError> {
        let before = Timestamp::from_millis(self.now().as_millis().saturating_sub(keep_ms.min(i64::MAX as u64) as i64));
        read::retired(&self.pool, before, limit).await
    }

    async fn tidy(&self, keep_ms: u64) -> Result<(), StoreError> {
        tidy::tidy(&self.pool, self.now(), keep_ms).await
    }

    async fn probe(&self) -> Result<(), StoreError> {
        let asked = Instant::now();
        let (at, has_peers) = pulse::pulse(&self.pool, &self.node).await?;
        self.clock.read(asked, at);
        self.has_peers.store(has_peers, Ordering::Relaxed);
        self.presence.shown();
        Ok(())
    }
}
