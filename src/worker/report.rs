//! Whom a runner reports to: one job, through whatever way leads to its gateway.

use std::time::Duration;

use async_trait::async_trait;

pub use crate::client::Appended;

/// What a request to cancel said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CancelRequest {
    /// How long the runner may take to stop.
    pub grace: Option<Duration>,
    /// Why.
    pub reason: Option<String>,
}

/// Why the gateway did not do what it was asked to, sorted by what a runner can do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// It is away, restarting or busy: the same may well succeed later.
    #[error("{reason}")]
    Passing {
        /// For people.
        reason: String,
        /// It asks to be left alone that long.
        retry_after: Option<Duration>,
    },
    /// What was sent is not taken; anything else may be.
    #[error("{0}")]
    Content(Fault),
    /// The job has ended.
    #[error("{reason}")]
    Ended {
        /// For people.
        reason: String,
    },
    /// Nothing more is taken: the lease is lost, the job unknown, the credential wrong.
    #[error("{reason}")]
    Refused {
        /// For people.
        reason: String,
    },
}

/// What is wrong with what was sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Fault {
    /// For people.
    pub reason: String,
    /// Where (RFC 6901).
    pub pointer: Option<String>,
    /// It is too large, or the job is full.
    pub is_too_large: bool,
}

/// One job, as its runner sees the gateway. A call is one try; repeating is the runner's.
#[async_trait]
pub trait Report: Send + Sync + 'static {
    /// Appends an encoded array of events. The same key and body are stored once; an array that ends the run of a
    /// lease needs no key for that.
    async fn append(&self, body: String, idempotency_key: Option<&str>) -> Result<Appended, Trouble>;

    /// The empty append, held for up to `wait` and answered early when there is something to say.
    async fn heartbeat(&self, wait: Duration) -> Result<Appended, Trouble>;

    /// The state that the job has by now.
    async fn state(&self) -> Result<String, Trouble>;

    /// The newest request to cancel at or before `seq`.
    async fn cancel_request(&self, seq: u64) -> Result<CancelRequest, Trouble>;

    /// How long the job stays ours without a sign of life. `None`: it is tracked, and nobody else would run it once it
    /// is lost to us.
    fn lease(&self) -> Option<Duration>;
}
