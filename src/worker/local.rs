//! The gateway of this very process, without HTTP between.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::job::{Claimed, Document, JobInfo};
use super::report::{Appended, CancelRequest, Fault, Report, Trouble};
use super::source::Source;
use crate::domain::{ClaimRequest, JobId, NewEvent, ParseError, Refusal, body_hash, parse_json};
use crate::service::{Cursor, Gateway, Idempotency, RequestKey, ServiceError};

impl From<ServiceError> for Trouble {
    fn from(error: ServiceError) -> Self {
        let reason = error.to_string();
        match error {
            ServiceError::Refused(refusal) => refusal.into(),
            ServiceError::RefusedItem { index, refusal } => refusal.under(&format!("/{index}")).into(),
            ServiceError::StoreUnavailable(_)
            | ServiceError::Overloaded
            | ServiceError::Internal
            | ServiceError::ShuttingDown => Self::Passing { reason, retry_after: None },
        }
    }
}

impl From<Refusal> for Trouble {
    fn from(refusal: Refusal) -> Self {
        let reason = refusal.to_string();
        match refusal {
            Refusal::Invalid { pointer, .. } => {
                Self::Content(Fault { reason, pointer: Some(pointer), is_too_large: false })
            }
            Refusal::TooLarge { pointer, .. } => {
                Self::Content(Fault { reason, pointer: Some(pointer), is_too_large: true })
            }
            Refusal::JobTerminal(_) => Self::Ended { reason },
            Refusal::JobNotFound
            | Refusal::NotFinished(_)
            | Refusal::LeaseLost
            | Refusal::NotRetryable(_)
            | Refusal::UniqueConflict(_)
            | Refusal::IdempotencyMismatch
            | Refusal::NoResult
            | Refusal::QueueNotFound => Self::Refused { reason },
        }
    }
}

impl From<ParseError> for Trouble {
    fn from(error: ParseError) -> Self {
        Self::Content(Fault { reason: error.to_string(), ..Fault::default() })
    }
}

/// Work from the gateway of this process.
#[derive(Clone)]
pub struct Local(pub Gateway);

#[async_trait]
impl Source for Local {
    async fn claim(&self, request: &ClaimRequest, _: &str) -> Result<Vec<Claimed>, Trouble> {
        // No answer is lost on this way: dropped, the delivery goes back by itself.
        let mut delivery = self.0.claim(request.clone(), None).await?;
        let claimed = delivery.taken().iter().map(|taken| {
            let report =
                LocalJob { gateway: self.0.clone(), id: taken.job.id, run: taken.job.run, lease_ms: taken.lease_ms };
            Claimed {
                info: JobInfo::of_job(&taken.job),
                payload: taken.payload.as_str().to_owned(),
                whole: Document::Held(Arc::new((taken.job.clone(), taken.payload.clone()))),
                report: Arc::new(report),
            }
        });
        let claimed = claimed.collect();
        delivery.delivered();
        Ok(claimed)
    }

    /// The limit of requests does not bind us; more at once would keep the gateway's other callers waiting.
    fn max_claim(&self) -> usize {
        500
    }

    async fn closed(&self) {
        self.0.drained().await;
    }
}

/// One run of a job of this process's gateway.
struct LocalJob {
    gateway: Gateway,
    id: JobId,
    run: u64,
    lease_ms: u64,
}

#[async_trait]
impl Report for LocalJob {
    async fn append(&self, body: String, idempotency_key: Option<&str>) -> Result<Appended, Trouble> {
        let body = parse_json(body.as_bytes())?;
        let hash = body_hash(&body);
        let idempotency = idempotency_key.map(|key| Idempotency {
            request: RequestKey { scope: format!("append {}", self.id), key: key.to_owned() },
            body_hash: hash,
        });
        let items = match body {
            serde_json::Value::Array(items) => items,
            single => vec![single],
        };
        let parse = |(index, item)| {
            NewEvent::parse(item, self.gateway.limits()).map_err(|refusal: Refusal| refusal.under(&format!("/{index}")))
        };
        let events = items.into_iter().enumerate().map(parse).collect::<Result<Vec<_>, _>>()?;
        let appended = self.gateway.append(self.id, Some(self.run), events, hash, idempotency).await?;
        Ok(Appended { seq: appended.seq, cancel_requested: appended.cancel_requested })
    }

    async fn heartbeat(&self, wait: Duration) -> Result<Appended, Trouble> {
        let run = Some(self.run);
        let beat = self.gateway.append(self.id, run, Vec::new(), [0; 32], None).await?;
        let beat = self.gateway.hold(self.id, run, beat, wait).await?;
        Ok(Appended { seq: beat.seq, cancel_requested: beat.cancel_requested })
    }

    async fn state(&self) -> Result<String, Trouble> {
        Ok(self.gateway.job(self.id).await?.state.as_str().to_owned())
    }

    async fn cancel_request(&self, seq: u64) -> Result<CancelRequest, Trouble> {
        // The request is what the answer was given early for, so it is among the newest.
        let after = Cursor::After(seq.saturating_sub(1_000));
        let page = self.gateway.events_page(self.id, after, 1_000, Duration::ZERO).await?;
        let request = page.events.iter().rev().find(|event| event.kind == crate::domain::EventType::CancelRequested);
        let said = request.map(|event| event.data.to_map()).unwrap_or_default();
        Ok(CancelRequest {
            grace: said.get("grace_ms").and_then(serde_json::Value::as_u64).map(Duration::from_millis),
            reason: said.get("reason").and_then(serde_json::Value::as_str).map(str::to_owned),
        })
    }

    fn lease(&self) -> Option<Duration> {
        Some(Duration::from_millis(self.lease_ms))
    }
}
