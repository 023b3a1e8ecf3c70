//! A claim. One writer at a time: its transaction is the lock on the queues.

use std::collections::HashMap;

use serde_json::json;
use sqlx::{AssertSqlSafe, Row, SqliteConnection};

use super::read::LIVE;
use super::write::{LEAVE_READY, insert_events, move_leases, run, update_jobs};
use crate::domain::dispatch::{Candidate, QueueState};
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
    promote(connection, now).await?;
    let mut queues = gather_queues(connection, &requests, now).await?;
    let mut hand = Hand { connection: &mut *connection, now };
    let Dealt { taken, changes, overdue, stale } = deal(&mut hand, &mut queues, &requests, now).await?;
    write(connection, &changes, stale, now).await?;
    store_queues(connection, &queues).await?;
    let next: Option<i64> = sqlx::query_scalar("select min(run_at) from later").fetch_one(&mut *connection).await?;
    let opens_at =
        queues.values().filter_map(|queue| queue.opens_at(now)).chain(next.map(Timestamp::from_millis)).min();
    for (index, taken) in fresh.into_iter().zip(taken) {
        remember(connection, &wishes[index], &taken, now).await?;
        answers[index] = Some(WishAnswer::Jobs(taken));
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

async fn remember(
    connection: &mut SqliteConnection,
    wish: &Wish,
    taken: &[Taken],
    now: Timestamp,
) -> Result<(), StoreError> {
    let Some(idempotency) = wish.idempotency.as_ref().filter(|_| !taken.is_empty()) else { return Ok(()) };
    sqlx::query(
        "insert or replace into idempotency (scope, key, body_hash, answer, created_at) values (?, ?, ?, ?, ?)",
    )
    .bind(&idempotency.request.scope)
    .bind(&idempotency.request.key)
    .bind(idempotency.body_hash.to_vec())
    .bind(row::runs_text(taken))
    .bind(now.as_millis())
    .execute(connection)
    .await?;
    Ok(())
}

async fn gather_queues(
    connection: &mut SqliteConnection,
    requests: &[&ClaimRequest],
    now: Timestamp,
) -> Result<HashMap<QueueName, QueueState>, StoreError> {
    let mut names: Vec<&str> = requests.iter().flat_map(|r| &r.queues).map(QueueName::as_str).collect();
    names.sort_unstable();
    names.dedup();
    let rows = sqlx::query(
        "select queue, settings, paused_at is not null as paused, held_until, turns, ahead_until
         from queues where queue in (select value from json_each(?))",
    )
    .bind(json!(names).to_string())
    .fetch_all(&mut *connection)
    .await?;
    let mut queues = rows.iter().map(row::queue_state).collect::<Result<HashMap<_, _>, _>>()?;
    gather_limits(connection, &mut queues, now).await?;
    Ok(queues)
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
             where queue in (select value from json_each(?)) and not tracked group by 1, 2",
        )
        .bind(json!(limited).to_string())
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
             where queue in (select value from json_each(?)) and ahead_until > ?",
        )
        .bind(json!(rated).to_string())
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

impl Hand<'_> {
    /// Up to `limit` lanes at a rank that hold something not seen yet, along the index: each step is one probe, whatever
    /// waits in the lane.
    async fn lanes(
        &mut self,
        pick: &Pick<'_>,
        rank: i64,
        wrapped: bool,
        limit: usize,
    ) -> Result<Vec<String>, StoreError> {
        let kind = if pick.kind.is_some() { "and kind = ?4" } else { "and ?4 is null" };
        let bound = if wrapped { "and lane <= ?5" } else { "and ?5 is not null" };
        let mut lanes = Vec::new();
        let turn = pick.turns.get(&(rank as i32)).map_or("", String::as_str);
        let mut last = (!wrapped).then(|| turn.to_owned());
        let seen = json!(pick.seen).to_string();
        while lanes.len() < limit {
            // "Greater or equal to the empty text" is every lane, the one without a key included.
            let from = if last.is_some() { ">" } else { ">=" };
            let sql = format!(
                "select lane from ready where queue = ?1 {kind} and rank = ?2 and lane {from} ?3 {bound}
                     and job_id not in (select value from json_each(?6)) order by lane limit 1"
            );
            let next: Option<String> = sqlx::query_scalar(AssertSqlSafe(sql))
                .bind(pick.queue.as_str())
                .bind(rank)
                .bind(last.clone().unwrap_or_default())
                .bind(pick.kind.map(QueueName::as_str))
                .bind(turn)
                .bind(&seen)
                .fetch_optional(&mut *self.connection)
                .await?;
            let Some(next) = next else { break };
            if !pick.full_lanes.contains(&next) {
                lanes.push(next.clone());
            }
            last = Some(next);
        }
        Ok(lanes)
    }
}

impl Counter for Hand<'_> {
    async fn pick(&mut self, pick: Pick<'_>) -> Result<Picked, StoreError> {
        let kind = if pick.kind.is_some() { "and kind = ?3" } else { "and ?3 is null" };
        let sql = format!("select rank from ready where queue = ?1 and rank >= ?2 {kind} order by rank limit 1");
        let rank: Option<i64> = sqlx::query_scalar(AssertSqlSafe(sql))
            .bind(pick.queue.as_str())
            .bind(pick.from_rank)
            .bind(pick.kind.map(QueueName::as_str))
            .fetch_optional(&mut *self.connection)
            .await?;
        let Some(rank) = rank else { return Ok(Picked::default()) };
        let mut lanes = self.lanes(&pick, rank, false, pick.want).await?;
        let rest = pick.want - lanes.len();
        lanes.extend(self.lanes(&pick, rank, true, rest).await?);
        let heads = pick.want.div_ceil(lanes.len().max(1));
        let mut picked = Picked { rank: Some(rank as i32), candidates: Vec::new(), is_all: lanes.len() < pick.want };
        let kind = if pick.kind.is_some() { "and kind = ?4" } else { "and ?4 is null" };
        let sql = format!(
            "select job_id, run_at from ready where queue = ?1 and rank = ?2 and lane = ?3 {kind}
                 and job_id not in (select value from json_each(?5)) order by run_at, job_id limit ?6"
        );
        let seen = json!(pick.seen).to_string();
        for lane in lanes {
            let rows = sqlx::query(AssertSqlSafe(sql.clone()))
                .bind(pick.queue.as_str())
                .bind(rank)
                .bind(&lane)
                .bind(pick.kind.map(QueueName::as_str))
                .bind(&seen)
                .bind(heads as i64)
                .fetch_all(&mut *self.connection)
                .await?;
            picked.is_all &= rows.len() < heads;
            for row in rows {
                let run_at = Timestamp::from_millis(row.try_get("run_at")?);
                picked.candidates.push(Candidate { id: row.id("job_id")?, lane: lane.clone(), run_at });
            }
        }
        Ok(picked)
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
         where jobs.job_id in (select value from json_each(?2))"
    );
    let query = sqlx::query(AssertSqlSafe(sql)).bind(now.as_millis()).bind(json!(jobs).to_string());
    Ok(query.fetch_all(connection).await?)
}

async fn write(
    connection: &mut SqliteConnection,
    changes: &[Change],
    stale: Vec<JobId>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let mut leaving = stale;
    leaving.extend(changes.iter().map(|change| change.job().id));
    run(connection, LEAVE_READY, &leaving).await?;
    if !update_jobs(connection, &changes.iter().collect::<Vec<_>>()).await? {
        return Err(StoreError::Unreadable("a job changed in front of the only writer".to_owned()));
    }
    insert_events(connection, changes).await?;
    move_leases(connection, changes, now).await
}

async fn store_queues(
    connection: &mut SqliteConnection,
    queues: &HashMap<QueueName, QueueState>,
) -> Result<(), StoreError> {
    for (name, queue) in queues.iter().filter(|(_, queue)| queue.served) {
        sqlx::query("update queues set turns = ?2, ahead_until = ?3 where queue = ?1")
            .bind(name.as_str())
            .bind(row::turns_text(&queue.turns))
            .bind(queue.ahead_until_us)
            .execute(&mut *connection)
            .await?;
        if queue.settings.rate_limit.is_some_and(|rate| rate.per_key) {
            let rates: Vec<(&QueueName, &str, i64)> =
                queue.ahead_by_lane.iter().map(|(lane, ahead)| (name, lane.as_str(), *ahead)).collect();
            run(
                connection,
                "insert or replace into rates (queue, lane, ahead_until)
                 select value ->> 0, value ->> 1, value ->> 2 from json_each(?)",
                &rates,
            )
            .await?;
        }
    }
    Ok(())
}
