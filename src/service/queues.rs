//! Queues: how they stand, and what an operator changes about them.

mod statistics;

use std::collections::HashMap;

use serde::Serialize;

use super::{Gateway, ServiceError};
use crate::bus::News;
use crate::domain::{
    Pause, Queue, QueueChange, QueueName, QueueSlot, QueueStatistics, Refusal, SettingsPatch, oldest_slot,
};
pub(super) use statistics::Statistics;

/// How a queue stands, and how it has been doing.
#[derive(Debug, Serialize)]
pub struct QueueReport {
    /// Settings and counts.
    #[serde(flatten)]
    pub queue: Queue,
    /// The last minutes, all nodes together.
    #[serde(flatten)]
    pub statistics: QueueStatistics,
}

impl Gateway {
    /// All queues, by name.
    pub async fn queues(&self) -> Result<Vec<QueueReport>, ServiceError> {
        let queues = self.inner.store.queues(None).await?;
        self.report(queues).await
    }

    /// One queue.
    pub async fn queue(&self, name: &QueueName) -> Result<QueueReport, ServiceError> {
        let found = self.inner.store.queues(Some(name)).await?;
        self.report(found).await?.pop().ok_or_else(|| Refusal::QueueNotFound.into())
    }

    /// Adds what this node saw, and what others stored.
    async fn report(&self, queues: Vec<Queue>) -> Result<Vec<QueueReport>, ServiceError> {
        let now = self.now();
        let names: Vec<&QueueName> = queues.iter().map(|queue| &queue.name).collect();
        let mut slots: HashMap<QueueName, Vec<_>> = HashMap::new();
        for QueueSlot { queue, slot, tally } in self.inner.store.statistics(&names, oldest_slot(now)).await? {
            slots.entry(queue).or_default().push((slot, tally));
        }
        let report = |queue: Queue| {
            let mut slots = slots.remove(&queue.name).unwrap_or_default();
            slots.extend(self.inner.statistics.of(&queue.name));
            QueueReport { statistics: QueueStatistics::of(&slots, now), queue }
        };
        Ok(queues.into_iter().map(report).collect())
    }

    /// Changes settings; a queue that is not there comes into being. Durable on return, and true for everything that is
    /// enqueued through this node from then on; through others within a second.
    pub async fn set_queue(&self, name: &QueueName, patch: SettingsPatch) -> Result<QueueReport, ServiceError> {
        self.change_queue(name, QueueChange::Set(patch)).await
    }

    /// Hands nothing out any more; what runs goes on. A queue that is not there comes into being.
    pub async fn pause_queue(
        &self,
        name: &QueueName,
        by: String,
        reason: Option<String>,
    ) -> Result<QueueReport, ServiceError> {
        let pause = Pause { by, reason, at: self.now() };
        self.change_queue(name, QueueChange::Pause(pause)).await
    }

    /// Hands out again.
    pub async fn resume_queue(&self, name: &QueueName) -> Result<QueueReport, ServiceError> {
        self.change_queue(name, QueueChange::Resume).await
    }

    async fn change_queue(&self, name: &QueueName, change: QueueChange) -> Result<QueueReport, ServiceError> {
        if !self.inner.store.change_queue(name, &change).await? {
            return Err(Refusal::QueueNotFound.into());
        }
        // Whoever waits for work may get some under the new settings.
        self.inner.bus.queues().note(name, News::Work);
        if matches!(change, QueueChange::Set(_)) {
            self.read_defaults().await?;
        }
        self.queue(name).await
    }
}
