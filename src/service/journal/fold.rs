//! Folds a batch of commands in memory, each on what the ones before it left.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use super::committer::refused;
use super::{Appended, CancelAnswer, Command, Queued, ServiceError};
use crate::domain::rules::{self, Cancel, Step};
use crate::domain::{
    Clocks, Defaults, Job, JobId, Json, Limits, NewEvent, OnConflict, QueueName, Refusal, Spec, State, Timestamp,
};
use crate::store::{Batch, Change, Idempotency, LeaseChange, LeaseGuard, Remembered, RequestKey, Resolved, UniqueKey};

/// What a command comes to, if what it rests on is stored.
pub(super) enum Outcome {
    Queued(Vec<Queued>),
    Appended(JobId, Appended),
    Cancelled(JobId, CancelAnswer),
    Requeued(Box<Job>),
    /// The job may go, at this seq.
    Remove {
        id: JobId,
        seq: u64,
    },
    Removed,
    GivenBack(JobId),
    Swept(JobId),
    /// It is refused; the jobs are those that the refusal rests on.
    Refused(Vec<JobId>, ServiceError),
}

impl Outcome {
    /// The jobs whose state it rests on.
    pub fn jobs(&self) -> Vec<JobId> {
        match self {
            Self::Queued(queued) => queued.iter().flat_map(|q| [Some(q.id), q.replaced]).flatten().collect(),
            Self::Appended(id, _)
            | Self::Cancelled(id, _)
            | Self::GivenBack(id)
            | Self::Swept(id)
            | Self::Remove { id, .. } => vec![*id],
            Self::Requeued(job) => vec![job.id],
            Self::Removed => Vec::new(),
            Self::Refused(ids, _) => ids.clone(),
        }
    }

    /// Tells the caller. One that hung up does not want to know.
    pub fn answer(self, command: Command) {
        match (command, self) {
            (command, Self::Refused(_, error)) => command.fail(error),
            (Command::Enqueue { answer, .. }, Self::Queued(queued)) => drop(answer.send(Ok(queued))),
            (Command::Append { answer, .. }, Self::Appended(_, appended)) => drop(answer.send(Ok(appended))),
            (Command::Cancel { answer, .. }, Self::Cancelled(_, cancelled)) => drop(answer.send(Ok(cancelled))),
            (Command::Retry { answer, .. }, Self::Requeued(job)) => drop(answer.send(Ok(job))),
            (Command::Delete { answer, .. }, Self::Removed) => drop(answer.send(Ok(()))),
            (Command::GiveBack { answer, .. }, Self::GivenBack(_)) => drop(answer.send(Ok(()))),
            (Command::Sweep { answer, .. }, Self::Swept(_)) => drop(answer.send(Ok(()))),
            (command, _) => unreachable!("each command has its outcome, but one for {:?} does not", command.job()),
        }
    }
}

/// One job of the batch.
struct Entry {
    before: Option<Job>,
    clocks: Clocks,
    step: Step,
    lease: LeaseChange,
    payload: Option<Json>,
    /// The seq of the last end of which somebody is told.
    told_seq: u64,
}

/// The batch so far.
pub(super) struct Fold<'a> {
    now: Timestamp,
    limits: &'a Limits,
    last_id: &'a AtomicU64,
    defaults: Arc<HashMap<QueueName, Defaults>>,
    entries: HashMap<JobId, Entry>,
    /// In the order in which jobs came: changes are stored, and published, in it.
    order: Vec<JobId>,
    holders: HashMap<UniqueKey, JobId>,
    requests: HashMap<RequestKey, Remembered>,
    new_requests: Vec<RequestKey>,
}

impl<'a> Fold<'a> {
    pub fn new(
        resolved: Resolved,
        now: Timestamp,
        limits: &'a Limits,
        last_id: &'a AtomicU64,
        defaults: Arc<HashMap<QueueName, Defaults>>,
    ) -> Self {
        let mut fold = Self {
            now,
            limits,
            last_id,
            defaults,
            entries: HashMap::new(),
            order: Vec::new(),
            holders: resolved.unique.into_iter().collect(),
            requests: resolved.requests.into_iter().map(|r| (r.request.clone(), r)).collect(),
            new_requests: Vec::new(),
        };
        for (record, clocks) in resolved.jobs {
            fold.insert(Some(record.job.clone()), clocks, Step::from(record));
        }
        fold
    }

    fn insert(&mut self, before: Option<Job>, clocks: Clocks, step: Step) -> &mut Entry {
        let id = step.record.job.id;
        self.order.push(id);
        let lease = LeaseChange::default();
        self.entries.insert(id, Entry { before, clocks, step, lease, payload: None, told_seq: 0 });
        self.entries.get_mut(&id).expect("it was just inserted")
    }

    /// What is to be written.
    pub fn into_batch(mut self) -> Batch {
        let is_change = |entry: &Entry| !entry.step.events.is_empty() || entry.lease != LeaseChange::default();
        let mut changes = Vec::new();
        for id in self.order {
            if let Some(entry) = self.entries.remove(&id).filter(is_change) {
                let Entry { before, step, lease, payload, .. } = entry;
                changes.push(Change { before, step, lease, payload });
            }
        }
        let requests = self.new_requests.iter().filter_map(|key| self.requests.remove(key)).collect();
        Batch { changes, requests }
    }

    /// Folds one command, and what follows from it.
    pub fn command(&mut self, command: &Command) -> Outcome {
        let outcome = self.carry_out(command);
        for id in outcome.jobs() {
            self.tell_of_end(id);
        }
        outcome
    }

    /// Adds the job that tells of a job's end, if it has just come and somebody is to be told: it is stored with the
    /// event, or neither is.
    fn tell_of_end(&mut self, id: JobId) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let job = &entry.step.record.job;
        if entry.step.events.is_empty() || entry.told_seq == job.seq {
            return;
        }
        let Some(spec) = rules::callback(&entry.step.record) else { return };
        entry.told_seq = job.seq;
        let step = rules::enqueue(self.mint(), &spec, &Defaults::default(), self.now);
        self.insert(None, Clocks::default(), step).payload = Some(spec.payload);
    }

    fn carry_out(&mut self, command: &Command) -> Outcome {
        match command {
            Command::Enqueue { specs, idempotency, .. } => self.enqueue(specs, idempotency.as_ref()),
            Command::Append { id, run, events, body_hash, idempotency, keep_before_refused, .. } => {
                self.append(*id, *run, events, *body_hash, idempotency.as_ref(), *keep_before_refused)
            }
            Command::Cancel { id, reason, grace_ms, by, only_waiting, .. } => {
                self.cancel(*id, reason.as_deref(), *grace_ms, by, *only_waiting)
            }
            Command::GiveBack { id, run, reason, .. } => self.give_back(*id, *run, reason),
            Command::Retry { id, by, .. } => self.retry(*id, by),
            Command::Delete { id, .. } => match self.entries.get(id).map(|entry| &entry.step.record.job) {
                None => refuse(*id, Refusal::JobNotFound),
                Some(job) if !job.state.is_terminal() => refuse(*id, Refusal::NotFinished(job.state)),
                Some(job) => Outcome::Remove { id: *id, seq: job.seq },
            },
            Command::Sweep { id, .. } => self.sweep(*id),
        }
    }

    /// A new id for now. Ids of this process grow even within one millisecond: the 12 bits after the time count.
    fn mint(&self) -> JobId {
        let now = (self.now.as_millis() as u64) << 12;
        let tick = |last: u64| Some((last + 1).max(now));
        let last = self.last_id.fetch_update(Ordering::Relaxed, Ordering::Relaxed, tick).expect("tick never says no");
        let minted = (last + 1).max(now);
        let mut random: [u8; 10] = rand::random();
        random[..2].copy_from_slice(&((minted & 0xFFF) as u16).to_be_bytes());
        JobId::mint(Timestamp::from_millis((minted >> 12) as i64), random)
    }

    /// The answer that was given to the same request before; `Err` if the body was another one.
    fn remembered(&self, idempotency: Option<&Idempotency>) -> Option<Result<Json, Refusal>> {
        let idempotency = idempotency?;
        let remembered = self.requests.get(&idempotency.request)?;
        Some(if remembered.body_hash == idempotency.body_hash {
            Ok(remembered.answer.clone())
        } else {
            Err(Refusal::IdempotencyMismatch)
        })
    }

    fn remember(&mut self, idempotency: Option<&Idempotency>, answer: &Value) {
        if let Some(Idempotency { request, body_hash }) = idempotency {
            let answer = Json::from_value(answer);
            self.new_requests.push(request.clone());
            self.requests
                .insert(request.clone(), Remembered { request: request.clone(), body_hash: *body_hash, answer });
        }
    }

    fn enqueue(&mut self, specs: &[Spec], idempotency: Option<&Idempotency>) -> Outcome {
        match self.remembered(idempotency) {
            Some(Err(refusal)) => return Outcome::Refused(Vec::new(), refused(refusal)),
            Some(Ok(answer)) => {
                let ids: Vec<String> = serde_json::from_str(answer.as_str()).unwrap_or_default();
                let known = |id| Queued { id, job: None, created: false, replaced: None };
                return Outcome::Queued(ids.iter().filter_map(|id| JobId::parse(id)).map(known).collect());
            }
            None => {}
        }
        let queued: Vec<Queued> = specs.iter().map(|spec| self.enqueue_one(spec)).collect();
        self.remember(idempotency, &json!(queued.iter().map(|queued| queued.id).collect::<Vec<_>>()));
        Outcome::Queued(queued)
    }

    fn enqueue_one(&mut self, spec: &Spec) -> Queued {
        let key = spec.policy.unique_key.clone().map(|key| UniqueKey { queue: spec.queue.clone(), key });
        let holder = key.as_ref().and_then(|key| self.holders.get(key)).copied();
        let holder = holder.filter(|id| self.entries.get(id).is_some_and(|e| !e.step.record.job.state.is_terminal()));
        let mut replaced = None;
        let id = self.mint();
        if let Some(live) = holder {
            let entry = self.entries.get_mut(&live).expect("it was just seen");
            if spec.on_conflict == OnConflict::Return {
                let job = Some(Box::new(entry.step.record.job.clone()));
                return Queued { id: live, job, created: false, replaced: None };
            }
            let step =
                rules::replace(&entry.step.record, id, entry.next_at(self.now)).expect("a live job can be cancelled");
            entry.take(step);
            replaced = Some(live);
        }
        let defaults = self.defaults.get(&spec.queue).cloned().unwrap_or_default();
        let entry = self.insert(None, Clocks::default(), rules::enqueue(id, spec, &defaults, self.now));
        entry.payload = Some(spec.payload.clone());
        entry.lease.open = spec.tracked;
        let job = Some(Box::new(entry.step.record.job.clone()));
        if let Some(key) = key {
            self.holders.insert(key, id);
        }
        Queued { id, job, created: true, replaced }
    }

    fn append(
        &mut self,
        id: JobId,
        run: Option<u64>,
        events: &[NewEvent],
        body_hash: [u8; 32],
        idempotency: Option<&Idempotency>,
        keep_before_refused: bool,
    ) -> Outcome {
        let remembered = self.remembered(idempotency);
        let now = self.now;
        let Some(entry) = self.entries.get_mut(&id) else {
            return refuse(id, Refusal::JobNotFound);
        };
        let held_by = entry.holder(run);
        match remembered {
            Some(Err(refusal)) => return refuse(id, refusal),
            Some(Ok(answer)) => {
                let mut appended = entry.appended(events.len(), held_by.is_ok());
                appended.seq = serde_json::from_str(answer.as_str()).unwrap_or(appended.seq);
                return Outcome::Appended(id, appended);
            }
            None => {}
        }
        // Line by line the hash is the last line's: only that line alone can be the same body again.
        let is_whole = !keep_before_refused || events.len() == 1;
        let ends_run = events.last().is_some_and(|event| event.kind.ends_run());
        if ends_run && is_whole && entry.was_ended_by(run, body_hash) {
            return Outcome::Appended(id, entry.appended(events.len(), false));
        }
        let held_by = match held_by {
            Ok(held_by) => held_by,
            Err(refusal) => return refuse(id, refusal),
        };
        let before = (entry.step.clone(), entry.lease.clone());
        let (at, chance) = (entry.next_at(now), rand::random());
        let mut stored = events.len();
        let mut refused = None;
        if let Err((index, refusal)) = rules::append(&mut entry.step, events, body_hash, at, chance, self.limits) {
            if !keep_before_refused {
                (entry.step, entry.lease) = before;
                return Outcome::Refused(vec![id], ServiceError::RefusedItem { index, refusal });
            }
            (stored, refused) = (index, Some(refusal));
        }
        entry.lease.renew = true;
        entry.lease.guard = held_by.map_or(entry.lease.guard, LeaseGuard::HeldBy);
        entry.close_if_ended();
        let still_runs = entry.step.record.job.state == State::Running;
        let appended = Appended { refused, ..entry.appended(stored, still_runs) };
        self.remember(idempotency, &json!(appended.seq));
        Outcome::Appended(id, appended)
    }

    fn cancel(&mut self, id: JobId, reason: Option<&str>, grace_ms: u64, by: &str, only_waiting: bool) -> Outcome {
        let Some(entry) = self.entries.get_mut(&id) else {
            return refuse(id, Refusal::JobNotFound);
        };
        let state = entry.step.record.job.state;
        if only_waiting && (state.is_terminal() || state == State::Running) {
            return Outcome::Cancelled(id, CancelAnswer::NotWaiting);
        }
        match rules::cancel(&entry.step.record, reason, grace_ms, by, entry.next_at(self.now)) {
            Err(refusal) => return refuse(id, refusal),
            Ok(Cancel::Already) => {
                return Outcome::Cancelled(id, CancelAnswer::Already(Box::new(entry.step.record.job.clone())));
            }
            Ok(Cancel::Shorten) => entry.ask_to_stop_within(grace_ms),
            Ok(Cancel::Done(step)) => entry.take_cancel(*step, grace_ms),
        }
        Outcome::Cancelled(id, CancelAnswer::Accepted(Box::new(entry.step.record.job.clone())))
    }

    /// Only if that run still has it: otherwise there is nothing to give back.
    fn give_back(&mut self, id: JobId, run: u64, reason: &str) -> Outcome {
        let now = self.now;
        if let Some(entry) = self.entries.get_mut(&id)
            && entry.step.record.job.run == run
            && let Ok(step) = rules::give_back(&entry.step.record, reason, entry.next_at(now), rand::random())
        {
            entry.take(step);
        }
        Outcome::GivenBack(id)
    }

    fn retry(&mut self, id: JobId, by: &str) -> Outcome {
        let Some(entry) = self.entries.get(&id) else {
            return refuse(id, Refusal::JobNotFound);
        };
        let record = entry.step.record.clone();
        let step = match rules::retry(&record, by, entry.next_at(self.now)) {
            Ok(step) => step,
            Err(refusal) => return refuse(id, refusal),
        };
        if let Some(key) = record.policy.unique_key {
            let key = UniqueKey { queue: record.job.queue, key };
            let holder = self.holders.get(&key).copied().filter(|holder| *holder != id);
            // A holder that this batch has ended holds nothing any more.
            let ended = |id: &JobId| self.entries.get(id).is_some_and(|e| e.step.record.job.state.is_terminal());
            if let Some(holder) = holder.filter(|holder| !ended(holder)) {
                return Outcome::Refused(vec![id, holder], refused(Refusal::UniqueConflict(holder)));
            }
            self.holders.insert(key, id);
        }
        let entry = self.entries.get_mut(&id).expect("it was just seen");
        entry.take(step);
        Outcome::Requeued(Box::new(entry.step.record.job.clone()))
    }

    fn sweep(&mut self, id: JobId) -> Outcome {
        let now = self.now;
        if let Some(entry) = self.entries.get_mut(&id) {
            let mut clocks = entry.clocks;
            // An append of this very batch has renewed the lease.
            if entry.lease.renew {
                clocks.expires_at = None;
            }
            let at = entry.next_at(now);
            if let Some(step) = rules::overdue(&entry.step.record, &clocks, at, rand::random()) {
                // A sign of life through another node may have come since the lease was read.
                if clocks.expires_at.is_some_and(|expires_at| expires_at <= at) {
                    entry.lease.guard = LeaseGuard::RunOut;
                }
                entry.take_cancel(step, rules::DEFAULT_GRACE_MS);
                if entry.step.record.job.state == State::Running {
                    entry.lease.guard = LeaseGuard::None;
                }
            }
        }
        Outcome::Swept(id)
    }
}

impl Entry {
    /// Adds a step that was made from this entry's record.
    fn take(&mut self, step: Step) {
        self.step.record = step.record;
        self.step.events.extend(step.events);
        self.step.result = step.result.or(self.step.result.take());
        self.step.hold_queue_ms = self.step.hold_queue_ms.max(step.hold_queue_ms);
        self.close_if_ended();
    }

    /// As [`Entry::take`], for a step that may have asked the runner to stop.
    fn take_cancel(&mut self, step: Step, grace_ms: u64) {
        self.take(step);
        let job = &self.step.record.job;
        if job.cancel_requested && !job.state.is_terminal() {
            self.ask_to_stop_within(grace_ms);
        }
    }

    /// The time for the job's next event: its log never runs backwards.
    fn next_at(&self, now: Timestamp) -> Timestamp {
        now.max(self.step.record.job.updated_at)
    }

    fn close_if_ended(&mut self) {
        let was_running = self.before.as_ref().is_some_and(|job| job.state == State::Running) || self.lease.open;
        if was_running && self.step.record.job.state != State::Running {
            self.lease.close = true;
            self.step.record.lease_ms = None;
        }
    }

    /// The run in whose name the holder of `run` may write: `None` for a tracked job, whose runner needs no lease.
    fn holder(&self, run: Option<u64>) -> Result<Option<u64>, Refusal> {
        let job = &self.step.record.job;
        let running = job.state == State::Running;
        match run {
            _ if job.tracked && running => Ok(None),
            _ if job.tracked => Err(Refusal::JobTerminal(job.state)),
            Some(run) if running && job.run == run && self.clocks.live => Ok(Some(run)),
            Some(_) | None => Err(Refusal::LeaseLost),
        }
    }

    /// Whether the same run was ended by the same body before.
    fn was_ended_by(&self, run: Option<u64>, body_hash: [u8; 32]) -> bool {
        let job = &self.step.record.job;
        self.step.record.ending.is_some_and(|ending| {
            ending.body_hash == body_hash && (job.tracked && job.state.is_terminal() || run == Some(ending.run))
        })
    }

    fn appended(&self, stored: usize, runs: bool) -> Appended {
        let (job, record) = (&self.step.record.job, &self.step.record);
        Appended {
            seq: job.seq,
            stored,
            cancel_requested: job.cancel_requested,
            silence_ms: record.lease_ms.filter(|_| runs),
            leased: runs && !job.tracked,
            refused: None,
        }
    }

    fn ask_to_stop_within(&mut self, grace_ms: u64) {
        self.lease.cancel_ms = Some(self.lease.cancel_ms.map_or(grace_ms, |ms| ms.min(grace_ms)));
    }
}

fn refuse(id: JobId, refusal: Refusal) -> Outcome {
    Outcome::Refused(vec![id], refused(refusal))
}
