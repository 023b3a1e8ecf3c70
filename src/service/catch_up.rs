//! What other nodes wrote to the same store: every round, begun by [`super::maintenance`], asks how far the jobs are that
//! somebody watches here, and what has changed for those who show many. So nothing is missing here for longer than a
//! round, whoever wrote it.

use std::num::NonZeroUsize;

use lru::LruCache;

use super::{Gateway, ServiceError};
use crate::domain::{Job, JobId, Timestamp};
use crate::store::JobFilter;

/// What a round looks back beyond the one before: a commit may become visible later than it says, and clocks differ.
const OVERLAP_MS: u64 = 10_000;

/// Jobs per read.
const CHUNK: u32 = 500;

/// Jobs whose last state this remembers to have passed on.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(10_000).expect("not zero");

/// What was found already.
pub(super) struct Found {
    since: Option<Timestamp>,
    passed_on: LruCache<JobId, u64>,
}

impl Default for Found {
    fn default() -> Self {
        Self { since: None, passed_on: LruCache::new(REMEMBERED) }
    }
}

impl Gateway {
    /// One round. Without other nodes it costs nothing.
    pub(super) async fn catch_up(&self, found: &mut Found) -> Result<(), ServiceError> {
        if !self.inner.store.has_peers() {
            return Ok(());
        }
        let watched = self.inner.bus.watched();
        for watched in watched.chunks(CHUNK as usize) {
            for id in self.inner.store.moved(watched).await? {
                self.reload(id).await?;
            }
        }
        if self.inner.bus.feeds().is_on() {
            self.catch_up_feeds(found).await?;
        }
        Ok(())
    }

    async fn catch_up_feeds(&self, found: &mut Found) -> Result<(), ServiceError> {
        let now = self.now();
        let since = found.since.unwrap_or(now).minus_millis(OVERLAP_MS);
        let mut before = None;
        // To the last of them: what one round left out no later one would look for.
        loop {
            let filter = JobFilter {
                active_or_finished_after: Some(since),
                updated_after: Some(since),
                before,
                ..JobFilter::default()
            };
            let jobs = self.inner.store.list(&filter, CHUNK).await?;
            let is_last = jobs.len() < CHUNK as usize;
            before = jobs.last().map(|job| job.id);
            let is_new = |job: &Job| found.passed_on.put(job.id, job.seq).is_none_or(|seq| seq < job.seq);
            self.inner.bus.feeds().catch_up(jobs.into_iter().filter(is_new));
            if is_last {
                break;
            }
        }
        found.since = Some(now);
        Ok(())
    }
}
