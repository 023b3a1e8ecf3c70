//! Housekeeping: rows that mean nothing any more, and the partitions of `events`, one per day.

use sqlx::postgres::PgPool;
use sqlx::{AssertSqlSafe, PgConnection};

use super::begin;
use crate::domain::{JobId, Timestamp, oldest_slot};
use crate::store::{IDEMPOTENCY_MS, StoreError, WORKER_MS};

const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

/// Partitions are ready this many days ahead: a node that stops making them is noticed long before it matters, and
/// the default partition catches what still comes.
const DAYS_AHEAD: i64 = 3;

pub(super) async fn tidy(pool: &PgPool, now: Timestamp, keep_ms: u64) -> Result<(), StoreError> {
    sqlx::query("delete from idempotency where created_at < now() - $1 * interval '1 ms'")
        .bind(IDEMPOTENCY_MS as f64)
        .execute(pool)
        .await?;
    sqlx::query("delete from queue_stats where slot < $1").bind(oldest_slot(now)).execute(pool).await?;
    sqlx::query("delete from workers where seen_at < now() - $1 * interval '1 ms'")
        .bind(WORKER_MS as f64)
        .execute(pool)
        .await?;
    // Claims lock rates in an order of their own; what one of them is at is not old.
    sqlx::query(
        "delete from rates where (queue, lane) in (
             select queue, lane from rates where ahead_until < $1 for update skip locked)",
    )
    .bind(now.as_millis() * 1_000)
    .execute(pool)
    .await?;
    sqlx::query("delete from nodes where alive_at < now() - interval '1 day'").execute(pool).await?;
    // One node at a time; the others find the work done.
    let mut transaction = begin(pool).await?;
    sqlx::query("select pg_advisory_xact_lock(hashtext('milepost.partitions'))").execute(&mut *transaction).await?;
    // Never queue up in front of everybody's inserts for a lock that somebody else holds for long.
    sqlx::query("set local lock_timeout = '2s'").execute(&mut *transaction).await?;
    let today = now.as_millis() / DAY_MS;
    for day in today..today + DAYS_AHEAD {
        make_partition(&mut transaction, day).await?;
    }
    drop_empty_partitions(&mut transaction, now, keep_ms).await?;
    transaction.commit().await?;
    Ok(())
}

fn partition_name(day: i64) -> String {
    let date = Timestamp::from_millis(day * DAY_MS).to_string();
    format!("events_{}", date[..10].replace('-', ""))
}

fn bounds(day: i64) -> (JobId, JobId) {
    let at = |day: i64| JobId::lowest_at(Timestamp::from_millis(day * DAY_MS));
    (at(day), at(day + 1))
}

async fn partition_days(connection: &mut PgConnection) -> Result<Vec<i64>, StoreError> {
    let names: Vec<String> = sqlx::query_scalar(
        "select c.relname::text from pg_inherits i join pg_class c on c.oid = i.inhrelid
         where i.inhparent = 'events'::regclass",
    )
    .fetch_all(connection)
    .await?;
    let day_of = |name: &str| {
        let date = name.strip_prefix("events_").filter(|date| date.len() == 8 && date.is_ascii())?;
        let midnight = format!("{}-{}-{}T00:00:00Z", &date[..4], &date[4..6], &date[6..]);
        Some(Timestamp::parse(&midnight)?.as_millis() / DAY_MS)
    };
    Ok(names.iter().filter_map(|name| day_of(name)).collect())
}

/// Made apart and attached: that leaves the parent usable, while `create … partition of` locks out every insert.
async fn make_partition(connection: &mut PgConnection, day: i64) -> Result<(), StoreError> {
    if partition_days(connection).await?.contains(&day) {
        return Ok(());
    }
    let (name, (from, to)) = (partition_name(day), bounds(day));
    sqlx::query(AssertSqlSafe(format!("create table {name} (like events including all)")))
        .execute(&mut *connection)
        .await?;
    let attach = format!("alter table events attach partition {name} for values from ('{from}') to ('{to}')");
    sqlx::query(AssertSqlSafe(attach)).execute(connection).await?;
    Ok(())
}

/// A day's partition goes once its last job is gone and could not be wanted any more.
async fn drop_empty_partitions(connection: &mut PgConnection, now: Timestamp, keep_ms: u64) -> Result<(), StoreError> {
    let keep_days = (keep_ms / DAY_MS as u64).min(1_000_000) as i64;
    let oldest_kept = now.as_millis() / DAY_MS - keep_days - 1;
    for day in partition_days(connection).await? {
        if day >= oldest_kept {
            continue;
        }
        let (from, to) = bounds(day);
        let used: bool = sqlx::query_scalar("select exists (select 1 from jobs where job_id >= $1 and job_id < $2)")
            .bind(from.as_uuid())
            .bind(to.as_uuid())
            .fetch_one(&mut *connection)
            .await?;
        if !used {
            let name = partition_name(day);
            sqlx::query(AssertSqlSafe(format!("drop table {name}"))).execute(&mut *connection).await?;
        }
    }
    Ok(())
}
