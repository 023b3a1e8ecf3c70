//! Workers written in Rust: a handler per kind of job, in the process of the gateway or in one of their own.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};

use super::context::Context;
use super::job::Claimed;
use super::local::Local;
use super::name::default_name;
use super::outcome::{Failure, Outcome};
use super::pool::{Handler, Phase, Pool, Slot};
use super::remote::Remote;
use super::report::Trouble;
use super::source::Source;
use super::task::{self, Work};
use crate::client::Client;
use crate::domain::{ClaimRequest, QueueName, WorkerName};
use crate::service::Gateway;

/// How long a claim waits for work. Under what proxies cut.
const CLAIM_WAIT_MS: u64 = 25_000;
const DEFAULT_LEASE: Duration = Duration::from_secs(30);
const DEFAULT_GRACE: Duration = Duration::from_secs(10);

/// Why a worker did not work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkerError {
    /// It was not set up as it must be.
    #[error("{0}")]
    SetUp(String),
    /// The gateway refuses to give it work: a wrong credential, say.
    #[error("no work can be claimed: {0}")]
    Refused(Trouble),
}

/// Begins a handler's work.
type Begin = Arc<dyn Fn(Context, String) -> Work + Send + Sync>;

/// A worker: takes jobs of its queues and hands each to the handler of its kind, several at a time.
///
/// Handlers are futures on the runtime that [`Worker::run`] is called on. Each job has a task of its own, so a slow one
/// delays no other; but a handler that **blocks** (a long calculation, a synchronous library) keeps a thread of the
/// runtime to itself, and with as many of those as there are threads everything stands still, heartbeats included. Such
/// work belongs into `tokio::task::spawn_blocking`. It is not stopped by being dropped, so look at
/// [`Context::is_cancelled`] in it.
///
/// A handler that panics fails its job with the code `panicked`; a payload that is not what the handler takes fails it
/// with `invalid_payload`, for good.
pub struct Worker {
    source: Arc<dyn Source>,
    name: String,
    queues: Vec<String>,
    handlers: Handlers,
    concurrency: usize,
    lease: Duration,
    grace: Duration,
}

#[derive(Default)]
struct Handlers {
    of_kind: HashMap<String, Begin>,
    of_any_kind: Option<Begin>,
}

impl Worker {
    /// A worker of the gateway in this process.
    #[must_use]
    pub fn new(gateway: Gateway) -> Self {
        Self::of(Arc::new(Local(gateway)))
    }

    /// A worker of a gateway that is reached over HTTP.
    #[must_use]
    pub fn remote(client: Client) -> Self {
        Self::of(Arc::new(Remote(client)))
    }

    fn of(source: Arc<dyn Source>) -> Self {
        Self {
            source,
            name: default_name(),
            queues: Vec::new(),
            handlers: Handlers::default(),
            concurrency: 1,
            lease: DEFAULT_LEASE,
            grace: DEFAULT_GRACE,
        }
    }

    /// Takes jobs of this queue, too; of several, in the order in which they are named. None: of `default`.
    #[must_use]
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queues.push(queue.into());
        self
    }

    /// How many handlers are at work at a time; 1 if nothing is said. The end of a job is stored, and the next jobs
    /// claimed, while others work; of short jobs as many are claimed ahead as are done in a tenth of a second. When
    /// order matters between jobs, limit the queue, not the worker.
    #[must_use]
    pub fn concurrency(mut self, jobs: usize) -> Self {
        self.concurrency = jobs.max(1);
        self
    }

    /// The name that those who look after the gateway see: `[A-Za-z0-9._:@-]{1,128}`; `host:pid` if nothing is said.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// After how long a silence a job is given to another worker: 1 s to 1 h, 30 s if nothing is said. The heartbeat
    /// comes at a third of it.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How long jobs may go on when the worker is told to stop, before they are given back; 10 s if nothing is said.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// What is done with jobs of one kind. Only jobs of the kinds that have a handler are taken. `P` is what the payload
    /// is read as; `serde_json::Value` takes any.
    #[must_use]
    pub fn handle<P, O, F>(
        mut self,
        kind: impl Into<String>,
        handler: impl Fn(Context, P) -> F + Send + Sync + 'static,
    ) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        O: Into<Outcome>,
        F: Future<Output = Result<O, Failure>> + Send + 'static,
    {
        self.handlers.of_kind.insert(kind.into(), begin(handler));
        self
    }

    /// What is done with jobs of all other kinds.
    #[must_use]
    pub fn handle_any<P, O, F>(mut self, handler: impl Fn(Context, P) -> F + Send + Sync + 'static) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        O: Into<Outcome>,
        F: Future<Output = Result<O, Failure>> + Send + 'static,
    {
        self.handlers.of_any_kind = Some(begin(handler));
        self
    }

    /// Works until `shutdown` completes or the gateway drains. Then no more is taken; what runs may go on for the grace
    /// time, is then told ([`Context::cancelled`]) and, a second later, dropped and given back.
    ///
    /// # Errors
    /// [`WorkerError`]; what runs is finished first.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), WorkerError> {
        let pool = self.pool()?;
        let (stop, stops) = mpsc::channel(1);
        let mut running = pin!(pool.run(stops));
        let ended = tokio::select! {
            ended = &mut running => ended,
            () = shutdown => {
                // There is room: it is the only one.
                let _ = stop.try_send(());
                running.await
            }
        };
        ended.map_err(WorkerError::Refused)
    }

    fn pool(self) -> Result<Pool, WorkerError> {
        let name = |text: &String| {
            let wrong = || WorkerError::SetUp(format!("{text:?} is no name: it must match [A-Za-z0-9._-]{{1,64}}"));
            QueueName::parse(text).ok_or_else(wrong)
        };
        let kinds = match &self.handlers.of_any_kind {
            Some(_) => Vec::new(),
            None => self.handlers.of_kind.keys().map(name).collect::<Result<_, _>>()?,
        };
        if self.handlers.of_any_kind.is_none() && kinds.is_empty() {
            return Err(WorkerError::SetUp("a worker needs a handler".to_owned()));
        }
        let queues: Vec<QueueName> = self.queues.iter().map(name).collect::<Result<_, _>>()?;
        let worker = WorkerName::parse(&self.name).ok_or_else(|| {
            WorkerError::SetUp(format!("{:?} is no worker's name: it must match [A-Za-z0-9._:@-]{{1,128}}", self.name))
        })?;
        let lease_ms = self.lease.as_millis().clamp(1_000, 3_600_000) as u64;
        Ok(Pool {
            source: self.source,
            request: ClaimRequest {
                worker,
                queues: if queues.is_empty() { vec![QueueName::default()] } else { queues },
                kinds,
                max: 1,
                wait_ms: CLAIM_WAIT_MS,
                lease_ms,
            },
            handler: Arc::new(self.handlers),
            concurrency: self.concurrency,
            is_ahead: true,
            grace: self.grace,
            notice: Arc::new(|text| tracing::warn!("{text}")),
        })
    }
}

fn begin<P, O, F>(handler: impl Fn(Context, P) -> F + Send + Sync + 'static) -> Begin
where
    P: DeserializeOwned + Send + 'static,
    O: Into<Outcome>,
    F: Future<Output = Result<O, Failure>> + Send + 'static,
{
    Arc::new(move |context, payload| match serde_json::from_str(&payload) {
        Ok(payload) => {
            let work = handler(context, payload);
            Box::pin(async move { work.await.map(Into::into) })
        }
        Err(error) => {
            let failure = Failure::new("invalid_payload", format!("the payload cannot be read: {error}")).fatal();
            Box::pin(std::future::ready(Err(failure)))
        }
    })
}

#[async_trait]
impl Handler for Handlers {
    async fn handle(&self, job: Claimed, slot: Slot, phase: watch::Receiver<Phase>) {
        let begin = self.of_kind.get(&job.info.kind).or(self.of_any_kind.as_ref()).cloned();
        let begin = begin.expect("only kinds that have a handler are asked for");
        let notice = task::logged(&job.info.id);
        task::run(job, move |context, payload| begin(context, payload), slot, phase, notice).await;
    }
}

#[cfg(test)]
mod tests;
