//! Reads. Each is one statement on one of the readers.

use serde_json::json;
use sqlx::sqlite::{SqlitePool, SqliteRow};
use sqlx::{AssertSqlSafe, Row};

use crate::domain::{Event, Job, JobId, Json, Timestamp};
use crate::store::listing::{self, Bind, Dialect};
use crate::store::row::{self, Columns, JOB_COLUMNS, RECORD_COLUMNS, RECORD_SOURCE};
use crate::store::{EventRange, IDEMPOTENCY_MS, JobFilter, Lookup, Part, Remembered, Resolved, StoreError};

impl Columns for SqliteRow {
    fn id(&self, column: &str) -> Result<JobId, StoreError> {
        let text: &str = self.try_get(column)?;
        JobId::parse(text).ok_or_else(|| StoreError::Unreadable("job id".to_owned()))
    }

    fn text(&self, column: &str) -> Result<Option<String>, StoreError> {
        Ok(self.try_get(column)?)
    }

    fn integer(&self, column: &str) -> Result<Option<i64>, StoreError> {
        Ok(self.try_get(column)?)
    }

    fn flag(&self, column: &str) -> Result<bool, StoreError> {
        // Unchecked: an expression has no declared type.
        Ok(self.try_get_unchecked(column)?)
    }

    fn bytes(&self, column: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.try_get(column)?)
    }

    fn instant(&self, column: &str) -> Result<Option<Timestamp>, StoreError> {
        // Unchecked: the result of an aggregate has no declared type.
        Ok(self.try_get_unchecked::<Option<i64>, _>(column)?.map(Timestamp::from_millis))
    }
}

/// Whether a lease holds at the instant `?1`.
pub(super) const LIVE: &str = "coalesce(leases.job_id is not null and coalesce(leases.expires_at > ?1, 1) \
    and coalesce(leases.cancel_at > ?1, 1) and coalesce(leases.timeout_at > ?1, 1), 0) as live";

pub(super) async fn resolve(pool: &SqlitePool, lookup: &Lookup, now: Timestamp) -> Result<Resolved, StoreError> {
    let mut resolved = Resolved::default();
    if !lookup.jobs.is_empty() {
        let sql = format!(
            "select {JOB_COLUMNS}, {RECORD_COLUMNS}, {LIVE} {RECORD_SOURCE}
             where jobs.job_id in (select value from json_each(?2))"
        );
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(now.as_millis())
            .bind(json!(lookup.jobs).to_string())
            .fetch_all(pool)
            .await?;
        resolved.jobs = rows.iter().map(row::record).collect::<Result<_, _>>()?;
    }
    for unique in &lookup.unique {
        let row = sqlx::query("select job_id from unique_keys where queue = ? and key = ?")
            .bind(unique.queue.as_str())
            .bind(&unique.key)
            .fetch_optional(pool)
            .await?;
        if let Some(row) = row {
            resolved.unique.push((unique.clone(), row.id("job_id")?));
        }
    }
    for request in &lookup.requests {
        let row =
            sqlx::query("select body_hash, answer from idempotency where scope = ? and key = ? and created_at > ?")
                .bind(&request.scope)
                .bind(&request.key)
                .bind(now.as_millis() - IDEMPOTENCY_MS as i64)
                .fetch_optional(pool)
                .await?;
        let Some(row) = row else { continue };
        if let Some((body_hash, answer)) = row::hash(&row, "body_hash")?.zip(row::json(&row, "answer")?) {
            resolved.requests.push(Remembered { request: request.clone(), body_hash, answer });
        }
    }
    Ok(resolved)
}

pub(super) async fn events(pool: &SqlitePool, id: JobId, range: &EventRange) -> Result<Vec<Event>, StoreError> {
    let order = if range.newest_first { "desc" } else { "asc" };
    let only = if range.output_only { "and type = 'output'" } else { "" };
    let sql = format!(
        "select seq, type, at, attempt, data from events
         where job_id = ? and seq > ? and seq <= ? {only} order by seq {order} limit ?"
    );
    let rows = sqlx::query(AssertSqlSafe(sql))
        .bind(id.to_string())
        .bind(range.after as i64)
        .bind(range.upto.min(i64::MAX as u64) as i64)
        .bind(i64::from(range.limit))
        .fetch_all(pool)
        .await?;
    rows.iter().map(row::event).collect()
}

pub(super) async fn part(pool: &SqlitePool, id: JobId, part: Part) -> Result<Option<Json>, StoreError> {
    let sql = match part {
        Part::Payload => "select payload as part from specs where job_id = ?",
        Part::Result => "select data as part from results where job_id = ?",
    };
    let row = sqlx::query(sql).bind(id.to_string()).fetch_optional(pool).await?;
    row.map_or(Ok(None), |row| row::json(&row, "part"))
}

const DIALECT: Dialect = Dialect {
    placeholder: |n| format!("?{n}"),
    id: str::to_owned,
    instant: str::to_owned,
    texts: |value| format!("(select value from json_each({value}))"),
    ids: |value| format!("(select value from json_each({value}))"),
};

pub(super) async fn list(pool: &SqlitePool, filter: &JobFilter, limit: u32) -> Result<Vec<Job>, StoreError> {
    let (sql, binds) = listing::query(filter, limit, &DIALECT);
    // What has an instant written into it does not come again.
    let mut query = sqlx::query(AssertSqlSafe(sql)).persistent(filter.active_or_finished_after.is_none());
    for bind in binds {
        query = match bind {
            Bind::Text(text) => query.bind(text),
            Bind::Integer(integer) => query.bind(integer),
        };
    }
    query.fetch_all(pool).await?.iter().map(row::job).collect()
}

pub(super) async fn moved(pool: &SqlitePool, jobs: &[(JobId, u64)]) -> Result<Vec<JobId>, StoreError> {
    let rows = sqlx::query(
        "select w.value ->> 0 as job_id from jsonb_each(?) w left join jobs j on j.job_id = w.value ->> 0
         where j.seq is not w.value ->> 1",
    )
    .bind(serde_json::to_string(jobs).expect("ids and numbers"))
    .fetch_all(pool)
    .await?;
    rows.iter().map(|row| row.id("job_id")).collect()
}

pub(super) async fn overdue(pool: &SqlitePool, now: Timestamp, limit: u32) -> Result<Vec<JobId>, StoreError> {
    let rows = sqlx::query(
        "select job_id from (select job_id from jobs where due_at <= ?1 order by due_at limit ?2)
         union
         select job_id from (select job_id from leases where expires_at <= ?1 or cancel_at <= ?1 or timeout_at <= ?1
             limit ?2)
         union
         select job_id from (select job_id from watches group by job_id having max(cancel_at) <= ?1 limit ?2)",
    )
    .bind(now.as_millis())
    .bind(limit)
    .fetch_all(pool)
    .await?;
    rows.iter().map(|row| row.id("job_id")).collect()
}

/// Ids are made in the order of time, so a job that ended before `before` also has an id from before it: the primary
/// key serves, and no index on `finished_at` costs every completion a write.
pub(super) async fn retired(pool: &SqlitePool, before: Timestamp, limit: u32) -> Result<Vec<(JobId, u64)>, StoreError> {
    let rows = sqlx::query("select job_id, seq from jobs where job_id < ? and finished_at < ? order by job_id limit ?")
        .bind(JobId::lowest_at(before).to_string())
        .bind(before.as_millis())
        .bind(limit)
        .fetch_all(pool)
        .await?;
    rows.iter().map(row::retired).collect()
}
