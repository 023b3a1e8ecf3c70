//! Who is next: the order within a queue, and how many its settings let through.
//!
//! A store gathers a queue's state under the queue's lock, and candidates from its index; what is handed out, and in
//! which order, is decided here. Jobs of one concurrency key form a *lane*; those without a key share the lane `""`.

use std::collections::{BTreeMap, HashMap};

use super::{JobId, QueueSettings, RateLimit, Timestamp};

/// A queue as a claim finds it, under its lock.
#[derive(Clone, Debug, Default)]
pub struct QueueState {
    /// What the operator set.
    pub settings: QueueSettings,
    /// Nothing is handed out while an operator says so.
    pub paused: bool,
    /// Nothing is handed out until then: a worker said so.
    pub held_until: Option<Timestamp>,
    /// Live leases; counted only if a limit needs it.
    pub running: u64,
    /// Live leases by lane; counted only if a limit needs it.
    pub running_by_lane: HashMap<String, u64>,
    /// What the rate limit remembers (see [`super::RateLimit`]), in microseconds since the epoch.
    pub ahead_until_us: Option<i64>,
    /// The same by lane, for a limit per key; only lanes that are ahead.
    pub ahead_by_lane: HashMap<String, i64>,
    /// The lane served last at each rank (−priority); none yet is the same as the lane `""`.
    pub turns: BTreeMap<i32, String>,
    /// Whether anything was handed out, so that what is remembered is to be stored.
    pub served: bool,
}

/// What keeps a job from being handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bar {
    /// An operator stopped the queue.
    Paused,
    /// A worker said that it had better wait.
    Held {
        /// Until then.
        until: Timestamp,
    },
    /// All of the queue's slots are taken.
    Concurrency {
        /// Slots taken.
        running: u64,
        /// Slots there are.
        limit: u32,
    },
    /// All slots of its lane are taken.
    ConcurrencyPerKey {
        /// Slots taken.
        running: u64,
        /// Slots there are.
        limit: u32,
    },
    /// The queue, or its lane, is ahead of its rate.
    Rate {
        /// The rate.
        rate: RateLimit,
        /// Until then.
        until: Timestamp,
    },
}

fn micros(now: Timestamp) -> i64 {
    now.as_millis() * 1_000
}

/// The first instant, in milliseconds, that is not before `us`.
fn at_or_after(us: i64) -> Timestamp {
    Timestamp::from_millis(us.div_euclid(1_000) + i64::from(us.rem_euclid(1_000) > 0))
}

impl QueueState {
    /// The first thing that keeps a job of this lane from being handed out now.
    pub fn bar(&self, lane: &str, now: Timestamp) -> Option<Bar> {
        let slots = || {
            let limit = self.settings.concurrency.filter(|limit| self.running >= u64::from(*limit))?;
            Some(Bar::Concurrency { running: self.running, limit })
        };
        self.stop(now).or_else(slots).or_else(|| self.lack_of_slots(lane)).or_else(|| self.haste(lane, now))
    }

    fn stop(&self, now: Timestamp) -> Option<Bar> {
        let held = self.held_until.filter(|until| *until > now).map(|until| Bar::Held { until });
        if self.paused { Some(Bar::Paused) } else { held }
    }

    /// As far as the limit per key is concerned, which does not bind those without a key.
    fn lack_of_slots(&self, lane: &str) -> Option<Bar> {
        let running = self.running_by_lane.get(lane).copied().unwrap_or(0);
        let limit = self.settings.concurrency_per_key.filter(|limit| running >= u64::from(*limit))?;
        (!lane.is_empty()).then_some(Bar::ConcurrencyPerKey { running, limit })
    }

    /// The same for a rate per key.
    fn haste(&self, lane: &str, now: Timestamp) -> Option<Bar> {
        let rate = self.settings.rate_limit.filter(|rate| !rate.per_key || !lane.is_empty())?;
        let ahead = if rate.per_key { self.ahead_by_lane.get(lane).copied() } else { self.ahead_until_us };
        let ahead = ahead.filter(|ahead| rate.room(Some(*ahead), micros(now)) == 0)?;
        Some(Bar::Rate { rate, until: at_or_after(rate.next_us(ahead)) })
    }

    /// How many jobs may be handed out now, as far as the queue as a whole is concerned.
    pub fn room(&self, now: Timestamp) -> u64 {
        if self.stop(now).is_some() {
            return 0;
        }
        let slots = self.settings.concurrency.map(|limit| u64::from(limit).saturating_sub(self.running));
        let rate = self.settings.rate_limit.filter(|rate| !rate.per_key);
        let rate = rate.map(|rate| rate.room(self.ahead_until_us, micros(now)));
        [slots, rate].into_iter().flatten().min().unwrap_or(u64::MAX)
    }

    /// When the passing of time alone makes more room; `None` if it does not.
    pub fn opens_at(&self, now: Timestamp) -> Option<Timestamp> {
        if self.paused {
            return None;
        }
        let rate = self.settings.rate_limit;
        let ahead = self.ahead_by_lane.values().copied().chain(self.ahead_until_us);
        let rate_opens =
            rate.and_then(|rate| ahead.map(|ahead| at_or_after(rate.next_us(ahead))).filter(|at| *at > now).min());
        // Held and ahead: the later of the two counts.
        self.held_until.filter(|until| *until > now).max(rate_opens)
    }

    /// Whether a slot that becomes free may let something through.
    pub fn lacks_slots(&self) -> bool {
        let per_key = self.settings.concurrency_per_key.map(u64::from);
        self.settings.concurrency.is_some_and(|limit| self.running >= u64::from(limit))
            || per_key.is_some_and(|limit| self.running_by_lane.iter().any(|(k, n)| !k.is_empty() && *n >= limit))
    }

    /// Lanes that may not be served now.
    pub fn full_lanes(&self, now: Timestamp) -> Vec<String> {
        let has_rate = self.settings.rate_limit.is_some_and(|rate| rate.per_key);
        let is_full = |lane: &str| self.lack_of_slots(lane).is_some() || has_rate && self.haste(lane, now).is_some();
        let lanes = self.running_by_lane.keys().chain(self.ahead_by_lane.keys());
        let mut full: Vec<String> = lanes.filter(|lane| is_full(lane)).cloned().collect();
        full.sort();
        full.dedup();
        full
    }

    /// The lane served last at this rank.
    pub fn turn(&self, rank: i32) -> &str {
        self.turns.get(&rank).map_or("", String::as_str)
    }

    /// Hands one job of a lane out, if the settings let it through, and remembers it.
    pub fn admit(&mut self, rank: i32, lane: &str, now: Timestamp) -> bool {
        if self.bar(lane, now).is_some() {
            return false;
        }
        self.running += 1;
        if self.settings.concurrency_per_key.is_some() && !lane.is_empty() {
            *self.running_by_lane.entry(lane.to_owned()).or_default() += 1;
        }
        if let Some(rate) = self.settings.rate_limit {
            if !rate.per_key {
                self.ahead_until_us = Some(rate.take(self.ahead_until_us, micros(now)));
            } else if !lane.is_empty() {
                let ahead = rate.take(self.ahead_by_lane.get(lane).copied(), micros(now));
                self.ahead_by_lane.insert(lane.to_owned(), ahead);
            }
        }
        if !lane.is_empty() || self.turns.contains_key(&rank) {
            self.turns.insert(rank, lane.to_owned());
        }
        self.served = true;
        true
    }
}

/// A job that waits, as the index of a queue knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The job.
    pub id: JobId,
    /// Its concurrency key, or `""`.
    pub lane: String,
    /// From when on it may run.
    pub run_at: Timestamp,
}

/// Puts candidates of one priority in the order in which they are handed out: round robin over the lanes, beginning
/// after the one served last; within a lane the oldest first.
pub fn round_robin(candidates: Vec<Candidate>, turn: &str) -> Vec<Candidate> {
    let mut candidates = candidates;
    candidates.sort_by(|a, b| (&a.lane, a.run_at, a.id).cmp(&(&b.lane, b.run_at, b.id)));
    let mut rounds: HashMap<String, usize> = HashMap::new();
    let mut placed: Vec<(usize, bool, Candidate)> = candidates
        .into_iter()
        .map(|candidate| {
            let round = rounds.entry(candidate.lane.clone()).or_default();
            *round += 1;
            (*round, candidate.lane.as_str() <= turn, candidate)
        })
        .collect();
    // Stable: within a round the lanes stay in their order.
    placed.sort_by_key(|(round, wrapped, _)| (*round, *wrapped));
    placed.into_iter().map(|(_, _, candidate)| candidate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::RateLimit;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(1_800_000_000_000 + ms)
    }

    fn candidate(lane: &str, n: u8) -> Candidate {
        Candidate { id: JobId::mint(at(0), [n; 10]), lane: lane.to_owned(), run_at: at(i64::from(n)) }
    }

    #[test]
    fn lanes_take_turns_and_the_oldest_of_each_comes_first() {
        let waiting =
            vec![candidate("a", 3), candidate("a", 1), candidate("c", 9), candidate("b", 5), candidate("a", 2)];
        let lanes = |turn: &str| {
            let ordered = round_robin(waiting.clone(), turn);
            ordered.into_iter().map(|c| format!("{}{}", c.lane, c.run_at.as_millis() % 10)).collect::<Vec<_>>()
        };
        assert_eq!(lanes(""), ["a1", "b5", "c9", "a2", "a3"]);
        assert_eq!(lanes("a"), ["b5", "c9", "a1", "a2", "a3"]);
        assert_eq!(lanes("c"), ["a1", "b5", "c9", "a2", "a3"]);
    }

    #[test]
    fn the_narrowest_limit_counts() {
        let settings = QueueSettings {
            concurrency: Some(5),
            concurrency_per_key: Some(2),
            rate_limit: Some(RateLimit { limit: 10, per_ms: 1_000, burst: 3, per_key: false }),
            ..QueueSettings::default()
        };
        let mut queue = QueueState { settings, running: 1, ..QueueState::default() };
        assert_eq!(queue.room(at(0)), 3);
        assert!(queue.admit(0, "k", at(0)) && queue.admit(0, "k", at(0)));
        assert_eq!((queue.admit(0, "k", at(0)), queue.full_lanes(at(0))), (false, vec!["k".to_owned()]));
        assert!(queue.admit(0, "", at(0)));
        assert_eq!((queue.room(at(0)), queue.opens_at(at(0))), (0, Some(at(100))));
        assert!(queue.admit(0, "l", at(100)));
        assert_eq!((queue.room(at(10_000)), queue.opens_at(at(10_000))), (0, None));
        queue.running = 0;
        queue.held_until = Some(at(11_000));
        assert_eq!((queue.room(at(10_000)), queue.opens_at(at(10_000))), (0, Some(at(11_000))));
        queue.paused = true;
        assert_eq!((queue.room(at(12_000)), queue.opens_at(at(12_000))), (0, None));
    }
}
