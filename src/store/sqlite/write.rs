//! Writes: each table's rows of a batch are one JSON array, a batch is one [`Script`]. Runs inside one `begin immediate`
//! transaction.

use serde::Serialize;
use sqlx::SqliteConnection;

use super::script::{Script, json};
use crate::domain::{JobId, State, Timestamp, rules};
use crate::store::row::{self, policy_text, progress_text, text};
use crate::store::{Batch, Change, Committed, IDEMPOTENCY_MS, LeaseGuard, StoreError, UniqueKey, Waiting, lane};

/// Carries the batch out. `false`: a guard failed, and the transaction must be rolled back.
pub(super) async fn commit(
    connection: &mut SqliteConnection,
    batch: &Batch,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let changes = &batch.changes;
    let (new, old): (Vec<&Change>, Vec<&Change>) = changes.iter().partition(|change| change.before.is_none());
    let mut script = Script::default();
    // Guards first.
    remember(&mut script, batch, now);
    move_unique_keys(&mut script, changes);
    hold_leases(&mut script, changes, now);
    update_jobs(&mut script, &old);
    insert_jobs(&mut script, &new);
    insert_events(&mut script, changes);
    move_waiting(&mut script, changes);
    move_leases(&mut script, changes, now);
    move_dead(&mut script, changes);
    hold_queues(&mut script, changes, now);
    store_results(&mut script, changes);
    let forgotten: Vec<JobId> = changes.iter().filter(|c| c.forgets_watches()).map(|c| c.job().id).collect();
    script.run("delete from watches where job_id in (select value from jsonb_each(?))", &forgotten);
    script.play(connection).await
}

/// Runs `sql`, whose only parameter is `rows` as a JSON array. Returns how many rows it changed.
pub(super) async fn run(
    connection: &mut SqliteConnection,
    sql: &'static str,
    rows: &[impl Serialize],
) -> Result<u64, StoreError> {
    if rows.is_empty() {
        return Ok(0);
    }
    Ok(sqlx::query(sql).bind(json(rows)).execute(connection).await?.rows_affected())
}

fn remember(script: &mut Script, batch: &Batch, now: Timestamp) {
    #[derive(Serialize)]
    struct Row<'a> {
        scope: &'a str,
        key: &'a str,
        hash: String,
        answer: &'a str,
        now: i64,
        expired: i64,
    }
    let now = now.as_millis();
    let rows: Vec<Row> = batch
        .requests
        .iter()
        .map(|r| Row {
            scope: &r.request.scope,
            key: &r.request.key,
            hash: hex(&r.body_hash),
            answer: r.answer.as_str(),
            now,
            expired: now - IDEMPOTENCY_MS as i64,
        })
        .collect();
    script.change_each(
        "insert into idempotency (scope, key, body_hash, answer, created_at)
         select value ->> 'scope', value ->> 'key', unhex(value ->> 'hash'), value ->> 'answer', value ->> 'now'
         from jsonb_each(?) where not exists (
             select 1 from idempotency i where i.scope = value ->> 'scope' and i.key = value ->> 'key'
                 and i.created_at > value ->> 'expired')
         on conflict (scope, key) do update
             set body_hash = excluded.body_hash, answer = excluded.answer, created_at = excluded.created_at",
        &rows,
    );
}

fn move_unique_keys(script: &mut Script, changes: &[Change]) {
    #[derive(Serialize)]
    struct Row {
        queue: String,
        key: String,
        id: JobId,
    }
    let rows = |key: fn(&Change) -> Option<UniqueKey>| -> Vec<Row> {
        let row = |c: &Change| key(c).map(|u| Row { queue: u.queue.to_string(), key: u.key, id: c.job().id });
        changes.iter().filter_map(row).collect()
    };
    script.run(
        "delete from unique_keys where (queue, key, job_id) in
             (select value ->> 'queue', value ->> 'key', value ->> 'id' from jsonb_each(?))",
        &rows(Change::frees_unique_key),
    );
    let taken = rows(Change::takes_unique_key);
    script.change_each(
        "insert or ignore into unique_keys (queue, key, job_id)
         select value ->> 'queue', value ->> 'key', value ->> 'id' from jsonb_each(?)",
        &taken,
    );
}

/// The columns of `jobs`, for an update as for an insert.
#[derive(Serialize)]
struct JobRow<'a> {
    id: JobId,
    expected_seq: u64,
    seq: u64,
    state: &'static str,
    attempt: u32,
    progress: Option<String>,
    output_bytes: u64,
    outcome: Option<String>,
    error: Option<String>,
    cancel_requested: bool,
    worker: Option<&'a str>,
    run_at: i64,
    started_at: Option<i64>,
    finished_at: Option<i64>,
    updated_at: i64,
    run: u64,
    output_after_seq: u64,
    enqueued_at: i64,
    cancel_reason: Option<&'a str>,
    due_at: Option<i64>,
    ending_run: Option<u64>,
    ending_hash: Option<String>,
    released: u32,
    unheard: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    new: Option<NewJobRow<'a>>,
}

/// What never changes.
#[derive(Serialize)]
struct NewJobRow<'a> {
    queue: &'a str,
    kind: &'a str,
    subject: Option<&'a str>,
    max_attempts: u32,
    priority: i32,
    tracked: bool,
    created_at: i64,
    meta: &'a str,
    policy: String,
    payload: &'a str,
}

impl<'a> JobRow<'a> {
    fn of(change: &'a Change) -> Self {
        let (job, record) = (change.job(), &change.step.record);
        let new = change.before.is_none().then(|| NewJobRow {
            queue: job.queue.as_str(),
            kind: job.kind.as_str(),
            subject: job.subject.as_deref(),
            max_attempts: job.max_attempts,
            priority: job.priority,
            tracked: job.tracked,
            created_at: job.created_at.as_millis(),
            meta: job.meta.as_str(),
            policy: policy_text(&record.policy),
            payload: change.payload.as_ref().map_or("null", |payload| payload.as_str()),
        });
        Self {
            id: job.id,
            expected_seq: change.expected_seq(),
            seq: job.seq,
            state: job.state.as_str(),
            attempt: job.attempt,
            progress: progress_text(job),
            output_bytes: job.output_bytes,
            outcome: text(&job.outcome),
            error: text(&job.error),
            cancel_requested: job.cancel_requested,
            worker: job.worker.as_deref(),
            run_at: job.run_at.as_millis(),
            started_at: job.started_at.map(Timestamp::as_millis),
            finished_at: job.finished_at.map(Timestamp::as_millis),
            updated_at: job.updated_at.as_millis(),
            run: job.run,
            output_after_seq: job.output_after_seq,
            enqueued_at: job.enqueued_at.as_millis(),
            cancel_reason: job.cancel_reason.as_deref(),
            due_at: rules::due_at(record).map(Timestamp::as_millis),
            ending_run: record.ending.map(|ending| ending.run),
            ending_hash: record.ending.map(|ending| hex(&ending.body_hash)),
            released: record.handouts.released,
            unheard: record.handouts.unheard,
            new,
        }
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Every lease must be as its change took it to be, by the clock.
fn hold_leases(script: &mut Script, changes: &[Change], now: Timestamp) {
    let held: Vec<(JobId, i64)> =
        changes.iter().filter_map(|change| Some((change.job().id, change.lease.held_by()?))).collect();
    let run_out: Vec<JobId> = changes
        .iter()
        .filter(|change| change.lease.guard == LeaseGuard::RunOut)
        .map(|change| change.job().id)
        .collect();
    if held.is_empty() && run_out.is_empty() {
        return;
    }
    script.select(
        "with given (held, run_out, now) as (select ?, ?, cast(? as integer))
         select (select count(*) from given cross join jsonb_each(given.held) i join leases l on l.job_id = i.value ->> 0
             where l.run = i.value ->> 1 and l.expires_at > now and coalesce(l.cancel_at > now, 1)
                 and coalesce(l.timeout_at > now, 1))
             + (select count(*) from given cross join jsonb_each(given.run_out) i join leases l on l.job_id = i.value
                where l.expires_at <= now)",
        held.len() + run_out.len(),
        [json(&held), json(&run_out), now.as_millis().to_string()],
    );
}

/// Every job must be at the seq that it was folded on.
pub(super) fn update_jobs(script: &mut Script, old: &[&Change]) {
    let rows: Vec<JobRow> = old.iter().map(|change| JobRow::of(change)).collect();
    // A heartbeat writes its job's row again as it is: that is its guard.
    script.change_each(
        "update jobs set seq = i.value ->> 'seq', state = i.value ->> 'state', attempt = i.value ->> 'attempt',
             progress = i.value ->> 'progress', output_bytes = i.value ->> 'output_bytes',
             outcome = i.value ->> 'outcome', error = i.value ->> 'error',
             cancel_requested = i.value ->> 'cancel_requested', worker = i.value ->> 'worker',
             run_at = i.value ->> 'run_at', started_at = i.value ->> 'started_at',
             finished_at = i.value ->> 'finished_at', updated_at = i.value ->> 'updated_at', run = i.value ->> 'run',
             output_after_seq = i.value ->> 'output_after_seq', enqueued_at = i.value ->> 'enqueued_at',
             cancel_reason = i.value ->> 'cancel_reason', due_at = i.value ->> 'due_at',
             ending_run = i.value ->> 'ending_run', ending_hash = unhex(i.value ->> 'ending_hash'),
             released = i.value ->> 'released', unheard = i.value ->> 'unheard'
         from jsonb_each(?) as i where job_id = i.value ->> 'id' and seq = i.value ->> 'expected_seq'",
        &rows,
    );
}

fn insert_jobs(script: &mut Script, new: &[&Change]) {
    let rows: Vec<JobRow> = new.iter().map(|change| JobRow::of(change)).collect();
    script
        .run("insert or ignore into queues (queue) select distinct value ->> '$.new.queue' from jsonb_each(?)", &rows);
    script.run(
        "insert into jobs (job_id, seq, state, attempt, output_bytes, cancel_requested, worker, run_at, started_at,
             updated_at, run, output_after_seq, enqueued_at, due_at, queue, kind, subject, max_attempts, priority,
             tracked, created_at, meta, progress, outcome, error, finished_at, cancel_reason, ending_run, ending_hash)
         select value ->> 'id', value ->> 'seq', value ->> 'state', value ->> 'attempt', value ->> 'output_bytes',
             value ->> 'cancel_requested', value ->> 'worker', value ->> 'run_at', value ->> 'started_at',
             value ->> 'updated_at', value ->> 'run', value ->> 'output_after_seq', value ->> 'enqueued_at',
             value ->> 'due_at', value ->> '$.new.queue', value ->> '$.new.kind', value ->> '$.new.subject',
             value ->> '$.new.max_attempts', value ->> '$.new.priority', value ->> '$.new.tracked',
             value ->> '$.new.created_at', value ->> '$.new.meta', value ->> 'progress', value ->> 'outcome',
             value ->> 'error', value ->> 'finished_at', value ->> 'cancel_reason', value ->> 'ending_run',
             unhex(value ->> 'ending_hash')
         from jsonb_each(?)",
        &rows,
    );
    script.run(
        "insert into specs (job_id, policy, payload)
         select value ->> 'id', value ->> '$.new.policy', value ->> '$.new.payload' from jsonb_each(?)",
        &rows,
    );
}

pub(super) fn insert_events(script: &mut Script, changes: &[Change]) {
    // Arrays, not objects: this is the table with the most rows.
    let rows: Vec<(JobId, u64, &str, i64, u32, &str)> = changes
        .iter()
        .flat_map(|change| change.step.events.iter().map(move |event| (change.job().id, event)))
        .map(|(id, event)| {
            (id, event.seq, event.kind.as_str(), event.at.as_millis(), event.attempt, event.data.as_str())
        })
        .collect();
    script.run(
        "insert into events (job_id, seq, type, at, attempt, data)
         select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5 from jsonb_each(?)",
        &rows,
    );
}

fn move_waiting<'a>(script: &mut Script, changes: &'a [Change]) {
    #[derive(Serialize)]
    struct Row<'a> {
        id: JobId,
        queue: &'a str,
        rank: i32,
        lane: &'a str,
        kind: &'a str,
        run_at: i64,
        retrying: bool,
    }
    let row = |change: &'a Change| Row {
        id: change.job().id,
        queue: change.job().queue.as_str(),
        rank: -change.job().priority,
        lane: lane(&change.step.record),
        kind: change.job().kind.as_str(),
        run_at: change.job().run_at.as_millis(),
        retrying: change.job().state == State::Retrying,
    };
    let leaving: Vec<JobId> = changes.iter().filter(|c| c.leaves().is_some()).map(|c| c.job().id).collect();
    let (later, ready): (Vec<&Change>, Vec<&Change>) = changes
        .iter()
        .filter(|change| change.enters().is_some())
        .partition(|change| matches!(change.enters(), Some(Waiting::Later(_))));
    script.run(LEAVE_READY, &leaving);
    script.run("delete from later where job_id in (select value from jsonb_each(?))", &leaving);
    script.run(
        "insert into ready (job_id, queue, rank, lane, kind, run_at)
         select value ->> 'id', value ->> 'queue', value ->> 'rank', value ->> 'lane', value ->> 'kind',
             value ->> 'run_at' from jsonb_each(?)",
        &ready.into_iter().map(row).collect::<Vec<_>>(),
    );
    script.run(
        "insert into later (job_id, queue, rank, lane, kind, run_at, retrying)
         select value ->> 'id', value ->> 'queue', value ->> 'rank', value ->> 'lane', value ->> 'kind',
             value ->> 'run_at', value ->> 'retrying' from jsonb_each(?)",
        &later.into_iter().map(row).collect::<Vec<_>>(),
    );
}

/// Takes jobs out of `ready`.
pub(super) const LEAVE_READY: &str = "delete from ready where job_id in (select value from jsonb_each(?))";

pub(super) fn move_leases<'a>(script: &mut Script, changes: &'a [Change], now: Timestamp) {
    #[derive(Serialize)]
    struct Row<'a> {
        id: JobId,
        run: u64,
        worker: Option<&'a str>,
        queue: &'a str,
        concurrency_key: Option<&'a str>,
        lease_ms: Option<u64>,
        now: i64,
        timeout_at: Option<i64>,
        tracked: bool,
        renew: bool,
        cancel_at: Option<i64>,
    }
    let row = |change: &'a Change| Row {
        id: change.job().id,
        run: change.job().run,
        worker: change.job().worker.as_deref(),
        queue: change.job().queue.as_str(),
        concurrency_key: change.step.record.policy.concurrency_key.as_deref(),
        lease_ms: change.step.record.lease_ms,
        now: now.as_millis(),
        timeout_at: rules::run_ends_at(&change.step.record).map(Timestamp::as_millis),
        tracked: change.job().tracked,
        renew: change.lease.renew,
        cancel_at: change.lease.cancel_ms.map(|ms| now.plus_millis(ms).as_millis()),
    };
    let rows = |pick: fn(&Change) -> bool| changes.iter().filter(|change| pick(change)).map(row).collect::<Vec<_>>();
    script.run(
        "delete from leases where job_id in (select value ->> 'id' from jsonb_each(?))",
        &rows(|change| change.lease.close),
    );
    script.run(
        "insert into leases (job_id, run, worker, queue, concurrency_key, lease_ms, expires_at, cancel_at, timeout_at,
             tracked)
         select value ->> 'id', value ->> 'run', value ->> 'worker', value ->> 'queue', value ->> 'concurrency_key',
             value ->> 'lease_ms', (value ->> 'now') + (value ->> 'lease_ms'), value ->> 'cancel_at',
             value ->> 'timeout_at', value ->> 'tracked' from jsonb_each(?)",
        &rows(|change| change.lease.open && !change.lease.close),
    );
    script.run(
        "update leases set
             expires_at = case when i.value ->> 'renew' then (i.value ->> 'now') + lease_ms else expires_at end,
             heard = heard or i.value ->> 'renew',
             cancel_at = min(coalesce(cancel_at, i.value ->> 'cancel_at'), coalesce(i.value ->> 'cancel_at', cancel_at))
         from jsonb_each(?) as i where job_id = i.value ->> 'id'",
        &rows(|c| !c.lease.open && !c.lease.close && (c.lease.renew || c.lease.cancel_ms.is_some())),
    );
}

/// Failed jobs come among the dead letters; those put back leave them.
fn move_dead(script: &mut Script, changes: &[Change]) {
    let revived: Vec<JobId> = changes.iter().filter(|c| c.is_revived()).map(|c| c.job().id).collect();
    script.run("delete from dead where job_id in (select value from jsonb_each(?))", &revived);
    let dying: Vec<(JobId, &str, String, bool)> =
        changes.iter().filter_map(|c| Some((c.job().id, c.job().queue.as_str(), c.dies()?, c.job().tracked))).collect();
    script.run(
        "insert into dead (job_id, queue, error_code, tracked)
         select value ->> 0, value ->> 1, value ->> 2, value ->> 3 from jsonb_each(?)",
        &dying,
    );
}

/// A worker said that its whole queue had better wait.
fn hold_queues(script: &mut Script, changes: &[Change], now: Timestamp) {
    let holds: Vec<(&str, i64)> = changes
        .iter()
        .filter_map(|c| Some((c.job().queue.as_str(), now.plus_millis(c.step.hold_queue_ms?).as_millis())))
        .collect();
    script.run(
        "update queues set held_until = max(coalesce(held_until, 0), i.until)
         from (select value ->> 0 as queue, max(value ->> 1) as until from jsonb_each(?) group by 1) as i
         where queues.queue = i.queue",
        &holds,
    );
}

fn store_results(script: &mut Script, changes: &[Change]) {
    let dropped: Vec<JobId> = changes.iter().filter(|change| change.drops_result()).map(|c| c.job().id).collect();
    script.run("delete from results where job_id in (select value from jsonb_each(?))", &dropped);
    let results: Vec<(JobId, &str)> =
        changes.iter().filter_map(|change| Some((change.job().id, change.step.result.as_ref()?.as_str()))).collect();
    script.run(
        "insert or replace into results (job_id, data) select value ->> 0, value ->> 1 from jsonb_each(?)",
        &results,
    );
}

/// Deletes jobs that have ended and are still at the given seq.
pub(super) async fn remove(connection: &mut SqliteConnection, jobs: &[(JobId, u64)]) -> Result<Committed, StoreError> {
    let asked = serde_json::to_string(jobs).expect("ids and numbers");
    let rows = sqlx::query(
        "delete from jobs where finished_at is not null
             and (job_id, seq) in (select value ->> 0, value ->> 1 from jsonb_each(?))
         returning job_id, queue, kind, subject",
    )
    .bind(asked)
    .fetch_all(&mut *connection)
    .await?;
    let removed = rows.iter().map(row::identity).collect::<Result<Vec<_>, _>>()?;
    let ids: Vec<JobId> = removed.iter().map(|job| job.id).collect();
    for sql in [
        "delete from events where job_id in (select value from jsonb_each(?))",
        "delete from specs where job_id in (select value from jsonb_each(?))",
        "delete from results where job_id in (select value from jsonb_each(?))",
        "delete from dead where job_id in (select value from jsonb_each(?))",
    ] {
        run(connection, sql, &ids).await?;
    }
    Ok(Committed::of_removed(removed))
}
