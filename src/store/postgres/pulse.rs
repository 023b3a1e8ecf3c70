//! Signs of life: this node's pulse, and who is watched here.

use sqlx::postgres::PgPool;
use time::OffsetDateTime;

use super::begin;
use crate::domain::{JobId, Timestamp};
use crate::store::{OUTAGE_MS, StoreError};

pub(super) async fn note_watched(pool: &PgPool, node: &str, jobs: &[(JobId, u64)]) -> Result<(), StoreError> {
    // Only of jobs that live: a watcher may be slower to go than its job.
    sqlx::query(
        "insert into watches (job_id, node, cancel_at)
         select job_id, $3, now() + ms * interval '1 ms' from unnest($1::uuid[], $2::bigint[]) as w (job_id, ms)
         where exists (select 1 from jobs j where j.job_id = w.job_id and j.finished_at is null)
         on conflict (job_id, node) do update set cancel_at = excluded.cancel_at",
    )
    .bind(jobs.iter().map(|(id, _)| id.as_uuid()).collect::<Vec<_>>())
    .bind(jobs.iter().map(|(_, ms)| *ms as i64).collect::<Vec<_>>())
    .bind(node)
    .execute(pool)
    .await?;
    Ok(())
}

/// Nodes without a pulse for longer are taken to be gone.
const PEER_MS: u64 = 10_000;

/// Writes this node's pulse; returns the database's clock, and whether there are other nodes. After an outage of all nodes, live leases are extended by
/// it. One node at a time: the next one finds a fresh pulse, so nothing is extended twice.
pub(super) async fn pulse(pool: &PgPool, node: &str) -> Result<(Timestamp, bool), StoreError> {
    let mut transaction = begin(pool).await?;
    sqlx::query("lock table nodes in share row exclusive mode").execute(&mut *transaction).await?;
    sqlx::query(
        "with last as (select max(alive_at) as alive_at from nodes)
         update leases set expires_at = expires_at + (clock_timestamp() - last.alive_at)
         from last where last.alive_at < clock_timestamp() - $1 * interval '1 ms' and expires_at > last.alive_at",
    )
    .bind(OUTAGE_MS as f64)
    .execute(&mut *transaction)
    .await?;
    let (at, has_peers): (OffsetDateTime, bool) = sqlx::query_as(
        "insert into nodes (node, alive_at) values ($1, clock_timestamp())
         on conflict (node) do update set alive_at = excluded.alive_at
         returning alive_at, exists (
             select 1 from nodes p where p.node <> $1 and p.alive_at > clock_timestamp() - $2 * interval '1 ms')",
    )
    .bind(node)
    .bind(PEER_MS as f64)
    .fetch_one(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok((Timestamp::from_datetime(at), has_peers))
}
