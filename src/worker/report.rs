//! Whom the runner reports to: one job, through whatever way leads to its gateway.

use std::time::Duration;

use async_trait::async_trait;

use crate::client::{Appended, Client, ClientError};

/// What a request to cancel said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CancelRequest {
    /// How long the runner may take to stop.
    pub grace: Option<Duration>,
    /// Why.
    pub reason: Option<String>,
}

/// One job, as its runner sees the gateway. A call is one try; repeating is the runner's.
#[async_trait]
pub trait Report: Send + Sync + 'static {
    /// Appends an encoded array of events; the same key and body are stored once.
    async fn append(&self, body: String, idempotency_key: &str) -> Result<Appended, ClientError>;

    /// The empty append, held for up to `wait` and answered early when there is something to say.
    async fn heartbeat(&self, wait: Duration) -> Result<Appended, ClientError>;

    /// The state that the job has by now.
    async fn state(&self) -> Result<String, ClientError>;

    /// The newest request to cancel at or before `seq`.
    async fn cancel_request(&self, seq: u64) -> Result<CancelRequest, ClientError>;

    /// Whether somebody else may be running the job once it is lost to us: then the program must stop.
    fn is_exclusive(&self) -> bool;
}

/// A job reached over HTTP: tracked, or held by a lease.
#[derive(Clone, Debug)]
pub struct RemoteJob {
    /// The gateway.
    pub client: Client,
    /// The job's id.
    pub id: String,
    /// The lease token of the run; none for a tracked job.
    pub lease: Option<String>,
}

#[async_trait]
impl Report for RemoteJob {
    async fn append(&self, body: String, idempotency_key: &str) -> Result<Appended, ClientError> {
        self.client.append(&self.id, self.lease.as_deref(), body, idempotency_key).await
    }

    async fn heartbeat(&self, wait: Duration) -> Result<Appended, ClientError> {
        self.client.heartbeat(&self.id, self.lease.as_deref(), wait).await
    }

    async fn state(&self) -> Result<String, ClientError> {
        let document = self.client.state(&self.id).await?;
        Ok(document["state"].as_str().unwrap_or("").to_owned())
    }

    async fn cancel_request(&self, seq: u64) -> Result<CancelRequest, ClientError> {
        // The request is what the answer was given early for, so it is among the newest.
        let events = self.client.events(&self.id, seq.saturating_sub(1_000)).await?;
        let request = events.iter().rev().find(|e| e["type"] == "cancel_requested");
        let said = request.map(|event| &event["data"]);
        Ok(CancelRequest {
            grace: said.and_then(|data| data["grace_ms"].as_u64()).map(Duration::from_millis),
            reason: said.and_then(|data| data["reason"].as_str()).map(str::to_owned),
        })
    }

    fn is_exclusive(&self) -> bool {
        self.lease.is_some()
    }
}
