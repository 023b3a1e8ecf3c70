//! How long a queue's jobs wait and run, and how many end: seen in committed events, tallied in slots of ten seconds.
//!
//! Each node tallies what it commits; slots of all nodes are merged when somebody asks. A [`Tally`] is small whatever it
//! has seen, and merging loses nothing: percentiles are as good over ten minutes and all nodes as within one slot.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Event, EventType, Job, QueueName, Timestamp};

/// The length of a slot, in milliseconds.
const SLOT_MS: i64 = 10_000;

/// Percentiles are over so many slots: ten minutes.
const WINDOW_SLOTS: i64 = 60;

/// Slots in a minute.
const MINUTE_SLOTS: i64 = 6;

/// The slot that an instant lies in.
pub fn slot_of(at: Timestamp) -> i64 {
    at.as_millis() / SLOT_MS
}

/// The oldest slot that still counts.
pub fn oldest_slot(now: Timestamp) -> i64 {
    slot_of(now) - WINDOW_SLOTS + 1
}

/// Buckets between a power of two and the next.
const BUCKETS_PER_OCTAVE: u64 = 16;

/// Durations by size. A bucket is at most 1/16 of its durations wide, so its middle is within 3.2 % of each of them;
/// below 16 ms every duration has its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Histogram(BTreeMap<u16, u64>);

impl Histogram {
    fn add(&mut self, ms: u64) {
        *self.0.entry(bucket_of(ms)).or_default() += 1;
    }

    fn merge(&mut self, other: &Self) {
        for (bucket, count) in &other.0 {
            *self.0.entry(*bucket).or_default() += count;
        }
    }

    /// The duration that so many per cent do not exceed (nearest rank); `None` if there is none.
    fn percentile(&self, percent: u64) -> Option<u64> {
        let count: u64 = self.0.values().sum();
        let rank = (count * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let bucket = self.0.iter().find(|(_, count)| {
            seen += **count;
            seen >= rank
        });
        bucket.map(|(bucket, _)| middle_of(*bucket))
    }

    fn percentiles(&self) -> Percentiles {
        Percentiles { p50: self.percentile(50), p95: self.percentile(95) }
    }
}

fn bucket_of(ms: u64) -> u16 {
    let octave = u64::from(ms.max(1).ilog2());
    match octave.checked_sub(u64::from(BUCKETS_PER_OCTAVE.ilog2())) {
        None => ms as u16,
        // The leading bit and the four after it.
        Some(shift) => (shift * BUCKETS_PER_OCTAVE + (ms >> shift)) as u16,
    }
}

fn middle_of(bucket: u16) -> u64 {
    let bucket = u64::from(bucket);
    let Some(shift) = (bucket / BUCKETS_PER_OCTAVE).checked_sub(1) else { return bucket };
    let lowest = (bucket - shift * BUCKETS_PER_OCTAVE) << shift;
    lowest + (1 << shift) / 2
}

/// What was seen of one queue within a slot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tally {
    waits: Histogram,
    runs: Histogram,
    finished: u64,
}

impl Tally {
    /// Counts what was seen.
    pub fn add(&mut self, seen: &Observation) {
        if let Some(ms) = seen.waited_ms {
            self.waits.add(ms);
        }
        if let Some(ms) = seen.ran_ms {
            self.runs.add(ms);
        }
        self.finished += u64::from(seen.finished);
    }
}

/// A slot of a queue, as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueSlot {
    /// Whose.
    pub queue: QueueName,
    /// See [`slot_of`].
    pub slot: i64,
    /// What was seen.
    pub tally: Tally,
}

/// What one event tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// A run began: so long after the job could first run.
    pub waited_ms: Option<u64>,
    /// A run ended, and was not given back: so long after it began.
    pub ran_ms: Option<u64>,
    /// The job ended.
    pub finished: bool,
}

/// What `events` tell, each at its time. `job` is what they made of it; `began_at`: when the run began that was on
/// before them. Jobs of outside runners wait for nobody.
pub fn observe(
    job: &Job,
    began_at: Option<Timestamp>,
    events: &[Event],
) -> impl Iterator<Item = (Timestamp, Observation)> {
    let mut began_at = began_at;
    events.iter().filter_map(move |event| {
        let mut seen = Observation::default();
        let since = |from: Timestamp| (event.at.as_millis() - from.as_millis()).max(0) as u64;
        match event.kind {
            EventType::Started => {
                began_at = Some(event.at);
                // A `run_at` from before the enqueue is no wait for us.
                seen.waited_ms = (!job.tracked).then(|| since(job.run_at.max(job.enqueued_at)));
            }
            EventType::Released => began_at = None,
            EventType::Retrying => seen.ran_ms = began_at.take().map(since),
            EventType::Completed | EventType::Failed | EventType::Cancelled | EventType::Expired => {
                seen = Observation { ran_ms: began_at.take().map(since), finished: true, ..seen };
            }
            EventType::Queued
            | EventType::Requeued
            | EventType::CancelRequested
            | EventType::Progress
            | EventType::Output
            | EventType::Log
            | EventType::User(_) => {}
        }
        (seen != Observation::default()).then_some((event.at, seen))
    })
}

/// Half and nineteen of twenty are not above; `None`: there was none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Percentiles {
    /// The median, in milliseconds.
    pub p50: Option<u64>,
    /// Milliseconds.
    pub p95: Option<u64>,
}

/// How a queue has been doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct QueueStatistics {
    /// From when jobs could run to when they did.
    pub wait_ms: Percentiles,
    /// How long runs took.
    pub run_ms: Percentiles,
    /// Jobs that ended within the last minute.
    pub finished_per_min: u64,
}

impl QueueStatistics {
    /// Merges slots; several may be of the same time.
    pub fn of(slots: &[(i64, Tally)], now: Timestamp) -> Self {
        let (mut window, mut finished) = (Tally::default(), 0);
        let (current, oldest) = (slot_of(now), oldest_slot(now));
        for (slot, tally) in slots.iter().filter(|(slot, _)| *slot >= oldest) {
            window.waits.merge(&tally.waits);
            window.runs.merge(&tally.runs);
            // In slot-milliseconds. The minute ends within a slot, so it begins within one, which counts in part.
            finished += tally.finished as i64
                * match current - slot {
                    ..MINUTE_SLOTS => SLOT_MS,
                    MINUTE_SLOTS => SLOT_MS - now.as_millis() % SLOT_MS,
                    _ => 0,
                };
        }
        let finished_per_min = ((finished + SLOT_MS / 2) / SLOT_MS) as u64;
        Self { wait_ms: window.waits.percentiles(), run_ms: window.runs.percentiles(), finished_per_min }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::domain::rules::{self, Step};
    use crate::domain::{Defaults, JobId, Limits, NewEvent, Spec, WorkerName};

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(1_800_000_000_000 + ms)
    }

    proptest! {
        #[test]
        fn a_bucket_stands_for_its_durations_within_five_per_cent(ms in prop_oneof![0..100u64, 0..10_000_000u64, any::<u64>()]) {
            let stands_for = middle_of(bucket_of(ms));
            prop_assert!(stands_for.abs_diff(ms) <= ms / 20, "{ms} became {stands_for}");
            prop_assert_eq!(bucket_of(stands_for), bucket_of(ms));
        }

        #[test]
        fn longer_durations_are_never_in_an_earlier_bucket(a in any::<u64>(), b in any::<u64>()) {
            prop_assert_eq!(bucket_of(a).cmp(&bucket_of(b)).then(a.cmp(&b)), a.cmp(&b));
        }
    }

    #[test]
    fn percentiles_are_nearest_ranks() {
        let histogram = |values: &[u64]| {
            let mut histogram = Histogram::default();
            values.iter().for_each(|ms| histogram.add(*ms));
            histogram
        };
        let of = |values: &[u64]| histogram(values).percentiles();
        assert_eq!(of(&[]), Percentiles { p50: None, p95: None });
        assert_eq!(of(&[0]), Percentiles { p50: Some(0), p95: Some(0) });
        assert_eq!(of(&[5, 1]), Percentiles { p50: Some(1), p95: Some(5) });
        let twenty: Vec<u64> = (1..=20).collect();
        assert_eq!(of(&twenty), Percentiles { p50: Some(10), p95: Some(19) });
        let mut merged = histogram(&twenty[..3]);
        merged.merge(&histogram(&twenty[3..]));
        assert_eq!(merged, histogram(&twenty));
        let tally = Tally { waits: merged, runs: histogram(&[123_456]), finished: 2 };
        let text = serde_json::to_string(&tally).unwrap();
        assert_eq!(serde_json::from_str::<Tally>(&text).unwrap(), tally, "{text}");
    }

    #[test]
    fn the_window_is_ten_minutes_and_the_rate_that_of_the_last_one() {
        let slot = |ms: i64, finished: u64| {
            let mut tally = Tally { finished, ..Tally::default() };
            tally.runs.add(finished);
            (slot_of(at(ms)), tally)
        };
        let of = |slots: &[(i64, Tally)], ms| {
            let statistics = QueueStatistics::of(slots, at(ms));
            (statistics.finished_per_min, statistics.run_ms.p50)
        };
        assert_eq!(of(&[], 0), (0, None));
        assert_eq!(of(&[slot(0, 3), slot(0, 4)], 0), (7, Some(3)), "nodes add up");
        assert_eq!(of(&[slot(0, 8)], 59_999), (8, Some(8)));
        assert_eq!(of(&[slot(0, 8)], 65_000), (4, Some(8)));
        assert_eq!(of(&[slot(0, 8)], 70_000), (0, Some(8)));
        assert_eq!(of(&[slot(0, 8)], 599_999), (0, Some(8)));
        assert_eq!(of(&[slot(0, 8)], 600_000), (0, None));
        assert_eq!(of(&[slot(10_000, 8)], 9_999), (8, Some(8)), "another node's clock may be ahead by a little");
    }

    #[test]
    fn a_life_is_seen_run_by_run() {
        let spec = |value| Spec::parse(value, &Limits::default()).unwrap();
        let new_job = |value| rules::enqueue(JobId::mint(at(0), [7; 10]), &spec(value), &Defaults::default(), at(0));
        let append = |step: &Step, kind: &str, ms| {
            let mut next = Step::from(step.record.clone());
            let event = NewEvent::parse(json!({"type": kind, "data": {}}), &Limits::default()).unwrap();
            rules::append(&mut next, &[event], [0; 32], at(ms), 0.5, &Limits::default()).unwrap();
            next
        };
        let start =
            |step: &Step, ms| rules::start(&step.record, &WorkerName::parse("w").unwrap(), 1_000, at(ms)).unwrap();
        let seen = |step: &Step, began_at: Option<i64>| {
            observe(&step.record.job, began_at.map(at), &step.events).map(|(_, seen)| seen).collect::<Vec<_>>()
        };
        let waited = |ms| Observation { waited_ms: Some(ms), ..Observation::default() };
        let ran = |ms, finished| Observation { ran_ms: Some(ms), finished, ..Observation::default() };

        let queued = new_job(
            json!({"kind": "k", "delay_ms": 100, "max_attempts": 2, "backoff": {"initial_ms": 50, "jitter": 0}}),
        );
        assert_eq!(seen(&queued, None), []);
        let first = start(&queued, 130);
        assert_eq!(seen(&first, None), [waited(30)]);
        let released = append(&first, "released", 200);
        assert_eq!(seen(&released, Some(130)), [], "given back is not run");
        let second = start(&released, 205);
        assert_eq!(seen(&second, None), [waited(5)]);
        let retrying = append(&second, "failed", 305);
        assert_eq!(seen(&retrying, Some(205)), [ran(100, false)]);
        let third = start(&retrying, 405);
        assert_eq!(seen(&third, None), [waited(50)], "its back-off is no wait");
        let failed = append(&third, "failed", 500);
        assert_eq!(seen(&failed, Some(405)), [ran(95, true)]);
        let again = start(&rules::retry(&failed.record, "r", at(600)).unwrap(), 610);
        assert_eq!(seen(&again, None), [waited(10)]);

        let early = start(&new_job(json!({"kind": "k", "run_at": "2001-01-01T00:00:00Z"})), 20);
        assert_eq!(seen(&early, None), [waited(20)]);
        let tracked = new_job(json!({"kind": "k", "tracked": true}));
        assert_eq!(seen(&tracked, None), []);
        assert_eq!(seen(&append(&tracked, "completed", 40), Some(0)), [ran(40, true)]);
        let rules::Cancel::Done(cancelled) = rules::cancel(&queued.record, None, 0, "b", at(9)).unwrap() else {
            panic!("it waits")
        };
        assert_eq!(seen(&cancelled, None), [Observation { finished: true, ..Observation::default() }]);
    }
}
