//! What this node has committed of each queue within the last minutes: exact here at once, told to the store every
//! second, so that other nodes, and this one after a restart, know it too.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard};

use crate::domain::{QueueName, QueueSlot, Tally, Timestamp, observe, oldest_slot, slot_of};
use crate::service::Gateway;
use crate::store::{Committed, StoreError};

/// Shared by the committers and the claims.
#[derive(Default)]
pub(in crate::service) struct Statistics {
    /// A plain lock, held for a look-up and an increment per run that begins or ends.
    slots: Mutex<HashMap<QueueName, BTreeMap<i64, Slot>>>,
}

#[derive(Default)]
struct Slot {
    tally: Tally,
    /// The store has it as it is.
    is_stored: bool,
}

impl Statistics {
    /// Counts what has become durable. To be called before anybody is told of it. Progress and output cost nothing.
    pub fn record(&self, committed: &Committed) {
        let seen = committed.jobs().iter().flat_map(|changed| {
            let seen = observe(&changed.job, changed.began_at, &changed.events);
            seen.map(|(at, seen)| (&changed.job.queue, at, seen))
        });
        let mut seen = seen.peekable();
        if seen.peek().is_none() {
            return;
        }
        let mut slots = self.lock();
        for (queue, at, seen) in seen {
            if !slots.contains_key(queue) {
                slots.insert(queue.clone(), BTreeMap::new());
            }
            let slot = slots.get_mut(queue).expect("it is there").entry(slot_of(at)).or_default();
            slot.tally.add(&seen);
            slot.is_stored = false;
        }
    }

    /// What this node has of a queue.
    pub fn of(&self, queue: &QueueName) -> Vec<(i64, Tally)> {
        let slots = self.lock();
        slots.get(queue).into_iter().flatten().map(|(slot, found)| (*slot, found.tally.clone())).collect()
    }

    /// Forgets what is too old, and gives out what the store does not have, as if it had it by now.
    fn take_unstored(&self, now: Timestamp) -> Vec<QueueSlot> {
        let (mut slots, oldest) = (self.lock(), oldest_slot(now));
        let mut unstored = Vec::new();
        slots.retain(|queue, slots| {
            slots.retain(|slot, _| *slot >= oldest);
            for (slot, found) in slots.iter_mut().filter(|(_, found)| !found.is_stored) {
                found.is_stored = true;
                unstored.push(QueueSlot { queue: queue.clone(), slot: *slot, tally: found.tally.clone() });
            }
            !slots.is_empty()
        });
        unstored
    }

    /// Takes back what [`Statistics::take_unstored`] assumed.
    fn not_stored(&self, unstored: &[QueueSlot]) {
        let mut slots = self.lock();
        for QueueSlot { queue, slot, .. } in unstored {
            if let Some(found) = slots.get_mut(queue).and_then(|slots| slots.get_mut(slot)) {
                found.is_stored = false;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<QueueName, BTreeMap<i64, Slot>>> {
        self.slots.lock().expect("nobody panics with it")
    }
}

impl Gateway {
    /// Tells the store what it does not have yet of this node's statistics. Not by two tasks at once: the later tally
    /// of a slot must not be overwritten by the earlier one.
    pub async fn store_statistics(&self) -> Result<(), StoreError> {
        let unstored = self.inner.statistics.take_unstored(self.now());
        if unstored.is_empty() {
            return Ok(());
        }
        let stored = self.inner.store.store_statistics(&unstored).await;
        if stored.is_err() {
            self.inner.statistics.not_stored(&unstored);
        }
        stored
    }
}
