//! Why a job waits, for an operator who asks. The rules are those that decide ([`super::dispatch`]); here they are put
//! into words.

use serde::Serialize;

use super::dispatch::{Bar, QueueState};
use super::{Job, JobId, Pause, State, Timestamp};

/// A worker that has not asked for work for longer than this does not count, in milliseconds.
pub const WORKER_SEEN_MS: u64 = 60_000;

/// Running jobs that are named, of those that are in the way.
pub const NAMED: usize = 10;

/// Jobs that are counted, of those that come first.
pub const COUNTED: usize = 1_000;

/// What a job waits for: the first reason that holds, in this order, but for the last two (see [`WaitingFor::turn`]).
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum WaitingFor {
    /// Its time.
    RunAt {
        /// When that is.
        run_at: Timestamp,
    },
    /// An operator, who stopped the queue.
    Paused {
        /// Who, why and when.
        paused: Option<Pause>,
    },
    /// The end of the time for which a worker held the queue back.
    Held {
        /// When that is.
        until: Timestamp,
    },
    /// One of the queue's slots.
    Concurrency {
        /// Slots taken.
        running: u64,
        /// Slots there are.
        limit: u32,
        /// Some of those that have them.
        jobs: Vec<JobId>,
    },
    /// One of its key's slots.
    ConcurrencyKey {
        /// The key.
        key: String,
        /// Slots taken.
        running: u64,
        /// Slots there are.
        limit: u32,
        /// Some of those that have them.
        jobs: Vec<JobId>,
    },
    /// The queue's rate, or its key's.
    RateLimit {
        /// Hand-outs per `per_ms`.
        limit: u32,
        /// The length of a period, in milliseconds.
        per_ms: u64,
        /// Hand-outs that may come at once.
        burst: u32,
        /// The key, if each has its own rate.
        #[serde(skip_serializing_if = "Option::is_none")]
        key: Option<String>,
        /// When the next one may come.
        until: Timestamp,
    },
    /// Somebody who asks for it.
    NoWorker,
    /// Others, which come first.
    Ahead {
        /// How many; more than [`COUNTED`] are not counted.
        ahead: u64,
    },
}

impl WaitingFor {
    /// What a job waits for that nothing keeps from being handed out. `ahead`: how many come before it; `None` if nobody
    /// has asked for work like it of late. With nobody before it, too, it waits for a worker: all that there are, are busy.
    pub fn turn(ahead: Option<u64>) -> Self {
        match ahead {
            None | Some(0) => Self::NoWorker,
            Some(ahead) => Self::Ahead { ahead },
        }
    }
}

/// What stands around a waiting job.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// Its queue, with what the limits need.
    pub queue: QueueState,
    /// Who stopped it.
    pub pause: Option<Pause>,
    /// Jobs of the queue that run: the first [`NAMED`].
    pub running: Vec<JobId>,
    /// The same for its key.
    pub running_of_key: Vec<JobId>,
}

impl Surroundings {
    /// What keeps a waiting job from being handed out, whoever may ask for it. `lane`: its concurrency key, or `""`.
    pub fn obstacle(&self, job: &Job, lane: &str, now: Timestamp) -> Option<WaitingFor> {
        if job.run_at > now {
            return Some(WaitingFor::RunAt { run_at: job.run_at });
        }
        Some(match self.queue.bar(lane, now)? {
            Bar::Paused => WaitingFor::Paused { paused: self.pause.clone() },
            Bar::Held { until } => WaitingFor::Held { until },
            Bar::Concurrency { running, limit } => {
                WaitingFor::Concurrency { running, limit, jobs: self.running.clone() }
            }
            Bar::ConcurrencyPerKey { running, limit } => {
                let (key, jobs) = (lane.to_owned(), self.running_of_key.clone());
                WaitingFor::ConcurrencyKey { key, running, limit, jobs }
            }
            Bar::Rate { rate, until } => {
                let key = rate.per_key.then(|| lane.to_owned());
                WaitingFor::RateLimit { limit: rate.limit, per_ms: rate.per_ms, burst: rate.burst, key, until }
            }
        })
    }
}

/// Whether a job waits to be handed out.
pub fn is_waiting(job: &Job) -> bool {
    matches!(job.state, State::Scheduled | State::Queued | State::Retrying)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::domain::{Defaults, Limits, QueueSettings, RateLimit, Spec, rules};

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(1_800_000_000_000 + ms)
    }

    fn job(spec: Value) -> Job {
        let spec = Spec::parse(spec, &Limits::default()).expect("a right spec");
        rules::enqueue(JobId::mint(at(0), [1; 10]), &spec, &Defaults::default(), at(0)).record.job
    }

    #[test]
    fn the_first_reason_that_holds_is_said_in_the_words_of_the_contract() {
        let rate = RateLimit { limit: 10, per_ms: 1_000, burst: 1, per_key: true };
        let settings = QueueSettings {
            concurrency: Some(3),
            concurrency_per_key: Some(2),
            rate_limit: Some(rate),
            ..QueueSettings::default()
        };
        let (first, second) = (JobId::mint(at(0), [2; 10]), JobId::mint(at(0), [3; 10]));
        let mut around = Surroundings {
            queue: QueueState {
                settings,
                paused: true,
                held_until: Some(at(500)),
                running: 3,
                ..QueueState::default()
            },
            pause: Some(Pause { by: "ops".to_owned(), reason: None, at: at(0) }),
            running: vec![first, second],
            running_of_key: vec![second],
        };
        around.queue.running_by_lane.insert("user:7".to_owned(), 2);
        around.queue.ahead_by_lane.insert("user:7".to_owned(), (at(0).as_millis() + 300) * 1_000);
        let later = job(json!({"kind": "k", "delay_ms": 150}));
        let said = |around: &Surroundings, now| json!(around.obstacle(&later, "user:7", now));
        let run_at = "2027-01-15T08:00:00.150Z";
        assert_eq!(said(&around, at(149)), json!({"reason": "run_at", "run_at": run_at}));
        let paused = json!({"by": "ops", "reason": null, "at": "2027-01-15T08:00:00.000Z"});
        assert_eq!(said(&around, at(150)), json!({"reason": "paused", "paused": paused}));
        around.queue.paused = false;
        assert_eq!(said(&around, at(150)), json!({"reason": "held", "until": "2027-01-15T08:00:00.500Z"}));
        around.queue.held_until = Some(at(150));
        let jobs = json!([first, second]);
        assert_eq!(said(&around, at(150)), json!({"reason": "concurrency", "running": 3, "limit": 3, "jobs": jobs}));
        around.queue.running = 2;
        let expected =
            json!({"reason": "concurrency_key", "key": "user:7", "running": 2, "limit": 2, "jobs": [second]});
        assert_eq!(said(&around, at(150)), expected);
        around.queue.running_by_lane.clear();
        let until = "2027-01-15T08:00:00.300Z";
        let expected = json!(
            {"reason": "rate_limit", "limit": 10, "per_ms": 1_000, "burst": 1, "key": "user:7", "until": until});
        assert_eq!(said(&around, at(150)), expected);
        assert_eq!(said(&around, at(300)), Value::Null);
        assert_eq!(around.obstacle(&later, "", at(150)), None, "who has no key is not bound by the limits on keys");

        around.queue.settings.rate_limit = Some(RateLimit { per_key: false, ..rate });
        around.queue.ahead_until_us = Some((at(0).as_millis() + 300) * 1_000);
        let expected = json!({"reason": "rate_limit", "limit": 10, "per_ms": 1_000, "burst": 1, "until": until});
        assert_eq!(said(&around, at(150)), expected);
        assert_eq!(json!(WaitingFor::turn(None)), json!({"reason": "no_worker"}));
        assert_eq!(json!(WaitingFor::turn(Some(0))), json!({"reason": "no_worker"}));
        assert_eq!(json!(WaitingFor::turn(Some(4))), json!({"reason": "ahead", "ahead": 4}));
    }

    #[test]
    fn what_is_explained_is_what_decides() {
        for n in 0..10_000_u32 {
            let is = |divisor: u32| n.is_multiple_of(divisor);
            let rate = RateLimit { limit: 10, per_ms: 1_000, burst: 1 + n % 3, per_key: is(5) };
            let settings = QueueSettings {
                concurrency: is(2).then_some(2),
                concurrency_per_key: is(3).then_some(1),
                rate_limit: is(7).then_some(rate),
                ..QueueSettings::default()
            };
            let (now, lane) = (at(i64::from(n % 400)), if is(11) { "" } else { "k" });
            let mut queue = QueueState { settings, paused: is(13), ..QueueState::default() };
            queue.held_until = is(17).then_some(at(200));
            queue.running = u64::from(n % 4);
            queue.running_by_lane.insert("k".to_owned(), u64::from(n % 2));
            queue.ahead_until_us = Some((at(0).as_millis() + i64::from(n % 250)) * 1_000);
            queue.ahead_by_lane.insert("k".to_owned(), (at(0).as_millis() + i64::from(n % 350)) * 1_000);
            let around = Surroundings { queue: queue.clone(), ..Surroundings::default() };
            let obstacle = around.obstacle(&job(json!({"kind": "k"})), lane, now);
            let has_room = queue.room(now) > 0 && !queue.full_lanes(now).contains(&lane.to_owned());
            assert_eq!(obstacle.is_none(), has_room, "{queue:?}: {obstacle:?}");
            assert_eq!(obstacle.is_none(), queue.admit(0, lane, now));
        }
    }
}
