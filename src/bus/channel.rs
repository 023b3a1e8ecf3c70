//! One watched job: its newest state, a ring of recent frames, and a signal that something changed.
//!
//! A channel is a sequencer: the next seq is pushed, an earlier one is dropped, a later one leaves a gap that readers
//! fill from the store. The ring always ends at the state's seq.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tokio::sync::watch;

use super::Frame;
use crate::domain::{Event, Job};

/// Frames and bytes that a ring keeps. Beyond that a reader is behind, and reads from the store.
const RING_FRAMES: usize = 512;
const RING_BYTES: usize = 1024 * 1024;

/// What one write to a subscriber carries at most; the rest follows with the next.
const BURST_BYTES: usize = 64 * 1024;

/// The channel of one job.
pub struct Channel {
    /// A plain lock: held to push, to look, or to join frames (bounded by [`BURST_BYTES`]), never across an await.
    inner: Mutex<Inner>,
    /// Counts changes. Watchers that sleep through some of them lose nothing: the ring or the store decides.
    changes: watch::Sender<u64>,
    /// Single flight: whoever holds it reads the job from the store, the others wait for the result.
    pub loading: tokio::sync::Mutex<()>,
    /// All subscriptions.
    subscribers: AtomicUsize,
    /// Those that stand for somebody who watches; a runner who waits for a cancel is none.
    watchers: AtomicUsize,
}

struct Inner {
    job: Option<Arc<Job>>,
    removed: bool,
    audience: Audience,
    ring: VecDeque<Arc<Frame>>,
    ring_bytes: usize,
    /// The run's output up to a seq, for whoever opens a stream at that very seq.
    opening_output: Option<(u64, Arc<OutputSoFar>)>,
    /// The last join, for the next reader at the same cursor: a thousand of them cost one copy.
    joined: Option<Joined>,
    last_used: Instant,
}

/// A run's output up to some seq.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputSoFar {
    /// Where the text begins, in bytes of the run's output; above 0 if only its end is here.
    pub offset: u64,
    /// The text.
    pub text: String,
}

struct Joined {
    from: u64,
    head: u64,
    unnamed: bool,
    to: u64,
    bytes: Bytes,
}

/// Who watches a job that is cancelled when nobody does.
#[derive(Default)]
struct Audience {
    /// Whether the job's row has been read; before that, whether the audience matters is unknown.
    known: bool,
    /// After how long without watchers it is cancelled, in milliseconds.
    unwatched_ms: Option<u64>,
    /// When a plain GET looked at it last.
    glimpsed: Option<Instant>,
    /// Whether somebody has watched since the store was last told.
    news: bool,
    /// When the store was told that it is watched.
    told: Option<Instant>,
}

/// A plain GET counts as watching for this long.
const GLIMPSE: Duration = Duration::from_secs(10);

/// The store is told about a watched job this often, and that it is good for twice that: a node that dies stops
/// counting.
const RETELL: Duration = Duration::from_secs(3);

/// What a channel has for a reader.
#[derive(Debug)]
pub enum Reading {
    /// Frames after the cursor, joined, up to `to`.
    Frames {
        /// Whole frames, ready to be written.
        bytes: Bytes,
        /// The seq of the last one.
        to: u64,
    },
    /// Nothing new.
    UpToDate,
    /// The ring begins later than the reader needs.
    Behind,
    /// The job is gone.
    Removed,
}

impl Channel {
    pub(super) fn new() -> Self {
        Self {
            inner: Mutex::new(Inner {
                job: None,
                removed: false,
                audience: Audience::default(),
                ring: VecDeque::new(),
                ring_bytes: 0,
                opening_output: None,
                joined: None,
                last_used: Instant::now(),
            }),
            changes: watch::Sender::new(0),
            loading: tokio::sync::Mutex::new(()),
            subscribers: AtomicUsize::new(0),
            watchers: AtomicUsize::new(0),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().expect("no holder of this lock panics")
    }

    /// The newest state, if the channel knows the job.
    pub fn job(&self) -> Option<Arc<Job>> {
        self.lock().job.clone()
    }

    /// Whether the job was removed.
    pub fn is_removed(&self) -> bool {
        self.lock().removed
    }

    /// What was just committed: `events` lead to `job`.
    pub(super) fn push(&self, job: &Job, events: &[Event]) {
        let frames: Vec<Arc<Frame>> = events.iter().map(|event| Arc::new(Frame::of(event))).collect();
        let mut inner = self.lock();
        if inner.job.as_ref().is_some_and(|known| known.seq >= job.seq) {
            return;
        }
        let last = inner.ring.back().map(|frame| frame.seq).or(inner.job.as_ref().map(|job| job.seq));
        if last.is_some_and(|last| frames.first().is_some_and(|first| first.seq != last + 1)) {
            inner.clear_ring();
        }
        inner.extend(frames);
        inner.opening_output = None;
        inner.job = Some(Arc::new(job.clone()));
        drop(inner);
        self.changes.send_modify(|n| *n += 1);
    }

    /// Whether the job's row has been read, and the channel knows the job.
    pub fn is_loaded(&self) -> bool {
        let inner = self.lock();
        inner.job.is_some() && inner.audience.known
    }

    /// What was just read from the store: the state, the end of its log, and after how long without watchers the job is
    /// cancelled. A state older than what is known is dropped.
    pub fn fill(&self, job: Job, tail: &[Event], unwatched_ms: Option<u64>) {
        let mut inner = self.lock();
        inner.audience.known = true;
        inner.audience.unwatched_ms = unwatched_ms;
        if inner.job.as_ref().is_some_and(|known| known.seq >= job.seq) {
            return;
        }
        inner.clear_ring();
        inner.extend(tail.iter().map(|event| Arc::new(Frame::of(event))));
        inner.job = Some(Arc::new(job));
        inner.removed = false;
        drop(inner);
        self.changes.send_modify(|n| *n += 1);
    }

    pub(super) fn remove(&self) {
        let mut inner = self.lock();
        inner.clear_ring();
        inner.opening_output = None;
        inner.job = None;
        inner.removed = true;
        drop(inner);
        self.changes.send_modify(|n| *n += 1);
    }

    /// Frames after `cursor`, joined once for all readers at the same cursor.
    pub fn read(&self, cursor: u64, unnamed: bool) -> Reading {
        let mut inner = self.lock();
        let head = match inner.position(cursor) {
            Ok(head) => head,
            Err(reading) => return reading,
        };
        if let Some(joined) = &inner.joined
            && (joined.from, joined.head, joined.unnamed) == (cursor, head, unnamed)
        {
            return Reading::Frames { bytes: joined.bytes.clone(), to: joined.to };
        }
        let mut bytes = BytesMut::new();
        let mut to = cursor;
        for frame in inner.after(cursor) {
            frame.write_to(&mut bytes, unnamed);
            to = frame.seq;
            if bytes.len() >= BURST_BYTES {
                break;
            }
        }
        let bytes = bytes.freeze();
        inner.joined = Some(Joined { from: cursor, head, unnamed, to, bytes: bytes.clone() });
        Reading::Frames { bytes, to }
    }

    /// Events after `cursor`, at most `limit`; `Err` as [`Channel::read`] would answer.
    pub fn events(&self, cursor: u64, limit: usize) -> Result<Vec<Event>, Reading> {
        let inner = self.lock();
        inner.position(cursor)?;
        Ok(inner.after(cursor).take(limit).map(|frame| frame.event.clone()).collect())
    }

    /// The output that was read for the opening at `seq`, if it was the last one read.
    pub fn opening_output(&self, seq: u64) -> Option<Arc<OutputSoFar>> {
        self.lock().opening_output.as_ref().filter(|(at, _)| *at == seq).map(|(_, output)| output.clone())
    }

    /// Keeps the output up to `seq` for the next opening, until the job changes.
    pub fn keep_opening_output(&self, seq: u64, output: Arc<OutputSoFar>) {
        let mut inner = self.lock();
        if inner.job.as_ref().is_some_and(|job| job.seq == seq) {
            inner.opening_output = Some((seq, output));
        }
    }

    pub(super) fn is_subscribed(&self) -> bool {
        self.subscribers.load(Ordering::Relaxed) > 0
    }

    /// Somebody looked at the job in passing.
    pub fn glimpse(&self) {
        let mut inner = self.lock();
        inner.audience.glimpsed = Some(Instant::now());
        inner.audience.news = true;
    }

    /// What the store is to be told: in how many milliseconds the job is to be cancelled unless it is told again.
    pub(super) fn audience_news(&self, now: Instant) -> Option<u64> {
        let watched = self.watchers.load(Ordering::Relaxed) > 0;
        let mut inner = self.lock();
        let audience = &mut inner.audience;
        let unwatched_ms = audience.unwatched_ms?;
        let watched = watched || audience.glimpsed.is_some_and(|at| now.duration_since(at) < GLIMPSE);
        if watched && audience.told.is_none_or(|at| now.duration_since(at) >= RETELL) {
            audience.told = Some(now);
            return Some(unwatched_ms + 2 * RETELL.as_millis() as u64);
        }
        if !watched && (audience.told.is_some() || audience.news) {
            audience.told = None;
            audience.news = false;
            return Some(unwatched_ms);
        }
        None
    }

    /// Whether the store still believes that somebody watches. A channel that were forgotten now could not tell it
    /// otherwise, and the job would outlive its last watcher by what the store was promised.
    pub(super) fn owes_news(&self) -> bool {
        let audience = &self.lock().audience;
        audience.unwatched_ms.is_some() && (audience.told.is_some() || audience.news)
    }

    pub(super) fn last_used(&self) -> Instant {
        self.lock().last_used
    }
}

impl Inner {
    /// The head, if the ring holds everything from `cursor + 1` to it and that is something.
    fn position(&self, cursor: u64) -> Result<u64, Reading> {
        match (&self.job, self.ring.front()) {
            _ if self.removed => Err(Reading::Removed),
            (Some(job), _) if job.seq <= cursor => Err(Reading::UpToDate),
            (Some(job), Some(first)) if first.seq <= cursor + 1 => Ok(job.seq),
            (Some(_) | None, Some(_) | None) => Err(Reading::Behind),
        }
    }

    /// Frames after `cursor`; seqs in the ring are dense, so the place is known.
    fn after(&self, cursor: u64) -> impl Iterator<Item = &Arc<Frame>> {
        let first = self.ring.front().map_or(0, |frame| frame.seq);
        self.ring.iter().skip((cursor + 1).saturating_sub(first) as usize)
    }

    fn extend(&mut self, frames: impl IntoIterator<Item = Arc<Frame>>) {
        for frame in frames {
            self.ring_bytes += frame.size();
            self.ring.push_back(frame);
        }
        while self.ring.len() > RING_FRAMES || (self.ring_bytes > RING_BYTES && self.ring.len() > 1) {
            if let Some(frame) = self.ring.pop_front() {
                self.ring_bytes -= frame.size();
            }
        }
        self.joined = None;
    }

    fn clear_ring(&mut self) {
        self.ring.clear();
        self.ring_bytes = 0;
        self.joined = None;
    }
}

/// One reader's hold on a channel.
pub struct Subscription {
    channel: Arc<Channel>,
    changes: watch::Receiver<u64>,
    watches: bool,
}

impl Subscription {
    pub(super) fn new(channel: Arc<Channel>, watches: bool) -> Self {
        channel.subscribers.fetch_add(1, Ordering::Relaxed);
        if watches {
            channel.watchers.fetch_add(1, Ordering::Relaxed);
            channel.lock().audience.news = true;
        }
        let changes = channel.changes.subscribe();
        Self { channel, changes, watches }
    }

    /// What is watched.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Waits for a change since the last call (or since the subscription). Dropping the future loses nothing.
    pub async fn changed(&mut self) {
        // The sender lives in the channel, which we hold.
        let _ = self.changes.changed().await;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.channel.lock().last_used = Instant::now();
        self.channel.subscribers.fetch_sub(1, Ordering::Relaxed);
        if self.watches {
            self.channel.watchers.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
