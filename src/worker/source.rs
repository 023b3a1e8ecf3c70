//! Where work comes from: a gateway, by whatever way it is reached.

use async_trait::async_trait;

use super::job::Claimed;
use super::report::Trouble;
use crate::domain::ClaimRequest;

/// A gateway as a worker sees it. Each job that is handed out brings its own way back ([`super::report::Report`]).
#[async_trait]
pub trait Source: Send + Sync + 'static {
    /// Takes up to `max` jobs: at once what is there, else what comes within `wait_ms`, else none. Dropped before it
    /// has answered, it takes nothing. The same key and request answer with the same jobs while they are ours.
    async fn claim(&self, request: &ClaimRequest, idempotency_key: &str) -> Result<Vec<Claimed>, Trouble>;

    /// What one claim may ask for.
    fn max_claim(&self) -> usize {
        100
    }

    /// Completes when nothing more will ever come from here.
    async fn closed(&self) {
        std::future::pending().await
    }
}
