//! Signs of life: the pulse, and who is watched.

use sqlx::SqliteConnection;

use super::write::run;
use crate::domain::{JobId, Timestamp};
use crate::store::{OUTAGE_MS, StoreError};

/// `jobs`: ids, and when each is cancelled unless it is watched again.
pub(super) async fn note_watched(connection: &mut SqliteConnection, jobs: &[(JobId, i64)]) -> Result<(), StoreError> {
    // Only of jobs that live: a watcher may be slower to go than its job.
    run(
        connection,
        "insert into watches (job_id, node, cancel_at)
         select value ->> 0, 'embedded', value ->> 1 from jsonb_each(?)
         where exists (select 1 from jobs where job_id = value ->> 0 and finished_at is null)
         on conflict (job_id, node) do update set cancel_at = excluded.cancel_at",
        jobs,
    )
    .await?;
    Ok(())
}

/// Writes the pulse. After an outage live leases are extended by it.
pub(super) async fn pulse(connection: &mut SqliteConnection, now: Timestamp) -> Result<(), StoreError> {
    sqlx::query(
        "update leases set expires_at = expires_at + (?1 - last.alive_at)
         from (select max(alive_at) as alive_at from nodes) as last
         where last.alive_at < ?1 - ?2 and expires_at > last.alive_at",
    )
    .bind(now.as_millis())
    .bind(OUTAGE_MS as i64)
    .execute(&mut *connection)
    .await?;
    sqlx::query(
        "insert into nodes (node, alive_at) values ('embedded', ?1) on conflict (node) do update set alive_at = ?1",
    )
    .bind(now.as_millis())
    .execute(&mut *connection)
    .await?;
    Ok(())
}
