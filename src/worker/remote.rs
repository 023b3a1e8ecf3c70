//! A gateway reached over HTTP.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::job::{Claimed, JobInfo};
use super::report::{Appended, CancelRequest, Fault, Report, Trouble};
use super::source::Source;
use crate::client::{Client, ClientError};
use crate::domain::ClaimRequest;

impl From<ClientError> for Trouble {
    fn from(error: ClientError) -> Self {
        let reason = error.to_string();
        match error {
            error if error.is_passing() => Self::Passing { reason, retry_after: error.retry_after() },
            ClientError::Refused(problem) => match problem.status {
                400 | 413 | 415 | 422 => {
                    Self::Content(Fault { reason, is_too_large: problem.status == 413, pointer: problem.pointer })
                }
                _ if problem.code == "job_terminal" => Self::Ended { reason },
                _ => Self::Refused { reason },
            },
            ClientError::Unreachable { .. }
            | ClientError::NotAGateway { .. }
            | ClientError::Address(_)
            | ClientError::GaveUp { .. } => Self::Refused { reason },
        }
    }
}

/// Work from a gateway that is reached over HTTP.
#[derive(Clone, Debug)]
pub struct Remote(pub Client);

#[async_trait]
impl Source for Remote {
    async fn claim(&self, request: &ClaimRequest, idempotency_key: &str) -> Result<Vec<Claimed>, Trouble> {
        let names = |names: &[crate::domain::QueueName]| names.iter().map(|name| name.as_str().into()).collect();
        let (queues, kinds): (Vec<Value>, Vec<Value>) = (names(&request.queues), names(&request.kinds));
        let body = json!({
            "worker": request.worker.as_str(), "queues": queues, "kinds": kinds, "max": request.max,
            "wait_ms": request.wait_ms, "lease_ms": request.lease_ms,
        });
        let handed = self.0.claim(&body, Duration::from_millis(request.wait_ms), idempotency_key).await?;
        let lease = Some(Duration::from_millis(request.lease_ms));
        let claimed = handed.into_iter().map(|handed| {
            let info = JobInfo::of_document(&handed.job, handed.lease.run);
            let (id, token) = (info.id.clone(), Some(handed.lease.token));
            let report = RemoteJob { client: self.0.clone(), id, token, lease };
            Claimed {
                info,
                payload: handed.job["payload"].to_string(),
                whole: handed.job.into(),
                report: Arc::new(report),
            }
        });
        Ok(claimed.collect())
    }
}

/// A job reached over HTTP: tracked, or held by a lease.
#[derive(Clone, Debug)]
pub struct RemoteJob {
    /// The gateway.
    pub client: Client,
    /// The job's id.
    pub id: String,
    /// The lease token of the run; none for a tracked job.
    pub token: Option<String>,
    /// How long the lease lasts; none for a tracked job.
    pub lease: Option<Duration>,
}

#[async_trait]
impl Report for RemoteJob {
    async fn append(&self, body: String, idempotency_key: Option<&str>) -> Result<Appended, Trouble> {
        Ok(self.client.append(&self.id, self.token.as_deref(), body, idempotency_key).await?)
    }

    async fn heartbeat(&self, wait: Duration) -> Result<Appended, Trouble> {
        Ok(self.client.heartbeat(&self.id, self.token.as_deref(), wait).await?)
    }

    async fn state(&self) -> Result<String, Trouble> {
        let document = self.client.state(&self.id).await?;
        Ok(document["state"].as_str().unwrap_or("").to_owned())
    }

    async fn cancel_request(&self, seq: u64) -> Result<CancelRequest, Trouble> {
        // The request is what the answer was given early for, so it is among the newest.
        let events = self.client.events(&self.id, seq.saturating_sub(1_000)).await?;
        let request = events.iter().rev().find(|e| e["type"] == "cancel_requested");
        let said = request.map(|event| &event["data"]);
        Ok(CancelRequest {
            grace: said.and_then(|data| data["grace_ms"].as_u64()).map(Duration::from_millis),
            reason: said.and_then(|data| data["reason"].as_str()).map(str::to_owned),
        })
    }

    fn lease(&self) -> Option<Duration> {
        self.lease
    }
}
