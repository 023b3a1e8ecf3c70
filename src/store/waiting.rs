//! Why a job waits, whatever the database: what stands around it is gathered, and the rules that decide explain.

use super::StoreError;
use super::claim::{Counter, PICK, Pick};
use crate::domain::dispatch::{QueueState, round_robin};
use crate::domain::waiting::{COUNTED, Surroundings, WORKER_SEEN_MS, WaitingFor, is_waiting};
use crate::domain::{Job, JobId, QueueName, Record, Timestamp};

/// Looks around in either database.
pub(super) trait Lookout: Counter {
    /// Reads a job.
    async fn record(&mut self, id: JobId) -> Result<Option<Record>, StoreError>;

    /// What stands around a job of this queue and lane.
    async fn surroundings(&mut self, queue: &QueueName, lane: &str, now: Timestamp)
    -> Result<Surroundings, StoreError>;

    /// Whether somebody has asked for work of this queue and kind since then.
    async fn has_worker(&mut self, job: &Job, since: Timestamp) -> Result<bool, StoreError>;
}

/// A job, and what it waits for, if it waits.
pub(super) async fn explain(
    lookout: &mut impl Lookout,
    id: JobId,
    is_asked_for: bool,
    now: Timestamp,
) -> Result<Option<(Job, Option<WaitingFor>)>, StoreError> {
    let Some(record) = lookout.record(id).await? else { return Ok(None) };
    if !is_waiting(&record.job) {
        return Ok(Some((record.job, None)));
    }
    let (lane, job) = (super::lane(&record), &record.job);
    let around = lookout.surroundings(&job.queue, lane, now).await?;
    let waiting_for = match around.obstacle(job, lane, now) {
        Some(obstacle) => obstacle,
        None => {
            let since = Timestamp::from_millis(now.as_millis() - WORKER_SEEN_MS as i64);
            // Counting costs the most, and nobody comes first where nobody is served.
            let ahead = match is_asked_for || lookout.has_worker(job, since).await? {
                true => Some(count_ahead(lookout, job, lane, &around.queue, now).await?),
                false => None,
            };
            WaitingFor::turn(ahead)
        }
    };
    Ok(Some((record.job, Some(waiting_for))))
}

/// How many jobs of its queue would be handed out before this one, as far as [`COUNTED`]: deals them out in thought, one
/// after the other, as a claim would.
async fn count_ahead(
    counter: &mut impl Counter,
    job: &Job,
    lane: &str,
    queue: &QueueState,
    now: Timestamp,
) -> Result<u64, StoreError> {
    let full_lanes = queue.full_lanes(now);
    let (mut turns, mut seen, mut from_rank) = (queue.turns.clone(), Vec::new(), i32::MIN);
    while seen.len() < COUNTED {
        let want = PICK.min(COUNTED - seen.len());
        let pick = Pick {
            queue: &job.queue,
            kind: None,
            from_rank,
            turns: &turns,
            full_lanes: &full_lanes,
            seen: &seen,
            want,
        };
        let picked = counter.pick(pick).await?;
        let Some(rank) = picked.rank.filter(|rank| *rank <= -job.priority) else { break };
        let none = picked.candidates.is_empty();
        let turn = turns.get(&rank).cloned().unwrap_or_default();
        for candidate in round_robin(picked.candidates, &turn) {
            // Itself, or one behind it: whose instant has just come may not stand in the index yet.
            let is_behind = candidate.lane == lane && (candidate.run_at, candidate.id) >= (job.run_at, job.id);
            if rank == -job.priority && is_behind {
                return Ok(seen.len() as u64);
            }
            turns.insert(rank, candidate.lane);
            seen.push(candidate.id);
        }
        if none || picked.is_all {
            from_rank = rank + 1;
        }
    }
    Ok(seen.len().min(COUNTED) as u64)
}
