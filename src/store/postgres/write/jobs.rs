//! The rows of `jobs`, and the events that lead to them.
//!
//! The hot statement sends a whole batch at once: it updates the jobs whose `seq` is still the one that was folded
//! on, renews their leases, inserts the events of the jobs that were updated, and says which. Filters stand on a CTE
//! as `(x in (select …)) is true`, which Postgres hashes; a plain join was quadratic.

use sqlx::postgres::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::domain::{JobId, Timestamp, rules};
use crate::store::row::{policy_text, progress_text, text};
use crate::store::{Change, LeaseGuard, StoreError, lane};

/// The columns of `jobs` that events change, one array each.
#[derive(Default)]
struct JobArrays {
    ids: Vec<Uuid>,
    seqs: Vec<i64>,
    states: Vec<&'static str>,
    attempts: Vec<i32>,
    progress: Vec<Option<String>>,
    output_bytes: Vec<i64>,
    outcomes: Vec<Option<String>>,
    errors: Vec<Option<String>>,
    cancel_requested: Vec<bool>,
    workers: Vec<Option<String>>,
    run_at: Vec<OffsetDateTime>,
    started_at: Vec<Option<OffsetDateTime>>,
    finished_at: Vec<Option<OffsetDateTime>>,
    updated_at: Vec<OffsetDateTime>,
    runs: Vec<i64>,
    output_after_seqs: Vec<i64>,
    enqueued_at: Vec<OffsetDateTime>,
    cancel_reasons: Vec<Option<String>>,
    due_at: Vec<Option<OffsetDateTime>>,
    ending_runs: Vec<Option<i64>>,
    ending_hashes: Vec<Option<Vec<u8>>>,
    released: Vec<i32>,
    unheard: Vec<i32>,
}

impl JobArrays {
    fn of(changes: &[&Change]) -> Self {
        let mut arrays = Self::default();
        let optional = |instant: Option<Timestamp>| instant.map(Timestamp::to_datetime);
        for change in changes {
            let job = change.job();
            arrays.ids.push(job.id.as_uuid());
            arrays.seqs.push(job.seq as i64);
            arrays.states.push(job.state.as_str());
            arrays.attempts.push(job.attempt as i32);
            arrays.progress.push(progress_text(job));
            arrays.output_bytes.push(job.output_bytes as i64);
            arrays.outcomes.push(text(&job.outcome));
            arrays.errors.push(text(&job.error));
            arrays.cancel_requested.push(job.cancel_requested);
            arrays.workers.push(job.worker.clone());
            arrays.run_at.push(job.run_at.to_datetime());
            arrays.started_at.push(optional(job.started_at));
            arrays.finished_at.push(optional(job.finished_at));
            arrays.updated_at.push(job.updated_at.to_datetime());
            arrays.runs.push(job.run as i64);
            arrays.output_after_seqs.push(job.output_after_seq as i64);
            arrays.enqueued_at.push(job.enqueued_at.to_datetime());
            arrays.cancel_reasons.push(job.cancel_reason.clone());
            arrays.due_at.push(optional(rules::due_at(&change.step.record)));
            arrays.ending_runs.push(change.step.record.ending.map(|ending| ending.run as i64));
            arrays.ending_hashes.push(change.step.record.ending.map(|ending| ending.body_hash.to_vec()));
            arrays.released.push(change.step.record.handouts.released as i32);
            arrays.unheard.push(change.step.record.handouts.unheard as i32);
        }
        arrays
    }
}

/// The new events of all changes, one array per column.
#[derive(Default)]
struct EventArrays<'a> {
    ids: Vec<Uuid>,
    seqs: Vec<i64>,
    kinds: Vec<&'a str>,
    at: Vec<OffsetDateTime>,
    attempts: Vec<i32>,
    data: Vec<&'a str>,
}

impl<'a> EventArrays<'a> {
    fn of(changes: &[&'a Change]) -> Self {
        let mut arrays = Self::default();
        for change in changes {
            for event in &change.step.events {
                arrays.ids.push(change.job().id.as_uuid());
                arrays.seqs.push(event.seq as i64);
                arrays.kinds.push(event.kind.as_str());
                arrays.at.push(event.at.to_datetime());
                arrays.attempts.push(event.attempt as i32);
                arrays.data.push(event.data.as_str());
            }
        }
        arrays
    }
}

/// Binds every array of a [`JobArrays`] and an [`EventArrays`], in the order `$1` … `$29`.
macro_rules! bind_arrays {
    ($query:expr, $jobs:expr, $events:expr) => {
        $query
            .bind($jobs.ids)
            .bind($jobs.seqs)
            .bind($jobs.states)
            .bind($jobs.attempts)
            .bind($jobs.progress)
            .bind($jobs.output_bytes)
            .bind($jobs.outcomes)
            .bind($jobs.errors)
            .bind($jobs.cancel_requested)
            .bind($jobs.workers)
            .bind($jobs.run_at)
            .bind($jobs.started_at)
            .bind($jobs.finished_at)
            .bind($jobs.updated_at)
            .bind($jobs.runs)
            .bind($jobs.output_after_seqs)
            .bind($jobs.enqueued_at)
            .bind($jobs.cancel_reasons)
            .bind($jobs.due_at)
            .bind($jobs.ending_runs)
            .bind($jobs.ending_hashes)
            .bind($jobs.released)
            .bind($jobs.unheard)
            .bind($events.ids)
            .bind($events.seqs)
            .bind($events.kinds)
            .bind($events.at)
            .bind($events.attempts)
            .bind($events.data)
    };
}

/// The hot statement. Returns the jobs whose guards held: they and their events are written.
///
/// A lease that was lost has moved its job's `seq`, so for events that guard fences, too; the lease's own instants are
/// looked at because the sweep may be late. A heartbeat changes no job: there the lease's row itself is the guard.
pub(in crate::store::postgres) async fn update_jobs(
    connection: &mut PgConnection,
    changes: &[&Change],
) -> Result<Vec<JobId>, StoreError> {
    if changes.is_empty() {
        return Ok(Vec::new());
    }
    let mut changes = changes.to_vec();
    // One order on every node, or two of them wait for each other.
    changes.sort_by_key(|change| change.job().id);
    let (jobs, events) = (JobArrays::of(&changes), EventArrays::of(&changes));
    let query = sqlx::query_scalar::<_, Uuid>(
        "with input as (
             select * from unnest($1::uuid[], $2::bigint[], $3::text[], $4::int[], $5::text[], $6::bigint[], $7::text[],
                 $8::text[], $9::bool[], $10::text[], $11::timestamptz[], $12::timestamptz[], $13::timestamptz[],
                 $14::timestamptz[], $15::bigint[], $16::bigint[], $17::timestamptz[], $18::text[], $19::timestamptz[],
                 $20::bigint[], $21::bytea[], $22::int[], $23::int[], $30::bigint[], $31::bool[], $32::bigint[],
                 $33::bigint[], $34::bool[])
             as i (job_id, seq, state, attempt, progress, output_bytes, outcome, error, cancel_requested, worker, run_at,
                 started_at, finished_at, updated_at, run, output_after_seq, enqueued_at, cancel_reason, due_at,
                 ending_run, ending_hash, released, unheard, expected_seq, renew, cancel_ms, held_by, close)
         ), updated as (
             update jobs j set seq = i.seq, state = i.state, attempt = i.attempt, progress = i.progress::json,
                 output_bytes = i.output_bytes, outcome = i.outcome::json, error = i.error::json,
                 cancel_requested = i.cancel_requested, worker = i.worker, run_at = i.run_at, started_at = i.started_at,
                 finished_at = i.finished_at, updated_at = i.updated_at, run = i.run,
                 output_after_seq = i.output_after_seq, enqueued_at = i.enqueued_at, cancel_reason = i.cancel_reason,
                 due_at = i.due_at, ending_run = i.ending_run, ending_hash = i.ending_hash, released = i.released,
                 unheard = i.unheard
             from input i where j.job_id = i.job_id and j.seq = i.expected_seq and i.seq > i.expected_seq
                 and (i.held_by is null or exists (
                     select 1 from leases l where l.job_id = i.job_id and l.run = i.held_by and l.expires_at > now()
                         and (l.cancel_at is null or l.cancel_at > now())
                         and (l.timeout_at is null or l.timeout_at > now())))
             returning j.job_id
         ), renewed as (
             update leases l set
                 expires_at = case when i.renew then now() + l.lease_ms * interval '1 ms' else l.expires_at end,
                 heard = l.heard or i.renew,
                 cancel_at = case when i.cancel_ms is null then l.cancel_at
                                  else least(l.cancel_at, now() + i.cancel_ms * interval '1 ms') end
             from input i where l.job_id = i.job_id and not i.close and (i.renew or i.cancel_ms is not null)
                 and case when i.seq > i.expected_seq then (l.job_id in (select job_id from updated)) is true
                     else (i.held_by is null or l.run = i.held_by and l.expires_at > now()
                             and (l.cancel_at is null or l.cancel_at > now())
                             and (l.timeout_at is null or l.timeout_at > now()))
                         and exists (select 1 from jobs j where j.job_id = i.job_id and j.seq = i.expected_seq) end
             returning l.job_id
         ), closed as (
             delete from leases l using input i
             where l.job_id = i.job_id and i.close and (l.job_id in (select job_id from updated)) is true
         ), logged as (
             insert into events (job_id, seq, type, at, attempt, data)
             select job_id, seq, type, at, attempt, data::json
             from unnest($24::uuid[], $25::bigint[], $26::text[], $27::timestamptz[], $28::int[], $29::text[])
                 as e (job_id, seq, type, at, attempt, data)
             where (e.job_id in (select job_id from updated)) is true
         )
         select job_id from updated
         union
         select job_id from renewed",
    );
    let written = bind_arrays!(query, jobs, events)
        .bind(changes.iter().map(|change| change.expected_seq() as i64).collect::<Vec<_>>())
        .bind(changes.iter().map(|change| change.lease.renew).collect::<Vec<_>>())
        .bind(changes.iter().map(|change| change.lease.cancel_ms.map(|ms| ms as i64)).collect::<Vec<_>>())
        .bind(changes.iter().map(|change| change.lease.held_by()).collect::<Vec<_>>())
        .bind(
            changes
                .iter()
                .map(|change| change.lease.close && change.lease.guard != LeaseGuard::RunOut)
                .collect::<Vec<_>>(),
        )
        .fetch_all(connection)
        .await?;
    Ok(written.into_iter().map(JobId::from_uuid).collect())
}

pub(super) async fn insert_jobs(connection: &mut PgConnection, new: &[&Change]) -> Result<(), StoreError> {
    if new.is_empty() {
        return Ok(());
    }
    let (jobs, events) = (JobArrays::of(new), EventArrays::of(new));
    let query = sqlx::query(
        "with inserted as (
             insert into jobs (job_id, seq, state, attempt, progress, output_bytes, outcome, error, cancel_requested,
                 worker, run_at, started_at, finished_at, updated_at, run, output_after_seq, enqueued_at, cancel_reason,
                 due_at, ending_run, ending_hash, released, unheard, queue, kind, subject, max_attempts, priority, tracked,
                 created_at, meta)
             select job_id, seq, state, attempt, progress::json, output_bytes, outcome::json, error::json,
                 cancel_requested, worker, run_at, started_at, finished_at, updated_at, run, output_after_seq,
                 enqueued_at, cancel_reason, due_at, ending_run, ending_hash, released, unheard, queue, kind, subject,
                 max_attempts, priority, tracked, created_at, meta::json
             from unnest($1::uuid[], $2::bigint[], $3::text[], $4::int[], $5::text[], $6::bigint[], $7::text[],
                 $8::text[], $9::bool[], $10::text[], $11::timestamptz[], $12::timestamptz[], $13::timestamptz[],
                 $14::timestamptz[], $15::bigint[], $16::bigint[], $17::timestamptz[], $18::text[], $19::timestamptz[],
                 $20::bigint[], $21::bytea[], $22::int[], $23::int[], $30::text[], $31::text[], $32::text[], $33::int[],
                 $34::int[], $35::bool[], $36::timestamptz[], $37::text[])
             as i (job_id, seq, state, attempt, progress, output_bytes, outcome, error, cancel_requested, worker, run_at,
                 started_at, finished_at, updated_at, run, output_after_seq, enqueued_at, cancel_reason, due_at,
                 ending_run, ending_hash, released, unheard, queue, kind, subject, max_attempts, priority, tracked,
                 created_at, meta)
         ), specified as (
             insert into specs (job_id, policy, payload)
             select job_id, policy::json, payload::json from unnest($1::uuid[], $38::text[], $39::text[])
                 as s (job_id, policy, payload)
         ), claimable as (
             insert into ready (job_id, queue, rank, lane, kind, run_at)
             select job_id, queue, -priority, lane, kind, run_at
             from unnest($1::uuid[], $30::text[], $34::int[], $40::text[], $31::text[], $11::timestamptz[], $3::text[],
                 $35::bool[]) as w (job_id, queue, priority, lane, kind, run_at, state, tracked)
             where state = 'queued' and not tracked
         ), postponed as (
             insert into later (job_id, queue, rank, lane, kind, run_at, retrying)
             select job_id, queue, -priority, lane, kind, run_at, false
             from unnest($1::uuid[], $30::text[], $34::int[], $40::text[], $31::text[], $11::timestamptz[], $3::text[])
                 as w (job_id, queue, priority, lane, kind, run_at, state)
             where state = 'scheduled'
         )
         insert into events (job_id, seq, type, at, attempt, data)
         select job_id, seq, type, at, attempt, data::json
         from unnest($24::uuid[], $25::bigint[], $26::text[], $27::timestamptz[], $28::int[], $29::text[])
             as e (job_id, seq, type, at, attempt, data)",
    );
    let job = |change: &&Change| change.job().clone();
    let column = |read: fn(&Change) -> &str| new.iter().map(|change| read(change)).collect::<Vec<_>>();
    bind_arrays!(query, jobs, events)
        .bind(column(|change| change.job().queue.as_str()))
        .bind(column(|change| change.job().kind.as_str()))
        .bind(new.iter().map(|change| change.job().subject.as_deref()).collect::<Vec<_>>())
        .bind(new.iter().map(|change| job(change).max_attempts as i32).collect::<Vec<_>>())
        .bind(new.iter().map(|change| job(change).priority).collect::<Vec<_>>())
        .bind(new.iter().map(|change| job(change).tracked).collect::<Vec<_>>())
        .bind(new.iter().map(|change| job(change).created_at.to_datetime()).collect::<Vec<_>>())
        .bind(column(|change| change.job().meta.as_str()))
        .bind(new.iter().map(|change| policy_text(&change.step.record.policy)).collect::<Vec<_>>())
        .bind(column(|change| change.payload.as_ref().map_or("null", |payload| payload.as_str())))
        .bind(column(|change| lane(&change.step.record)))
        .execute(connection)
        .await?;
    Ok(())
}
