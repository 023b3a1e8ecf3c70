//! What an operator does to a queue's jobs all at once: purge what waits, put dead letters back.
//!
//! Page by page, each job through the journal like any other cancel or retry, those of a page together, so that they
//! share commits. Nothing is held in between, neither a connection nor more than a page and the unique keys that came
//! back: it takes the time it takes, whoever gives up waiting leaves it half done, and may simply ask again.

use std::collections::HashSet;

use futures_util::future::join_all;

use super::journal::Command;
use super::{CancelAnswer, Gateway, ServiceError};
use crate::domain::{JobId, QueueName, Refusal, Selection, Timestamp};
use crate::store::{Backlog, BacklogExtent, BacklogPart, BacklogRange};

/// Jobs taken in hand at a time: enough for full commits, and room for everybody else's writes between them.
const PAGE: u64 = 500;

impl Gateway {
    /// Cancels what waits in a queue, and was there when this began; never a job that runs. Returns how many.
    pub async fn purge(&self, queue: QueueName, selection: &Selection, by: &str) -> Result<u64, ServiceError> {
        self.work_off(queue, BacklogPart::Waiting, selection, by).await
    }

    /// Puts a queue's dead letters back, the oldest first; those that cannot be (tracked ones, those whose unique key is
    /// held by a live job, perhaps one put back just before) are passed over. Returns how many.
    pub async fn redrive(&self, queue: QueueName, selection: &Selection, by: &str) -> Result<u64, ServiceError> {
        self.work_off(queue, BacklogPart::Dead, selection, by).await
    }

    async fn work_off(
        &self,
        queue: QueueName,
        part: BacklogPart,
        selection: &Selection,
        by: &str,
    ) -> Result<u64, ServiceError> {
        let backlog = Backlog { queue, part, error_code: selection.error_code.clone() };
        let upto = match self.inner.store.backlog_extent(&backlog).await? {
            BacklogExtent::UnknownQueue => return Err(Refusal::QueueNotFound.into()),
            BacklogExtent::Empty => return Ok(0),
            BacklogExtent::UpTo(newest) => newest,
        };
        let limit = selection.limit.unwrap_or(u64::MAX);
        let (mut after, mut count) = (JobId::lowest_at(Timestamp::from_millis(0)), 0);
        // Of those with the same unique key only one can come back: a dry run must not promise the others.
        let mut keys = HashSet::new();
        while count < limit {
            if self.is_draining() {
                return Err(ServiceError::ShuttingDown);
            }
            let range = BacklogRange { after, upto, limit: PAGE.min(limit - count) as u32 };
            let mut page = self.inner.store.backlog(&backlog, &range).await?;
            let Some(last) = page.last() else { break };
            after = last.id;
            page.retain_mut(|job| job.unique_key.take().is_none_or(|key| keys.insert(key)));
            if selection.dry_run {
                count += page.len() as u64;
                continue;
            }
            for is_done in join_all(page.iter().map(|job| self.work_off_one(job.id, &backlog, by))).await {
                count += u64::from(is_done?);
            }
        }
        Ok(count)
    }

    /// `false`: it changed meanwhile, or the rules do not allow it.
    async fn work_off_one(&self, id: JobId, backlog: &Backlog, by: &str) -> Result<bool, ServiceError> {
        let by = by.to_owned();
        let done = match backlog.part {
            BacklogPart::Waiting => {
                let reason = Some("purged".to_owned());
                let command = |answer| Command::Cancel { id, reason, grace_ms: 0, by, only_waiting: true, answer };
                let cancelled = self.inner.journal.submit(command).await;
                cancelled.map(|answer| matches!(answer, CancelAnswer::Accepted(_)))
            }
            BacklogPart::Dead => {
                let redrive = Some(backlog.queue.clone());
                self.inner.journal.submit(|answer| Command::Retry { id, by, redrive, answer }).await.map(|_| true)
            }
        };
        match done {
            Err(ServiceError::Refused(_)) => Ok(false),
            done => done,
        }
    }
}
