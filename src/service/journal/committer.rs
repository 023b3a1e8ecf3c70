//! One committer: gathers a batch, folds it, stores it, tells the bus, answers.

use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use futures_util::FutureExt;
use tokio::sync::mpsc;
use tracing::{error, warn};

use super::fold::{Fold, Outcome};
use super::recent::Recent;
use super::{Command, ServiceError};
use crate::bus::Bus;
use crate::domain::{Clocks, JobId, Limits, Refusal};
use crate::service::defaults::QueueDefaults;
use crate::service::queues::Statistics;
use crate::store::{Lookup, Resolved, Store, StoreError};

/// What one batch carries at most, in events and jobs.
const BATCH: usize = 1_000;

/// After so many rounds of conflicts commands are tried one by one, after [`LAST_ROUND`] given up.
const SINGLE_ROUND: usize = 3;
const LAST_ROUND: usize = 12;

/// What all committers of a process share.
pub(super) struct Committer {
    pub store: Arc<dyn Store>,
    pub bus: Arc<Bus>,
    pub limits: Arc<Limits>,
    /// The newest id minted by this process, see [`Fold`].
    pub last_id: Arc<AtomicU64>,
    pub recent: Arc<Recent>,
    pub defaults: Arc<QueueDefaults>,
    pub statistics: Arc<Statistics>,
}

impl Committer {
    /// Works until every sender is gone and the queue is empty.
    pub async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        while let Some(first) = commands.recv().await {
            let mut weight = first.weight();
            let mut batch = vec![first];
            while weight < BATCH
                && let Ok(next) = commands.try_recv()
            {
                weight += next.weight();
                batch.push(next);
            }
            // A bug in one batch must not take the way to write away from everybody. Its callers are told by their
            // answers being dropped.
            if AssertUnwindSafe(self.carry_out(batch)).catch_unwind().await.is_err() {
                error!("a batch panicked; it is given up");
                self.recent.clear();
            }
        }
    }

    async fn carry_out(&mut self, batch: Vec<Command>) {
        let mut waiting = batch;
        for round in 0..LAST_ROUND {
            if waiting.is_empty() {
                return;
            }
            // Whoever comes again came too late by what this process remembered: from then on the store is asked.
            let may_guess = round == 0;
            waiting = if round < SINGLE_ROUND {
                self.try_batch(waiting, may_guess).await
            } else {
                let mut conflicting = Vec::new();
                for command in waiting {
                    conflicting.extend(self.try_batch(vec![command], may_guess).await);
                }
                conflicting
            };
        }
        warn!(commands = waiting.len(), "writes keep losing against other nodes and are given up");
        for command in waiting {
            command.fail(ServiceError::Overloaded);
        }
    }

    /// Carries a batch out; returns the commands that must be folded again: those that lost a race, and those
    /// answered by a guess that no guard of the store's has looked at.
    async fn try_batch(&mut self, batch: Vec<Command>, may_guess: bool) -> Vec<Command> {
        let (resolved, mut guessed) = match self.resolve(&batch, may_guess).await {
            Ok(resolved) => resolved,
            Err(error) => {
                fail_all(batch, &error);
                return Vec::new();
            }
        };
        let mut fold = Fold::new(resolved, self.store.now(), &self.limits, &self.last_id, self.defaults.current());
        let outcomes: Vec<Outcome> = batch.iter().map(|command| fold.command(command)).collect();
        let writes = fold.into_batch();
        let mut lost: Vec<JobId> = Vec::new();
        if !writes.changes.is_empty() || !writes.requests.is_empty() {
            match self.store.commit(&writes).await {
                Ok(commit) if commit.rolled_back => {
                    for change in &writes.changes {
                        self.recent.forget(change.step.record.job.id);
                    }
                    return batch;
                }
                Ok(commit) => {
                    self.statistics.record(&commit.committed);
                    self.bus.publish(&commit.committed);
                    lost = commit.conflicts;
                }
                Err(error) => {
                    // Whether it was stored is unknown. Nothing that was folded counts any more.
                    for change in &writes.changes {
                        self.recent.forget(change.step.record.job.id);
                    }
                    fail_all(batch, &error);
                    return Vec::new();
                }
            }
        }
        for change in writes.changes {
            let record = change.step.record;
            guessed.remove(&record.job.id);
            if lost.contains(&record.job.id) || record.job.state.is_terminal() {
                self.recent.forget(record.job.id);
            } else {
                self.recent.put(record);
            }
        }
        // What writes nothing, a refusal above all, has passed no guard: another node may have been faster.
        for id in &guessed {
            self.recent.forget(*id);
        }
        lost.extend(guessed);
        let mut again = Vec::new();
        for (command, outcome) in batch.into_iter().zip(outcomes) {
            if outcome.rests_on(&lost) {
                again.push(command);
            } else if let Outcome::Remove { id, seq } = outcome {
                again.extend(self.remove(command, id, seq).await);
            } else {
                outcome.answer(command);
            }
        }
        again
    }

    /// Removes an ended job; the command comes back if the job changed meanwhile.
    async fn remove(&mut self, command: Command, id: JobId, seq: u64) -> Option<Command> {
        self.recent.forget(id);
        match self.store.remove(&[(id, seq)]).await {
            Ok(committed) if committed.removed().is_empty() => Some(command),
            Ok(committed) => {
                self.bus.publish(&committed);
                Outcome::Removed.answer(command);
                None
            }
            Err(error) => {
                fail_all(vec![command], &error);
                None
            }
        }
    }

    /// Reads what the batch rests on and this process does not know; also the jobs that it only believes to know.
    async fn resolve(&mut self, batch: &[Command], may_guess: bool) -> Result<(Resolved, HashSet<JobId>), StoreError> {
        let mut lookup = Lookup::default();
        let (mut known, mut unknown) = (HashMap::new(), HashSet::new());
        for command in batch {
            lookup.unique.extend(command.unique_keys());
            lookup.requests.extend(command.idempotency().map(|idempotency| idempotency.request.clone()));
            let Some(id) = command.job() else { continue };
            if known.contains_key(&id) && matches!(command, Command::Append { .. }) {
                continue;
            }
            match self.recent.get(id).filter(|_| may_guess && matches!(command, Command::Append { .. })) {
                Some(record) => drop(known.insert(id, record)),
                None => drop(unknown.insert(id)),
            }
        }
        // A job that somebody appends to and somebody else cancels is read: its clocks matter.
        known.retain(|id, _| !unknown.contains(id));
        lookup.jobs.extend(&unknown);
        let mut resolved = Resolved::default();
        if !lookup.jobs.is_empty() || !lookup.unique.is_empty() || !lookup.requests.is_empty() {
            resolved = self.store.resolve(&lookup).await?;
        }
        // Jobs that are only known by a unique key: the holders, and, for a retry, whoever holds the key by now.
        let mut second = Lookup::default();
        for (record, _) in &resolved.jobs {
            let policy = &record.policy;
            second.unique.extend(
                policy.unique_key.clone().map(|key| crate::store::UniqueKey { queue: record.job.queue.clone(), key }),
            );
        }
        let holders: HashSet<JobId> = resolved.unique.iter().map(|(_, id)| *id).collect();
        second.jobs.extend(holders.difference(&unknown));
        if !second.jobs.is_empty() || !second.unique.is_empty() {
            let more = self.store.resolve(&second).await?;
            resolved.jobs.extend(more.jobs);
            resolved.unique.extend(more.unique);
        }
        // What was written last had a live lease then; whether it still has is judged with the write.
        let clocks = Clocks { live: true, ..Clocks::default() };
        let guessed = known.keys().copied().collect();
        resolved.jobs.extend(known.into_values().map(|record| (record, clocks)));
        Ok((resolved, guessed))
    }
}

fn fail_all(commands: Vec<Command>, error: &StoreError) {
    error!(error = %error, commands = commands.len(), "the store failed, nothing of this batch is answered as stored");
    for command in commands {
        command.fail(ServiceError::StoreUnavailable(error.to_string()));
    }
}

impl Outcome {
    /// Whether it was folded on a job whose write was lost, or on a guess that nothing has proved.
    fn rests_on(&self, lost: &[JobId]) -> bool {
        self.jobs().iter().any(|id| lost.contains(id))
    }
}

/// A refusal as the service says it.
pub(super) fn refused(refusal: Refusal) -> ServiceError {
    ServiceError::Refused(refusal)
}
