//! Reads. Each is one statement; none holds its connection for longer.

use sqlx::postgres::{PgPool, PgRow};
use sqlx::{AssertSqlSafe, Postgres, QueryBuilder, Row};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::domain::{Clocks, Event, Job, JobId, Json, QueueName, Timestamp};
use crate::store::row::{self, JOB_COLUMNS, JobRow};
use crate::store::{
    EventRange, IDEMPOTENCY_MS, JobFilter, Lookup, Part, Remembered, RequestKey, Resolved, StoreError, UniqueKey,
};

fn instant(row: &PgRow, column: &str) -> Result<Timestamp, sqlx::Error> {
    row.try_get::<OffsetDateTime, _>(column).map(Timestamp::from_datetime)
}

fn optional_instant(row: &PgRow, column: &str) -> Result<Option<Timestamp>, sqlx::Error> {
    Ok(row.try_get::<Option<OffsetDateTime>, _>(column)?.map(Timestamp::from_datetime))
}

/// A JSON column as the text it was stored as.
fn json_text(row: &PgRow, column: &str) -> Result<Option<String>, sqlx::Error> {
    // The driver's text decoder refuses the `json` type by name; the bytes are the text.
    row.try_get_unchecked(column)
}

fn job_row(row: &PgRow) -> Result<JobRow, sqlx::Error> {
    Ok(JobRow {
        id: JobId::from_uuid(row.try_get("job_id")?),
        queue: row.try_get("queue")?,
        kind: row.try_get("kind")?,
        subject: row.try_get("subject")?,
        state: row.try_get("state")?,
        seq: row.try_get("seq")?,
        attempt: row.try_get("attempt")?,
        max_attempts: row.try_get("max_attempts")?,
        priority: row.try_get("priority")?,
        tracked: row.try_get("tracked")?,
        progress: json_text(row, "progress")?,
        output_bytes: row.try_get("output_bytes")?,
        outcome: json_text(row, "outcome")?,
        error: json_text(row, "error")?,
        cancel_requested: row.try_get("cancel_requested")?,
        worker: row.try_get("worker")?,
        created_at: instant(row, "created_at")?,
        run_at: instant(row, "run_at")?,
        started_at: optional_instant(row, "started_at")?,
        finished_at: optional_instant(row, "finished_at")?,
        updated_at: instant(row, "updated_at")?,
        meta: json_text(row, "meta")?.unwrap_or_default(),
        run: row.try_get("run")?,
        output_after_seq: row.try_get("output_after_seq")?,
        enqueued_at: instant(row, "enqueued_at")?,
        cancel_reason: row.try_get("cancel_reason")?,
        ending_run: row.try_get("ending_run")?,
        ending_hash: row.try_get("ending_hash")?,
    })
}

pub(super) async fn resolve(pool: &PgPool, lookup: &Lookup) -> Result<Resolved, StoreError> {
    let mut resolved = Resolved::default();
    if !lookup.jobs.is_empty() {
        let ids: Vec<Uuid> = lookup.jobs.iter().map(|id| id.as_uuid()).collect();
        let sql = format!(
            "select {JOB_COLUMNS}, policy, expires_at, leases.cancel_at,
                 (select max(w.cancel_at) from watches w where w.job_id = jobs.job_id) as unwatched_at
             from jobs join specs using (job_id) left join leases using (job_id) where jobs.job_id = any($1)"
        );
        for row in sqlx::query(AssertSqlSafe(sql)).bind(ids).fetch_all(pool).await? {
            let clocks = Clocks {
                expires_at: optional_instant(&row, "expires_at")?,
                cancel_at: optional_instant(&row, "cancel_at")?,
                unwatched_at: optional_instant(&row, "unwatched_at")?,
            };
            let policy = json_text(&row, "policy")?.unwrap_or_default();
            resolved.jobs.push((job_row(&row)?.into_record(&policy)?, clocks));
        }
    }
    if !lookup.unique.is_empty() {
        let (queues, keys): (Vec<_>, Vec<_>) = lookup.unique.iter().map(|u| (u.queue.as_str(), u.key.as_str())).unzip();
        let rows = sqlx::query(
            "select u.queue, u.key, u.job_id from unnest($1::text[], $2::text[]) as asked (queue, key)
             join unique_keys u on u.queue = asked.queue and u.key = asked.key",
        )
        .bind(queues)
        .bind(keys)
        .fetch_all(pool)
        .await?;
        for row in rows {
            let queue = QueueName::parse(row.try_get("queue")?);
            let queue = queue.ok_or_else(|| StoreError::Unreadable("queue of a unique key".to_owned()))?;
            resolved
                .unique
                .push((UniqueKey { queue, key: row.try_get("key")? }, JobId::from_uuid(row.try_get("job_id")?)));
        }
    }
    if !lookup.requests.is_empty() {
        let (scopes, keys): (Vec<_>, Vec<_>) =
            lookup.requests.iter().map(|r| (r.scope.as_str(), r.key.as_str())).unzip();
        let rows = sqlx::query(
            "select i.scope, i.key, i.body_hash, i.answer from unnest($1::text[], $2::text[]) as asked (scope, key)
             join idempotency i on i.scope = asked.scope and i.key = asked.key
             where i.created_at > now() - $3 * interval '1 ms'",
        )
        .bind(scopes)
        .bind(keys)
        .bind(IDEMPOTENCY_MS as f64)
        .fetch_all(pool)
        .await?;
        for row in rows {
            let unreadable = || StoreError::Unreadable("a remembered request".to_owned());
            let hash: Vec<u8> = row.try_get("body_hash")?;
            resolved.requests.push(Remembered {
                request: RequestKey { scope: row.try_get("scope")?, key: row.try_get("key")? },
                body_hash: hash.try_into().map_err(|_| unreadable())?,
                answer: json_text(&row, "answer")?.and_then(Json::from_text).ok_or_else(unreadable)?,
            });
        }
    }
    Ok(resolved)
}

pub(super) async fn events(pool: &PgPool, id: JobId, range: &EventRange) -> Result<Vec<Event>, StoreError> {
    let order = if range.newest_first { "desc" } else { "asc" };
    let only = if range.output_only { "and type = 'output'" } else { "" };
    let sql = format!(
        "select seq, type, at, attempt, data from events
         where job_id = $1 and seq > $2 and seq <= $3 {only} order by seq {order} limit $4"
    );
    let rows = sqlx::query(AssertSqlSafe(sql))
        .bind(id.as_uuid())
        .bind(range.after as i64)
        .bind(range.upto.min(i64::MAX as u64) as i64)
        .bind(i64::from(range.limit))
        .fetch_all(pool)
        .await?;
    rows.iter()
        .map(|row| {
            let data = json_text(row, "data")?.unwrap_or_default();
            row::event(row.try_get("seq")?, row.try_get("type")?, instant(row, "at")?, row.try_get("attempt")?, data)
        })
        .collect()
}

pub(super) async fn part(pool: &PgPool, id: JobId, part: Part) -> Result<Option<Json>, StoreError> {
    let sql = match part {
        Part::Payload => "select payload as part from specs where job_id = $1",
        Part::Result => "select data as part from results where job_id = $1",
    };
    let row = sqlx::query(sql).bind(id.as_uuid()).fetch_optional(pool).await?;
    Ok(row.map(|row| json_text(&row, "part")).transpose()?.flatten().and_then(Json::from_text))
}

pub(super) async fn list(pool: &PgPool, filter: &JobFilter, limit: u32) -> Result<Vec<Job>, StoreError> {
    let mut query = QueryBuilder::<Postgres>::new(format!("select {JOB_COLUMNS} from jobs where true"));
    for (column, value) in [("queue", &filter.queue), ("kind", &filter.kind), ("subject", &filter.subject)] {
        if let Some(value) = value {
            query.push(format!(" and {column} = ")).push_bind(value);
        }
    }
    if !filter.states.is_empty() {
        let states: Vec<&str> = filter.states.iter().map(|state| state.as_str()).collect();
        query.push(" and state = any(").push_bind(states).push(")");
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
        query.push(" and job_id >= ").push_bind(JobId::lowest_at(after).as_uuid());
        query.push(" and created_at > ").push_bind(after.to_datetime());
    }
    if let Some(after) = filter.finished_after {
        query.push(" and finished_at > ").push_bind(after.to_datetime());
    }
    if let Some(before) = filter.before {
        query.push(" and job_id < ").push_bind(before.as_uuid());
    }
    query.push(" order by job_id desc limit ").push_bind(i64::from(limit));
    query.build().fetch_all(pool).await?.iter().map(|row| job_row(row)?.into_job()).collect()
}

pub(super) async fn overdue(pool: &PgPool, limit: u32) -> Result<Vec<JobId>, StoreError> {
    let ids: Vec<Uuid> = sqlx::query_scalar(
        "(select job_id from jobs where due_at <= now() order by due_at limit $1)
         union
         (select job_id from leases where expires_at <= now() or cancel_at <= now() limit $1)
         union
         (select job_id from watches group by job_id having max(cancel_at) <= now() limit $1)",
    )
    .bind(i64::from(limit))
    .fetch_all(pool)
    .await?;
    Ok(ids.into_iter().map(JobId::from_uuid).collect())
}

/// Ids are made in the order of time, so a job that ended before `before` also has an id from before it: the primary
/// key serves, and no index on `finished_at` costs every completion a write.
pub(super) async fn retired(pool: &PgPool, before: Timestamp, limit: u32) -> Result<Vec<(JobId, u64)>, StoreError> {
    let rows =
        sqlx::query("select job_id, seq from jobs where job_id < $1 and finished_at < $2 order by job_id limit $3")
            .bind(JobId::lowest_at(before).as_uuid())
            .bind(before.to_datetime())
            .bind(i64::from(limit))
            .fetch_all(pool)
            .await?;
    rows.iter()
        .map(|row| Ok((JobId::from_uuid(row.try_get("job_id")?), row.try_get::<i64, _>("seq")? as u64)))
        .collect()
}
