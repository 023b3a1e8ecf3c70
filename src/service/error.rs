//! Why the service could not do what was wished.

use thiserror::Error;

use crate::domain::Refusal;

/// A refusal by the rules, or a passing trouble.
#[derive(Clone, Debug, Error)]
pub enum ServiceError {
    /// The rules say no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// An item of several was refused.
    #[error("item {index}: {refusal}")]
    RefusedItem {
        /// Which item, from 0.
        index: usize,
        /// Why.
        refusal: Refusal,
    },
    /// The store does not answer; the text is for the log.
    #[error("the store is unavailable: {0}")]
    StoreUnavailable(String),
    /// More is waiting than can be taken.
    #[error("the gateway has more to do than it can")]
    Overloaded,
    /// A fault of ours; the log knows more.
    #[error("an unexpected fault")]
    Internal,
    /// The gateway is about to stop.
    #[error("the gateway is shutting down")]
    ShuttingDown,
}

impl From<crate::store::StoreError> for ServiceError {
    fn from(error: crate::store::StoreError) -> Self {
        Self::StoreUnavailable(error.to_string())
    }
}
