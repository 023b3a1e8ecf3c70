//! Which queues are worth another look: something became claimable, or a slot free. A hint, like everything here: a
//! claim that looks in vain costs a query.

use std::collections::HashMap;
use std::sync::Mutex;

use tokio::sync::Notify;

use crate::domain::QueueName;

/// Why a queue is worth a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum News {
    /// A run ended: if slots were what was missing, there is one.
    Slot,
    /// Something to do came, or will come at a known time, or the settings changed.
    Work,
}

/// News for the one who claims on behalf of this process.
#[derive(Default)]
pub struct QueueNews {
    /// A plain lock, held for an insertion.
    stirred: Mutex<HashMap<QueueName, News>>,
    wake: Notify,
}

impl QueueNews {
    /// Says that a queue is worth a look.
    pub fn note(&self, queue: &QueueName, news: News) {
        let mut stirred = self.stirred.lock().expect("no holder of this lock panics");
        match stirred.get_mut(queue) {
            Some(known) => *known = news.max(*known),
            None => {
                stirred.insert(queue.clone(), news);
                drop(stirred);
                self.wake.notify_one();
            }
        }
    }

    /// Waits until some queue is worth a look, and takes all that are.
    pub async fn next(&self) -> HashMap<QueueName, News> {
        loop {
            let stirred = self.take();
            if !stirred.is_empty() {
                return stirred;
            }
            self.wake.notified().await;
        }
    }

    /// Takes all that are worth a look, possibly none.
    pub fn take(&self) -> HashMap<QueueName, News> {
        std::mem::take(&mut *self.stirred.lock().expect("no holder of this lock panics"))
    }
}
