//! Wishes become events, or a refusal: append, cancel, retry, and "time has passed".
//!
//! Each function is given the job as it stands under its lock (or its guard), and the time, and answers with what the
//! log gains. None of them stores anything; the caller commits the whole [`Step`] or nothing.

use serde_json::{Value, json};

use super::{Event, EventType, Job, JobId, Json, Limits, NewEvent, Policy, Refusal, Spec, State, Timestamp};

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
}

impl Step {
    /// No event yet.
    pub fn from(record: Record) -> Self {
        Self { record, events: Vec::new(), result: None }
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

/// A new job: `queued`, and for a tracked one `started` in the same breath.
pub fn enqueue(id: JobId, spec: &Spec, now: Timestamp) -> Step {
    let run_at = spec.run_at.unwrap_or(now.plus_millis(spec.delay_ms));
    let job = Job {
        id,
        queue: spec.queue.clone(),
        kind: spec.kind.clone(),
        subject: spec.subject.clone(),
        state: if run_at > now { State::Scheduled } else { State::Queued },
        seq: 1,
        attempt: 0,
        max_attempts: spec.max_attempts,
        priority: spec.priority,
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
    let mut step = Step::from(Record { job, policy: spec.policy.clone(), ending: None });
    step.events.push(queued);
    if spec.tracked {
        step.push_data(EventType::Started, now, 1, json!({"worker": null, "run": 1})).expect("a queued job can start");
    }
    step
}

/// A runner's events. On refusal the index says which event; those before it stand in `step`, so that a caller
/// who appends line by line can keep them, and one who wants all or nothing can drop the step.
pub fn append(
    step: &mut Step,
    new: &[NewEvent],
    body_hash: [u8; 32],
    now: Timestamp,
    limits: &Limits,
) -> Result<(), (usize, Refusal)> {
    for (index, event) in new.iter().enumerate() {
        append_one(step, event, body_hash, now, limits).map_err(|refusal| (index, refusal))?;
    }
    Ok(())
}

fn append_one(
    step: &mut Step,
    new: &NewEvent,
    body_hash: [u8; 32],
    now: Timestamp,
    limits: &Limits,
) -> Result<(), Refusal> {
    let job = &step.record.job;
    if job.tracked && new.kind == EventType::Released {
        return Err(Refusal::invalid("/type", "a tracked job cannot be given back: nobody else would take it"));
    }
    if new.kind.is_capped() && job.seq >= limits.events_per_job {
        return Err(Refusal::too_large(
            "",
            format!("the log has its {} events; only its end is still accepted", limits.events_per_job),
        ));
    }
    let text_bytes = new.data.get("text").and_then(Value::as_str).map_or(0, |text| text.len() as u64);
    if new.kind == EventType::Output && job.output_bytes + text_bytes > limits.output_bytes {
        return Err(Refusal::too_large(
            "/data/text",
            format!("the run's output would exceed {} bytes", limits.output_bytes),
        ));
    }
    let event = match &new.kind {
        EventType::Failed => failure(job, now, Value::Object(new.data.clone())),
        // Who stops because he was asked to need not know why.
        EventType::Cancelled if job.cancel_requested && !new.data.contains_key("reason") => {
            new.with_field("reason", job.cancel_reason.clone().into()).stamp(job, now)
        }
        _ => new.stamp(job, now),
    };
    step.push(event)?;
    if new.result.is_some() {
        step.result = new.result.clone();
    }
    if new.kind.ends_run() {
        step.record.ending = Some(Ending { run: step.record.job.run, body_hash });
    }
    Ok(())
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
    step.push_data(EventType::Requeued, now, 0, json!({"by": by}))?;
    Ok(step)
}

/// When the sweep must look at a job for its TTL or deadline; `None` if neither can pass any more.
pub fn due_at(record: &Record) -> Option<Timestamp> {
    let (job, policy) = (&record.job, &record.policy);
    if job.state.is_terminal() {
        return None;
    }
    let ttl = policy.ttl_ms.filter(|_| job.started_at.is_none()).map(|ms| job.run_at.plus_millis(ms));
    let deadline = policy.deadline_ms.map(|ms| job.enqueued_at.plus_millis(ms));
    [ttl, deadline].into_iter().flatten().min()
}

/// What the passing of time does to a job: the grace of a cancel, the deadline, the TTL, the silence of a tracked
/// job's runner, and nobody watching any more. `None` if nothing is due.
pub fn overdue(record: &Record, clocks: &Clocks, now: Timestamp) -> Option<Step> {
    let (job, policy) = (&record.job, &record.policy);
    if job.state.is_terminal() {
        return None;
    }
    let passed = |instant: Option<Timestamp>| instant.is_some_and(|instant| instant <= now);
    let running = job.state == State::Running;
    let deadline_passed = passed(policy.deadline_ms.map(|ms| job.enqueued_at.plus_millis(ms)));
    let mut step = Step::from(record.clone());
    let mut push = |kind, data| step.push_data(kind, now, job.attempt, data).expect("the state was checked above");
    let fail = |code: &str, message: &str| json!({"code": code, "message": message, "retryable": false});
    if running && passed(clocks.cancel_at) {
        push(EventType::Cancelled, json!({"reason": job.cancel_reason, "forced": true}));
    } else if deadline_passed && job.started_at.is_none() {
        push(EventType::Expired, json!({"reason": "deadline"}));
    } else if deadline_passed {
        let error = fail("deadline", "the job did not end before its deadline");
        step.push(failure(job, now, error)).expect("the job has not ended");
    } else if job.started_at.is_none() && passed(policy.ttl_ms.map(|ms| job.run_at.plus_millis(ms))) {
        push(EventType::Expired, json!({"reason": "ttl"}));
    } else if running && job.tracked && passed(clocks.expires_at) {
        let error = fail("timed_out", "its runner was silent for longer than timeout_ms");
        step.push(failure(job, now, error)).expect("the job has not ended");
    } else if passed(clocks.unwatched_at) && !job.cancel_requested {
        return match cancel(record, Some("unwatched"), DEFAULT_GRACE_MS, GATEWAY, now) {
            Ok(Cancel::Done(step)) => Some(*step),
            Ok(Cancel::Already | Cancel::Shorten) | Err(_) => None,
        };
    } else {
        return None;
    }
    Some(step)
}

/// The end of a run that failed. With a cancel asked for, only `completed` still wins: a failure is then the run giving
/// way, and ends the job as cancelled, with the error kept.
fn failure(job: &Job, at: Timestamp, error: Value) -> Event {
    let (kind, data) = match job.cancel_requested {
        true => (EventType::Cancelled, json!({"reason": job.cancel_reason, "error": error})),
        false => (EventType::Failed, error),
    };
    Event { seq: job.seq + 1, kind, at, attempt: job.attempt, data: Json::from_value(&data) }
}

#[cfg(test)]
mod tests;
