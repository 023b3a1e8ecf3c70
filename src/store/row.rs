//! Rows: what both databases have in common, whatever their types for ids, instants and JSON.

use std::collections::{BTreeMap, HashMap};

use crate::domain::dispatch::{Candidate, QueueState};
use crate::domain::{
    Clocks, Defaults, Ending, Event, EventType, Handouts, Identity, Job, JobId, Json, Pause, Policy, Queue,
    QueueCounts, QueueName, QueueSettings, QueueSlot, Record, State, Tally, Timestamp, WorkerName,
};

use super::claim::Picked;
use super::{StoreError, Taken};

/// The columns of `jobs` that make a [`Job`].
pub(super) const JOB_COLUMNS: &str = "jobs.job_id, jobs.queue, jobs.kind, jobs.subject, jobs.state, jobs.seq, \
    jobs.attempt, jobs.max_attempts, jobs.priority, jobs.tracked, jobs.progress, jobs.output_bytes, jobs.outcome, \
    jobs.error, jobs.cancel_requested, jobs.worker, jobs.created_at, jobs.run_at, jobs.started_at, jobs.finished_at, \
    jobs.updated_at, jobs.meta, jobs.run, jobs.output_after_seq, jobs.enqueued_at, jobs.cancel_reason";

/// What makes it a [`Record`], and its [`Clocks`] but for `live`, which each database judges by its clock.
pub(super) const RECORD_COLUMNS: &str = "specs.policy, jobs.ending_run, jobs.ending_hash, jobs.released, jobs.unheard, \
    leases.lease_ms, leases.expires_at, leases.cancel_at, coalesce(leases.heard, false) as heard, \
    (select max(w.cancel_at) from watches w where w.job_id = jobs.job_id) as unwatched_at";

/// Where both are read from.
pub(super) const RECORD_SOURCE: &str = "from jobs join specs using (job_id) left join leases using (job_id)";

/// A row of either database, read by column.
pub(super) trait Columns {
    fn id(&self, column: &str) -> Result<JobId, StoreError>;
    fn text(&self, column: &str) -> Result<Option<String>, StoreError>;
    fn integer(&self, column: &str) -> Result<Option<i64>, StoreError>;
    fn flag(&self, column: &str) -> Result<bool, StoreError>;
    fn bytes(&self, column: &str) -> Result<Option<Vec<u8>>, StoreError>;
    fn instant(&self, column: &str) -> Result<Option<Timestamp>, StoreError>;
}

fn unreadable(what: &str) -> StoreError {
    StoreError::Unreadable(what.to_owned())
}

/// What must not be null.
pub(super) fn there<T>(value: Option<T>, column: &str) -> Result<T, StoreError> {
    value.ok_or_else(|| unreadable(column))
}

/// A JSON column.
pub(super) fn json(row: &impl Columns, column: &str) -> Result<Option<Json>, StoreError> {
    row.text(column)?.map(|text| there(Json::from_text(text), column)).transpose()
}

/// A hash of 32 bytes.
pub(super) fn hash(row: &impl Columns, column: &str) -> Result<Option<[u8; 32]>, StoreError> {
    row.bytes(column)?.map(|bytes| bytes.try_into().map_err(|_| unreadable(column))).transpose()
}

fn name(row: &impl Columns, column: &str) -> Result<QueueName, StoreError> {
    there(row.text(column)?.and_then(|text| QueueName::parse(&text)), column)
}

/// A job from [`JOB_COLUMNS`].
pub(super) fn job(row: &impl Columns) -> Result<Job, StoreError> {
    let integer = |column| there(row.integer(column)?, column);
    let instant = |column| there(row.instant(column)?, column);
    let progress = row.text("progress")?.map(|text| serde_json::from_str(&text).map_err(|_| unreadable("progress")));
    Ok(Job {
        id: row.id("job_id")?,
        queue: name(row, "queue")?,
        kind: name(row, "kind")?,
        subject: row.text("subject")?,
        state: there(row.text("state")?.and_then(|word| State::parse(&word)), "state")?,
        seq: integer("seq")? as u64,
        attempt: integer("attempt")? as u32,
        max_attempts: integer("max_attempts")? as u32,
        priority: integer("priority")? as i32,
        tracked: row.flag("tracked")?,
        progress: progress.transpose()?,
        output_bytes: integer("output_bytes")? as u64,
        outcome: json(row, "outcome")?,
        error: json(row, "error")?,
        cancel_requested: row.flag("cancel_requested")?,
        worker: row.text("worker")?,
        created_at: instant("created_at")?,
        run_at: instant("run_at")?,
        started_at: row.instant("started_at")?,
        finished_at: row.instant("finished_at")?,
        updated_at: instant("updated_at")?,
        meta: there(json(row, "meta")?, "meta")?,
        run: integer("run")? as u64,
        output_after_seq: integer("output_after_seq")? as u64,
        enqueued_at: instant("enqueued_at")?,
        cancel_reason: row.text("cancel_reason")?,
    })
}

/// What is left of a job that was removed.
pub(super) fn identity(row: &impl Columns) -> Result<Identity, StoreError> {
    Ok(Identity {
        id: row.id("job_id")?,
        queue: name(row, "queue")?,
        kind: name(row, "kind")?,
        subject: row.text("subject")?,
    })
}

/// A job with what belongs to it, from [`JOB_COLUMNS`], [`RECORD_COLUMNS`] and `live`.
pub(super) fn record(row: &impl Columns) -> Result<(Record, Clocks), StoreError> {
    let policy: Option<Policy> = row.text("policy")?.and_then(|text| serde_json::from_str(&text).ok());
    let ending = match (row.integer("ending_run")?, hash(row, "ending_hash")?) {
        (Some(run), Some(body_hash)) => Some(Ending { run: run as u64, body_hash }),
        (Some(_) | None, _) => None,
    };
    let clocks = Clocks {
        expires_at: row.instant("expires_at")?,
        cancel_at: row.instant("cancel_at")?,
        unwatched_at: row.instant("unwatched_at")?,
        live: row.flag("live")?,
        heard: row.flag("heard")?,
    };
    let count = |column| Ok::<_, StoreError>(there(row.integer(column)?, column)? as u32);
    let record = Record {
        job: job(row)?,
        policy: there(policy, "policy")?,
        ending,
        lease_ms: row.integer("lease_ms")?.map(|ms| ms as u64),
        handouts: Handouts { released: count("released")?, unheard: count("unheard")? },
    };
    Ok((record, clocks))
}

/// A record with its job's `payload`.
pub(super) fn record_with_payload(row: &impl Columns) -> Result<(Record, Clocks, Json), StoreError> {
    let (record, clocks) = record(row)?;
    Ok((record, clocks, there(json(row, "payload")?, "payload")?))
}

/// The jobs that `runs` still hold, in their order; from the columns of [`record_with_payload`].
pub(super) fn still_held(rows: &[impl Columns], runs: &[(JobId, u64)]) -> Result<Vec<Taken>, StoreError> {
    let mut held = Vec::new();
    for row in rows {
        let (record, clocks, payload) = record_with_payload(row)?;
        let place = runs.iter().position(|run| *run == (record.job.id, record.job.run)).filter(|_| clocks.live);
        if let Some(((place, expires_at), lease_ms)) = place.zip(clocks.expires_at).zip(record.lease_ms) {
            held.push((place, Taken { job: record.job, payload, lease_ms, expires_at }));
        }
    }
    held.sort_by_key(|(place, _)| *place);
    Ok(held.into_iter().map(|(_, taken)| taken).collect())
}

/// What a claim is remembered by: `[[job, run], …]`.
pub(super) fn runs_text(taken: &[Taken]) -> String {
    let runs: Vec<(JobId, u64)> = taken.iter().map(|taken| (taken.job.id, taken.job.run)).collect();
    serde_json::to_string(&runs).expect("ids and numbers")
}

/// A queue's name from `queue`.
pub(super) fn queue_name(row: &impl Columns) -> Result<QueueName, StoreError> {
    name(row, "queue")
}

/// A worker's name from `worker`.
pub(super) fn worker(row: &impl Columns) -> Result<WorkerName, StoreError> {
    there(row.text("worker")?.and_then(|text| WorkerName::parse(&text)), "worker")
}

/// A queue's settings from `settings`.
pub(super) fn queue_settings(row: &impl Columns) -> Result<QueueSettings, StoreError> {
    there(row.text("settings")?.and_then(|text| serde_json::from_str(&text).ok()), "settings")
}

/// A queue's settings as they are stored.
pub(super) fn settings_text(settings: &QueueSettings) -> String {
    serde_json::to_string(settings).expect("QueueSettings has string keys only")
}

/// What a queue gives to specs that leave it out.
pub(super) fn queue_defaults(row: &impl Columns) -> Result<(QueueName, Defaults), StoreError> {
    Ok((queue_name(row)?, queue_settings(row)?.defaults))
}

/// Who stopped a queue, if anybody did.
pub(super) fn pause(row: &impl Columns) -> Result<Option<Pause>, StoreError> {
    let Some(at) = row.instant("paused_at")? else { return Ok(None) };
    let by = there(row.text("paused_by")?, "paused_by")?;
    Ok(Some(Pause { by, reason: row.text("paused_reason")?, at }))
}

/// A queue as operators see it.
pub(super) fn queue(row: &impl Columns) -> Result<Queue, StoreError> {
    let count = |column| Ok::<_, StoreError>(there(row.integer(column)?, column)? as u64);
    Ok(Queue {
        name: queue_name(row)?,
        paused: pause(row)?,
        settings: queue_settings(row)?,
        held_until: row.instant("held_until")?,
        counts: QueueCounts {
            scheduled: count("scheduled")?,
            queued: count("queued")?,
            running: count("running")?,
            retrying: count("retrying")?,
            failed: count("failed")?,
        },
        oldest_queued_at: row.instant("oldest_queued_at")?,
    })
}

/// A tally as it is stored.
pub(super) fn tally_text(tally: &Tally) -> String {
    serde_json::to_string(tally).expect("numbers make string keys")
}

/// A slot of statistics from `queue`, `slot` and `data`.
pub(super) fn queue_slot(row: &impl Columns) -> Result<QueueSlot, StoreError> {
    let tally = row.text("data")?.and_then(|text| serde_json::from_str(&text).ok());
    Ok(QueueSlot { queue: queue_name(row)?, slot: there(row.integer("slot")?, "slot")?, tally: there(tally, "tally")? })
}

/// The lanes served last, as they are stored.
pub(super) fn turns_text(turns: &BTreeMap<i32, String>) -> String {
    serde_json::to_string(turns).expect("numbers make string keys")
}

/// A queue as a claim finds it, but for what runs.
pub(super) fn queue_state(row: &impl Columns) -> Result<(QueueName, QueueState), StoreError> {
    let state = QueueState {
        settings: queue_settings(row)?,
        paused: row.flag("paused")?,
        held_until: row.instant("held_until")?,
        turns: row.text("turns")?.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default(),
        ahead_until_us: row.integer("ahead_until")?,
        ..QueueState::default()
    };
    Ok((queue_name(row)?, state))
}

/// Adds `running` leases of a `lane` to their queue.
pub(super) fn count_running(row: &impl Columns, queues: &mut HashMap<QueueName, QueueState>) -> Result<(), StoreError> {
    let running = row.integer("running")?.unwrap_or(0) as u64;
    if let Some(queue) = queues.get_mut(&queue_name(row)?) {
        queue.running += running;
        queue.running_by_lane.insert(row.text("lane")?.unwrap_or_default(), running);
    }
    Ok(())
}

/// Adds how far a `lane` is ahead of its rate.
pub(super) fn gather_rate(row: &impl Columns, queues: &mut HashMap<QueueName, QueueState>) -> Result<(), StoreError> {
    if let Some((queue, ahead)) = queues.get_mut(&queue_name(row)?).zip(row.integer("ahead_until")?) {
        queue.ahead_by_lane.insert(row.text("lane")?.unwrap_or_default(), ahead);
    }
    Ok(())
}

/// An event from `seq`, `type`, `at`, `attempt` and `data`.
pub(super) fn event(row: &impl Columns) -> Result<Event, StoreError> {
    Ok(Event {
        seq: there(row.integer("seq")?, "seq")? as u64,
        kind: there(row.text("type")?.and_then(|word| EventType::parse(&word)), "event type")?,
        at: there(row.instant("at")?, "at")?,
        attempt: there(row.integer("attempt")?, "attempt")? as u32,
        data: there(json(row, "data")?, "event data")?,
    })
}

/// A job that may go, from `job_id` and `seq`.
pub(super) fn retired(row: &impl Columns) -> Result<(JobId, u64), StoreError> {
    Ok((row.id("job_id")?, there(row.integer("seq")?, "seq")? as u64))
}

/// A job's progress as it is stored.
pub(super) fn progress_text(job: &Job) -> Option<String> {
    job.progress.as_ref().map(|progress| serde_json::to_string(progress).expect("Progress has string keys only"))
}

/// A policy as it is stored.
pub(super) fn policy_text(policy: &Policy) -> String {
    serde_json::to_string(policy).expect("Policy has string keys only")
}

/// A JSON column's text.
pub(super) fn text(json: &Option<Json>) -> Option<String> {
    json.as_ref().map(|json| json.as_str().to_owned())
}

/// What a look for `want` candidates found: `rank`, how many `lanes`, how many `heads` of each were looked for; and the
/// candidates, if there are any.
pub(super) fn picked(rows: &[impl Columns], want: usize) -> Result<Picked, StoreError> {
    let Some(first) = rows.first() else { return Ok(Picked::default()) };
    let integer = |column| there(first.integer(column)?, column);
    let (lanes, heads) = (integer("lanes")?, integer("heads")?);
    let mut picked = Picked { rank: Some(integer("rank")? as i32), ..Picked::default() };
    let mut per_lane: HashMap<String, i64> = HashMap::new();
    for row in rows {
        let Some(run_at) = row.instant("run_at")? else { continue };
        let lane = there(row.text("lane")?, "lane")?;
        *per_lane.entry(lane.clone()).or_default() += 1;
        picked.candidates.push(Candidate { id: row.id("job_id")?, lane, run_at });
    }
    // Fewer lanes than were looked for, and none with as many heads as were looked for.
    picked.is_all = lanes < want as i64 && per_lane.values().all(|found| *found < heads);
    Ok(picked)
}
