//! The passing of time: which instants change a job, and what each of them does.

use serde_json::json;

use super::run::{error, fail, lose};
use super::{Cancel, Clocks, DEFAULT_GRACE_MS, GATEWAY, Record, Step, cancel};
use crate::domain::{EventType, State, Timestamp};

/// When the sweep must look at a job for its TTL or deadline; `None` if neither can pass any more.
pub fn due_at(record: &Record) -> Option<Timestamp> {
    match record.job.state.is_terminal() {
        true => None,
        false => [ttl_at(record), deadline_at(record)].into_iter().flatten().min(),
    }
}

/// When the run takes too long; `None` if nothing runs or it may take for ever. (A tracked job's `timeout_ms` bounds
/// its runner's silence instead.)
fn timeout_at(record: &Record) -> Option<Timestamp> {
    let job = &record.job;
    let started_at = job.started_at.filter(|_| job.state == State::Running && !job.tracked)?;
    record.policy.timeout_ms.map(|ms| started_at.plus_millis(ms))
}

/// When the run is over whatever its worker says: it takes too long, or its job does.
pub fn run_ends_at(record: &Record) -> Option<Timestamp> {
    let is_run = record.job.state == State::Running && !record.job.tracked;
    [timeout_at(record), deadline_at(record).filter(|_| is_run)].into_iter().flatten().min()
}

fn ttl_at(record: &Record) -> Option<Timestamp> {
    let ttl_ms = record.policy.ttl_ms.filter(|_| record.job.started_at.is_none())?;
    Some(record.job.run_at.plus_millis(ttl_ms))
}

fn deadline_at(record: &Record) -> Option<Timestamp> {
    record.policy.deadline_ms.map(|ms| record.job.enqueued_at.plus_millis(ms))
}

/// What can run out.
#[derive(Clone, Copy)]
enum Clock {
    Grace,
    Deadline,
    Ttl,
    Timeout,
    Silence,
    Watchers,
}

/// What the passing of time does to a job: the clock that ran out first counts. `None` if nothing is due.
pub fn overdue(record: &Record, clocks: &Clocks, now: Timestamp, chance: f64) -> Option<Step> {
    let job = &record.job;
    if job.state.is_terminal() {
        return None;
    }
    let running = job.state == State::Running;
    let instants = [
        (Clock::Grace, clocks.cancel_at.filter(|_| running)),
        (Clock::Deadline, deadline_at(record)),
        (Clock::Ttl, ttl_at(record)),
        (Clock::Timeout, timeout_at(record)),
        (Clock::Silence, clocks.expires_at.filter(|_| running)),
        (Clock::Watchers, clocks.unwatched_at.filter(|_| !job.cancel_requested)),
    ];
    let passed = instants.into_iter().filter_map(|(clock, at)| Some((at?, clock))).filter(|(at, _)| *at <= now);
    let (_, clock) = passed.min_by_key(|(at, _)| *at)?;
    let mut step = Step::from(record.clone());
    let done = match clock {
        Clock::Grace => {
            let data = json!({"reason": job.cancel_reason, "forced": true});
            step.push_data(EventType::Cancelled, now, job.attempt, data)
        }
        Clock::Ttl => step.push_data(EventType::Expired, now, job.attempt, json!({"reason": "ttl"})),
        Clock::Deadline if job.started_at.is_none() => {
            step.push_data(EventType::Expired, now, job.attempt, json!({"reason": "deadline"}))
        }
        Clock::Deadline => {
            let mut error = error("deadline", "the job did not end before its deadline");
            error.insert("retryable".to_owned(), false.into());
            fail(&mut step, now, error, chance)
        }
        Clock::Timeout => fail(&mut step, now, error("timed_out", "the run took longer than timeout_ms"), chance),
        Clock::Silence if job.tracked => {
            let mut error = error("timed_out", "its runner was silent for longer than timeout_ms");
            error.insert("retryable".to_owned(), false.into());
            fail(&mut step, now, error, chance)
        }
        Clock::Silence => lose(&mut step, clocks.heard, now, chance),
        Clock::Watchers => match cancel(record, Some("unwatched"), DEFAULT_GRACE_MS, GATEWAY, now) {
            Ok(Cancel::Done(cancelled)) => {
                step = *cancelled;
                Ok(())
            }
            Ok(Cancel::Already | Cancel::Shorten) | Err(_) => return None,
        },
    };
    done.expect("a live job can end, and a running one can end its run");
    Some(step)
}
