//! What each queue gives to specs that leave it out, as this node last read it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use super::Gateway;
use crate::domain::{Defaults, QueueName};
use crate::store::StoreError;

/// Read at start, after every change made through this node, and every second for those made through others.
#[derive(Default)]
pub(super) struct QueueDefaults {
    /// One number per read, given out before it begins.
    reads: AtomicU64,
    known: RwLock<Known>,
}

#[derive(Default)]
struct Known {
    /// The read that it comes from.
    read: u64,
    defaults: Arc<HashMap<QueueName, Defaults>>,
}

impl QueueDefaults {
    /// Queues that are not in it have none.
    pub fn current(&self) -> Arc<HashMap<QueueName, Defaults>> {
        self.known.read().expect("nobody panics with it").defaults.clone()
    }

    /// A read begins.
    fn begin(&self) -> u64 {
        self.reads.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A read ended. One that began before another one that has ended by now is too late: it may not know the change
    /// after which that one was made.
    fn learn(&self, read: u64, defaults: HashMap<QueueName, Defaults>) {
        let mut known = self.known.write().expect("nobody panics with it");
        if read > known.read {
            *known = Known { read, defaults: Arc::new(defaults) };
        }
    }
}

impl Gateway {
    /// Learns what queues give to specs that leave it out. To be called before the first request is served.
    pub async fn read_defaults(&self) -> Result<(), StoreError> {
        let read = self.inner.defaults.begin();
        let defaults = self.inner.store.queue_defaults().await?;
        self.inner.defaults.learn(read, defaults.into_iter().collect());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_that_comes_late_does_not_undo_a_newer_one() {
        let (defaults, queue) = (QueueDefaults::default(), QueueName::default());
        let (first, second) = (defaults.begin(), defaults.begin());
        let with = |priority| HashMap::from([(queue.clone(), Defaults { priority, ..Defaults::default() })]);
        defaults.learn(second, with(Some(2)));
        defaults.learn(first, with(Some(1)));
        assert_eq!(defaults.current()[&queue].priority, Some(2));
        defaults.learn(defaults.begin(), with(None));
        assert_eq!(defaults.current()[&queue].priority, None);
    }
}
