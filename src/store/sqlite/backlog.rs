//! What piled up in a queue.

use sqlx::sqlite::SqlitePool;

use crate::store::row::Columns;
use crate::store::{Backlog, BacklogExtent, BacklogJob, BacklogPart, BacklogRange, StoreError};

pub(super) async fn extent(pool: &SqlitePool, backlog: &Backlog) -> Result<BacklogExtent, StoreError> {
    let sql = match backlog.part {
        BacklogPart::Waiting => {
            "select (select max(job_id) from (
                 select job_id from ready where queue = ?1 union all select job_id from later where queue = ?1)) as job_id,
                 1 as known
             from queues where queue = ?1"
        }
        BacklogPart::Dead => {
            "select (select max(job_id) from dead where queue = ?1) as job_id, 1 as known from queues where queue = ?1"
        }
    };
    let Some(row) = sqlx::query(sql).bind(backlog.queue.as_str()).fetch_optional(pool).await? else {
        return Ok(BacklogExtent::UnknownQueue);
    };
    Ok(match row.text("job_id")? {
        None => BacklogExtent::Empty,
        Some(_) => BacklogExtent::UpTo(row.id("job_id")?),
    })
}

/// Page after page this is one walk along a primary key: the `+` keeps the planner from sorting a whole queue for every
/// page. An index by queue and id would cost every enqueue and every claim a write.
pub(super) async fn page(
    pool: &SqlitePool,
    backlog: &Backlog,
    range: &BacklogRange,
) -> Result<Vec<BacklogJob>, StoreError> {
    let sql = match backlog.part {
        BacklogPart::Waiting => {
            "select job_id, null as unique_key from (
                 select w.job_id from ready w
                 where +w.queue = ?1 and w.job_id > ?2 and w.job_id <= ?3
                     and (?5 is null or exists (select 1 from jobs j where j.job_id = w.job_id
                         and j.error is not null and coalesce(j.error ->> 'code', 'failed') = ?5))
                 order by w.job_id limit ?4)
             union
             select job_id, null from (
                 select w.job_id from later w
                 where +w.queue = ?1 and w.job_id > ?2 and w.job_id <= ?3
                     and (?5 is null or exists (select 1 from jobs j where j.job_id = w.job_id
                         and j.error is not null and coalesce(j.error ->> 'code', 'failed') = ?5))
                 order by w.job_id limit ?4)
             order by job_id limit ?4"
        }
        BacklogPart::Dead => {
            "select d.job_id, s.policy ->> 'unique_key' as unique_key from dead d join specs s using (job_id)
             where d.queue = ?1 and d.job_id > ?2 and d.job_id <= ?3 and not d.tracked
                 and (?5 is null or d.error_code = ?5)
                 and not exists (select 1 from unique_keys u where u.queue = ?1 and u.key = s.policy ->> 'unique_key')
             order by d.job_id limit ?4"
        }
    };
    let rows = sqlx::query(sql)
        .bind(backlog.queue.as_str())
        .bind(range.after.to_string())
        .bind(range.upto.to_string())
        .bind(range.limit)
        .bind(backlog.error_code.as_deref())
        .fetch_all(pool)
        .await?;
    rows.iter().map(|row| Ok(BacklogJob { id: row.id("job_id")?, unique_key: row.text("unique_key")? })).collect()
}
