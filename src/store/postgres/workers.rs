//! Workers: who asks for work on this node, who holds which jobs, who was asked to stop.

use sqlx::postgres::PgPool;

use crate::domain::{CancelSignal, Timestamp, WorkerName};
use crate::store::StoreError;
use crate::store::workers::{self, Sighting, Worker, names_text};

/// One writer per row: the node that saw it.
pub(super) async fn note(pool: &PgPool, node: &str, seen: &[Sighting]) -> Result<(), StoreError> {
    sqlx::query(
        "insert into workers (worker, node, queues, kinds, seen_at)
         select worker, $1, queues::json, kinds::json, now() - ago_ms * interval '1 ms'
         from unnest($2::text[], $3::text[], $4::text[], $5::bigint[]) as w (worker, queues, kinds, ago_ms)
         on conflict (worker, node) do update
             set queues = excluded.queues, kinds = excluded.kinds, seen_at = excluded.seen_at",
    )
    .bind(node)
    .bind(seen.iter().map(|seen| seen.worker.as_str()).collect::<Vec<_>>())
    .bind(seen.iter().map(|seen| names_text(&seen.queues)).collect::<Vec<_>>())
    .bind(seen.iter().map(|seen| names_text(&seen.kinds)).collect::<Vec<_>>())
    .bind(seen.iter().map(|seen| seen.ago_ms as i64).collect::<Vec<_>>())
    .execute(pool)
    .await?;
    Ok(())
}

pub(super) async fn list(pool: &PgPool, within_ms: u64) -> Result<Vec<Worker>, StoreError> {
    let rows = sqlx::query(
        "select worker, max(seen_at) as seen_at, null::uuid as job_id, null::bigint as run,
             null::timestamptz as expires_at, false as cancel_requested
         from workers where seen_at > now() - $1 * interval '1 ms' group by worker
         union all
         select l.worker, l.expires_at - l.lease_ms * interval '1 ms', l.job_id, l.run, l.expires_at, j.cancel_requested
         from leases l join jobs j using (job_id) where l.worker is not null and not l.tracked",
    )
    .bind(within_ms as f64)
    .fetch_all(pool)
    .await?;
    workers::gather(&rows)
}

pub(super) async fn cancels(
    pool: &PgPool,
    workers: &[WorkerName],
    now: Timestamp,
) -> Result<Vec<(WorkerName, CancelSignal)>, StoreError> {
    let rows = sqlx::query(
        "select l.worker, l.job_id, l.run, l.cancel_at, j.cancel_reason
         from leases l join jobs j on j.job_id = l.job_id and j.run = l.run and j.cancel_requested
         where l.worker = any($1) and l.cancel_at is not null and not l.tracked order by l.cancel_at, l.job_id",
    )
    .bind(workers.iter().map(WorkerName::as_str).collect::<Vec<_>>())
    .fetch_all(pool)
    .await?;
    rows.iter().map(|row| workers::cancel(row, now)).collect()
}
