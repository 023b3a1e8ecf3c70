//! Queues, as operators see and change them.

use serde_json::json;
use sqlx::sqlite::{SqliteConnection, SqlitePool};

use super::write::run;
use crate::domain::{Defaults, Queue, QueueChange, QueueName, QueueSlot, Timestamp};
use crate::store::StoreError;
use crate::store::row;

/// Each count is one walk along an index, of the queues asked for only.
pub(super) async fn queues(
    pool: &SqlitePool,
    only: Option<&QueueName>,
    now: Timestamp,
) -> Result<Vec<Queue>, StoreError> {
    let rows = sqlx::query(
        "select queue, settings, paused_by, paused_reason, paused_at, held_until, scheduled, retrying, ready + due as queued,
             running, failed, min(coalesce(oldest_ready, oldest_due), coalesce(oldest_due, oldest_ready)) as oldest_queued_at
         from (
             select q.queue, q.settings, q.paused_by, q.paused_reason, q.paused_at,
                 case when q.held_until > ?1 then q.held_until end as held_until,
                 (select count(*) from later l where l.queue = q.queue and l.run_at > ?1 and not l.retrying) as scheduled,
                 (select count(*) from later l where l.queue = q.queue and l.run_at > ?1 and l.retrying) as retrying,
                 (select count(*) from later l where l.queue = q.queue and l.run_at <= ?1) as due,
                 (select min(l.run_at) from later l where l.queue = q.queue and l.run_at <= ?1) as oldest_due,
                 (select count(*) from ready r where r.queue = q.queue) as ready,
                 (select min(r.run_at) from ready r where r.queue = q.queue) as oldest_ready,
                 (select count(*) from leases l where l.queue = q.queue) as running,
                 (select count(*) from dead d where d.queue = q.queue) as failed
             from queues q where ?2 is null or q.queue = ?2
         ) order by queue",
    )
    .bind(now.as_millis())
    .bind(only.map(QueueName::as_str))
    .fetch_all(pool)
    .await?;
    rows.iter().map(row::queue).collect()
}

pub(super) async fn queue_defaults(pool: &SqlitePool) -> Result<Vec<(QueueName, Defaults)>, StoreError> {
    let rows = sqlx::query("select queue, settings from queues where settings <> '{}'").fetch_all(pool).await?;
    rows.iter().map(row::queue_defaults).collect()
}

/// Runs inside one `begin immediate` transaction. `false`: there is no such queue.
pub(super) async fn change_queue(
    connection: &mut SqliteConnection,
    name: &QueueName,
    change: &QueueChange,
) -> Result<bool, StoreError> {
    if change.creates() {
        sqlx::query("insert or ignore into queues (queue) values (?)")
            .bind(name.as_str())
            .execute(&mut *connection)
            .await?;
    }
    let found = sqlx::query("select settings, paused_by, paused_reason, paused_at from queues where queue = ?")
        .bind(name.as_str())
        .fetch_optional(&mut *connection)
        .await?;
    let Some(found) = found else { return Ok(false) };
    let before = row::queue_settings(&found)?;
    let (settings, paused) = change.apply(&before, row::pause(&found)?);
    let is_new_rate = settings.rate_limit != before.rate_limit;
    // What another rate left behind means nothing to this one, and could block it for long.
    sqlx::query(
        "update queues set settings = ?2, paused_by = ?3, paused_reason = ?4, paused_at = ?5,
             ahead_until = case when ?6 then null else ahead_until end,
             held_until = case when ?7 then null else held_until end
         where queue = ?1",
    )
    .bind(name.as_str())
    .bind(row::settings_text(&settings))
    .bind(paused.as_ref().map(|pause| pause.by.as_str()))
    .bind(paused.as_ref().and_then(|pause| pause.reason.as_deref()))
    .bind(paused.as_ref().map(|pause| pause.at.as_millis()))
    .bind(is_new_rate)
    .bind(matches!(change, QueueChange::Resume))
    .execute(&mut *connection)
    .await?;
    if is_new_rate {
        sqlx::query("delete from rates where queue = ?").bind(name.as_str()).execute(connection).await?;
    }
    Ok(true)
}

pub(super) async fn store_statistics(
    connection: &mut SqliteConnection,
    node: &str,
    slots: &[QueueSlot],
) -> Result<(), StoreError> {
    let rows: Vec<(&QueueName, i64, &str, String)> =
        slots.iter().map(|slot| (&slot.queue, slot.slot, node, row::tally_text(&slot.tally))).collect();
    run(
        connection,
        "insert into queue_stats (queue, slot, node, data)
         select value ->> 0, value ->> 1, value ->> 2, value ->> 3 from jsonb_each(?) where true
         on conflict (queue, slot, node) do update set data = excluded.data",
        &rows,
    )
    .await?;
    Ok(())
}

pub(super) async fn statistics(
    pool: &SqlitePool,
    node: &str,
    queues: &[&QueueName],
    since: i64,
) -> Result<Vec<QueueSlot>, StoreError> {
    let rows = sqlx::query(
        "select queue, slot, data from queue_stats
         where queue in (select value from jsonb_each(?)) and slot >= ? and node <> ?",
    )
    .bind(json!(queues).to_string())
    .bind(since)
    .bind(node)
    .fetch_all(pool)
    .await?;
    rows.iter().map(row::queue_slot).collect()
}
