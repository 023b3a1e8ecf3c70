//! Handing work out: those who ask are gathered, and parked until there is something for them.
//!
//! One task claims on behalf of the whole process. While one claim runs the next ones gather (no timer). It looks again
//! for those parked when the bus says that one of their queues stirred, when the passing of time alone may have made
//! something available, and every [`SAFETY_NET`], since hints may be lost. Parked claims hold no connection.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, error};

use super::gateway::Inner;
use super::journal::{Answer, Command};
use super::{Gateway, ServiceError};
use crate::bus::News;
use crate::domain::{ClaimRequest, JobId, QueueName, Refusal};
use crate::store::{Idempotency, StoreError, Taken, Wish, WishAnswer};

/// A hint that was lost costs at most this.
const SAFETY_NET: Duration = Duration::from_secs(2);

/// Claims that wait to be looked at. Beyond that callers wait in line.
const QUEUE: usize = 4_096;

/// Wishes looked at in one transaction.
const GATHERED: usize = 100;

/// Jobs handed to a caller who has not got them yet: dropped before [`Delivery::delivered`], they are given back.
pub struct Delivery {
    gateway: Gateway,
    taken: Vec<Taken>,
    is_delivered: bool,
}

impl Delivery {
    fn of(gateway: &Gateway, handed: Handed) -> Self {
        Self { gateway: gateway.clone(), taken: handed.taken, is_delivered: handed.is_again }
    }

    /// What was handed out.
    pub fn taken(&self) -> &[Taken] {
        &self.taken
    }

    /// The caller has it.
    pub fn delivered(&mut self) {
        self.is_delivered = true;
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if self.is_delivered {
            return;
        }
        let gateway = self.gateway.clone();
        let runs: Vec<(JobId, u64)> = self.taken.iter().map(|taken| (taken.job.id, taken.job.run)).collect();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                for (id, run) in runs {
                    gateway.give_back(id, run).await;
                }
            });
        }
    }
}

/// Somebody who asks.
pub(super) struct Claimer {
    wish: Wish,
    until: Instant,
    /// Looked at at least once.
    is_parked: bool,
    answer: Answer<Handed>,
}

/// What a claimer gets.
struct Handed {
    taken: Vec<Taken>,
    /// It had got the same before: nothing is given back if it hangs up.
    is_again: bool,
}

impl Handed {
    fn nothing() -> Self {
        Self { taken: Vec::new(), is_again: false }
    }
}

impl Claimer {
    fn waits_for(&self, queues: &HashSet<QueueName>) -> bool {
        self.wish.request.queues.iter().any(|queue| queues.contains(queue))
    }
}

/// The way in.
pub(super) struct Claims(mpsc::Sender<Claimer>);

/// The other end of [`Claims`].
pub(super) type Claimers = mpsc::Receiver<Claimer>;

impl Claims {
    pub fn new() -> (Self, Claimers) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Self(sender), receiver)
    }
}

impl Gateway {
    /// Takes work, or waits for some: at once what is there, else the first that comes within the request's `wait_ms`,
    /// else nothing. Durable on return.
    pub async fn claim(
        &self,
        request: ClaimRequest,
        idempotency: Option<Idempotency>,
    ) -> Result<Delivery, ServiceError> {
        if self.is_draining() {
            return Err(ServiceError::ShuttingDown);
        }
        let _here = self.inner.presence.arrives(&request);
        let (answer, answered) = oneshot::channel();
        let until = Instant::now() + Duration::from_millis(request.wait_ms);
        let wish = Wish { request, idempotency };
        let claimer = Claimer { wish, until, is_parked: false, answer };
        self.inner.claims.0.send(claimer).await.map_err(|_| ServiceError::ShuttingDown)?;
        let handed = answered.await.unwrap_or(Err(ServiceError::ShuttingDown))?;
        Ok(Delivery::of(self, handed))
    }

    async fn give_back(&self, id: JobId, run: u64) {
        let command = |answer| Command::GiveBack { id, run, reason: "undelivered", answer };
        if let Err(error) = self.inner.journal.submit(command).await {
            // Its lease will run out unheard, which comes to the same.
            error!(job.id = %id, run, %error, "a job that could not be delivered could not be given back");
        }
    }
}

/// Claims for everybody, until the gateway drains or is gone.
pub(super) async fn run(gateway: Weak<Inner>, mut claimers: Claimers) {
    let mut parked: Vec<Claimer> = Vec::new();
    let (mut look_at, mut full) = (None, HashSet::new());
    // Not the gateway itself while nothing happens: this task must not keep it alive.
    let Some((bus, drained)) = gateway.upgrade().map(|inner| (inner.bus.clone(), Gateway { inner }.drained())) else {
        return;
    };
    let mut drained = std::pin::pin!(drained);
    loop {
        let stirred = tokio::select! {
            biased;
            () = &mut drained => return send_away(parked, claimers),
            news = bus.queues().next() => {
                // A slot that became free matters where slots are what is missing.
                let matters = |(queue, news): (QueueName, News)| (news == News::Work || full.contains(&queue)).then_some(queue);
                Some(news.into_iter().filter_map(matters).collect())
            }
            claimer = claimers.recv() => match claimer {
                Some(claimer) => { parked.push(claimer); Some(HashSet::new()) }
                None => return,
            },
            () = sleep_until(wake_at(&parked, look_at)) => None,
        };
        let Some(gateway) = gateway.upgrade().map(|inner| Gateway { inner }) else { return };
        while parked.len() < QUEUE
            && let Ok(claimer) = claimers.try_recv()
        {
            parked.push(claimer);
        }
        parked.retain(|claimer| !claimer.answer.is_closed());
        let now = Instant::now();
        let time_has_come = look_at.is_some_and(|at| at <= now) || stirred.is_none();
        let (mut looking, waiting): (Vec<Claimer>, Vec<Claimer>) = parked.into_iter().partition(|claimer| {
            !claimer.is_parked
                || time_has_come
                || claimer.until <= now
                || stirred.as_ref().is_some_and(|stirred| claimer.waits_for(stirred))
        });
        parked = waiting;
        // Whoever waits for an instant still does, unless it has come: then everybody looks.
        look_at = look_at.filter(|_| !time_has_come);
        while !looking.is_empty() {
            let (first, rest) = gather(looking);
            let asked: HashSet<QueueName> =
                first.iter().flat_map(|claimer| claimer.wish.request.queues.iter().cloned()).collect();
            let left = look(&gateway, first).await;
            look_at = [look_at, left.look_at].into_iter().flatten().min();
            full.retain(|queue| !asked.contains(queue));
            full.extend(left.full);
            parked.extend(left.claimers);
            looking = rest;
        }
    }
}

/// Those who look together, and those after them. Of one idempotency key there is one at a time: the next gets what the
/// first was given, which is known once that is stored.
fn gather(looking: Vec<Claimer>) -> (Vec<Claimer>, Vec<Claimer>) {
    let (mut count, mut keys) = (0, HashSet::new());
    looking.into_iter().partition(|claimer| {
        let key = claimer.wish.idempotency.as_ref().map(|i| (i.request.scope.clone(), i.request.key.clone()));
        let looks = count < GATHERED && key.is_none_or(|key| keys.insert(key));
        count += usize::from(looks);
        looks
    })
}

/// When to look again if nothing stirs.
fn wake_at(parked: &[Claimer], look_at: Option<Instant>) -> Instant {
    let now = Instant::now();
    if parked.is_empty() {
        return now + Duration::from_secs(3_600);
    }
    let first = parked.iter().map(|claimer| claimer.until).min();
    [first, look_at].into_iter().flatten().min().unwrap_or(now + SAFETY_NET).min(now + SAFETY_NET)
}

fn send_away(parked: Vec<Claimer>, mut claimers: Claimers) {
    claimers.close();
    for claimer in parked {
        let _ = claimer.answer.send(Ok(Handed::nothing()));
    }
    while let Ok(claimer) = claimers.try_recv() {
        let _ = claimer.answer.send(Ok(Handed::nothing()));
    }
}

/// What a look leaves behind.
#[derive(Default)]
struct Left {
    /// Those who go on waiting.
    claimers: Vec<Claimer>,
    /// When the passing of time alone may have something for them.
    look_at: Option<Instant>,
    /// Queues that have no slot free.
    full: Vec<QueueName>,
}

/// One claim for all of `looking`.
async fn look(gateway: &Gateway, looking: Vec<Claimer>) -> Left {
    let inner = &gateway.inner;
    let wishes: Vec<Wish> = looking.iter().map(|claimer| claimer.wish.clone()).collect();
    let (mut claimed, mut tries) = (inner.store.claim(&wishes).await, 0);
    // Jobs whose time had run out stood in the way: end them, and look behind them.
    while let Ok(found) = &mut claimed
        && !found.overdue.is_empty()
        && found.answers.iter().all(|answer| matches!(answer, WishAnswer::Jobs(jobs) if jobs.is_empty()))
        && tries < 100
    {
        for id in std::mem::take(&mut found.overdue) {
            let _ = gateway.sweep_one(id).await;
        }
        tries += 1;
        claimed = inner.store.claim(&wishes).await;
    }
    let claimed = match claimed {
        Ok(claimed) => claimed,
        Err(error) => {
            fail(looking, &error);
            return Left::default();
        }
    };
    inner.statistics.record(&claimed.committed);
    inner.bus.publish(&claimed.committed);
    for record in claimed.records {
        inner.recent.put(record);
    }
    let (now, store_now) = (Instant::now(), inner.store.now());
    let mut left = Vec::new();
    for (mut claimer, answer) in looking.into_iter().zip(claimed.answers) {
        let (taken, is_again) = match answer {
            WishAnswer::Mismatch => {
                let _ = claimer.answer.send(Err(Refusal::IdempotencyMismatch.into()));
                continue;
            }
            WishAnswer::Again(taken) => (taken, true),
            WishAnswer::Jobs(taken) if taken.is_empty() && claimer.until > now => {
                claimer.is_parked = true;
                left.push(claimer);
                continue;
            }
            WishAnswer::Jobs(taken) => (taken, false),
        };
        debug!(worker = claimer.wish.request.worker.as_str(), jobs = taken.len(), "handed out");
        if let Err(Ok(handed)) = claimer.answer.send(Ok(Handed { taken, is_again })) {
            // It hung up in this very moment.
            drop(Delivery::of(gateway, handed));
        }
    }
    let opens_in = claimed.opens_at.map(|at| (at.as_millis() - store_now.as_millis()).max(1) as u64);
    let look_at = opens_in.map(|ms| now + Duration::from_millis(ms));
    Left { claimers: left, look_at, full: claimed.full }
}

fn fail(looking: Vec<Claimer>, error: &StoreError) {
    error!(%error, claims = looking.len(), "the store failed, nothing was handed out");
    for claimer in looking {
        let _ = claimer.answer.send(Err(ServiceError::StoreUnavailable(error.to_string())));
    }
}

/// Starts the task.
pub(super) fn start(inner: &Arc<Inner>, claimers: Claimers) -> tokio::task::JoinHandle<()> {
    let span = tracing::info_span!("claims");
    tokio::spawn(tracing::Instrument::instrument(run(Arc::downgrade(inner), claimers), span))
}
