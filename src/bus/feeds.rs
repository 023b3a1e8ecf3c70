//! Feeds: the newest state of each job that somebody shows, not the log that led to it.
//!
//! A reader's inbox holds one state per job, so a slow reader gets the newest of each, never a backlog. The last changes
//! are kept for a while after the last reader has gone: who comes back to this process gets exactly what it missed,
//! without a read of the store.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use serde_json::value::RawValue;
use tokio::sync::Notify;

use crate::domain::{Identity, Interest, Job, JobId};

/// Changes kept for those who come back. Who was away for longer reads the store.
const KEPT: usize = 4_096;

/// How long changes are kept after the last reader has gone.
const LINGER: Duration = Duration::from_secs(60);

/// Jobs in one inbox. A reader that leaves more of them lying reads the store again.
const INBOX: usize = 2_048;

/// A job's state, encoded once for all who show it.
#[derive(Debug)]
pub struct Shown {
    /// The state.
    pub job: Job,
    document: OnceLock<Box<RawValue>>,
}

impl Shown {
    /// To be shown.
    pub fn of(job: Job) -> Arc<Self> {
        Arc::new(Self { job, document: OnceLock::new() })
    }

    /// The state document.
    pub fn document(&self) -> &RawValue {
        self.document
            .get_or_init(|| serde_json::value::to_raw_value(&self.job).expect("our types have string keys only"))
    }
}

/// What became of a job.
#[derive(Clone, Debug)]
pub enum Change {
    /// It is in this state now.
    State(Arc<Shown>),
    /// It was removed.
    Gone(Arc<Identity>),
}

impl Change {
    /// Whose change it is.
    pub fn id(&self) -> JobId {
        match self {
            Self::State(shown) => shown.job.id,
            Self::Gone(job) => job.id,
        }
    }
}

/// All feeds of this process.
pub struct Feeds {
    /// Names this life of the process: positions mean nothing in another.
    life: u32,
    /// Whether changes are kept at all. Without readers a commit costs a look at this.
    is_on: AtomicBool,
    /// A plain lock: held to match and insert, never across an await or an encoding.
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// How many changes there have been.
    position: u64,
    /// The last of them, with the position that each led to; dense.
    kept: VecDeque<(u64, Change)>,
    readers: HashMap<u64, Arc<Inbox>>,
    next_reader: u64,
    /// When the last reader went.
    left_at: Option<Instant>,
}

struct Inbox {
    interest: Interest,
    pending: Mutex<Pending>,
    wake: Notify,
}

#[derive(Default)]
struct Pending {
    /// By job: when it changed last, and how.
    changes: HashMap<JobId, (u64, Change)>,
    /// Everything up to this position is here, or was.
    position: u64,
    /// More changed than an inbox holds.
    is_behind: bool,
}

/// What an inbox has for its reader.
#[derive(Debug)]
pub enum News {
    /// These, in the order in which they came about; everything up to the position is in them, or was before.
    Changes(Vec<Change>, u64),
    /// Too many to be kept: the store knows. Whatever comes after the position comes by itself.
    Behind(u64),
}

impl Default for Feeds {
    fn default() -> Self {
        Self { life: rand::random(), is_on: AtomicBool::new(false), inner: Mutex::default() }
    }
}

impl Feeds {
    /// Names this life of the process.
    pub fn life(&self) -> u32 {
        self.life
    }

    /// Begins to listen. Whatever changes from now on reaches the reader; what changed after `since` does too, if it is
    /// still known here, which the second value says.
    pub fn subscribe(self: &Arc<Self>, interest: Interest, since: Option<u64>) -> (FeedReader, bool) {
        let mut inner = self.lock();
        self.is_on.store(true, Ordering::SeqCst);
        let mut pending = Pending { position: inner.position, ..Pending::default() };
        let missed = since.and_then(|since| inner.after(since));
        let is_known = missed.is_some();
        for (position, change) in missed.into_iter().flatten() {
            pending.take_in(&interest, *position, change);
        }
        let inbox = Arc::new(Inbox { interest, pending: Mutex::new(pending), wake: Notify::new() });
        let number = inner.next_reader;
        inner.next_reader += 1;
        inner.readers.insert(number, inbox.clone());
        (FeedReader { feeds: self.clone(), number, inbox, position: inner.position }, is_known)
    }

    /// States that were read from the store: commits of other nodes. Those who have been told of them already are not
    /// told again.
    pub fn catch_up(&self, jobs: impl Iterator<Item = Job>) {
        self.publish(jobs.map(|job| Change::State(Shown::of(job))));
    }

    /// Whether changes are of interest to anybody.
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::SeqCst)
    }

    /// What was just committed.
    pub(super) fn publish(&self, changes: impl Iterator<Item = Change>) {
        let mut inner = self.lock();
        for change in changes {
            inner.position += 1;
            let position = inner.position;
            for inbox in inner.readers.values() {
                inbox.offer(position, &change);
            }
            inner.kept.push_back((position, change));
            if inner.kept.len() > KEPT {
                inner.kept.pop_front();
            }
        }
    }

    /// Forgets what nobody will come back for. One shared tick calls this.
    pub(super) fn forget_idle(&self, now: Instant) {
        let mut inner = self.lock();
        if inner.readers.is_empty() && inner.left_at.is_some_and(|at| now.duration_since(at) >= LINGER) {
            inner.kept.clear();
            inner.kept.shrink_to_fit();
            // What is not counted must not be missing unnoticed.
            inner.position += 1;
            inner.left_at = None;
            self.is_on.store(false, Ordering::SeqCst);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().expect("no holder of this lock panics")
    }
}

impl Inner {
    /// The changes after a position, if all of them are still here.
    fn after(&self, since: u64) -> Option<impl Iterator<Item = &(u64, Change)>> {
        let first = self.kept.front().map_or(self.position + 1, |(position, _)| *position);
        let is_known = since <= self.position && since + 1 >= first;
        is_known.then(|| self.kept.iter().skip((since + 1 - first) as usize))
    }
}

impl Inbox {
    fn offer(&self, position: u64, change: &Change) {
        let mut pending = self.pending.lock().expect("no holder of this lock panics");
        if pending.take_in(&self.interest, position, change) {
            drop(pending);
            self.wake.notify_one();
        }
    }
}

impl Pending {
    /// Whether there is something new for the reader.
    fn take_in(&mut self, interest: &Interest, position: u64, change: &Change) -> bool {
        self.position = position;
        let is_wanted = match change {
            Change::State(shown) => interest.covers(&shown.job),
            Change::Gone(job) => interest.covered(job),
        };
        if !is_wanted || self.is_behind {
            return false;
        }
        // Two tasks publish side by side: a state that was overtaken does not come back.
        if let (Some((_, Change::State(known))), Change::State(shown)) = (self.changes.get(&change.id()), change)
            && known.job.seq > shown.job.seq
        {
            return false;
        }
        self.changes.insert(change.id(), (position, change.clone()));
        if self.changes.len() > INBOX {
            self.changes = HashMap::new();
            self.is_behind = true;
        }
        true
    }
}

/// One reader's hold on its inbox.
pub struct FeedReader {
    feeds: Arc<Feeds>,
    number: u64,
    inbox: Arc<Inbox>,
    position: u64,
}

impl FeedReader {
    /// Where it began to listen.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// What has come so far, possibly nothing.
    pub fn take(&mut self) -> News {
        let mut pending = self.inbox.pending.lock().expect("no holder of this lock panics");
        self.position = pending.position;
        if std::mem::take(&mut pending.is_behind) {
            return News::Behind(self.position);
        }
        let mut changes: Vec<(u64, Change)> = pending.changes.drain().map(|(_, change)| change).collect();
        drop(pending);
        changes.sort_unstable_by_key(|(position, _)| *position);
        News::Changes(changes.into_iter().map(|(_, change)| change).collect(), self.position)
    }

    /// Waits until something has come, and takes all of it. Dropping the future loses nothing.
    pub async fn next(&mut self) -> News {
        loop {
            match self.take() {
                News::Changes(changes, _) if changes.is_empty() => self.inbox.wake.notified().await,
                news => return news,
            }
        }
    }
}

impl Drop for FeedReader {
    fn drop(&mut self) {
        let mut inner = self.feeds.lock();
        inner.readers.remove(&self.number);
        if inner.readers.is_empty() {
            inner.left_at = Some(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests;
