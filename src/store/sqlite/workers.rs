//! Workers: who asks for work, who holds which jobs, who was asked to stop.

use serde_json::json;
use sqlx::SqliteConnection;
use sqlx::sqlite::SqlitePool;

use super::write::run;
use crate::domain::{CancelSignal, Timestamp, WorkerName};
use crate::store::StoreError;
use crate::store::workers::{self, Sighting, Worker, names_text};

pub(super) async fn note(
    connection: &mut SqliteConnection,
    seen: &[Sighting],
    now: Timestamp,
) -> Result<(), StoreError> {
    let row = |seen: &Sighting| {
        let seen_at = now.as_millis() - seen.ago_ms as i64;
        (seen.worker.as_str().to_owned(), names_text(&seen.queues), names_text(&seen.kinds), seen_at)
    };
    run(
        connection,
        "insert into workers (worker, node, queues, kinds, seen_at)
         select value ->> 0, 'embedded', value ->> 1, value ->> 2, value ->> 3 from jsonb_each(?) where true
         on conflict (worker, node) do update
             set queues = excluded.queues, kinds = excluded.kinds, seen_at = excluded.seen_at",
        &seen.iter().map(row).collect::<Vec<_>>(),
    )
    .await?;
    Ok(())
}

pub(super) async fn list(pool: &SqlitePool, after: Timestamp) -> Result<Vec<Worker>, StoreError> {
    let rows = sqlx::query(
        "select worker, seen_at, null as job_id, null as run, null as expires_at, 0 as cancel_requested
         from workers where seen_at > ?1
         union all
         select l.worker, l.expires_at - l.lease_ms, l.job_id, l.run, l.expires_at, j.cancel_requested
         from leases l join jobs j using (job_id) where l.worker is not null and not l.tracked",
    )
    .bind(after.as_millis())
    .fetch_all(pool)
    .await?;
    workers::gather(&rows)
}

pub(super) async fn cancels(
    pool: &SqlitePool,
    workers: &[WorkerName],
    now: Timestamp,
) -> Result<Vec<(WorkerName, CancelSignal)>, StoreError> {
    let names: Vec<&str> = workers.iter().map(WorkerName::as_str).collect();
    let rows = sqlx::query(
        "select l.worker, l.job_id, l.run, l.cancel_at, j.cancel_reason
         from leases l join jobs j on j.job_id = l.job_id and j.run = l.run and j.cancel_requested
         where l.worker in (select value from jsonb_each(?)) and l.cancel_at is not null and not l.tracked
         order by l.cancel_at, l.job_id",
    )
    .bind(json!(names).to_string())
    .fetch_all(pool)
    .await?;
    rows.iter().map(|row| workers::cancel(row, now)).collect()
}
