//! Enqueue: one spec or many, in one transaction.

use super::journal::{Command, Queued};
use super::{Gateway, Idempotency, ServiceError};
use crate::domain::{Job, JobId, Refusal, Spec};

/// What an enqueue did.
#[derive(Clone, Debug)]
pub struct Enqueued {
    /// The job that answers, as it was when it was accepted, or as it is if it existed before.
    pub job: Job,
    /// Whether it is new.
    pub created: bool,
    /// The live job whose place it took.
    pub replaced: Option<JobId>,
}

impl Gateway {
    /// Accepts jobs; durable on return. One result per spec, in order. Under an idempotency key the same specs are
    /// accepted once, and answered with the same jobs again.
    pub async fn enqueue(
        &self,
        specs: Vec<Spec>,
        idempotency: Option<Idempotency>,
    ) -> Result<Vec<Result<Enqueued, ServiceError>>, ServiceError> {
        if self.is_draining() {
            return Err(ServiceError::ShuttingDown);
        }
        let queued = self.inner.journal.submit(|answer| Command::Enqueue { specs, idempotency, answer }).await?;
        let mut enqueued = Vec::with_capacity(queued.len());
        for Queued { id, job, created, replaced } in queued {
            enqueued.push(match job {
                Some(job) => Ok(Enqueued { job: *job, created, replaced }),
                None => match self.job(id).await {
                    Ok(job) => Ok(Enqueued { job: Job::clone(&job), created, replaced }),
                    Err(error @ ServiceError::Refused(Refusal::JobNotFound)) => Err(error),
                    Err(error) => return Err(error),
                },
            });
        }
        Ok(enqueued)
    }
}
