//! What piled up in a queue.

use sqlx::Row;
use sqlx::postgres::PgPool;
use uuid::Uuid;

use crate::domain::JobId;
use crate::store::row::Columns;
use crate::store::{Backlog, BacklogExtent, BacklogJob, BacklogPart, BacklogRange, StoreError};

pub(super) async fn extent(pool: &PgPool, backlog: &Backlog) -> Result<BacklogExtent, StoreError> {
    let sql = match backlog.part {
        BacklogPart::Waiting => {
            "select queue, greatest(
                 (select job_id from ready where queue = $1 order by job_id desc limit 1),
                 (select job_id from later where queue = $1 order by job_id desc limit 1)) as newest
             from queues where queue = $1"
        }
        BacklogPart::Dead => {
            "select queue, (select job_id from dead where queue = $1 order by job_id desc limit 1) as newest
             from queues where queue = $1"
        }
    };
    let Some(row) = sqlx::query(sql).bind(backlog.queue.as_str()).fetch_optional(pool).await? else {
        return Ok(BacklogExtent::UnknownQueue);
    };
    let newest: Option<Uuid> = row.try_get("newest")?;
    Ok(newest.map_or(BacklogExtent::Empty, |id| BacklogExtent::UpTo(JobId::from_uuid(id))))
}

/// Page after page this is one walk along a primary key: `(…) is true` keeps the planner from sorting a whole queue for
/// every page. An index by queue and id would cost every enqueue and every claim a write.
pub(super) async fn page(
    pool: &PgPool,
    backlog: &Backlog,
    range: &BacklogRange,
) -> Result<Vec<BacklogJob>, StoreError> {
    let sql = match backlog.part {
        BacklogPart::Waiting => {
            "(select w.job_id, null as unique_key from ready w
              where (w.queue = $1) is true and w.job_id > $2 and w.job_id <= $3
                  and ($5::text is null or exists (select 1 from jobs j where j.job_id = w.job_id
                      and j.error is not null and coalesce(j.error ->> 'code', 'failed') = $5))
              order by w.job_id limit $4)
             union
             (select w.job_id, null from later w
              where (w.queue = $1) is true and w.job_id > $2 and w.job_id <= $3
                  and ($5::text is null or exists (select 1 from jobs j where j.job_id = w.job_id
                      and j.error is not null and coalesce(j.error ->> 'code', 'failed') = $5))
              order by w.job_id limit $4)
             order by job_id limit $4"
        }
        BacklogPart::Dead => {
            "select d.job_id, s.policy ->> 'unique_key' as unique_key from dead d join specs s using (job_id)
             where d.queue = $1 and d.job_id > $2 and d.job_id <= $3 and not d.tracked
                 and ($5::text is null or d.error_code = $5)
                 and not exists (select 1 from unique_keys u where u.queue = $1 and u.key = s.policy ->> 'unique_key')
             order by d.job_id limit $4"
        }
    };
    let rows = sqlx::query(sql)
        .bind(backlog.queue.as_str())
        .bind(range.after.as_uuid())
        .bind(range.upto.as_uuid())
        .bind(i64::from(range.limit))
        .bind(backlog.error_code.as_deref())
        .fetch_all(pool)
        .await?;
    rows.iter().map(|row| Ok(BacklogJob { id: row.id("job_id")?, unique_key: row.text("unique_key")? })).collect()
}
