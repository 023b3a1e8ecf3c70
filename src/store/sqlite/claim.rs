//! A claim. One writer at a time: its transaction is the lock on the queues.

use std::collections::HashMap;

use sqlx::{AssertSqlSafe, Row, SqliteConnection};

use super::read::LIVE;
use super::script::{Script, json};
use super::write::{LEAVE_READY, hex, insert_events, move_leases, update_jobs};
use crate::domain::dispatch::QueueState;
use crate::domain::{ClaimRequest, Clocks, JobId, Json, QueueName, Record, Timestamp};
use crate::store::claim::{Counter, Dealt, Pick, Picked, Taken, Wish, WishAnswer, deal, full_queues};
use crate::store::row::{self, Columns, JOB_COLUMNS, RECORD_COLUMNS, RECORD_SOURCE};
use crate::store::{Change, Claimed, Committed, IDEMPOTENCY_MS, StoreError};

/// Rows that become claimable in one go.
const PROMOTED: i64 = 500;

pub(super) async fn promote(connection: &mut SqliteConnection, now: Timestamp) -> Result<Vec<QueueName>, StoreError> {
    let rows = sqlx::query(
        "delete from later where job_id in (select job_id from later where run_at <= ? order by run_at limit ?)
         returning job_id, queue, rank, lane, kind, run_at",
    )
    .bind(now.as_millis())
    .bind(PROMOTED)
    .fetch_all(&mut *connection)
    .await?;
    let mut queues = Vec::new();
    for row in rows {
        sqlx::query("insert into ready (job_id, queue, rank, lane, kind, run_at) values (?, ?, ?, ?, ?, ?)")
            .bind(row.try_get_unchecked::<String, _>("job_id")?)
            .bind(row.try_get_unchecked::<String, _>("queue")?)
            .bind(row.try_get_unchecked::<i64, _>("rank")?)
            .bind(row.try_get_unchecked::<String, _>("lane")?)
            .bind(row.try_get_unchecked::<String, _>("kind")?)
            .bind(row.try_get_unchecked::<i64, _>("run_at")?)
            .execute(&mut *connection)
            .await?;
        let queue = row::queue_name(&row)?;
        if !queues.contains(&queue) {
            queues.push(queue);
        }
    }
    Ok(queues)
}

/// Runs inside one `begin immediate` transaction.
pub(super) async fn claim(
    connection: &mut SqliteConnection,
    wishes: &[Wish],
    now: Timestamp,
) -> Result<Claimed, StoreError> {
    let mut answers: Vec<Option<WishAnswer>> = Vec::with_capacity(wishes.len());
    for wish in wishes {
        answers.push(answer_again(connection, wish, now).await?);
    }
    let fresh: Vec<usize> = (0..wishes.len()).filter(|index| answers[*index].is_none()).collect();
    let requests: Vec<&ClaimRequest> = fresh.iter().map(|index| &wishes[*index].request).collect();
    let (mut queues, mut next) = gather_queues(connection, &requests, now).await?;
    if next.is_some_and(|next| next <= now) {
        promote(connection, now).await?;
        next = next_instant(connection).await?;
    }
    let mut hand = Hand { connection: &mut *connection, now };
    let Dealt { taken, changes, overdue, stale } = deal(&mut hand, &mut queues, &requests, now).await?;
    let opens_at = queues.values().filter_map(|queue| queue.opens_at(now)).chain(next).min();
    let mut script = Script::default();
    hand_over(&mut script, &changes, stale, now);
    store_queues(&mut script, &queues);
    for (index, taken) in fresh.into_iter().zip(taken) {
        remember(&mut script, &wishes[index], &taken, now);
        answers[index] = Some(WishAnswer::Jobs(taken));
    }
    if !script.play(connection).await? {
        return Err(StoreError::Unreadable("a job changed in front of the only writer".to_owned()));
    }
    Ok(Claimed {
        answers: answers.into_iter().map(|answer| answer.unwrap_or(WishAnswer::Jobs(Vec::new()))).collect(),
        committed: Committed::of_changes(changes.iter()),
        records: changes.into_iter().map(|change| change.step.record).collect(),
        overdue,
        full: full_queues(&queues),
        opens_at,
    })
}

async fn answer_again(
    connection: &mut SqliteConnection,
    wish: &Wish,
    now: Timestamp,
) -> Result<Option<WishAnswer>, StoreError> {
    let Some(idempotency) = &wish.idempotency else { return Ok(None) };
    let row = sqlx::query("select body_hash, answer from idempotency where scope = ? and key = ? and created_at > ?")
        .bind(&idempotency.request.scope)
        .bind(&idempotency.request.key)
        .bind(now.as_millis() - IDEMPOTENCY_MS as i64)
        .fetch_optional(&mut *connection)
        .await?;
    let Some(row) = row else { return Ok(None) };
    if row::hash(&row, "body_hash")? != Some(idempotency.body_hash) {
        return Ok(Some(WishAnswer::Mismatch));
    }
    let runs: Vec<(JobId, u64)> =
        row.text("answer")?.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    let ids: Vec<JobId> = runs.iter().map(|(id, _)| *id).collect();
    let rows = select_jobs(connection, &ids, now).await?;
    let still = row::still_held(&rows, &runs)?;
    Ok((!still.is_empty()).then_some(WishAnswer::Again(still)))
}

fn remember(script: &mut Script, wish: &Wish, taken: &[Taken], now: Timestamp) {
    let Some(idempotency) = wish.idempotency.as_ref().filter(|_| !taken.is_empty()) else { return };
    let request = &idempotency.request;
    script.run(
        "insert or replace into idempotency (scope, key, body_hash, answer, created_at)
         select value ->> 0, value ->> 1, unhex(value ->> 2), value ->> 3, value ->> 4 from jsonb_each(?)",
        &[(&request.scope, &request.key, hex(&idempotency.body_hash), row::runs_text(taken), now.as_millis())],
    );
}

/// When the next job that waits for its instant becomes claimable.
async fn next_instant(connection: &mut SqliteConnection) -> Result<Option<Timestamp>, StoreError> {
    let next: Option<i64> = sqlx::query_scalar("select min(run_at) from later").fetch_one(connection).await?;
    Ok(next.map(Timestamp::from_millis))
}

/// The queues asked for, with what their limits need; and, by the way, when the next job becomes claimable that waits for
/// its instant.
async fn gather_queues(
    connection: &mut SqliteConnection,
    requests: &[&ClaimRequest],
    now: Timestamp,
) -> Result<(HashMap<QueueName, QueueState>, Option<Timestamp>), StoreError> {
    let mut names: Vec<&str> = requests.iter().flat_map(|r| &r.queues).map(QueueName::as_str).collect();
    names.sort_unstable();
    names.dedup();
    let rows = sqlx::query(
        "select queue, settings, paused_at is not null as paused, held_until, turns, ahead_until,
             (select min(run_at) from later) as next_at
         from queues where queue in (select value from jsonb_each(?))",
    )
    .bind(json(&names))
    .fetch_all(&mut *connection)
    .await?;
    let next = rows.first().map_or(Ok(None), |row| row.instant("next_at"))?;
    let mut queues = rows.iter().map(row::queue_state).collect::<Result<HashMap<_, _>, _>>()?;
    gather_limits(connection, &mut queues, now).await?;
    Ok((queues, next))
}

/// What the limits of queues need.
pub(super) async fn gather_limits(
    connection: &mut SqliteConnection,
    queues: &mut HashMap<QueueName, QueueState>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let limited: Vec<&QueueName> = queues
        .iter()
        .filter(|(_, s)| s.settings.concurrency.is_some() || s.settings.concurrency_per_key.is_some())
        .map(|(name, _)| name)
        .collect();
    if !limited.is_empty() {
        // From live leases, never from a counter that could drift.
        let rows = sqlx::query(
            "select queue, coalesce(concurrency_key, '') as lane, count(*) as running from leases
             where queue in (select value from jsonb_each(?)) and not tracked group by 1, 2",
        )
        .bind(json(&limited))
        .fetch_all(&mut *connection)
        .await?;
        for row in rows {
            row::count_running(&row, queues)?;
        }
    }
    let per_key = |state: &QueueState| state.settings.rate_limit.is_some_and(|rate| rate.per_key);
    let rated: Vec<&QueueName> = queues.iter().filter(|(_, s)| per_key(s)).map(|(name, _)| name).collect();
    if !rated.is_empty() {
        let rows = sqlx::query(
            "select queue, lane, ahead_until from rates
             where queue in (select value from jsonb_each(?)) and ahead_until > ?",
        )
        .bind(json(&rated))
        .bind(now.as_millis() * 1_000)
        .fetch_all(connection)
        .await?;
        for row in rows {
            row::gather_rate(&row, queues)?;
        }
    }
    Ok(())
}

pub(super) struct Hand<'a> {
    pub(super) connection: &'a mut SqliteConnection,
    pub(super) now: Timestamp,
}

impl Counter for Hand<'_> {
    /// Walks from lane to lane along the index (each step one probe, whatever waits in the lane), beginning after the one
    /// served last; then takes the heads of the lanes it found.
    async fn pick(&mut self, pick: Pick<'_>) -> Result<Picked, StoreError> {
        // The kind is part of another index, and of every probe.
        let kind = if pick.kind.is_some() { "and r.kind = ?7" } else { "and ?7 is null" };
        // A lane that this claim has emptied already is none.
        let unseen = if pick.seen.is_empty() { "" } else { "and r.job_id not in (select value from jsonb_each(?5))" };
        let probe = |lanes: &str| {
            format!(
                "(select r.lane from ready r where r.queue = ?1 {kind} and r.rank = top.rank and {lanes} {unseen}
                  order by r.lane limit 1)"
            )
        };
        let open = |lane: &str| format!("{lane} is not null and {lane} not in (select value from jsonb_each(?4))");
        let (after_open, before_open) = (open("after.lane"), open("before.lane"));
        let sql = format!(
            "with recursive top (rank, turn) as materialized (
                 select r.rank, coalesce((select value from jsonb_each(?3) where key = cast(r.rank as text)), '')
                 from ready r where r.queue = ?1 {kind} and r.rank >= ?2 order by r.rank limit 1
             ), after (lane, found) as (
                 select {after_first}, 0 from top
                 union all
                 select {after_next}, after.found + ({after_open}) from after cross join top
                 where after.lane is not null and after.found + ({after_open}) < ?6
             ), before (lane, found) as (
                 select {before_first}, (select count(*) from after where {after_open}) from top
                 union all
                 select {before_next}, before.found + ({before_open}) from before cross join top
                 where before.lane is not null and before.found + ({before_open}) < ?6
             ), lanes (lane) as materialized (
                 select lane from after where {after_open} union select lane from before where {before_open}
             ), share (lanes, heads) as materialized (
                 select count(*), max(1, (?6 + count(*) - 1) / max(1, count(*))) from lanes
             )
             select top.rank, share.lanes, share.heads, h.job_id, lanes.lane, h.run_at
             from top cross join share left join lanes left join ready h on h.job_id in (
                 select r.job_id from ready r where r.queue = ?1 {kind} and r.rank = top.rank and r.lane = lanes.lane
                     {unseen} order by r.run_at, r.job_id limit (select heads from share))
             order by lanes.lane, h.run_at, h.job_id",
            after_first = probe("r.lane > top.turn"),
            after_next = probe("r.lane > after.lane"),
            before_first = probe("r.lane <= top.turn"),
            before_next = probe("r.lane > before.lane and r.lane <= top.turn"),
        );
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(pick.queue.as_str())
            .bind(pick.from_rank)
            .bind(row::turns_text(pick.turns))
            .bind(json(pick.full_lanes))
            .bind(json(pick.seen))
            .bind(pick.want as i64)
            .bind(pick.kind.map(QueueName::as_str))
            .fetch_all(&mut *self.connection)
            .await?;
        row::picked(&rows, pick.want)
    }

    async fn lock(&mut self, jobs: &[JobId]) -> Result<Vec<(Record, Clocks, Json)>, StoreError> {
        let rows = select_jobs(self.connection, jobs, self.now).await?;
        rows.iter().map(row::record_with_payload).collect()
    }
}

async fn select_jobs(
    connection: &mut SqliteConnection,
    jobs: &[JobId],
    now: Timestamp,
) -> Result<Vec<sqlx::sqlite::SqliteRow>, StoreError> {
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    let sql = format!(
        "select {JOB_COLUMNS}, {RECORD_COLUMNS}, {LIVE}, specs.payload {RECORD_SOURCE}
         where jobs.job_id in (select value from jsonb_each(?2))"
    );
    let query = sqlx::query(AssertSqlSafe(sql)).bind(now.as_millis()).bind(json(jobs));
    Ok(query.fetch_all(connection).await?)
}

fn hand_over(script: &mut Script, changes: &[Change], stale: Vec<JobId>, now: Timestamp) {
    let mut leaving = stale;
    leaving.extend(changes.iter().map(|change| change.job().id));
    script.run(LEAVE_READY, &leaving);
    update_jobs(script, &changes.iter().collect::<Vec<_>>());
    insert_events(script, changes);
    move_leases(script, changes, now);
}

fn store_queues(script: &mut Script, queues: &HashMap<QueueName, QueueState>) {
    let served = || queues.iter().filter(|(_, queue)| queue.served);
    let rows: Vec<(&QueueName, String, Option<i64>)> =
        served().map(|(name, queue)| (name, row::turns_text(&queue.turns), queue.ahead_until_us)).collect();
    script.run(
        "update queues set turns = i.value ->> 1, ahead_until = i.value ->> 2
         from jsonb_each(?) as i where queue = i.value ->> 0",
        &rows,
    );
    let rates: Vec<(&QueueName, &str, i64)> = served()
        .filter(|(_, queue)| queue.settings.rate_limit.is_some_and(|rate| rate.per_key))
        .flat_map(|(name, queue)| queue.ahead_by_lane.iter().map(move |(lane, ahead)| (name, lane.as_str(), *ahead)))
        .collect();
    script.run(
        "insert or replace into rates (queue, lane, ahead_until)
         select value ->> 0, value ->> 1, value ->> 2 from jsonb_each(?)",
        &rates,
    );
}
