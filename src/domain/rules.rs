//! Wishes become events, or a refusal: enqueue, cancel, retry; a run's own (`run`); "time has passed" (`time`). An end
//! that somebody is to be told of becomes a job ([`callback`]).
//!
//! Each function is given the job as it stands under its lock (or its guard), and the time, and answers with what the
//! log gains. None of them stores anything; the caller commits the whole [`Step`] or nothing.

mod callback;
mod run;
mod time;

pub use callback::callback;
pub use run::{append, give_back, start};
pub use time::{due_at, overdue, run_ends_at};

use serde_json::{Value, json};

use super::{Defaults, Event, EventType, Job, JobId, Json, Policy, Refusal, Spec, State, Timestamp};

/// How long a cancelled run may take to stop before it is ended by force, in milliseconds, unless the caller says.
pub const DEFAULT_GRACE_MS: u64 = 10_000;

/// Who acts when the gateway does, in `by`.
const GATEWAY: &str = "milepost";

/// A job and what belongs to it beside the state document.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The fold of the log.
    pub job: Job,
    /// The rules the caller set.
    pub policy: Policy,
    /// The append that ended the latest run, so that its repetition is answered and another one refused.
    pub ending: Option<Ending>,
    /// How long the run may be silent, in milliseconds; `None`: for ever, or nothing runs.
    pub lease_ms: Option<u64>,
    /// What became of the runs before.
    pub handouts: Handouts,
}

/// Runs that ended without using up their attempt; both counts are bounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handouts {
    /// Releases within this attempt.
    pub released: u32,
    /// Runs in a row of which nothing was ever heard.
    pub unheard: u32,
}

/// Which append ended a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The run it ended.
    pub run: u64,
    /// Hash of its body, see [`super::body_hash`].
    pub body_hash: [u8; 32],
}

/// Instants that the state document does not show, each of which changes the job when it passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clocks {
    /// When the silence of its runner ends the run; every append moves it, and an outage of the gateway does.
    pub expires_at: Option<Timestamp>,
    /// When a requested cancel is carried out by force.
    pub cancel_at: Option<Timestamp>,
    /// When the job is cancelled unless somebody watches it again.
    pub unwatched_at: Option<Timestamp>,
    /// Whether none of the lease's instants has passed, by the database's clock.
    pub live: bool,
    /// Whether the run has given a sign of life.
    pub heard: bool,
}

/// What a wish adds: the job afterwards, and the events that lead there.
#[derive(Clone, Debug)]
pub struct Step {
    /// The record after the events.
    pub record: Record,
    /// New events, in order.
    pub events: Vec<Event>,
    /// An Outcome's data, to be stored apart.
    pub result: Option<Json>,
    /// Nothing of the job's queue is handed out for so long, in milliseconds.
    pub hold_queue_ms: Option<u64>,
}

impl Step {
    /// No event yet.
    pub fn from(record: Record) -> Self {
        Self { record, events: Vec::new(), result: None, hold_queue_ms: None }
    }

    fn push(&mut self, event: Event) -> Result<(), Refusal> {
        self.record.job.apply(&event)?;
        self.events.push(event);
        Ok(())
    }

    fn push_data(&mut self, kind: EventType, at: Timestamp, attempt: u32, data: Value) -> Result<(), Refusal> {
        self.push(Event { seq: self.record.job.seq + 1, kind, at, attempt, data: Json::from_value(&data) })
    }
}

/// A new job: `queued`, and for a tracked one `started` in the same breath. `defaults` are its queue's.
pub fn enqueue(id: JobId, spec: &Spec, defaults: &Defaults, now: Timestamp) -> Step {
    let run_at = spec.run_at.unwrap_or(now.plus_millis(spec.delay_ms));
    let job = Job {
        id,
        queue: spec.queue.clone(),
        kind: spec.kind.clone(),
        subject: spec.subject.clone(),
        state: if run_at > now { State::Scheduled } else { State::Queued },
        seq: 1,
        attempt: 0,
        max_attempts: spec.attempts(defaults),
        priority: spec.priority.or(defaults.priority).unwrap_or(0),
        tracked: spec.tracked,
        progress: None,
        output_bytes: 0,
        outcome: None,
        error: None,
        cancel_requested: false,
        worker: None,
        created_at: now,
        run_at,
        started_at: None,
        finished_at: None,
        updated_at: now,
        meta: spec.meta.clone(),
        run: 0,
        output_after_seq: 0,
        enqueued_at: now,
        cancel_reason: None,
    };
    let queued = Event { seq: 1, kind: EventType::Queued, at: now, attempt: 0, data: job.queued_data() };
    let policy = spec.policy(defaults);
    let lease_ms = policy.timeout_ms.filter(|_| spec.tracked);
    let mut step = Step::from(Record { job, policy, ending: None, lease_ms, handouts: Handouts::default() });
    step.events.push(queued);
    if spec.tracked {
        step.push_data(EventType::Started, now, 1, json!({"worker": null, "run": 1})).expect("a queued job can start");
    }
    step
}

/// What a cancel does.
#[derive(Debug)]
pub enum Cancel {
    /// The job had been cancelled before; nothing to do.
    Already,
    /// The job is over, or its runner has been asked.
    Done(Box<Step>),
    /// The runner had been asked before; at most its grace gets shorter.
    Shorten,
}

/// Asks a job to stop: at once if it waits, by asking its runner if it runs.
pub fn cancel(
    record: &Record,
    reason: Option<&str>,
    grace_ms: u64,
    by: &str,
    now: Timestamp,
) -> Result<Cancel, Refusal> {
    let job = &record.job;
    let mut step = Step::from(record.clone());
    match job.state {
        State::Cancelled => return Ok(Cancel::Already),
        State::Running if job.cancel_requested => return Ok(Cancel::Shorten),
        State::Running => {
            let data = json!({"reason": reason, "grace_ms": grace_ms, "by": by});
            step.push_data(EventType::CancelRequested, now, job.attempt, data)?;
        }
        State::Scheduled | State::Queued | State::Retrying => {
            step.push_data(EventType::Cancelled, now, job.attempt, json!({"reason": reason, "by": by}))?;
        }
        State::Completed | State::Failed | State::Expired => {
            return Err(Refusal::JobTerminal(job.state));
        }
    }
    Ok(Cancel::Done(Box::new(step)))
}

/// Ends a live job because another one takes its unique key.
pub fn replace(record: &Record, by: JobId, now: Timestamp) -> Result<Step, Refusal> {
    let mut step = Step::from(record.clone());
    let attempt = record.job.attempt;
    step.push_data(EventType::Cancelled, now, attempt, json!({"reason": "replaced", "replaced_by": by}))?;
    Ok(step)
}

/// Puts a job that ended without success back into its queue: same id, attempts counted anew, the log goes on.
pub fn retry(record: &Record, by: &str, now: Timestamp) -> Result<Step, Refusal> {
    let mut step = Step::from(record.clone());
    step.record.ending = None;
    step.record.handouts = Handouts::default();
    step.push_data(EventType::Requeued, now, 0, json!({"by": by}))?;
    Ok(step)
}

#[cfg(test)]
mod tests;
