//! A claim, whatever the database: who gets which job.
//!
//! The transaction is a database's own ([`Counter`]): it has locked the rows of the queues asked for and gathered their
//! state; here candidates are picked, locked, started and dealt out, until everybody has what he asked for or nothing
//! is left. Limits hold because whoever claims from a queue holds its row.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Change, Committed, Idempotency, LeaseChange, StoreError};
use crate::domain::dispatch::{Candidate, QueueState, round_robin};
use crate::domain::{ClaimRequest, Clocks, Job, JobId, Json, QueueName, Record, Timestamp, rules, waiting};

/// Candidates looked at in one go.
pub(super) const PICK: usize = 500;

/// Somebody asks for work.
#[derive(Clone, Debug)]
pub struct Wish {
    /// What.
    pub request: ClaimRequest,
    /// Its idempotency key.
    pub idempotency: Option<Idempotency>,
}

/// A job that was handed out.
#[derive(Clone, Debug)]
pub struct Taken {
    /// Its state; `job.run` is the run that the lease is for.
    pub job: Job,
    /// What it is about to be done with.
    pub payload: Json,
    /// How long it may stay without a sign of life, in milliseconds.
    pub lease_ms: u64,
    /// When that ends.
    pub expires_at: Timestamp,
}

/// What became of one [`Wish`].
#[derive(Clone, Debug)]
pub enum WishAnswer {
    /// These jobs; possibly none.
    Jobs(Vec<Taken>),
    /// The same jobs as before, since it is the same request.
    Again(Vec<Taken>),
    /// Its key was used with another body.
    Mismatch,
}

/// What a claim did.
#[derive(Debug, Default)]
pub struct Claimed {
    /// One answer per wish, in order.
    pub answers: Vec<WishAnswer>,
    /// What is durable now.
    pub committed: Committed,
    /// The jobs handed out, as they are now.
    pub records: Vec<Record>,
    /// Jobs that were next, but whose time had run out.
    pub overdue: Vec<JobId>,
    /// Queues, of those asked for, that have no slot free, or none for some key.
    pub full: Vec<QueueName>,
    /// When the passing of time alone may make something available that was asked for.
    pub opens_at: Option<Timestamp>,
}

/// What one look at a queue's index found: candidates of the most urgent priority that has any.
#[derive(Debug, Default)]
pub(super) struct Picked {
    /// The rank (−priority) they have; `None`: the queue has nothing more.
    pub rank: Option<i32>,
    /// At most as many as asked for, and at least one of each lane looked at.
    pub candidates: Vec<Candidate>,
    /// Whether nothing else waits at that rank.
    pub is_all: bool,
}

/// What to look for.
pub(super) struct Pick<'a> {
    pub queue: &'a QueueName,
    pub kind: Option<&'a QueueName>,
    /// Not more urgent than this rank.
    pub from_rank: i32,
    /// The lane served last at each rank: begin after it.
    pub turns: &'a BTreeMap<i32, String>,
    /// Lanes not to look at.
    pub full_lanes: &'a [String],
    /// Jobs not to look at.
    pub seen: &'a [JobId],
    pub want: usize,
}

/// A claim's transaction, in either database.
pub(super) trait Counter {
    /// Looks at a queue's index.
    async fn pick(&mut self, pick: Pick<'_>) -> Result<Picked, StoreError>;

    /// Locks jobs and reads them with their payloads; those locked by others are left out.
    async fn lock(&mut self, jobs: &[JobId]) -> Result<Vec<(Record, Clocks, Json)>, StoreError>;
}

/// What was dealt out.
#[derive(Default)]
pub(super) struct Dealt {
    /// Per wish.
    pub taken: Vec<Vec<Taken>>,
    /// To be written.
    pub changes: Vec<Change>,
    pub overdue: Vec<JobId>,
    /// Jobs in the index that do not wait.
    pub stale: Vec<JobId>,
}

/// Deals waiting jobs out. Wishes for the same work share it evenly.
pub(super) async fn deal(
    counter: &mut impl Counter,
    queues: &mut HashMap<QueueName, QueueState>,
    wishes: &[&ClaimRequest],
    now: Timestamp,
) -> Result<Dealt, StoreError> {
    let mut dealt = Dealt { taken: vec![Vec::new(); wishes.len()], ..Dealt::default() };
    let mut seen = HashSet::new();
    for group in groups(wishes) {
        let first = wishes[group[0]];
        let mut hands = Hands { wishes, open: group };
        for name in &first.queues {
            let Some(queue) = queues.get_mut(name) else { continue };
            serve(counter, name, queue, &first.kinds, &mut hands, &mut seen, &mut dealt, now).await?;
        }
    }
    Ok(dealt)
}

/// Indices of wishes for the same work, in the order in which they came.
fn groups(wishes: &[&ClaimRequest]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut place: HashMap<(&[QueueName], &[QueueName]), usize> = HashMap::new();
    for (index, wish) in wishes.iter().enumerate() {
        let group = *place.entry((&wish.queues, &wish.kinds)).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[group].push(index);
    }
    groups
}

/// Those who still want something, the one who is next first.
struct Hands<'a> {
    wishes: &'a [&'a ClaimRequest],
    open: Vec<usize>,
}

impl Hands<'_> {
    fn wanted(&self, dealt: &Dealt) -> usize {
        self.open.iter().map(|index| self.wishes[*index].max - dealt.taken[*index].len()).sum()
    }

    /// Whose turn it is.
    fn next(&self) -> Option<usize> {
        self.open.first().copied()
    }

    /// He got something: the others come first, and he no more if he has enough.
    fn served(&mut self, dealt: &Dealt) {
        let index = self.open.remove(0);
        if dealt.taken[index].len() < self.wishes[index].max {
            self.open.push(index);
        }
    }
}

#[expect(clippy::too_many_arguments, reason = "the state of one loop, spelled out")]
async fn serve(
    counter: &mut impl Counter,
    name: &QueueName,
    queue: &mut QueueState,
    kinds: &[QueueName],
    hands: &mut Hands<'_>,
    seen: &mut HashSet<JobId>,
    dealt: &mut Dealt,
    now: Timestamp,
) -> Result<(), StoreError> {
    let mut from_rank = i32::MIN;
    loop {
        let room = queue.room(now).min(PICK as u64) as usize;
        let want = hands.wanted(dealt).min(room);
        if want == 0 {
            return Ok(());
        }
        let (full_lanes, turns) = (queue.full_lanes(now), queue.turns.clone());
        let ids: Vec<JobId> = seen.iter().copied().collect();
        let look =
            |kind| Pick { queue: name, kind, from_rank, turns: &turns, full_lanes: &full_lanes, seen: &ids, want };
        let picked = pick_kinds(counter, look, kinds).await?;
        let Some(rank) = picked.rank else { return Ok(()) };
        let candidates = round_robin(picked.candidates, queue.turn(rank));
        let ids: Vec<JobId> = candidates.iter().map(|candidate| candidate.id).collect();
        let none = ids.is_empty();
        let locked = if none { Vec::new() } else { counter.lock(&ids).await? };
        let mut locked: HashMap<JobId, _> = locked.into_iter().map(|found| (found.0.job.id, found)).collect();
        for candidate in candidates {
            let Some(index) = hands.next() else { return Ok(()) };
            seen.insert(candidate.id);
            let Some((record, clocks, payload)) = locked.remove(&candidate.id) else { continue };
            if !waiting::is_waiting(&record.job) {
                dealt.stale.push(candidate.id);
            } else if rules::overdue(&record, &clocks, now, 0.5).is_some() {
                dealt.overdue.push(candidate.id);
            } else if queue.admit(rank, &candidate.lane, now) {
                let (change, taken) = hand_out(record, payload, hands.wishes[index], now);
                dealt.changes.push(change);
                dealt.taken[index].push(taken);
                hands.served(dealt);
            } else {
                // Its lane is full by now; the next look leaves the lane out.
                seen.remove(&candidate.id);
            }
        }
        if none || picked.is_all {
            from_rank = rank + 1;
        }
    }
}

/// The same look for each kind asked for, taken together.
async fn pick_kinds<'a>(
    counter: &mut impl Counter,
    look: impl Fn(Option<&'a QueueName>) -> Pick<'a>,
    kinds: &'a [QueueName],
) -> Result<Picked, StoreError> {
    if kinds.is_empty() {
        return counter.pick(look(None)).await;
    }
    let mut best = Picked::default();
    for kind in kinds {
        let picked = counter.pick(look(Some(kind))).await?;
        match (picked.rank, best.rank) {
            (None, _) => {}
            (Some(rank), Some(best_rank)) if rank > best_rank => {}
            (Some(rank), Some(best_rank)) if rank == best_rank => {
                best.candidates.extend(picked.candidates);
                best.is_all &= picked.is_all;
            }
            (Some(_), _) => best = picked,
        }
    }
    Ok(best)
}

/// Queues whose limits on concurrency stand in somebody's way.
pub(super) fn full_queues(queues: &HashMap<QueueName, QueueState>) -> Vec<QueueName> {
    queues.iter().filter(|(_, queue)| queue.lacks_slots()).map(|(name, _)| name.clone()).collect()
}

fn hand_out(record: Record, payload: Json, to: &ClaimRequest, now: Timestamp) -> (Change, Taken) {
    let at = now.max(record.job.updated_at);
    let step = rules::start(&record, &to.worker, to.lease_ms, at).expect("a waiting job can start");
    let lease_ms = to.lease_ms;
    let expires_at = now.plus_millis(lease_ms);
    let taken = Taken { job: step.record.job.clone(), payload, lease_ms, expires_at };
    let lease = LeaseChange { open: true, ..LeaseChange::default() };
    (Change { before: Some(record.job), step, lease, payload: None }, taken)
}
