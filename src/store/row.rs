//! A job's row as plain values: what both databases have in common.

use crate::domain::{
    Ending, Event, EventType, Job, JobId, Json, Policy, Progress, QueueName, Record, State, Timestamp,
};

use super::StoreError;

/// The columns of `jobs`, in the order in which both stores select them.
pub(super) const JOB_COLUMNS: &str = "jobs.job_id, jobs.queue, jobs.kind, jobs.subject, jobs.state, jobs.seq, jobs.attempt, jobs.max_attempts, \
    jobs.priority, jobs.tracked, jobs.progress, jobs.output_bytes, jobs.outcome, jobs.error, \
    jobs.cancel_requested, jobs.worker, jobs.created_at, jobs.run_at, jobs.started_at, jobs.finished_at, \
    jobs.updated_at, jobs.meta, jobs.run, jobs.output_after_seq, jobs.enqueued_at, jobs.cancel_reason, \
    jobs.ending_run, jobs.ending_hash";

/// One row of `jobs`, decoded.
pub(super) struct JobRow {
    pub id: JobId,
    pub queue: String,
    pub kind: String,
    pub subject: Option<String>,
    pub state: String,
    pub seq: i64,
    pub attempt: i32,
    pub max_attempts: i32,
    pub priority: i32,
    pub tracked: bool,
    pub progress: Option<String>,
    pub output_bytes: i64,
    pub outcome: Option<String>,
    pub error: Option<String>,
    pub cancel_requested: bool,
    pub worker: Option<String>,
    pub created_at: Timestamp,
    pub run_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub updated_at: Timestamp,
    pub meta: String,
    pub run: i64,
    pub output_after_seq: i64,
    pub enqueued_at: Timestamp,
    pub cancel_reason: Option<String>,
    pub ending_run: Option<i64>,
    pub ending_hash: Option<Vec<u8>>,
}

fn unreadable(what: &str) -> StoreError {
    StoreError::Unreadable(what.to_owned())
}

fn json(text: String, what: &str) -> Result<Json, StoreError> {
    Json::from_text(text).ok_or_else(|| unreadable(what))
}

impl JobRow {
    pub fn ending(&self) -> Option<Ending> {
        let body_hash = self.ending_hash.as_deref()?.try_into().ok()?;
        Some(Ending { run: self.ending_run? as u64, body_hash })
    }

    pub fn into_job(self) -> Result<Job, StoreError> {
        let progress: Option<Progress> = match self.progress {
            None => None,
            Some(text) => Some(serde_json::from_str(&text).map_err(|_| unreadable("progress"))?),
        };
        Ok(Job {
            id: self.id,
            queue: QueueName::parse(&self.queue).ok_or_else(|| unreadable("queue"))?,
            kind: QueueName::parse(&self.kind).ok_or_else(|| unreadable("kind"))?,
            subject: self.subject,
            state: State::parse(&self.state).ok_or_else(|| unreadable("state"))?,
            seq: self.seq as u64,
            attempt: self.attempt as u32,
            max_attempts: self.max_attempts as u32,
            priority: self.priority,
            tracked: self.tracked,
            progress,
            output_bytes: self.output_bytes as u64,
            outcome: self.outcome.map(|text| json(text, "outcome")).transpose()?,
            error: self.error.map(|text| json(text, "error")).transpose()?,
            cancel_requested: self.cancel_requested,
            worker: self.worker,
            created_at: self.created_at,
            run_at: self.run_at,
            started_at: self.started_at,
            finished_at: self.finished_at,
            updated_at: self.updated_at,
            meta: json(self.meta, "meta")?,
            run: self.run as u64,
            output_after_seq: self.output_after_seq as u64,
            enqueued_at: self.enqueued_at,
            cancel_reason: self.cancel_reason,
        })
    }

    pub fn into_record(self, policy: &str) -> Result<Record, StoreError> {
        let policy: Policy = serde_json::from_str(policy).map_err(|_| unreadable("policy"))?;
        let ending = self.ending();
        Ok(Record { job: self.into_job()?, policy, ending })
    }
}

/// An event from its columns.
pub(super) fn event(seq: i64, kind: &str, at: Timestamp, attempt: i32, data: String) -> Result<Event, StoreError> {
    Ok(Event {
        seq: seq as u64,
        kind: EventType::parse(kind).ok_or_else(|| unreadable("event type"))?,
        at,
        attempt: attempt as u32,
        data: json(data, "event data")?,
    })
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
