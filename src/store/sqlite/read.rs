//! Reads. Each is one statement; none holds its connection for longer.

use serde_json::json;
use sqlx::sqlite::{SqlitePool, SqliteRow};
use sqlx::{AssertSqlSafe, QueryBuilder, Row, Sqlite};

use crate::domain::{Clocks, Event, Job, JobId, Json, Timestamp};
use crate::store::row::{self, JOB_COLUMNS, JobRow};
use crate::store::{EventRange, IDEMPOTENCY_MS, JobFilter, Lookup, Part, Remembered, Resolved, StoreError};

fn instant(row: &SqliteRow, column: &str) -> Result<Timestamp, sqlx::Error> {
    row.try_get(column).map(Timestamp::from_millis)
}

fn optional_instant(row: &SqliteRow, column: &str) -> Result<Option<Timestamp>, sqlx::Error> {
    Ok(row.try_get::<Option<i64>, _>(column)?.map(Timestamp::from_millis))
}

fn id(row: &SqliteRow) -> Result<JobId, StoreError> {
    let text: &str = row.try_get("job_id")?;
    JobId::parse(text).ok_or_else(|| StoreError::Unreadable("job id".to_owned()))
}

fn job_row(row: &SqliteRow) -> Result<JobRow, StoreError> {
    Ok(JobRow {
        id: id(row)?,
        queue: row.try_get("queue")?,
        kind: row.try_get("kind")?,
        subject: row.try_get("subject")?,
        state: row.try_get("state")?,
        seq: row.try_get("seq")?,
        attempt: row.try_get("attempt")?,
        max_attempts: row.try_get("max_attempts")?,
        priority: row.try_get("priority")?,
        tracked: row.try_get("tracked")?,
        progress: row.try_get("progress")?,
        output_bytes: row.try_get("output_bytes")?,
        outcome: row.try_get("outcome")?,
        error: row.try_get("error")?,
        cancel_requested: row.try_get("cancel_requested")?,
        worker: row.try_get("worker")?,
        created_at: instant(row, "created_at")?,
        run_at: instant(row, "run_at")?,
        started_at: optional_instant(row, "started_at")?,
        finished_at: optional_instant(row, "finished_at")?,
        updated_at: instant(row, "updated_at")?,
        meta: row.try_get("meta")?,
        run: row.try_get("run")?,
        output_after_seq: row.try_get("output_after_seq")?,
        enqueued_at: instant(row, "enqueued_at")?,
        cancel_reason: row.try_get("cancel_reason")?,
        ending_run: row.try_get("ending_run")?,
        ending_hash: row.try_get("ending_hash")?,
    })
}

pub(super) async fn resolve(pool: &SqlitePool, lookup: &Lookup, now: Timestamp) -> Result<Resolved, StoreError> {
    let mut resolved = Resolved::default();
    if !lookup.jobs.is_empty() {
        let sql = format!(
            "select {JOB_COLUMNS}, policy, expires_at, leases.cancel_at,
                 (select max(w.cancel_at) from watches w where w.job_id = jobs.job_id) as unwatched_at
             from jobs join specs using (job_id) left join leases using (job_id)
             where jobs.job_id in (select value from json_each(?))"
        );
        for row in sqlx::query(AssertSqlSafe(sql)).bind(json!(lookup.jobs).to_string()).fetch_all(pool).await? {
            let clocks = Clocks {
                expires_at: optional_instant(&row, "expires_at")?,
                cancel_at: optional_instant(&row, "cancel_at")?,
                unwatched_at: optional_instant(&row, "unwatched_at")?,
            };
            resolved.jobs.push((job_row(&row)?.into_record(row.try_get("policy")?)?, clocks));
        }
    }
    for unique in &lookup.unique {
        let row = sqlx::query("select job_id from unique_keys where queue = ? and key = ?")
            .bind(unique.queue.as_str())
            .bind(&unique.key)
            .fetch_optional(pool)
            .await?;
        if let Some(row) = row {
            resolved.unique.push((unique.clone(), id(&row)?));
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
        if let Some(row) = row {
            let unreadable = || StoreError::Unreadable("a remembered request".to_owned());
            let hash: Vec<u8> = row.try_get("body_hash")?;
            resolved.requests.push(Remembered {
                request: request.clone(),
                body_hash: hash.try_into().map_err(|_| unreadable())?,
                answer: Json::from_text(row.try_get("answer")?).ok_or_else(unreadable)?,
            });
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
    rows.iter()
        .map(|row| {
            let data = row.try_get("data")?;
            row::event(row.try_get("seq")?, row.try_get("type")?, instant(row, "at")?, row.try_get("attempt")?, data)
        })
        .collect()
}

pub(super) async fn part(pool: &SqlitePool, id: JobId, part: Part) -> Result<Option<Json>, StoreError> {
    let sql = match part {
        Part::Payload => "select payload as part from specs where job_id = ?",
        Part::Result => "select data as part from results where job_id = ?",
    };
    let row = sqlx::query(sql).bind(id.to_string()).fetch_optional(pool).await?;
    Ok(row.map(|row| row.try_get("part")).transpose()?.and_then(Json::from_text))
}

pub(super) async fn list(pool: &SqlitePool, filter: &JobFilter, limit: u32) -> Result<Vec<Job>, StoreError> {
    let mut query = QueryBuilder::<Sqlite>::new(format!("select {JOB_COLUMNS} from jobs where true"));
    for (column, value) in [("queue", &filter.queue), ("kind", &filter.kind), ("subject", &filter.subject)] {
        if let Some(value) = value {
            query.push(format!(" and {column} = ")).push_bind(value);
        }
    }
    if !filter.states.is_empty() {
        let states: Vec<&str> = filter.states.iter().map(|state| state.as_str()).collect();
        query.push(" and state in (select value from json_each(").push_bind(json!(states).to_string()).push("))");
    }
    if filter.active && filter.subject.is_some() {
        query.push(" and state in ('scheduled', 'queued', 'running', 'retrying')");
    } else if filter.active {
        // Every live job stands in one of these small tables; `jobs` itself has no index on the state.
        query.push(
            " and job_id in (select job_id from ready union all select job_id from later union all select job_id from leases)",
        );
    }
    if let Some(after) = filter.created_after {
        query.push(" and job_id >= ").push_bind(JobId::lowest_at(after).to_string());
        query.push(" and created_at > ").push_bind(after.as_millis());
    }
    if let Some(after) = filter.finished_after {
        query.push(" and finished_at > ").push_bind(after.as_millis());
    }
    if let Some(before) = filter.before {
        query.push(" and job_id < ").push_bind(before.to_string());
    }
    query.push(" order by job_id desc limit ").push_bind(i64::from(limit));
    query.build().fetch_all(pool).await?.iter().map(|row| job_row(row)?.into_job()).collect()
}

pub(super) async fn overdue(pool: &SqlitePool, now: Timestamp, limit: u32) -> Result<Vec<JobId>, StoreError> {
    let rows = sqlx::query(
        "select job_id from (select job_id from jobs where due_at <= ?1 order by due_at limit ?2)
         union
         select job_id from (select job_id from leases where expires_at <= ?1 or cancel_at <= ?1 limit ?2)
         union
         select job_id from (select job_id from watches group by job_id having max(cancel_at) <= ?1 limit ?2)",
    )
    .bind(now.as_millis())
    .bind(limit)
    .fetch_all(pool)
    .await?;
    rows.iter().map(id).collect()
}

/// Ids are made in the order of time, so a job that ended before `before` also has an id from before it: the primary
/// key serves, and no index on `finished_at` costs every completion a write.
pub(super) async fn retired(pool: &SqlitePool, before: Timestamp, limit: u32) -> Result<Vec<(JobId, u64)>, StoreError> {
    let rows = sqlx::query("select job_id, seq from jobs where job_id < ? and finished_at < ? order by job_id limit ?")
        .bind(JobId::lowest_at(before).to_string())
        .bind(before.as_millis())
        .bind(i64::from(limit))
        .fetch_all(pool)
        .await?;
    rows.iter().map(|row| Ok((id(row)?, row.try_get::<i64, _>("seq")? as u64))).collect()
}
