//! Why the domain says no.

use thiserror::Error;

use super::{JobId, State};

/// A wish that the rules do not allow. A refused wish changes nothing.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Refusal {
    /// A field is wrong; `pointer` (RFC 6901) says which, relative to what was parsed.
    #[error("{detail}")]
    Invalid {
        /// RFC 6901 pointer into the body.
        pointer: String,
        /// What is wrong with it, for people.
        detail: String,
    },
    /// A field or the log would exceed a limit.
    #[error("{detail}")]
    TooLarge {
        /// RFC 6901 pointer into the body.
        pointer: String,
        /// Which limit, for people.
        detail: String,
    },
    /// There is no such job (any more).
    #[error("there is no job with this id")]
    JobNotFound,
    /// There is no such queue.
    #[error("there is no queue of this name")]
    QueueNotFound,
    /// The job has ended, and this needs one that has not.
    #[error("the job has already ended as {0}")]
    JobTerminal(State),
    /// The job has not ended yet, and this needs one that has.
    #[error("the job has not ended yet; it is {0}")]
    NotFinished(State),
    /// The writer does not hold the job's lease.
    #[error("this write needs the live lease of the job, and the request does not carry it")]
    LeaseLost,
    /// Only failed, cancelled and expired jobs that the gateway hands out can be tried again.
    #[error("the job cannot be retried: {0}")]
    NotRetryable(&'static str),
    /// Another live job holds the unique key.
    #[error("job {0} is live under the same unique key")]
    UniqueConflict(JobId),
    /// The idempotency key was used with another body.
    #[error("this Idempotency-Key was used with a different body within the last 24 hours")]
    IdempotencyMismatch,
    /// The job was completed without data.
    #[error("the job has no result data")]
    NoResult,
}

impl Refusal {
    /// An [`Refusal::Invalid`].
    pub fn invalid(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Invalid { pointer: pointer.into(), detail: detail.into() }
    }

    /// A [`Refusal::TooLarge`].
    pub fn too_large(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::TooLarge { pointer: pointer.into(), detail: detail.into() }
    }

    /// The same refusal with its pointer below `prefix`: an item of an array knows nothing of its index.
    pub fn under(self, prefix: &str) -> Self {
        match self {
            Self::Invalid { pointer, detail } => Self::Invalid { pointer: format!("{prefix}{pointer}"), detail },
            Self::TooLarge { pointer, detail } => Self::TooLarge { pointer: format!("{prefix}{pointer}"), detail },
            other @ (Self::JobNotFound
            | Self::QueueNotFound
            | Self::JobTerminal(_)
            | Self::NotFinished(_)
            | Self::LeaseLost
            | Self::NotRetryable(_)
            | Self::UniqueConflict(_)
            | Self::IdempotencyMismatch
            | Self::NoResult) => other,
        }
    }
}
