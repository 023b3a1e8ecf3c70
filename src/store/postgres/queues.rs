//! Queues, as operators see and change them.

use sqlx::postgres::PgPool;

use super::begin;
use crate::domain::{Defaults, Queue, QueueChange, QueueName, QueueSlot, Timestamp};
use crate::store::StoreError;
use crate::store::row;

/// Each count is one walk along an index, of the queues asked for only.
pub(super) async fn queues(pool: &PgPool, only: Option<&QueueName>) -> Result<Vec<Queue>, StoreError> {
    // `leases` stands in another collation, and an index serves only its own.
    let rows = sqlx::query(
        "select q.queue, q.settings, q.paused_by, q.paused_reason, q.paused_at,
             case when q.held_until > now() then q.held_until end as held_until,
             waits.scheduled, waits.retrying, claimable.jobs + waits.due as queued, runs.jobs as running,
             failures.jobs as failed, least(claimable.oldest, waits.oldest) as oldest_queued_at
         from queues q
         cross join lateral (
             select count(*) as jobs, min(r.run_at) as oldest from ready r where r.queue = q.queue) claimable
         cross join lateral (
             select count(*) filter (where l.run_at > now() and not l.retrying) as scheduled,
                 count(*) filter (where l.run_at > now() and l.retrying) as retrying,
                 count(*) filter (where l.run_at <= now()) as due,
                 min(l.run_at) filter (where l.run_at <= now()) as oldest
             from later l where l.queue = q.queue) waits
         cross join lateral (
             select count(*) as jobs from leases l where l.queue = q.queue collate \"default\") runs
         cross join lateral (select count(*) as jobs from dead d where d.queue = q.queue) failures
         where $1::text is null or q.queue = $1 order by q.queue",
    )
    .bind(only.map(QueueName::as_str))
    .fetch_all(pool)
    .await?;
    rows.iter().map(row::queue).collect()
}

pub(super) async fn queue_defaults(pool: &PgPool) -> Result<Vec<(QueueName, Defaults)>, StoreError> {
    let rows = sqlx::query("select queue, settings from queues where settings::text <> '{}'").fetch_all(pool).await?;
    rows.iter().map(row::queue_defaults).collect()
}

/// `false`: there is no such queue.
pub(super) async fn change_queue(pool: &PgPool, name: &QueueName, change: &QueueChange) -> Result<bool, StoreError> {
    let mut transaction = begin(pool).await?;
    if change.creates() {
        sqlx::query("insert into queues (queue) values ($1) on conflict do nothing")
            .bind(name.as_str())
            .execute(&mut *transaction)
            .await?;
    }
    let found = sqlx::query(
        "select settings, paused_by, paused_reason, paused_at from queues where queue = $1 for no key update",
    )
    .bind(name.as_str())
    .fetch_optional(&mut *transaction)
    .await?;
    let Some(found) = found else { return Ok(false) };
    let before = row::queue_settings(&found)?;
    let (settings, paused) = change.apply(&before, row::pause(&found)?);
    let is_new_rate = settings.rate_limit != before.rate_limit;
    // What another rate left behind means nothing to this one, and could block it for long.
    sqlx::query(
        "update queues set settings = $2::json, paused_by = $3, paused_reason = $4, paused_at = $5,
             ahead_until = case when $6 then null else ahead_until end,
             held_until = case when $7 then null else held_until end
         where queue = $1",
    )
    .bind(name.as_str())
    .bind(row::settings_text(&settings))
    .bind(paused.as_ref().map(|pause| pause.by.as_str()))
    .bind(paused.as_ref().and_then(|pause| pause.reason.as_deref()))
    .bind(paused.as_ref().map(|pause| Timestamp::to_datetime(pause.at)))
    .bind(is_new_rate)
    .bind(matches!(change, QueueChange::Resume))
    .execute(&mut *transaction)
    .await?;
    if is_new_rate {
        sqlx::query("delete from rates where queue = $1").bind(name.as_str()).execute(&mut *transaction).await?;
    }
    transaction.commit().await?;
    Ok(true)
}

/// In the order of the key: two flushes of one node may overlap after all.
pub(super) async fn store_statistics(pool: &PgPool, node: &str, slots: &[QueueSlot]) -> Result<(), StoreError> {
    sqlx::query(
        "insert into queue_stats (queue, slot, node, data)
         select queue, slot, $4, data::json from unnest($1::text[], $2::bigint[], $3::text[]) as s (queue, slot, data)
         order by queue, slot
         on conflict (queue, slot, node) do update set data = excluded.data",
    )
    .bind(slots.iter().map(|slot| slot.queue.as_str()).collect::<Vec<_>>())
    .bind(slots.iter().map(|slot| slot.slot).collect::<Vec<_>>())
    .bind(slots.iter().map(|slot| row::tally_text(&slot.tally)).collect::<Vec<_>>())
    .bind(node)
    .execute(pool)
    .await?;
    Ok(())
}

pub(super) async fn statistics(
    pool: &PgPool,
    node: &str,
    queues: &[&QueueName],
    since: i64,
) -> Result<Vec<QueueSlot>, StoreError> {
    let rows =
        sqlx::query("select queue, slot, data from queue_stats where queue = any($1) and slot >= $2 and node <> $3")
            .bind(queues.iter().map(|queue| queue.as_str()).collect::<Vec<_>>())
            .bind(since)
            .bind(node)
            .fetch_all(pool)
            .await?;
    rows.iter().map(row::queue_slot).collect()
}
