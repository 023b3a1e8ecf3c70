//! Queues: how they stand, and what an operator changes about them.

use super::{Gateway, ServiceError};
use crate::bus::News;
use crate::domain::{Pause, Queue, QueueChange, QueueName, Refusal, SettingsPatch};

impl Gateway {
    /// All queues, by name.
    pub async fn queues(&self) -> Result<Vec<Queue>, ServiceError> {
        Ok(self.inner.store.queues(None).await?)
    }

    /// One queue.
    pub async fn queue(&self, name: &QueueName) -> Result<Queue, ServiceError> {
        let found = self.inner.store.queues(Some(name)).await?.pop();
        found.ok_or_else(|| Refusal::QueueNotFound.into())
    }

    /// Changes settings; a queue that is not there comes into being. Durable on return, and true for everything that is
    /// enqueued through this node from then on; through others within a second.
    pub async fn set_queue(&self, name: &QueueName, patch: SettingsPatch) -> Result<Queue, ServiceError> {
        self.change_queue(name, QueueChange::Set(patch)).await
    }

    /// Hands nothing out any more; what runs goes on. A queue that is not there comes into being.
    pub async fn pause_queue(
        &self,
        name: &QueueName,
        by: String,
        reason: Option<String>,
    ) -> Result<Queue, ServiceError> {
        let pause = Pause { by, reason, at: self.now() };
        self.change_queue(name, QueueChange::Pause(pause)).await
    }

    /// Hands out again.
    pub async fn resume_queue(&self, name: &QueueName) -> Result<Queue, ServiceError> {
        self.change_queue(name, QueueChange::Resume).await
    }

    async fn change_queue(&self, name: &QueueName, change: QueueChange) -> Result<Queue, ServiceError> {
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
