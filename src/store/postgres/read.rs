//! Reads. Each is one statement; none holds its connection for longer.

use sqlx::postgres::{PgPool, PgRow};
use sqlx::{AssertSqlSafe, Row};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::domain::{Event, Job, JobId, Json, QueueName, Timestamp};
use crate::store::listing::{self, Bind, Dialect};
use crate::store::row::{self, Columns, JOB_COLUMNS, RECORD_COLUMNS, RECORD_SOURCE};
use crate::store::{
    EventRange, IDEMPOTENCY_MS, JobFilter, Lookup, Part, Remembered, RequestKey, Resolved, StoreError, UniqueKey,
};

impl Columns for PgRow {
    fn id(&self, column: &str) -> Result<JobId, StoreError> {
        Ok(JobId::from_uuid(self.try_get(column)?))
    }

    fn text(&self, column: &str) -> Result<Option<String>, StoreError> {
        // Unchecked: by its name the driver refuses to read `json` as the text it is.
        Ok(self.try_get_unchecked(column)?)
    }

    fn integer(&self, column: &str) -> Result<Option<i64>, StoreError> {
        // Unchecked: an `integer` reads as 64 bits as well as a `bigint`.
        Ok(self.try_get_unchecked(column)?)
    }

    fn flag(&self, column: &str) -> Result<bool, StoreError> {
        Ok(self.try_get(column)?)
    }

    fn bytes(&self, column: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.try_get(column)?)
    }

    fn instant(&self, column: &str) -> Result<Option<Timestamp>, StoreError> {
        Ok(self.try_get::<Option<OffsetDateTime>, _>(column)?.map(Timestamp::from_datetime))
    }
}

/// Whether a lease holds, by the database's clock.
pub(super) const LIVE: &str = "coalesce(leases.job_id is not null and (leases.expires_at is null or leases.expires_at > now()) \
    and (leases.cancel_at is null or leases.cancel_at > now()) \
    and (leases.timeout_at is null or leases.timeout_at > now()), false) as live";

pub(super) async fn resolve(pool: &PgPool, lookup: &Lookup) -> Result<Resolved, StoreError> {
    let mut resolved = Resolved::default();
    if !lookup.jobs.is_empty() {
        let ids: Vec<Uuid> = lookup.jobs.iter().map(|id| id.as_uuid()).collect();
        let sql = format!("select {JOB_COLUMNS}, {RECORD_COLUMNS}, {LIVE} {RECORD_SOURCE} where jobs.job_id = any($1)");
        let rows = sqlx::query(AssertSqlSafe(sql)).bind(ids).fetch_all(pool).await?;
        resolved.jobs = rows.iter().map(row::record).collect::<Result<_, _>>()?;
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
            resolved.unique.push((UniqueKey { queue, key: row.try_get("key")? }, row.id("job_id")?));
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
            let request = RequestKey { scope: row.try_get("scope")?, key: row.try_get("key")? };
            resolved.requests.extend(remembered(&row, request)?);
        }
    }
    Ok(resolved)
}

fn remembered(row: &PgRow, request: RequestKey) -> Result<Option<Remembered>, StoreError> {
    let (body_hash, answer) = (row::hash(row, "body_hash")?, row::json(row, "answer")?);
    Ok(body_hash.zip(answer).map(|(body_hash, answer)| Remembered { request, body_hash, answer }))
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
    rows.iter().map(row::event).collect()
}

pub(super) async fn part(pool: &PgPool, id: JobId, part: Part) -> Result<Option<Json>, StoreError> {
    let sql = match part {
        Part::Payload => "select payload as part from specs where job_id = $1",
        Part::Result => "select data as part from results where job_id = $1",
    };
    let row = sqlx::query(sql).bind(id.as_uuid()).fetch_optional(pool).await?;
    row.map_or(Ok(None), |row| row::json(&row, "part"))
}

const DIALECT: Dialect = Dialect {
    placeholder: |n| format!("${n}"),
    id: |value| format!("{value}::uuid"),
    instant: |value| format!("to_timestamp({value}::double precision / 1000)"),
    texts: |value| format!("(select json_array_elements_text({value}::json))"),
    ids: |value| format!("(select json_array_elements_text({value}::json)::uuid)"),
};

pub(super) async fn list(pool: &PgPool, filter: &JobFilter, limit: u32) -> Result<Vec<Job>, StoreError> {
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

pub(super) async fn moved(pool: &PgPool, jobs: &[(JobId, u64)]) -> Result<Vec<JobId>, StoreError> {
    let ids: Vec<Uuid> = sqlx::query_scalar(
        "select w.job_id from unnest($1::uuid[], $2::bigint[]) as w (job_id, seq) left join jobs j using (job_id)
         where j.seq is distinct from w.seq",
    )
    .bind(jobs.iter().map(|(id, _)| id.as_uuid()).collect::<Vec<_>>())
    .bind(jobs.iter().map(|(_, seq)| *seq as i64).collect::<Vec<_>>())
    .fetch_all(pool)
    .await?;
    Ok(ids.into_iter().map(JobId::from_uuid).collect())
}

pub(super) async fn overdue(pool: &PgPool, limit: u32) -> Result<Vec<JobId>, StoreError> {
    let ids: Vec<Uuid> = sqlx::query_scalar(
        "(select job_id from jobs where due_at <= now() order by due_at limit $1)
         union
         (select job_id from leases where expires_at <= now() or cancel_at <= now() or timeout_at <= now()
             limit $1)
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
    rows.iter().map(row::retired).collect()
}
