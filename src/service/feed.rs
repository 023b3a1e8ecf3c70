//! Feeds: the states of many jobs, first as they are, then at each change.
//!
//! Listen, read the store, go live, as for one job's log; but what is passed on are whole states, so one that is passed
//! on twice does no harm, and none must be missing. A cursor says where a reader left off twice over: by position, which
//! this process knows exactly as long as it remembers, and by time, with which any process finds in the store what has
//! changed since.

mod cursor;

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use async_stream::try_stream;
use lru::LruCache;
use tokio_stream::Stream;

use super::follow::Reader;
use super::{Gateway, ServiceError};
use crate::bus::{Change, FeedNews, Shown, Subscription};
use crate::domain::{Interest, Job, JobId, Timestamp};
use crate::store::{JobFilter, Lookup};
pub use cursor::FeedCursor;

/// An opening shows jobs that ended within this.
const LATELY_MS: u64 = 10 * 60 * 1_000;

/// An opening shows so many jobs; the answer to a cursor, so many that have changed since.
const OPENING_JOBS: usize = 1_000;
const RESUMED_JOBS: usize = 10_000;

/// Jobs read from the store at a time.
const CHUNK: u32 = 200;

/// A cursor's time is taken to be this much earlier: what was committed then may have become visible later, and clocks
/// differ.
const OVERLAP_MS: u64 = 10_000;

/// Jobs whose last passed-on state a feed remembers.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(10_000).expect("not zero");

/// What became of a job, as a reader of a feed is told.
#[derive(Clone, Debug)]
pub enum Fate {
    /// It is in this state.
    State(Arc<Shown>),
    /// It is not there, or not any more.
    Gone(JobId),
}

/// What a reader of a feed gets, one after the other.
#[derive(Debug)]
pub enum FeedStep {
    /// Its cursor is of no use, everything follows as on a first connect. Only ever the first step.
    Reset,
    /// What became of some jobs, possibly none. The cursor `after` holds once the last of them has been passed on; until
    /// then `before` does.
    Changes {
        /// At most one per job.
        fates: Vec<Fate>,
        /// Where a reader goes on that has not got all of them.
        before: FeedCursor,
        /// Where a reader goes on that has.
        after: FeedCursor,
    },
    /// The answer to what was asked is complete, what follows is live. Again, if the reader could not keep up.
    Live {
        /// Whether more jobs match than were shown.
        truncated: bool,
        /// Where a reader goes on.
        after: FeedCursor,
    },
}

/// A reader's own memory.
struct Memory {
    /// Of each job's last state that was passed on, the seq, and whether it was an end.
    passed_on: LruCache<JobId, (u64, bool)>,
    /// Holds on those that are cancelled when nobody watches.
    watched: HashMap<JobId, Subscription>,
}

impl Memory {
    fn new() -> Self {
        Self { passed_on: LruCache::new(REMEMBERED), watched: HashMap::new() }
    }

    /// Whether it is news; then it counts as passed on.
    fn learn(&mut self, fate: &Fate) -> bool {
        match fate {
            Fate::State(shown) => {
                let (id, seq, has_ended) = (shown.job.id, shown.job.seq, shown.job.state.is_terminal());
                if has_ended {
                    self.watched.remove(&id);
                }
                let known = self.passed_on.peek(&id).copied();
                let is_news = known.is_none_or(|(known, _)| known < seq);
                if is_news {
                    self.passed_on.put(id, (seq, has_ended));
                }
                is_news
            }
            Fate::Gone(id) => {
                self.watched.remove(id);
                self.passed_on.pop(id);
                true
            }
        }
    }

    /// A live job that was none, as far as this reader knows.
    fn begins(&self, fate: &Fate) -> Option<JobId> {
        let Fate::State(shown) = fate else { return None };
        let was_live = self.passed_on.peek(&shown.job.id).is_some_and(|(_, has_ended)| !has_ended);
        (!was_live && !shown.job.state.is_terminal()).then_some(shown.job.id)
    }
}

impl Gateway {
    /// Follows the states of the jobs of an interest, from a cursor that an earlier follower gave out. Without end; the
    /// first step is ready as soon as the store has answered.
    pub fn feed(
        &self,
        interest: Interest,
        cursor: Option<&str>,
    ) -> impl Stream<Item = Result<FeedStep, ServiceError>> + Send + use<> {
        let gateway = self.clone();
        let given =
            cursor.filter(|text| !text.is_empty()).map(|text| FeedCursor::parse(text, self.epoch(), self.now()));
        try_stream! {
            let feeds = gateway.inner.bus.feeds();
            let since = given.flatten().and_then(|cursor| cursor.position_in(feeds.life()));
            // Listen before reading the store, or a change between the two is lost.
            let (mut reader, is_known) = feeds.subscribe(interest.clone(), since);
            let mut memory = Memory::new();
            let mut here = gateway.feed_cursor(reader.position());
            let mut truncated = false;
            let range = match given {
                Some(None) => {
                    yield FeedStep::Reset;
                    Range::opening(&gateway)
                }
                None | Some(Some(FeedCursor::Beginning)) => Range::opening(&gateway),
                Some(Some(cursor)) => {
                    gateway.watch_again(&mut memory, &interest).await?;
                    Range::since(cursor)
                }
            };
            let missed = is_known.then(|| reader.take());
            if let Some(FeedNews::Changes(changes, position)) = missed {
                here = gateway.feed_cursor(position);
                let fates = gateway.pass_on(&mut memory, &interest, fates_of(changes)).await?;
                yield FeedStep::Changes { fates, before: range.cursor, after: here };
            } else {
                let before = range.cursor;
                let mut pages = Pages::of(&gateway, &interest, range);
                while let Some((fates, is_last)) = pages.next().await? {
                    let fates = gateway.pass_on(&mut memory, &interest, fates).await?;
                    yield FeedStep::Changes { fates, before, after: if is_last { here } else { before } };
                }
                truncated = pages.is_truncated;
            }
            yield FeedStep::Live { truncated, after: here };
            loop {
                let news = reader.next().await;
                let before = here;
                match news {
                    FeedNews::Changes(changes, position) => {
                        here = gateway.feed_cursor(position);
                        let fates = gateway.pass_on(&mut memory, &interest, fates_of(changes)).await?;
                        if !fates.is_empty() {
                            yield FeedStep::Changes { fates, before, after: here };
                        }
                    }
                    FeedNews::Behind(position) => {
                        here = gateway.feed_cursor(position);
                        let mut pages = Pages::of(&gateway, &interest, Range::since(before));
                        while let Some((fates, is_last)) = pages.next().await? {
                            let fates = gateway.pass_on(&mut memory, &interest, fates).await?;
                            yield FeedStep::Changes { fates, before, after: if is_last { here } else { before } };
                        }
                        yield FeedStep::Live { truncated: pages.is_truncated, after: here };
                    }
                }
            }
        }
    }

    /// What of it is news for this reader, who watches those of them that he waits for.
    async fn pass_on(
        &self,
        memory: &mut Memory,
        interest: &Interest,
        mut fates: Vec<Fate>,
    ) -> Result<Vec<Fate>, ServiceError> {
        let begun: Vec<JobId> = fates.iter().filter_map(|fate| memory.begins(fate)).collect();
        fates.retain(|fate| memory.learn(fate));
        if waits_for(interest) {
            self.watch_all(memory, begun).await?;
        }
        Ok(fates)
    }

    /// Watches what a reader who comes back waits for, whether or not it has changed.
    async fn watch_again(&self, memory: &mut Memory, interest: &Interest) -> Result<(), ServiceError> {
        if !waits_for(interest) {
            return Ok(());
        }
        let jobs = match &interest.jobs {
            Some(jobs) => jobs.clone(),
            None => {
                let filter = JobFilter { of: interest.clone(), active: true, ..JobFilter::default() };
                let live = self.inner.store.list(&filter, OPENING_JOBS as u32).await?;
                live.iter().map(|job| job.id).collect()
            }
        };
        self.watch_all(memory, jobs).await
    }

    /// Keeps those of the jobs from being cancelled that are when nobody watches.
    async fn watch_all(&self, memory: &mut Memory, jobs: Vec<JobId>) -> Result<(), ServiceError> {
        if jobs.is_empty() {
            return Ok(());
        }
        for (record, _) in self.inner.store.resolve(&Lookup { jobs, ..Lookup::default() }).await?.jobs {
            let id = record.job.id;
            if record.policy.cancel_if_unwatched_ms.is_some() && !record.job.state.is_terminal() {
                memory.watched.insert(id, self.watch(id, Reader::Watcher).await?);
            }
        }
        Ok(())
    }

    fn feed_cursor(&self, position: u64) -> FeedCursor {
        FeedCursor::At { at: self.now(), life: self.inner.bus.feeds().life(), position }
    }
}

/// Whoever names jobs or subjects waits for these very jobs; a queue's or everybody's are looked at by operators, who wait
/// for none of them.
fn waits_for(interest: &Interest) -> bool {
    interest.jobs.is_some() || !interest.subjects.is_empty()
}

fn fates_of(changes: Vec<Change>) -> Vec<Fate> {
    let fate = |change| match change {
        Change::State(shown) => Fate::State(shown),
        Change::Gone(job) => Fate::Gone(job.id),
    };
    changes.into_iter().map(fate).collect()
}

/// What is to be read from the store.
struct Range {
    /// Where a reader goes on that has not got all of it.
    cursor: FeedCursor,
    /// Ended after this, or live.
    finished_after: Timestamp,
    /// Changed after this.
    updated_after: Option<Timestamp>,
    limit: usize,
}

impl Range {
    fn opening(gateway: &Gateway) -> Self {
        let finished_after = gateway.now().minus_millis(LATELY_MS);
        Self { cursor: FeedCursor::Beginning, finished_after, updated_after: None, limit: OPENING_JOBS }
    }

    fn since(cursor: FeedCursor) -> Self {
        let since = cursor.at().minus_millis(OVERLAP_MS);
        Self { cursor, finished_after: since, updated_after: Some(since), limit: RESUMED_JOBS }
    }
}

/// The store's part of a feed, in pages: no more of it is in memory than its reader takes.
struct Pages<'a> {
    gateway: &'a Gateway,
    interest: &'a Interest,
    range: Range,
    before: Option<JobId>,
    shown: usize,
    is_done: bool,
    is_truncated: bool,
}

impl<'a> Pages<'a> {
    fn of(gateway: &'a Gateway, interest: &'a Interest, range: Range) -> Self {
        Self { gateway, interest, range, before: None, shown: 0, is_done: false, is_truncated: false }
    }

    /// The next page, and whether it is the last; `None` after that.
    async fn next(&mut self) -> Result<Option<(Vec<Fate>, bool)>, ServiceError> {
        if self.is_done {
            return Ok(None);
        }
        if let Some(ids) = &self.interest.jobs {
            self.is_done = true;
            return Ok(Some((self.named_jobs(ids).await?, true)));
        }
        let filter = JobFilter {
            of: self.interest.clone(),
            active_or_finished_after: Some(self.range.finished_after),
            updated_after: self.range.updated_after,
            before: self.before,
            ..JobFilter::default()
        };
        // One more than wanted: whether the last is the last must be known before it is passed on.
        let mut jobs = self.gateway.inner.store.list(&filter, CHUNK + 1).await?;
        let has_more = jobs.len() > CHUNK as usize;
        jobs.truncate(CHUNK as usize);
        self.before = jobs.last().map(|job| job.id);
        self.shown += jobs.len();
        self.is_truncated = has_more && self.shown >= self.range.limit;
        self.is_done = !has_more || self.is_truncated;
        Ok(Some((jobs.into_iter().map(|job| Fate::State(Shown::of(job))).collect(), self.is_done)))
    }

    /// Jobs named by id, in the order in which they were named; of those that are not there, that they are not.
    async fn named_jobs(&self, ids: &[JobId]) -> Result<Vec<Fate>, ServiceError> {
        let filter = JobFilter { of: self.interest.clone(), ..JobFilter::default() };
        let jobs = self.gateway.inner.store.list(&filter, ids.len() as u32).await?;
        let mut found: HashMap<JobId, Job> = jobs.into_iter().map(|job| (job.id, job)).collect();
        let changed = |job: &Job| self.range.updated_after.is_none_or(|after| job.updated_at > after);
        let fate = |id: &JobId| match found.remove(id) {
            None => Some(Fate::Gone(*id)),
            Some(job) => changed(&job).then(|| Fate::State(Shown::of(job))),
        };
        Ok(ids.iter().filter_map(fate).collect())
    }
}
