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
    /// The database's time at `started`, in milliseconds since the epoch; [`UNREAD`] before the first reading.
    base_ms: AtomicI64,
    /// The latest instant that was told.
    told_ms: AtomicI64,
}

/// A reading that is up to so much behind the one before is a slow answer, not a clock that was set back.
const SLIP_MS: i64 = 1_000;

const UNREAD: i64 = i64::MIN;

impl Clock {
    pub fn new() -> Self {
        Self { started: Instant::now(), base_ms: AtomicI64::new(UNREAD), told_ms: AtomicI64::new(0) }
    }

    /// The database said `at` somewhere between `asked` and now. What is known already stays if that can be true: a slow
    /// answer (a lock, a stall, a process that was stopped) leaves much room, and its middle may be seconds off.
    pub fn read(&self, asked: Instant, at: Timestamp) {
        let asked_ms = asked.duration_since(self.started).as_millis() as i64;
        let answered_ms = self.started.elapsed().as_millis() as i64;
        let (earliest, latest) = (at.as_millis() - answered_ms, at.as_millis() - asked_ms);
        let base = match self.base_ms.load(Ordering::Relaxed) {
            UNREAD => earliest.midpoint(latest),
            known => known.clamp(earliest, latest),
        };
        self.base_ms.store(base, Ordering::Relaxed);
    }

    /// It stands still rather than go back by a reading's error: what happens later is told later.
    pub fn now(&self) -> Timestamp {
        let now = self.base_ms.load(Ordering::Relaxed) + self.started.elapsed().as_millis() as i64;
        let told = self.told_ms.load(Ordering::Relaxed);
        if (now..now + SLIP_MS).contains(&told) {
            return Timestamp::from_millis(told);
        }
        self.told_ms.store(now, Ordering::Relaxed);
        Timestamp::from_millis(now)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_answer_does_not_turn_time_back_but_a_clock_that_was_set_does() {
        let (clock, at) = (Clock::new(), |ms: i64| Timestamp::from_millis(1_800_000_000_000 + ms));
        let ms = |clock: &Clock| clock.now().as_millis() - at(0).as_millis();
        clock.read(Instant::now(), at(10_000));
        assert!((10_000..10_500).contains(&ms(&clock)));
        let before = ms(&clock);
        clock.read(Instant::now(), at(9_400));
        assert_eq!(ms(&clock), before, "it waits until the reading has caught up");
        clock.read(Instant::now(), at(20_000));
        assert!((20_000..20_500).contains(&ms(&clock)));
        clock.read(Instant::now(), at(-3_600_000));
        assert!(ms(&clock) < 0);
        assert!(ms(&clock) < 0, "and stays there");
    }

    #[test]
    fn an_answer_that_took_long_does_not_move_a_clock_that_agrees_with_it() {
        let (clock, at) = (Clock::new(), |ms: i64| Timestamp::from_millis(1_800_000_000_000 + ms));
        let ms = |clock: &Clock| clock.now().as_millis() - at(0).as_millis();
        let begun = clock.started;
        clock.read(begun, at(0));
        std::thread::sleep(std::time::Duration::from_millis(400));
        // Both were asked at the beginning. One was held up on its way there, the other on its way back.
        for said in [400, 0] {
            clock.read(begun, at(said));
            let off = ms(&clock) - begun.elapsed().as_millis() as i64;
            assert!((-50..=50).contains(&off), "the clock is {off} ms off after an answer that took long");
        }
    }
}
