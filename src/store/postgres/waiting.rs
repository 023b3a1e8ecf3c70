//! Why a job waits. Reads only, nothing is locked: the answer is a glance.

use std::collections::HashMap;

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row};
use uuid::Uuid;

use super::claim::{Hand, count_running, gather_rates};
use super::read::LIVE;
use crate::domain::waiting::{NAMED, Surroundings, WaitingFor};
use crate::domain::{Job, JobId, QueueName, Record, Timestamp};
use crate::store::StoreError;
use crate::store::row::{self, JOB_COLUMNS, RECORD_COLUMNS, RECORD_SOURCE};
use crate::store::waiting::{Lookout, explain};

pub(super) async fn waiting_for(
    connection: &mut PgConnection,
    id: JobId,
    is_asked_for: bool,
    now: Timestamp,
) -> Result<Option<(Job, Option<WaitingFor>)>, StoreError> {
    explain(&mut Hand { connection }, id, is_asked_for, now).await
}

impl Lookout for Hand<'_> {
    async fn record(&mut self, id: JobId) -> Result<Option<Record>, StoreError> {
        let sql = format!("select {JOB_COLUMNS}, {RECORD_COLUMNS}, {LIVE} {RECORD_SOURCE} where jobs.job_id = $1");
        let row = sqlx::query(AssertSqlSafe(sql)).bind(id.as_uuid()).fetch_optional(&mut *self.connection).await?;
        Ok(row.map(|row| row::record(&row)).transpose()?.map(|(record, _)| record))
    }

    async fn surroundings(
        &mut self,
        queue: &QueueName,
        lane: &str,
        now: Timestamp,
    ) -> Result<Surroundings, StoreError> {
        let row = sqlx::query(
            "select queue, settings, paused_at is not null as paused, held_until, turns, ahead_until, paused_by,
                 paused_reason, paused_at
             from queues where queue = $1",
        )
        .bind(queue.as_str())
        .fetch_optional(&mut *self.connection)
        .await?;
        let Some(row) = row else { return Ok(Surroundings::default()) };
        let mut queues = HashMap::from([row::queue_state(&row)?]);
        count_running(self.connection, &mut queues).await?;
        gather_rates(self.connection, &mut queues, now).await?;
        Ok(Surroundings {
            queue: queues.remove(queue).unwrap_or_default(),
            pause: row::pause(&row)?,
            running: self.running(queue, None).await?,
            running_of_key: self.running(queue, Some(lane)).await?,
        })
    }

    async fn has_worker(&mut self, job: &Job, since: Timestamp) -> Result<bool, StoreError> {
        let row = sqlx::query(
            "select exists (
                 select 1 from workers w
                 where w.seen_at > $3
                     and exists (select 1 from json_array_elements_text(w.queues) as q (name) where q.name = $1)
                     and (json_array_length(w.kinds) = 0
                         or exists (select 1 from json_array_elements_text(w.kinds) as k (name) where k.name = $2)))",
        )
        .bind(job.queue.as_str())
        .bind(job.kind.as_str())
        .bind(since.to_datetime())
        .fetch_one(&mut *self.connection)
        .await?;
        Ok(row.try_get(0)?)
    }
}

impl Hand<'_> {
    /// Some jobs of a queue, or of one of its lanes, that run.
    async fn running(&mut self, queue: &QueueName, lane: Option<&str>) -> Result<Vec<JobId>, StoreError> {
        let ids: Vec<Uuid> = sqlx::query_scalar(
            "select job_id from leases where queue = $1 and not tracked and ($2::text is null or concurrency_key = $2)
             order by job_id limit $3",
        )
        .bind(queue.as_str())
        .bind(lane)
        .bind(NAMED as i64)
        .fetch_all(&mut *self.connection)
        .await?;
        Ok(ids.into_iter().map(JobId::from_uuid).collect())
    }
}
