//! Why a store could not do its work.

use thiserror::Error;

/// A store's trouble. All of it is passing as far as callers can tell: they may try again.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The database did not answer, or refused for a reason of its own (no connection, no disk, read-only).
    #[error("the store does not answer: {0}")]
    Unavailable(#[source] sqlx::Error),
    /// A row that this version cannot read.
    #[error("the store holds something unreadable: {0}")]
    Unreadable(String),
    /// The store cannot be used by this program at all: found at start.
    #[error("{0}")]
    Unusable(String),
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        Self::Unavailable(error)
    }
}

/// Whether the database gave up one of two transactions that stood in each other's way: nothing was stored, and the
/// same again may well succeed. `40001` serialization failure, `40P01` deadlock; `23505`: another node stored the
/// same key or seq first.
pub(super) fn is_conflict(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .and_then(|e| e.code())
        .is_some_and(|code| matches!(code.as_ref(), "40001" | "40P01" | "23505"))
}
