//! The database's clock, read now and then and carried on by the machine's monotonic one.
//!
//! Nodes disagree about the time; the database is one. An instant must be known before its event is folded, and asking
//! for it would cost a round trip per batch, so it is read at start and with every probe (each second).

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use super::OUTAGE_MS;
use crate::domain::Timestamp;

pub(super) struct Clock {
    started: Instant,
    /// The database's time at `started`, in milliseconds since the epoch.
    base_ms: AtomicI64,
}

impl Clock {
    pub fn new() -> Self {
        Self { started: Instant::now(), base_ms: AtomicI64::new(0) }
    }

    /// The database said `at` somewhere between `asked` and now: take the middle.
    pub fn read(&self, asked: Instant, at: Timestamp) {
        let middle = asked.duration_since(self.started) + asked.elapsed() / 2;
        self.base_ms.store(at.as_millis() - middle.as_millis() as i64, Ordering::Relaxed);
    }

    pub fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.base_ms.load(Ordering::Relaxed) + self.started.elapsed().as_millis() as i64)
    }
}

/// When this node last gave a sign of life. A node that finds itself to have been away (its store did not answer, its
/// machine slept) must say so before it judges anybody's lease: what its lateness cost is given back with the pulse.
pub(super) struct Presence {
    started: Instant,
    last_ms: AtomicI64,
}

impl Presence {
    pub fn new() -> Self {
        Self { started: Instant::now(), last_ms: AtomicI64::new(0) }
    }

    /// A pulse was written just now.
    pub fn shown(&self) {
        self.last_ms.store(self.started.elapsed().as_millis() as i64, Ordering::Relaxed);
    }

    /// Whether the last pulse is so long ago that leases may be owed something.
    pub fn was_away(&self) -> bool {
        self.started.elapsed().as_millis() as i64 - self.last_ms.load(Ordering::Relaxed) > OUTAGE_MS as i64
    }
}
