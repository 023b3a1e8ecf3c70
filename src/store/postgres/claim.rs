//! A claim: one transaction that locks the queues asked for, by name, and hands their jobs out.

use std::collections::HashMap;

use sqlx::AssertSqlSafe;
use sqlx::postgres::{PgConnection, PgPool};
use time::OffsetDateTime;
use uuid::Uuid;

use super::begin;
use super::read::LIVE;
use super::write::{open_leases, update_jobs};
use crate::domain::dispatch::QueueState;
use crate::domain::{ClaimRequest, Clocks, JobId, Json, QueueName, Record, Timestamp};
use crate::store::claim::{Counter, Dealt, Pick, Picked, Taken, Wish, WishAnswer, deal, full_queues};
use crate::store::clock::Clock;
use crate::store::row::{self, Columns, JOB_COLUMNS, RECORD_COLUMNS, RECORD_SOURCE};
use crate::store::{Change, Claimed, Committed, IDEMPOTENCY_MS, StoreError};

/// Rows that become claimable in one go.
const PROMOTED: i64 = 500;

pub(super) async fn promote(connection: &mut PgConnection, now: Timestamp) -> Result<Vec<QueueName>, StoreError> {
    let queues: Vec<String> = sqlx::query_scalar(
        "with due as (
             delete from later where job_id in (
                 select job_id from later where run_at <= $1 order by run_at limit $2 for update skip locked)
             returning job_id, queue, rank, lane, kind, run_at
         ), moved as (
             insert into ready (job_id, queue, rank, lane, kind, run_at) select * from due returning queue
         )
         select distinct queue from moved",
    )
    .bind(now.to_datetime())
    .bind(PROMOTED)
    .fetch_all(connection)
    .await?;
    Ok(queues.iter().filter_map(|queue| QueueName::parse(queue)).collect())
}

/// When the next job that waits for its instant becomes claimable.
async fn next_instant(connection: &mut PgConnection) -> Result<Option<Timestamp>, StoreError> {
    let next: Option<OffsetDateTime> =
        sqlx::query_scalar("select min(run_at) from later").fetch_one(connection).await?;
    Ok(next.map(Timestamp::from_datetime))
}

pub(super) async fn claim(pool: &PgPool, wishes: &[Wish], clock: &Clock) -> Result<Claimed, StoreError> {
    let mut transaction = begin(pool).await?;
    let connection = &mut *transaction;
    let mut answers = answer_again(connection, wishes).await?;
    let fresh: Vec<usize> = (0..wishes.len()).filter(|index| answers[*index].is_none()).collect();
    let requests: Vec<&ClaimRequest> = fresh.iter().map(|index| &wishes[*index].request).collect();
    let (mut queues, mut next) = lock_queues(connection, &requests, clock.now()).await?;
    // Not before the locks are held and leases were counted: else a run would begin, by the log, before the one has
    // ended that made room for it.
    let now = clock.now();
    if next.is_some_and(|next| next <= now) {
        promote(connection, now).await?;
        next = next_instant(connection).await?;
    }
    let Dealt { taken, changes, overdue, stale } = deal(&mut Hand { connection }, &mut queues, &requests, now).await?;
    let connection = &mut *transaction;
    write(connection, &changes, stale).await?;
    store_queues(connection, &queues).await?;
    let opens_at = queues.values().filter_map(|queue| queue.opens_at(now)).chain(next).min();
    for (index, taken) in fresh.into_iter().zip(taken) {
        remember(connection, &wishes[index], &taken).await?;
        answers[index] = Some(WishAnswer::Jobs(taken));
    }
    transaction.commit().await?;
    Ok(Claimed {
        answers: answers.into_iter().map(|answer| answer.unwrap_or(WishAnswer::Jobs(Vec::new()))).collect(),
        committed: Committed::of_changes(changes.iter()),
        records: changes.into_iter().map(|change| change.step.record).collect(),
        overdue,
        full: full_queues(&queues),
        opens_at,
    })
}

/// Requests that were answered before, and those whose key stands for something else. The key's row stays locked: the
/// same request through another node waits here.
async fn answer_again(connection: &mut PgConnection, wishes: &[Wish]) -> Result<Vec<Option<WishAnswer>>, StoreError> {
    let mut answers = Vec::with_capacity(wishes.len());
    for wish in wishes {
        let Some(idempotency) = &wish.idempotency else {
            answers.push(None);
            continue;
        };
        let request = &idempotency.request;
        sqlx::query(
            "insert into idempotency as i (scope, key, body_hash, answer) values ($1, $2, $3, '[]')
             on conflict (scope, key) do update set body_hash = excluded.body_hash, answer = '[]', created_at = now()
                 where i.created_at <= now() - $4 * interval '1 ms'",
        )
        .bind(&request.scope)
        .bind(&request.key)
        .bind(idempotency.body_hash.to_vec())
        .bind(IDEMPOTENCY_MS as f64)
        .execute(&mut *connection)
        .await?;
        let row = sqlx::query("select body_hash, answer from idempotency where scope = $1 and key = $2 for update")
            .bind(&request.scope)
            .bind(&request.key)
            .fetch_one(&mut *connection)
            .await?;
        if row::hash(&row, "body_hash")? != Some(idempotency.body_hash) {
            answers.push(Some(WishAnswer::Mismatch));
            continue;
        }
        let runs: Vec<(JobId, u64)> =
            row.text("answer")?.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        let still = still_held(connection, &runs).await?;
        answers.push((!still.is_empty()).then_some(WishAnswer::Again(still)));
    }
    Ok(answers)
}

/// Those of the runs that still hold their job.
async fn still_held(connection: &mut PgConnection, runs: &[(JobId, u64)]) -> Result<Vec<Taken>, StoreError> {
    if runs.is_empty() {
        return Ok(Vec::new());
    }
    let sql = format!(
        "select {JOB_COLUMNS}, {RECORD_COLUMNS}, {LIVE}, specs.payload {RECORD_SOURCE} where jobs.job_id = any($1)"
    );
    let ids: Vec<Uuid> = runs.iter().map(|(id, _)| id.as_uuid()).collect();
    let rows = sqlx::query(AssertSqlSafe(sql)).bind(ids).fetch_all(connection).await?;
    row::still_held(&rows, runs)
}

async fn remember(connection: &mut PgConnection, wish: &Wish, taken: &[Taken]) -> Result<(), StoreError> {
    let Some(idempotency) = &wish.idempotency else { return Ok(()) };
    let request = &idempotency.request;
    let sql = match taken {
        // Who got nothing may ask again, with whatever body.
        [] => "delete from idempotency where scope = $1 and key = $2 and $3::text is not null",
        _ => "update idempotency set answer = $3::json, created_at = now() where scope = $1 and key = $2",
    };
    sqlx::query(sql).bind(&request.scope).bind(&request.key).bind(row::runs_text(taken)).execute(connection).await?;
    Ok(())
}

/// Locks the rows of the queues asked for, by name, and gathers what their limits need; and, by the way, when the next
/// job becomes claimable that waits for its instant.
async fn lock_queues(
    connection: &mut PgConnection,
    requests: &[&ClaimRequest],
    now: Timestamp,
) -> Result<(HashMap<QueueName, QueueState>, Option<Timestamp>), StoreError> {
    let mut names: Vec<&str> = requests.iter().flat_map(|r| &r.queues).map(QueueName::as_str).collect();
    names.sort_unstable();
    names.dedup();
    let rows = sqlx::query(
        "select queue, settings, paused_at is not null as paused, held_until, turns, ahead_until,
             (select min(run_at) from later) as next_at
         from queues where queue = any($1) order by queue for no key update",
    )
    .bind(names)
    .fetch_all(&mut *connection)
    .await?;
    let next = rows.first().map_or(Ok(None), |row| row.instant("next_at"))?;
    let mut queues = rows.iter().map(row::queue_state).collect::<Result<HashMap<_, _>, _>>()?;
    count_running(connection, &mut queues).await?;
    gather_rates(connection, &mut queues, now).await?;
    Ok((queues, next))
}

/// From live leases, never from a counter that could drift.
pub(super) async fn count_running(
    connection: &mut PgConnection,
    queues: &mut HashMap<QueueName, QueueState>,
) -> Result<(), StoreError> {
    let limited =
        |state: &QueueState| state.settings.concurrency.is_some() || state.settings.concurrency_per_key.is_some();
    let names: Vec<&str> = queues.iter().filter(|(_, s)| limited(s)).map(|(name, _)| name.as_str()).collect();
    if names.is_empty() {
        return Ok(());
    }
    let rows = sqlx::query(
        "select queue, coalesce(concurrency_key, '') as lane, count(*) as running from leases
         where queue = any($1) and not tracked group by 1, 2",
    )
    .bind(names)
    .fetch_all(connection)
    .await?;
    for row in rows {
        row::count_running(&row, queues)?;
    }
    Ok(())
}

pub(super) async fn gather_rates(
    connection: &mut PgConnection,
    queues: &mut HashMap<QueueName, QueueState>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let per_key = |state: &QueueState| state.settings.rate_limit.is_some_and(|rate| rate.per_key);
    let names: Vec<&str> = queues.iter().filter(|(_, s)| per_key(s)).map(|(name, _)| name.as_str()).collect();
    if names.is_empty() {
        return Ok(());
    }
    let rows = sqlx::query("select queue, lane, ahead_until from rates where queue = any($1) and ahead_until > $2")
        .bind(names)
        .bind(now.as_millis() * 1_000)
        .fetch_all(connection)
        .await?;
    for row in rows {
        row::gather_rate(&row, queues)?;
    }
    Ok(())
}

pub(super) struct Hand<'a> {
    pub(super) connection: &'a mut PgConnection,
}

impl Counter for Hand<'_> {
    /// Walks from lane to lane along the index (each step one probe, whatever waits in the lane), beginning after the one
    /// served last; then takes the heads of the lanes it found.
    async fn pick(&mut self, pick: Pick<'_>) -> Result<Picked, StoreError> {
        // The kind is part of another index, and of every probe.
        let kind = if pick.kind.is_some() { "and r.kind = $8" } else { "and $8::text is null" };
        // A lane that this claim has emptied already is none.
        let unseen = "and ($7 = 0 or r.job_id <> all($5))";
        let sql = format!(
            "with recursive top as (
                 select r.rank, coalesce($3::json ->> r.rank::text, '') collate \"C\" as turn
                 from ready r where r.queue = $1 {kind} and r.rank >= $2 order by r.rank limit 1
             ), after (lane, found) as (
                 (select r.lane, case when r.lane = any($4) then 0 else 1 end from ready r
                  where r.queue = $1 {kind} and r.rank = (select rank from top) and r.lane > (select turn from top) {unseen} order by r.lane limit 1)
                 union all
                 select n.lane, after.found + case when n.lane = any($4) then 0 else 1 end
                 from after, lateral (
                     select r.lane from ready r where r.queue = $1 {kind} and r.rank = (select rank from top)
                         and r.lane > after.lane {unseen} order by r.lane limit 1) n
                 where after.found < $6
             ), before (lane, found) as (
                 (select r.lane, case when r.lane = any($4) then 0 else 1 end from ready r
                  where r.queue = $1 {kind} and r.rank = (select rank from top) and r.lane <= (select turn from top) {unseen} order by r.lane limit 1)
                 union all
                 select n.lane, before.found + case when n.lane = any($4) then 0 else 1 end
                 from before, lateral (
                     select r.lane from ready r where r.queue = $1 {kind} and r.rank = (select rank from top)
                         and r.lane > before.lane and r.lane <= (select turn from top) {unseen} order by r.lane limit 1) n
                 where before.found < $6 - (select count(*) from after where lane <> all($4))
             ), lanes as (
                 select lane from after where lane <> all($4) union select lane from before where lane <> all($4)
             ), share as (
                 select greatest(1, ceil($6::float8 / greatest(1, count(*))))::bigint as heads, count(*) as lanes from lanes
             )
             select top.rank, share.heads, share.lanes, h.job_id, lanes.lane, h.run_at
             from top cross join share left join lanes on true left join lateral (
                 select r.job_id, r.run_at from ready r
                 where r.queue = $1 {kind} and r.rank = top.rank and r.lane = lanes.lane {unseen}
                 order by r.run_at, r.job_id limit share.heads) h on true"
        );
        let seen: Vec<Uuid> = pick.seen.iter().map(|id| id.as_uuid()).collect();
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(pick.queue.as_str())
            .bind(pick.from_rank)
            .bind(row::turns_text(pick.turns))
            .bind(pick.full_lanes)
            .bind(&seen)
            .bind(pick.want as i64)
            .bind(seen.len() as i64)
            .bind(pick.kind.map(QueueName::as_str))
            .fetch_all(&mut *self.connection)
            .await?;
        row::picked(&rows, pick.want)
    }

    async fn lock(&mut self, jobs: &[JobId]) -> Result<Vec<(Record, Clocks, Json)>, StoreError> {
        let sql = format!(
            "select {JOB_COLUMNS}, {RECORD_COLUMNS}, {LIVE}, specs.payload {RECORD_SOURCE}
             where jobs.job_id = any($1) for no key update of jobs skip locked"
        );
        let ids: Vec<Uuid> = jobs.iter().map(|id| id.as_uuid()).collect();
        let rows = sqlx::query(AssertSqlSafe(sql)).bind(ids).fetch_all(&mut *self.connection).await?;
        rows.iter().map(row::record_with_payload).collect()
    }
}

async fn write(connection: &mut PgConnection, changes: &[Change], stale: Vec<JobId>) -> Result<(), StoreError> {
    let mut leaving: Vec<Uuid> = stale.iter().map(|id| id.as_uuid()).collect();
    leaving.extend(changes.iter().map(|change| change.job().id.as_uuid()));
    if leaving.is_empty() {
        return Ok(());
    }
    let written = update_jobs(connection, &changes.iter().collect::<Vec<_>>()).await?;
    if written.len() != changes.len() {
        return Err(StoreError::Unreadable("a locked job changed".to_owned()));
    }
    open_leases(connection, changes, &leaving).await
}

async fn store_queues(
    connection: &mut PgConnection,
    queues: &HashMap<QueueName, QueueState>,
) -> Result<(), StoreError> {
    for (name, queue) in queues.iter().filter(|(_, queue)| queue.served) {
        // Only what changed: most queues have neither lanes nor a rate.
        sqlx::query(
            "update queues set turns = $2::json, ahead_until = $3
             where queue = $1 and (turns::text, ahead_until) is distinct from ($2, $3)",
        )
        .bind(name.as_str())
        .bind(row::turns_text(&queue.turns))
        .bind(queue.ahead_until_us)
        .execute(&mut *connection)
        .await?;
        if queue.settings.rate_limit.is_some_and(|rate| rate.per_key) {
            let (lanes, ahead): (Vec<&str>, Vec<i64>) =
                queue.ahead_by_lane.iter().map(|(l, a)| (l.as_str(), *a)).unzip();
            sqlx::query(
                "insert into rates (queue, lane, ahead_until) select $1, * from unnest($2::text[], $3::bigint[])
                 on conflict (queue, lane) do update set ahead_until = excluded.ahead_until",
            )
            .bind(name.as_str())
            .bind(lanes)
            .bind(ahead)
            .execute(&mut *connection)
            .await?;
        }
    }
    Ok(())
}
