//! Workers, whatever the database: who asks for work where, and who holds which jobs.

use std::collections::BTreeMap;

use super::StoreError;
use super::row::{self, Columns};
use crate::domain::{CancelSignal, JobId, QueueName, Timestamp, WorkerName};

/// Somebody asked for work on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// Who.
    pub worker: WorkerName,
    /// In which queues.
    pub queues: Vec<QueueName>,
    /// Of which kinds; empty: of any.
    pub kinds: Vec<QueueName>,
    /// How long ago that was, in milliseconds.
    pub ago_ms: u64,
}

/// A worker, and what it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Its name.
    pub name: WorkerName,
    /// Its last sign of life: a claim, or one for a job.
    pub seen_at: Timestamp,
    /// The jobs it holds, oldest first.
    pub jobs: Vec<HeldJob>,
}

/// A job under a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldJob {
    /// Which.
    pub id: JobId,
    /// The run that holds it.
    pub run: u64,
    /// When its lease ends without a sign of life.
    pub expires_at: Timestamp,
    /// Whether the run was asked to stop.
    pub cancel_requested: bool,
}

/// One line per name from rows of `worker` and `seen_at`, and of what it holds: `job_id`, `run`, `expires_at` and
/// `cancel_requested`. A row without `run` is a sighting.
pub(super) fn gather(rows: &[impl Columns]) -> Result<Vec<Worker>, StoreError> {
    let mut workers: BTreeMap<WorkerName, Worker> = BTreeMap::new();
    for row in rows {
        let (name, seen_at) = (row::worker(row)?, row::there(row.instant("seen_at")?, "seen_at")?);
        let fresh = || Worker { name: name.clone(), seen_at, jobs: Vec::new() };
        let worker = workers.entry(name.clone()).or_insert_with(fresh);
        worker.seen_at = worker.seen_at.max(seen_at);
        if let Some(run) = row.integer("run")? {
            worker.jobs.push(HeldJob {
                id: row.id("job_id")?,
                run: run as u64,
                expires_at: row::there(row.instant("expires_at")?, "expires_at")?,
                cancel_requested: row.flag("cancel_requested")?,
            });
        }
    }
    let mut workers: Vec<Worker> = workers.into_values().collect();
    workers.iter_mut().for_each(|worker| worker.jobs.sort_unstable_by_key(|job| job.id));
    Ok(workers)
}

/// A running job's flag, from `worker`, `job_id`, `run`, `cancel_reason` and `cancel_at`.
pub(super) fn cancel(row: &impl Columns, now: Timestamp) -> Result<(WorkerName, CancelSignal), StoreError> {
    let cancel_at = row::there(row.instant("cancel_at")?, "cancel_at")?;
    let cancel = CancelSignal {
        job: row.id("job_id")?,
        run: row::there(row.integer("run")?, "run")? as u64,
        reason: row.text("cancel_reason")?,
        grace_ms: (cancel_at.as_millis() - now.as_millis()).max(0) as u64,
    };
    Ok((row::worker(row)?, cancel))
}

/// Names as they are stored: `["a","b"]`.
pub(super) fn names_text(names: &[QueueName]) -> String {
    let names: Vec<&str> = names.iter().map(QueueName::as_str).collect();
    serde_json::to_string(&names).expect("names are strings")
}
