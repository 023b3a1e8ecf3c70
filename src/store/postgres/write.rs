//! Writes: one guarded statement for what progresses, a transaction for what begins or ends.
//!
//! The hot statement sends a whole batch at once: it updates the jobs whose `seq` is still the one that was folded
//! on, renews their leases, inserts the events of the jobs that were updated, and says which. Filters stand on a CTE
//! as `(x in (select …)) is true`, which Postgres hashes; a plain join was quadratic.
//! Lock order: idempotency, unique_keys, jobs, then what hangs on them.

use sqlx::postgres::{PgConnection, PgPool};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::domain::{JobId, Timestamp, rules};
use crate::store::row::{policy_text, progress_text, text};
use crate::store::{Batch, Change, Commit, Committed, IDEMPOTENCY_MS, Remembered, StoreError, UniqueKey, Waiting};

pub(super) async fn commit(pool: &PgPool, batch: &Batch) -> Result<Commit, StoreError> {
    if batch.requests.is_empty() && batch.changes.iter().all(Change::is_plain) {
        let changes: Vec<&Change> = batch.changes.iter().collect();
        let written = update_jobs(&mut *pool.acquire().await?, &changes).await?;
        let (kept, lost): (Vec<_>, Vec<_>) = changes.into_iter().partition(|change| written.contains(&change.job().id));
        return Ok(Commit {
            committed: Committed::of_changes(kept.into_iter()),
            conflicts: lost.into_iter().map(|change| change.job().id).collect(),
            rolled_back: false,
        });
    }
    let mut transaction = pool.begin().await?;
    if write_all(&mut transaction, batch).await? {
        transaction.commit().await?;
        return Ok(Commit { committed: Committed::of_changes(batch.changes.iter()), ..Commit::default() });
    }
    transaction.rollback().await?;
    Ok(Commit::rolled_back())
}

/// `false`: a guard failed, and the transaction must be rolled back.
async fn write_all(connection: &mut PgConnection, batch: &Batch) -> Result<bool, StoreError> {
    let changes = &batch.changes;
    let (new, old): (Vec<&Change>, Vec<&Change>) = changes.iter().partition(|change| change.before.is_none());
    let holds = remember(connection, &batch.requests).await?
        && move_unique_keys(connection, changes).await?
        && update_jobs(connection, &old).await?.len() == old.len();
    if !holds {
        return Ok(false);
    }
    insert_jobs(connection, &new).await?;
    move_waiting(connection, changes).await?;
    move_leases(connection, changes).await?;
    store_results(connection, changes).await?;
    let forgotten: Vec<Uuid> = changes.iter().filter(|c| c.forgets_watches()).map(|c| c.job().id.as_uuid()).collect();
    if !forgotten.is_empty() {
        sqlx::query("delete from watches where job_id = any($1)").bind(forgotten).execute(connection).await?;
    }
    Ok(true)
}

/// Stores answered requests; `false` if another node has stored one of the keys meanwhile.
async fn remember(connection: &mut PgConnection, requests: &[Remembered]) -> Result<bool, StoreError> {
    if requests.is_empty() {
        return Ok(true);
    }
    let mut requests: Vec<&Remembered> = requests.iter().collect();
    // One order on every node, or two of them wait for each other.
    requests.sort_by(|a, b| a.request.cmp(&b.request));
    let stored = sqlx::query(
        "insert into idempotency as i (scope, key, body_hash, answer)
         select scope, key, body_hash, answer::json from unnest($1::text[], $2::text[], $3::bytea[], $4::text[])
             as new (scope, key, body_hash, answer)
         on conflict (scope, key) do update
             set body_hash = excluded.body_hash, answer = excluded.answer, created_at = excluded.created_at
             where i.created_at <= now() - $5 * interval '1 ms'",
    )
    .bind(requests.iter().map(|r| r.request.scope.as_str()).collect::<Vec<_>>())
    .bind(requests.iter().map(|r| r.request.key.as_str()).collect::<Vec<_>>())
    .bind(requests.iter().map(|r| r.body_hash.to_vec()).collect::<Vec<_>>())
    .bind(requests.iter().map(|r| r.answer.as_str()).collect::<Vec<_>>())
    .bind(IDEMPOTENCY_MS as f64)
    .execute(connection)
    .await?;
    Ok(stored.rows_affected() == requests.len() as u64)
}

/// Frees and takes unique keys; `false` if a key to be taken is held.
async fn move_unique_keys(connection: &mut PgConnection, changes: &[Change]) -> Result<bool, StoreError> {
    let with_ids = |key: fn(&Change) -> Option<UniqueKey>| {
        let mut keys: Vec<_> = changes.iter().filter_map(|c| Some((key(c)?, c.job().id.as_uuid()))).collect();
        keys.sort();
        keys
    };
    let freed = with_ids(Change::frees_unique_key);
    if !freed.is_empty() {
        sqlx::query(
            "delete from unique_keys u using unnest($1::text[], $2::text[], $3::uuid[]) as freed (queue, key, job_id)
             where u.queue = freed.queue and u.key = freed.key and u.job_id = freed.job_id",
        )
        .bind(freed.iter().map(|(u, _)| u.queue.as_str()).collect::<Vec<_>>())
        .bind(freed.iter().map(|(u, _)| u.key.as_str()).collect::<Vec<_>>())
        .bind(freed.iter().map(|(_, id)| *id).collect::<Vec<_>>())
        .execute(&mut *connection)
        .await?;
    }
    let taken = with_ids(Change::takes_unique_key);
    if taken.is_empty() {
        return Ok(true);
    }
    let stored = sqlx::query(
        "insert into unique_keys (queue, key, job_id) select * from unnest($1::text[], $2::text[], $3::uuid[])
         on conflict do nothing",
    )
    .bind(taken.iter().map(|(u, _)| u.queue.as_str()).collect::<Vec<_>>())
    .bind(taken.iter().map(|(u, _)| u.key.as_str()).collect::<Vec<_>>())
    .bind(taken.iter().map(|(_, id)| *id).collect::<Vec<_>>())
    .execute(connection)
    .await?;
    Ok(stored.rows_affected() == taken.len() as u64)
}

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

/// Binds every array of a [`JobArrays`] and an [`EventArrays`], in the order `$1` … `$27`.
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
            .bind($events.ids)
            .bind($events.seqs)
            .bind($events.kinds)
            .bind($events.at)
            .bind($events.attempts)
            .bind($events.data)
    };
}

/// The hot statement. Returns the jobs whose guard held: they and their events are written.
async fn update_jobs(connection: &mut PgConnection, changes: &[&Change]) -> Result<Vec<JobId>, StoreError> {
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
                 $20::bigint[], $21::bytea[], $28::bigint[], $29::bigint[], $30::bigint[])
             as i (job_id, seq, state, attempt, progress, output_bytes, outcome, error, cancel_requested, worker, run_at,
                 started_at, finished_at, updated_at, run, output_after_seq, enqueued_at, cancel_reason, due_at,
                 ending_run, ending_hash, expected_seq, renew_ms, cancel_ms)
         ), updated as (
             update jobs j set seq = i.seq, state = i.state, attempt = i.attempt, progress = i.progress::json,
                 output_bytes = i.output_bytes, outcome = i.outcome::json, error = i.error::json,
                 cancel_requested = i.cancel_requested, worker = i.worker, run_at = i.run_at, started_at = i.started_at,
                 finished_at = i.finished_at, updated_at = i.updated_at, run = i.run,
                 output_after_seq = i.output_after_seq, enqueued_at = i.enqueued_at, cancel_reason = i.cancel_reason,
                 due_at = i.due_at, ending_run = i.ending_run, ending_hash = i.ending_hash
             from input i where j.job_id = i.job_id and j.seq = i.expected_seq and i.seq > i.expected_seq
             returning j.job_id
         ), written as (
             select job_id from updated
             union all -- a heartbeat changes no job, but its guard counts too
             select j.job_id from input i join jobs j on j.job_id = i.job_id and j.seq = i.expected_seq
             where i.seq = i.expected_seq
         ), renewed as (
             update leases l set
                 expires_at = case when i.renew_ms is null then l.expires_at
                                   else now() + i.renew_ms * interval '1 ms' end,
                 cancel_at = case when i.cancel_ms is null then l.cancel_at
                                  else least(l.cancel_at, now() + i.cancel_ms * interval '1 ms') end
             from input i where l.job_id = i.job_id and (i.renew_ms is not null or i.cancel_ms is not null)
                 and (l.job_id in (select job_id from written)) is true
         ), logged as (
             insert into events (job_id, seq, type, at, attempt, data)
             select job_id, seq, type, at, attempt, data::json
             from unnest($22::uuid[], $23::bigint[], $24::text[], $25::timestamptz[], $26::int[], $27::text[])
                 as e (job_id, seq, type, at, attempt, data)
             where (e.job_id in (select job_id from updated)) is true
         )
         select job_id from written",
    );
    let written = bind_arrays!(query, jobs, events)
        .bind(changes.iter().map(|change| change.expected_seq() as i64).collect::<Vec<_>>())
        .bind(changes.iter().map(|change| change.lease.renew_ms.map(|ms| ms as i64)).collect::<Vec<_>>())
        .bind(changes.iter().map(|change| change.lease.cancel_ms.map(|ms| ms as i64)).collect::<Vec<_>>())
        .fetch_all(connection)
        .await?;
    Ok(written.into_iter().map(JobId::from_uuid).collect())
}

async fn insert_jobs(connection: &mut PgConnection, new: &[&Change]) -> Result<(), StoreError> {
    if new.is_empty() {
        return Ok(());
    }
    let (jobs, events) = (JobArrays::of(new), EventArrays::of(new));
    let query = sqlx::query(
        "with inserted as (
             insert into jobs (job_id, seq, state, attempt, progress, output_bytes, outcome, error, cancel_requested,
                 worker, run_at, started_at, finished_at, updated_at, run, output_after_seq, enqueued_at, cancel_reason,
                 due_at, ending_run, ending_hash, queue, kind, subject, max_attempts, priority, tracked, created_at, meta)
             select job_id, seq, state, attempt, progress::json, output_bytes, outcome::json, error::json,
                 cancel_requested, worker, run_at, started_at, finished_at, updated_at, run, output_after_seq,
                 enqueued_at, cancel_reason, due_at, ending_run, ending_hash, queue, kind, subject, max_attempts,
                 priority, tracked, created_at, meta::json
             from unnest($1::uuid[], $2::bigint[], $3::text[], $4::int[], $5::text[], $6::bigint[], $7::text[],
                 $8::text[], $9::bool[], $10::text[], $11::timestamptz[], $12::timestamptz[], $13::timestamptz[],
                 $14::timestamptz[], $15::bigint[], $16::bigint[], $17::timestamptz[], $18::text[], $19::timestamptz[],
                 $20::bigint[], $21::bytea[], $28::text[], $29::text[], $30::text[], $31::int[], $32::int[],
                 $33::bool[], $34::timestamptz[], $35::text[])
             as i (job_id, seq, state, attempt, progress, output_bytes, outcome, error, cancel_requested, worker, run_at,
                 started_at, finished_at, updated_at, run, output_after_seq, enqueued_at, cancel_reason, due_at,
                 ending_run, ending_hash, queue, kind, subject, max_attempts, priority, tracked, created_at, meta)
         ), specified as (
             insert into specs (job_id, policy, payload)
             select job_id, policy::json, payload::json from unnest($1::uuid[], $36::text[], $37::text[])
                 as s (job_id, policy, payload)
         )
         insert into events (job_id, seq, type, at, attempt, data)
         select job_id, seq, type, at, attempt, data::json
         from unnest($22::uuid[], $23::bigint[], $24::text[], $25::timestamptz[], $26::int[], $27::text[])
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
        .execute(connection)
        .await?;
    Ok(())
}

/// Takes jobs out of `ready` and `later`, and puts them in.
async fn move_waiting(connection: &mut PgConnection, changes: &[Change]) -> Result<(), StoreError> {
    let mut leaving: Vec<Uuid> = Vec::new();
    let mut ready: Vec<&Change> = Vec::new();
    let mut later: Vec<(Uuid, OffsetDateTime)> = Vec::new();
    for change in changes {
        let (leaves, enters) = change.waiting();
        if leaves {
            leaving.push(change.job().id.as_uuid());
        }
        match enters {
            Some(Waiting::Ready) => ready.push(change),
            Some(Waiting::Later(run_at)) => later.push((change.job().id.as_uuid(), run_at.to_datetime())),
            None => {}
        }
    }
    if !leaving.is_empty() {
        sqlx::query("with r as (delete from ready where job_id = any($1)) delete from later where job_id = any($1)")
            .bind(leaving)
            .execute(&mut *connection)
            .await?;
    }
    if !ready.is_empty() {
        sqlx::query(
            "insert into ready (job_id, queue, priority, concurrency_key, kind, run_at)
             select * from unnest($1::uuid[], $2::text[], $3::int[], $4::text[], $5::text[], $6::timestamptz[])",
        )
        .bind(ready.iter().map(|c| c.job().id.as_uuid()).collect::<Vec<_>>())
        .bind(ready.iter().map(|c| c.job().queue.as_str()).collect::<Vec<_>>())
        .bind(ready.iter().map(|c| c.job().priority).collect::<Vec<_>>())
        .bind(ready.iter().map(|c| c.step.record.policy.concurrency_key.as_deref()).collect::<Vec<_>>())
        .bind(ready.iter().map(|c| c.job().kind.as_str()).collect::<Vec<_>>())
        .bind(ready.iter().map(|c| c.job().run_at.to_datetime()).collect::<Vec<_>>())
        .execute(&mut *connection)
        .await?;
    }
    if !later.is_empty() {
        let (ids, run_at): (Vec<_>, Vec<_>) = later.into_iter().unzip();
        sqlx::query("insert into later (job_id, run_at) select * from unnest($1::uuid[], $2::timestamptz[])")
            .bind(ids)
            .bind(run_at)
            .execute(connection)
            .await?;
    }
    Ok(())
}

async fn move_leases(connection: &mut PgConnection, changes: &[Change]) -> Result<(), StoreError> {
    let opened: Vec<&Change> = changes.iter().filter(|change| change.lease.open && !change.lease.close).collect();
    let closed: Vec<Uuid> = changes.iter().filter(|c| c.lease.close).map(|c| c.job().id.as_uuid()).collect();
    if !closed.is_empty() {
        sqlx::query("delete from leases where job_id = any($1)").bind(closed).execute(&mut *connection).await?;
    }
    if !opened.is_empty() {
        sqlx::query(
            "insert into leases (job_id, run, worker, queue, concurrency_key, expires_at, cancel_at)
             select job_id, run, worker, queue, concurrency_key, now() + renew_ms * interval '1 ms',
                 now() + cancel_ms * interval '1 ms'
             from unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[])
                 as l (job_id, run, worker, queue, concurrency_key, renew_ms, cancel_ms)",
        )
        .bind(opened.iter().map(|c| c.job().id.as_uuid()).collect::<Vec<_>>())
        .bind(opened.iter().map(|c| c.job().run as i64).collect::<Vec<_>>())
        .bind(opened.iter().map(|c| c.job().worker.as_deref()).collect::<Vec<_>>())
        .bind(opened.iter().map(|c| c.job().queue.as_str()).collect::<Vec<_>>())
        .bind(opened.iter().map(|c| c.step.record.policy.concurrency_key.as_deref()).collect::<Vec<_>>())
        .bind(opened.iter().map(|c| c.lease.renew_ms.map(|ms| ms as i64)).collect::<Vec<_>>())
        .bind(opened.iter().map(|c| c.lease.cancel_ms.map(|ms| ms as i64)).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    }
    Ok(())
}

async fn store_results(connection: &mut PgConnection, changes: &[Change]) -> Result<(), StoreError> {
    let dropped: Vec<Uuid> = changes.iter().filter(|c| c.drops_result()).map(|c| c.job().id.as_uuid()).collect();
    if !dropped.is_empty() {
        sqlx::query("delete from results where job_id = any($1)").bind(dropped).execute(&mut *connection).await?;
    }
    let (ids, data): (Vec<_>, Vec<_>) =
        changes.iter().filter_map(|c| Some((c.job().id.as_uuid(), c.step.result.as_ref()?.as_str()))).unzip();
    if !ids.is_empty() {
        sqlx::query(
            "insert into results (job_id, data)
             select job_id, data::json from unnest($1::uuid[], $2::text[]) as r (job_id, data)
             on conflict (job_id) do update set data = excluded.data",
        )
        .bind(ids)
        .bind(data)
        .execute(connection)
        .await?;
    }
    Ok(())
}

pub(super) async fn remove(pool: &PgPool, jobs: &[(JobId, u64)]) -> Result<Committed, StoreError> {
    let mut transaction = pool.begin().await?;
    let removed: Vec<Uuid> = sqlx::query_scalar(
        "delete from jobs j using unnest($1::uuid[], $2::bigint[]) as gone (job_id, seq)
         where j.job_id = gone.job_id and j.seq = gone.seq and j.finished_at is not null returning j.job_id",
    )
    .bind(jobs.iter().map(|(id, _)| id.as_uuid()).collect::<Vec<_>>())
    .bind(jobs.iter().map(|(_, seq)| *seq as i64).collect::<Vec<_>>())
    .fetch_all(&mut *transaction)
    .await?;
    sqlx::query(
        "with e as (delete from events where job_id = any($1)), s as (delete from specs where job_id = any($1))
         delete from results where job_id = any($1)",
    )
    .bind(&removed)
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(Committed::of_removed(removed.into_iter().map(JobId::from_uuid).collect()))
}
