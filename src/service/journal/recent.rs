//! Jobs as this process wrote them last, so that the next append needs no read. Only ever a guess: the store's guard
//! decides.

use std::num::NonZeroUsize;
use std::sync::Mutex;

use lru::LruCache;

use crate::domain::{JobId, Record};

/// Jobs remembered.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(8_192).expect("it is not zero");

/// Shared by the committers and the claims. The lock is held for a look-up, never over an await.
pub(in crate::service) struct Recent(Mutex<LruCache<JobId, Record>>);

impl Default for Recent {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(REMEMBERED)))
    }
}

impl Recent {
    pub fn get(&self, id: JobId) -> Option<Record> {
        self.lock().get(&id).cloned()
    }

    /// Remembers a record, unless a newer one is known: writers of one job may come here out of order.
    pub fn put(&self, record: Record) {
        let mut recent = self.lock();
        let id = record.job.id;
        if recent.peek(&id).is_none_or(|known| known.job.seq <= record.job.seq) {
            recent.put(id, record);
        }
    }

    pub fn forget(&self, id: JobId) {
        self.lock().pop(&id);
    }

    pub fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, LruCache<JobId, Record>> {
        self.0.lock().expect("nobody panics with it")
    }
}
