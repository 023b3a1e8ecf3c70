//! Writes: one guarded statement for what progresses, a transaction for what begins or ends.
//! Lock order: idempotency, unique_keys, jobs, then what hangs on them.

mod jobs;

use sqlx::postgres::{PgConnection, PgPool};
use uuid::Uuid;

use super::begin;
use crate::domain::{JobId, State, Timestamp, rules};
use crate::store::row;
use crate::store::{
    Batch, Change, Commit, Committed, IDEMPOTENCY_MS, LeaseGuard, Remembered, StoreError, UniqueKey, Waiting, lane,
};
use jobs::insert_jobs;
pub(super) use jobs::update_jobs;

pub(super) async fn commit(pool: &PgPool, batch: &Batch) -> Result<Commit, StoreError> {
    let changes: Vec<&Change> = batch.changes.iter().collect();
    if batch.requests.is_empty() && batch.changes.iter().all(Change::is_plainly_new) {
        insert_jobs(&mut *pool.acquire().await?, &changes).await?;
        return Ok(Commit { committed: Committed::of_changes(batch.changes.iter()), ..Commit::default() });
    }
    if batch.requests.is_empty() && batch.changes.iter().all(Change::is_plain) {
        let written = update_jobs(&mut *pool.acquire().await?, &changes).await?;
        let (kept, lost): (Vec<_>, Vec<_>) = changes.into_iter().partition(|change| written.contains(&change.job().id));
        return Ok(Commit {
            committed: Committed::of_changes(kept.into_iter()),
            conflicts: lost.into_iter().map(|change| change.job().id).collect(),
            rolled_back: false,
        });
    }
    let mut transaction = begin(pool).await?;
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
        && update_jobs(connection, &old).await?.len() == old.len()
        && end_run_out(connection, changes).await?;
    if !holds {
        return Ok(false);
    }
    insert_jobs(connection, &new).await?;
    move_waiting(connection, &old).await?;
    open_leases(connection, changes, &[]).await?;
    move_dead(connection, changes).await?;
    hold_queues(connection, changes).await?;
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

/// Ends leases that have run out; `false` if one has not: a sign of life came meanwhile.
async fn end_run_out(connection: &mut PgConnection, changes: &[Change]) -> Result<bool, StoreError> {
    let run_out: Vec<Uuid> = changes
        .iter()
        .filter(|change| change.lease.guard == LeaseGuard::RunOut)
        .map(|change| change.job().id.as_uuid())
        .collect();
    if run_out.is_empty() {
        return Ok(true);
    }
    let ended = sqlx::query("delete from leases where job_id = any($1) and expires_at <= now()")
        .bind(&run_out)
        .execute(connection)
        .await?;
    Ok(ended.rows_affected() == run_out.len() as u64)
}

/// Takes jobs out of `ready` and `later`, and puts them in (new ones are put there when they are inserted).
async fn move_waiting(connection: &mut PgConnection, changes: &[&Change]) -> Result<(), StoreError> {
    let left = |was: fn(&Waiting) -> bool| -> Vec<Uuid> {
        changes.iter().filter(|c| c.leaves().is_some_and(|w| was(&w))).map(|c| c.job().id.as_uuid()).collect()
    };
    let postponed = left(|waiting| matches!(waiting, Waiting::Later(_)));
    if !postponed.is_empty() {
        sqlx::query("delete from later where job_id = any($1)").bind(postponed).execute(&mut *connection).await?;
    }
    // A statement of its own, and the second one: who waited for its instant may just have been promoted.
    let claimable = left(|_| true);
    if !claimable.is_empty() {
        sqlx::query("delete from ready where job_id = any($1)").bind(claimable).execute(&mut *connection).await?;
    }
    let (later, ready): (Vec<&Change>, Vec<&Change>) = changes
        .iter()
        .copied()
        .filter(|change| change.enters().is_some())
        .partition(|change| matches!(change.enters(), Some(Waiting::Later(_))));
    for (rows, sql) in [
        (
            ready,
            "insert into ready (job_id, queue, rank, lane, kind, run_at) select job_id, queue, rank, lane, kind, run_at
             from unnest($1::uuid[], $2::text[], $3::int[], $4::text[], $5::text[], $6::timestamptz[], $7::bool[])
                 as r (job_id, queue, rank, lane, kind, run_at, retrying)",
        ),
        (
            later,
            "insert into later (job_id, queue, rank, lane, kind, run_at, retrying)
             select * from unnest($1::uuid[], $2::text[], $3::int[], $4::text[], $5::text[], $6::timestamptz[], $7::bool[])",
        ),
    ] {
        if rows.is_empty() {
            continue;
        }
        sqlx::query(sql)
            .bind(rows.iter().map(|c| c.job().id.as_uuid()).collect::<Vec<_>>())
            .bind(rows.iter().map(|c| c.job().queue.as_str()).collect::<Vec<_>>())
            .bind(rows.iter().map(|c| -c.job().priority).collect::<Vec<_>>())
            .bind(rows.iter().map(|c| lane(&c.step.record)).collect::<Vec<_>>())
            .bind(rows.iter().map(|c| c.job().kind.as_str()).collect::<Vec<_>>())
            .bind(rows.iter().map(|c| c.job().run_at.to_datetime()).collect::<Vec<_>>())
            .bind(rows.iter().map(|c| c.job().state == State::Retrying).collect::<Vec<_>>())
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// Runs begin: of tracked jobs, and of those that a claim hands out, which then no longer wait (`leaving`).
pub(super) async fn open_leases(
    connection: &mut PgConnection,
    changes: &[Change],
    leaving: &[Uuid],
) -> Result<(), StoreError> {
    let opened: Vec<&Change> = changes.iter().filter(|change| change.lease.open && !change.lease.close).collect();
    if opened.is_empty() && leaving.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "with gone as (delete from ready where job_id = any($10))
         insert into leases (job_id, run, worker, queue, concurrency_key, lease_ms, expires_at, cancel_at, timeout_at,
             tracked)
         select job_id, run, worker, queue, concurrency_key, lease_ms, now() + lease_ms * interval '1 ms',
             now() + cancel_ms * interval '1 ms', timeout_at, tracked
         from unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[],
             $8::timestamptz[], $9::bool[])
             as l (job_id, run, worker, queue, concurrency_key, lease_ms, cancel_ms, timeout_at, tracked)",
    )
    .bind(opened.iter().map(|c| c.job().id.as_uuid()).collect::<Vec<_>>())
    .bind(opened.iter().map(|c| c.job().run as i64).collect::<Vec<_>>())
    .bind(opened.iter().map(|c| c.job().worker.as_deref()).collect::<Vec<_>>())
    .bind(opened.iter().map(|c| c.job().queue.as_str()).collect::<Vec<_>>())
    .bind(opened.iter().map(|c| c.step.record.policy.concurrency_key.as_deref()).collect::<Vec<_>>())
    .bind(opened.iter().map(|c| c.step.record.lease_ms.map(|ms| ms as i64)).collect::<Vec<_>>())
    .bind(opened.iter().map(|c| c.lease.cancel_ms.map(|ms| ms as i64)).collect::<Vec<_>>())
    .bind(opened.iter().map(|c| rules::run_ends_at(&c.step.record).map(Timestamp::to_datetime)).collect::<Vec<_>>())
    .bind(opened.iter().map(|c| c.job().tracked).collect::<Vec<_>>())
    .bind(leaving)
    .execute(connection)
    .await?;
    Ok(())
}

/// Failed jobs come among the dead letters; those put back leave them.
async fn move_dead(connection: &mut PgConnection, changes: &[Change]) -> Result<(), StoreError> {
    let revived: Vec<Uuid> = changes.iter().filter(|c| c.is_revived()).map(|c| c.job().id.as_uuid()).collect();
    if !revived.is_empty() {
        sqlx::query("delete from dead where job_id = any($1)").bind(revived).execute(&mut *connection).await?;
    }
    let (dying, codes): (Vec<&Change>, Vec<String>) = changes.iter().filter_map(|c| Some((c, c.dies()?))).unzip();
    if !dying.is_empty() {
        sqlx::query(
            "insert into dead (job_id, queue, error_code, tracked)
             select * from unnest($1::uuid[], $2::text[], $3::text[], $4::bool[])",
        )
        .bind(dying.iter().map(|c| c.job().id.as_uuid()).collect::<Vec<_>>())
        .bind(dying.iter().map(|c| c.job().queue.as_str()).collect::<Vec<_>>())
        .bind(codes)
        .bind(dying.iter().map(|c| c.job().tracked).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    }
    Ok(())
}

/// A worker said that its whole queue had better wait.
async fn hold_queues(connection: &mut PgConnection, changes: &[Change]) -> Result<(), StoreError> {
    let mut holds: Vec<(&str, i64)> =
        changes.iter().filter_map(|c| Some((c.job().queue.as_str(), c.step.hold_queue_ms? as i64))).collect();
    holds.sort();
    for (queue, ms) in holds {
        sqlx::query(
            "update queues set held_until = greatest(held_until, clock_timestamp() + $2 * interval '1 ms') where queue = $1",
        )
        .bind(queue)
        .bind(ms as f64)
        .execute(&mut *connection)
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
    let mut transaction = begin(pool).await?;
    let rows = sqlx::query(
        "delete from jobs j using unnest($1::uuid[], $2::bigint[]) as gone (job_id, seq)
         where j.job_id = gone.job_id and j.seq = gone.seq and j.finished_at is not null
         returning j.job_id, j.queue, j.kind, j.subject",
    )
    .bind(jobs.iter().map(|(id, _)| id.as_uuid()).collect::<Vec<_>>())
    .bind(jobs.iter().map(|(_, seq)| *seq as i64).collect::<Vec<_>>())
    .fetch_all(&mut *transaction)
    .await?;
    let removed = rows.iter().map(row::identity).collect::<Result<Vec<_>, _>>()?;
    sqlx::query(
        "with e as (delete from events where job_id = any($1)), s as (delete from specs where job_id = any($1)),
             d as (delete from dead where job_id = any($1))
         delete from results where job_id = any($1)",
    )
    .bind(removed.iter().map(|job| job.id.as_uuid()).collect::<Vec<_>>())
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(Committed::of_removed(removed))
}
