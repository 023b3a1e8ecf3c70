//! Housekeeping: rows that mean nothing any more.

use sqlx::SqliteConnection;

use crate::domain::{Timestamp, oldest_slot};
use crate::store::{IDEMPOTENCY_MS, StoreError, WORKER_MS};

pub(super) async fn tidy(connection: &mut SqliteConnection, now: Timestamp) -> Result<(), StoreError> {
    let now_ms = now.as_millis();
    for (sql, before) in [
        ("delete from idempotency where created_at < ?", now_ms - IDEMPOTENCY_MS as i64),
        ("delete from queue_stats where slot < ?", oldest_slot(now)),
        ("delete from rates where ahead_until < ?", now_ms * 1_000),
        ("delete from workers where seen_at < ?", now_ms - WORKER_MS as i64),
    ] {
        sqlx::query(sql).bind(before).execute(&mut *connection).await?;
    }
    Ok(())
}
