//! Fan-out within this process: per watched job a channel that sequences what was committed.
//!
//! [`Bus::publish`] takes [`Committed`], which only a store's commit makes: nothing is visible before it is durable.
//! A channel exists while somebody watches its job, and shortly after. It holds the newest state and a ring of recent
//! frames, which every reader walks with its own cursor; what the ring no longer has is read from the store. So a slow
//! reader costs nobody memory or time, and a lost, late or doubled publication costs a query, never an event.

mod channel;
mod feeds;
mod frame;
mod queues;
mod signals;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub use channel::{Channel, OutputSoFar, Reading, Subscription};
pub use feeds::{Change, FeedReader, Feeds, News as FeedNews, Shown};
pub use frame::{Control, Frame, encode_replay};
pub use queues::{News, QueueNews};
pub use signals::{Listener, Signal, Signals};

use crate::domain::{JobId, State};
use crate::store::Committed;
use crate::store::CommittedJob;

/// How long a channel outlives its last watcher: a reload, or the next poll, finds it warm.
const LINGER: Duration = Duration::from_secs(10);

/// All channels of this process.
#[derive(Default)]
pub struct Bus {
    /// A plain lock: it is held for a look-up or an insertion, never across an await or an encoding.
    channels: Mutex<HashMap<JobId, Arc<Channel>>>,
    queues: QueueNews,
    signals: Signals,
    feeds: Arc<Feeds>,
}

impl Bus {
    /// Begins to watch a job, whether or not it exists. Whatever is committed from now on reaches the subscription.
    /// `watches`: for somebody who watches, as a runner who waits for a cancel does not.
    pub fn subscribe(&self, id: JobId, watches: bool) -> Subscription {
        let mut channels = self.lock();
        let channel = channels.entry(id).or_insert_with(|| Arc::new(Channel::new()));
        Subscription::new(channel.clone(), watches)
    }

    /// The channel of a job that somebody watches or has watched a moment ago.
    pub fn channel(&self, id: JobId) -> Option<Arc<Channel>> {
        self.lock().get(&id).cloned()
    }

    /// Tells watchers what has become durable. Jobs that nobody watches cost a look-up.
    pub fn publish(&self, committed: &Committed) {
        for changed in committed.jobs() {
            if let Some(channel) = self.channel(changed.job.id) {
                channel.push(&changed.job, &changed.events);
            }
            self.signals.note(changed);
            if let Some(news) = news(changed.job.state) {
                self.queues.note(&changed.job.queue, news);
            }
        }
        if self.feeds.is_on() {
            let states = committed.jobs().iter().map(|changed| Change::State(Shown::of(changed.job.clone())));
            self.feeds.publish(states.chain(committed.removed().iter().map(|job| Change::Gone(Arc::new(job.clone())))));
        }
        for job in committed.removed() {
            if let Some(channel) = self.channel(job.id) {
                channel.remove();
            }
        }
    }

    /// Which queues are worth another look.
    pub fn queues(&self) -> &QueueNews {
        &self.queues
    }

    /// The newest states, for those who show many jobs.
    pub fn feeds(&self) -> &Arc<Feeds> {
        &self.feeds
    }

    /// What workers are told.
    pub fn signals(&self) -> &Signals {
        &self.signals
    }

    /// Forgets channels that nobody has watched for a while. One shared tick calls this; channels have no timers.
    pub fn forget_idle(&self, now: Instant) {
        self.feeds.forget_idle(now);
        self.lock().retain(|_, channel| {
            channel.is_subscribed() || channel.owes_news() || now.duration_since(channel.last_used()) < LINGER
        });
    }

    /// Jobs that are known here, and how far.
    pub fn watched(&self) -> Vec<(JobId, u64)> {
        self.lock().iter().filter_map(|(id, channel)| Some((*id, channel.job()?.seq))).collect()
    }

    /// The store knows a job no more, and the commit that removed it was another node's.
    pub fn forget(&self, id: JobId) {
        if let Some(channel) = self.channel(id) {
            channel.remove();
        }
    }

    /// What the store is to be told about who watches: jobs, and in how many milliseconds each is to be cancelled unless
    /// it is told again.
    pub fn audience_news(&self, now: Instant) -> Vec<(JobId, u64)> {
        self.lock().iter().filter_map(|(id, channel)| Some((*id, channel.audience_news(now)?))).collect()
    }

    /// How many channels there are.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether nothing is watched.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<JobId, Arc<Channel>>> {
        self.channels.lock().expect("no holder of this lock panics")
    }
}

/// What a job's change to this state means to those who wait for work in its queue.
fn news(state: State) -> Option<News> {
    match state {
        State::Scheduled | State::Queued | State::Retrying => Some(News::Work),
        State::Running | State::Expired => None,
        State::Completed | State::Failed | State::Cancelled => Some(News::Slot),
    }
}
