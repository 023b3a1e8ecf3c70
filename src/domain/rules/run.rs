//! What a run does: begin, append, end, give its job back.

use serde_json::{Map, Value, json};

use super::{Ending, Record, Step};
use crate::domain::{Event, EventType, Job, Json, Limits, NewEvent, Refusal, Timestamp, WorkerName};

/// Releases of one attempt; the next one is a failure.
const MAX_RELEASES: u32 = 100;

/// Runs in a row that may end without a sign of life before that costs an attempt.
const MAX_UNHEARD: u32 = 3;

/// Hands a waiting job to a worker: a new run begins.
pub fn start(record: &Record, worker: &WorkerName, lease_ms: u64, now: Timestamp) -> Result<Step, Refusal> {
    let mut step = Step::from(record.clone());
    let (run, attempt) = (record.job.run + 1, record.job.attempt + 1);
    step.push_data(EventType::Started, now, attempt, json!({"worker": worker.as_str(), "run": run}))?;
    step.record.lease_ms = Some(lease_ms);
    Ok(step)
}

/// A runner's events. On refusal the index says which event; those before it stand in `step`, so that a caller
/// who appends line by line can keep them, and one who wants all or nothing can drop the step. `chance` (0 to 1) is
/// what a back-off's jitter is drawn by.
pub fn append(
    step: &mut Step,
    new: &[NewEvent],
    body_hash: [u8; 32],
    now: Timestamp,
    chance: f64,
    limits: &Limits,
) -> Result<(), (usize, Refusal)> {
    for (index, event) in new.iter().enumerate() {
        append_one(step, event, body_hash, now, chance, limits).map_err(|refusal| (index, refusal))?;
    }
    Ok(())
}

fn append_one(
    step: &mut Step,
    new: &NewEvent,
    body_hash: [u8; 32],
    now: Timestamp,
    chance: f64,
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
    let run = job.run;
    step.record.handouts.unheard = 0;
    match &new.kind {
        EventType::Failed => fail(step, now, new.data.clone(), chance)?,
        EventType::Released => release(step, now, new.data.clone(), chance)?,
        // Who stops because he was asked to need not know why.
        EventType::Cancelled if job.cancel_requested && !new.data.contains_key("reason") => {
            let event = new.with_field("reason", job.cancel_reason.clone().into()).stamp(job, now);
            step.push(event)?;
        }
        _ => {
            let event = new.stamp(job, now);
            step.push(event)?;
        }
    }
    if new.result.is_some() {
        step.result = new.result.clone();
    }
    if new.kind.ends_run() {
        step.record.ending = Some(Ending { run, body_hash });
    }
    Ok(())
}

/// The gateway gives a job back for a run that never had a chance.
pub fn give_back(record: &Record, reason: &str, now: Timestamp, chance: f64) -> Result<Step, Refusal> {
    let mut step = Step::from(record.clone());
    release(&mut step, now, Map::from_iter([("reason".to_owned(), reason.into())]), chance)?;
    Ok(step)
}

/// The run's worker fell silent. A run of which nothing was ever heard may not even have reached its worker: a few of
/// those in a row cost no attempt.
pub(super) fn lose(step: &mut Step, heard: bool, now: Timestamp, chance: f64) -> Result<(), Refusal> {
    let handouts = &mut step.record.handouts;
    if heard {
        handouts.unheard = 0;
    }
    if !heard && handouts.unheard < MAX_UNHEARD && !step.record.job.cancel_requested {
        handouts.unheard += 1;
        return release(step, now, Map::from_iter([("reason".to_owned(), "lease_expired".into())]), chance);
    }
    fail(step, now, error("lease_expired", "its worker gave no sign of life for the length of its lease"), chance)
}

/// An error of the gateway's own making; another attempt may do better.
pub(super) fn error(code: &str, message: &str) -> Map<String, Value> {
    Map::from_iter([("code".to_owned(), code.into()), ("message".to_owned(), message.into())])
}

/// The run gives way without using its attempt, unless that has happened too often.
fn release(step: &mut Step, now: Timestamp, data: Map<String, Value>, chance: f64) -> Result<(), Refusal> {
    let job = &step.record.job;
    if job.cancel_requested {
        let reason = data.get("reason").and_then(Value::as_str).unwrap_or_default();
        return fail(step, now, error("released", reason), chance);
    }
    if step.record.handouts.released >= MAX_RELEASES {
        let message = format!("it was given back more than {MAX_RELEASES} times within one attempt");
        return fail(step, now, error("too_many_releases", &message), chance);
    }
    let attempt = job.attempt.saturating_sub(1);
    step.push_data(EventType::Released, now, attempt, Value::Object(data))?;
    step.record.handouts.released += 1;
    Ok(())
}

/// The end of a run that failed: another try, or the end of the job. With a cancel asked for, only `completed` still
/// wins: a failure is then the run giving way, and ends the job as cancelled, with the error kept.
pub(super) fn fail(step: &mut Step, at: Timestamp, error: Map<String, Value>, chance: f64) -> Result<(), Refusal> {
    let job = &step.record.job;
    let retry_after_ms = error.get("retry_after_ms").and_then(Value::as_u64);
    if error.get("scope").and_then(Value::as_str) == Some("queue") && !job.tracked {
        step.hold_queue_ms = step.hold_queue_ms.max(retry_after_ms);
    }
    let retryable = error.get("retryable").and_then(Value::as_bool).unwrap_or(true);
    let (kind, data) = if job.cancel_requested {
        (EventType::Cancelled, json!({"reason": job.cancel_reason, "error": error}))
    } else if retryable && has_attempts_left(job) {
        let wait_ms = retry_after_ms.unwrap_or_else(|| step.record.policy.backoff.wait_ms(job.attempt, chance));
        let data = json!({"error": error, "attempt": job.attempt, "run_at": at.plus_millis(wait_ms)});
        (EventType::Retrying, data)
    } else {
        (EventType::Failed, Value::Object(error))
    };
    let event = Event { seq: job.seq + 1, kind, at, attempt: job.attempt, data: Json::from_value(&data) };
    step.push(event)?;
    step.record.handouts.released = 0;
    Ok(())
}

fn has_attempts_left(job: &Job) -> bool {
    !job.tracked && job.attempt < job.max_attempts
}
