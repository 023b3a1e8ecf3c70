//! The gateway: everything one can wish of it, whatever the way in.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::claims::{self, Claims};
use super::defaults::QueueDefaults;
use super::journal::{Command, Journal, Recent};
use super::queues::Statistics;
use super::workers::Presence;
use super::{Appended, CancelAnswer, Idempotency, ServiceError};
use crate::bus::Bus;
use crate::domain::{Job, JobId, Limits, NewEvent, Timestamp};
use crate::store::Store;

/// How the gateway behaves beyond the domain's limits.
#[derive(Clone, Debug)]
pub struct Settings {
    /// A reader further behind than this many events is given the state instead of the events.
    pub replay_limit: u64,
    /// How long ended jobs are kept, in milliseconds.
    pub keep_ms: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { replay_limit: 10_000, keep_ms: 7 * 24 * 60 * 60 * 1_000 }
    }
}

/// A running gateway. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Gateway {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub store: Arc<dyn Store>,
    pub bus: Arc<Bus>,
    pub journal: Journal,
    pub claims: Claims,
    pub presence: Presence,
    pub recent: Arc<Recent>,
    pub defaults: Arc<QueueDefaults>,
    pub statistics: Arc<Statistics>,
    pub limits: Arc<Limits>,
    pub settings: Settings,
    draining: watch::Sender<bool>,
}

impl Gateway {
    /// Starts a gateway on a store. The tasks end when all clones are gone and what was accepted is stored.
    pub fn start(store: Arc<dyn Store>, limits: Limits, settings: Settings) -> (Self, Vec<JoinHandle<()>>) {
        let (bus, limits) = (Arc::new(Bus::default()), Arc::new(limits));
        let (recent, defaults) = (Arc::new(Recent::default()), Arc::new(QueueDefaults::default()));
        let statistics = Arc::new(Statistics::default());
        let (journal, mut tasks) = Journal::start(&store, &bus, &limits, &recent, &defaults, &statistics);
        let (claims, claimers) = Claims::new();
        let draining = watch::Sender::new(false);
        let presence = Presence::default();
        let inner = Arc::new(Inner {
            store,
            bus,
            journal,
            claims,
            presence,
            recent,
            defaults,
            statistics,
            limits,
            settings,
            draining,
        });
        tasks.push(claims::start(&inner, claimers));
        (Self { inner }, tasks)
    }

    /// What callers may store.
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// The store's clock.
    pub fn now(&self) -> Timestamp {
        self.inner.store.now()
    }

    /// The store's epoch, for validators.
    pub fn epoch(&self) -> &str {
        self.inner.store.epoch()
    }

    /// The proof that goes with one run of a job.
    pub fn lease_token(&self, job: JobId, run: u64) -> String {
        self.inner.store.lease_secret().token(job, run)
    }

    /// The run that a token proves to be; `None` if it proves nothing.
    pub fn proven_run(&self, job: JobId, token: &str) -> Option<u64> {
        self.inner.store.lease_secret().verify(job, token)
    }

    /// Appends a runner's events: all of them, or none and a refusal that says which is wrong. Durable on return.
    /// None at all is a heartbeat. `run`: which run the writer has proved to be; a tracked job's runner needs no proof.
    pub async fn append(
        &self,
        id: JobId,
        run: Option<u64>,
        events: Vec<NewEvent>,
        body_hash: [u8; 32],
        idempotency: Option<Idempotency>,
    ) -> Result<Appended, ServiceError> {
        let command =
            |answer| Command::Append { id, run, events, body_hash, idempotency, keep_before_refused: false, answer };
        self.inner.journal.submit(command).await
    }

    /// Appends line by line: what stands before a refused event is kept.
    pub async fn append_lines(
        &self,
        id: JobId,
        run: Option<u64>,
        events: Vec<NewEvent>,
        body_hash: [u8; 32],
    ) -> Result<Appended, ServiceError> {
        let command = |answer| Command::Append {
            id,
            run,
            events,
            body_hash,
            idempotency: None,
            keep_before_refused: true,
            answer,
        };
        self.inner.journal.submit(command).await
    }

    /// Cancels a job that waits; asks the runner of one that runs, who has `grace_ms` to stop by itself.
    pub async fn cancel(
        &self,
        id: JobId,
        reason: Option<String>,
        grace_ms: u64,
        by: String,
    ) -> Result<CancelAnswer, ServiceError> {
        let command = |answer| Command::Cancel { id, reason, grace_ms, by, only_waiting: false, answer };
        self.inner.journal.submit(command).await
    }

    /// Puts a failed, cancelled or expired job back into its queue.
    pub async fn retry(&self, id: JobId, by: String) -> Result<Box<Job>, ServiceError> {
        self.inner.journal.submit(|answer| Command::Retry { id, by, redrive: None, answer }).await
    }

    /// Removes a job that has ended, with its log.
    pub async fn delete(&self, id: JobId) -> Result<(), ServiceError> {
        self.inner.journal.submit(|answer| Command::Delete { id, answer }).await
    }

    /// Whether writes work right now; an error says why not.
    pub async fn ready(&self) -> Result<(), ServiceError> {
        if self.is_draining() {
            return Err(ServiceError::ShuttingDown);
        }
        match tokio::time::timeout(Duration::from_secs(3), self.inner.store.probe()).await {
            Ok(probed) => Ok(probed?),
            Err(_) => Err(ServiceError::StoreUnavailable("a write took longer than 3 s".to_owned())),
        }
    }

    /// Begins the end: parked polls are answered, streams say goodbye, readiness turns.
    pub fn drain(&self) {
        self.inner.draining.send_replace(true);
    }

    /// Whether the end has begun.
    pub fn is_draining(&self) -> bool {
        *self.inner.draining.borrow()
    }

    /// Completes when the end begins.
    pub fn drained(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut draining = self.inner.draining.subscribe();
        async move {
            // The sender only goes with the gateway itself, and that is an end, too.
            let _ = draining.wait_for(|draining| *draining).await;
        }
    }
}
