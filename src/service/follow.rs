//! The reader of one job's log: where it left off, then live. Every transport reads through it.
//!
//! The whole rule: subscribe, read after the cursor, go live; deliver what comes after the cursor, drop the rest; on a
//! gap read the store again. The order of the first two is what makes a gap between backlog and live impossible.

use std::sync::Arc;
use std::time::Duration;

use async_stream::try_stream;
use bytes::Bytes;
use tokio_stream::Stream;

use super::{Gateway, ServiceError};
use crate::bus::{Channel, OutputSoFar, Reading, Subscription, encode_replay};
use crate::domain::{Event, Job, JobId, Refusal, State};
use crate::store::{EventRange, Lookup};

/// A ring is filled with this much of a log's end when its channel opens, so that a storm of readers who come back
/// costs one read.
const TAIL_EVENTS: u64 = 256;

/// The opening output of a run is cut to this many bytes, from its end.
const OPENING_BYTES: u64 = 1024 * 1024;

/// Pages read for one reader who is behind: as many events as make about this many bytes.
const PAGE_BYTES: usize = 256 * 1024;
const PAGE_EVENTS: std::ops::RangeInclusive<u32> = 16..=256;

/// Where a reader left off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cursor {
    /// Nowhere: it wants the state.
    Fresh,
    /// It has seen everything up to this seq.
    After(u64),
    /// It said something that is no cursor.
    Invalid,
}

/// Why a cursor could not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetReason {
    /// It is no cursor.
    Invalid,
    /// The log has not come that far.
    Ahead,
    /// More events than are replayed.
    TooFarBehind,
}

impl ResetReason {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Ahead => "ahead",
            Self::TooFarBehind => "too_far_behind",
        }
    }
}

/// How a reader without a usable cursor begins.
#[derive(Clone, Debug)]
pub struct Opening {
    /// Why its cursor was not used, if it had one.
    pub reset: Option<ResetReason>,
    /// The state; what follows begins after its seq.
    pub job: Arc<Job>,
    /// The run's output up to that seq, if it has any.
    pub output: Option<Arc<OutputSoFar>>,
}

/// What a reader gets, one after the other.
#[derive(Debug)]
pub enum Step {
    /// State first. Only ever the first step.
    Opening(Opening),
    /// It has seen everything so far. At most once, and only as the first step.
    UpToDate(u64),
    /// Frames, encoded and joined.
    Frames {
        /// Whole frames.
        bytes: Bytes,
        /// The seq of the last one.
        to: u64,
    },
    /// The same as events, for pages.
    Events(Vec<Event>),
    /// It has seen everything, and the job has ended. The last step.
    End(State),
    /// The job was removed. The last step.
    Removed,
}

/// On whose behalf a job is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// Somebody who watches: it counts for `cancel_if_unwatched_ms`.
    Watcher,
    /// The job's own runner, who waits for a cancel.
    Runner,
}

/// In which form a reader wants its events.
#[derive(Clone, Copy, Debug)]
pub enum Follow {
    /// As SSE frames, with or without `event:` lines.
    Frames {
        /// Leave `event:` lines out.
        unnamed: bool,
    },
    /// As events, at most so many at a time.
    Events {
        /// At least 1.
        limit: usize,
    },
}

impl Gateway {
    /// Follows a job's log from `cursor`. The first item is ready as soon as the store has answered; it is an error if
    /// there is no such job. The stream ends with [`Step::End`] or [`Step::Removed`], or with an error.
    pub fn follow(
        &self,
        id: JobId,
        cursor: Cursor,
        form: Follow,
        by: Reader,
    ) -> impl Stream<Item = Result<Step, ServiceError>> + Send + 'static {
        let gateway = self.clone();
        try_stream! {
            // Subscribe before reading the log, or an event between the two is lost.
            let mut subscription = gateway.watch(id, by).await?;
            let job = subscription.channel().job().ok_or(Refusal::JobNotFound)?;
            let mut first = true;
            let mut seen = match gateway.resume(cursor, &job) {
                Ok(seen) => seen,
                Err(reset) => {
                    let output = gateway.opening_output(&subscription, &job).await?;
                    let seq = job.seq;
                    yield Step::Opening(Opening { reset, job, output });
                    first = false;
                    seq
                }
            };
            let mut page = *PAGE_EVENTS.start() * 4;
            loop {
                let channel = subscription.channel();
                let reading = match form {
                    Follow::Frames { unnamed } => channel.read(seen, unnamed),
                    Follow::Events { limit } => match channel.events(seen, limit) {
                        Ok(events) => {
                            seen = events.last().map_or(seen, |event| event.seq);
                            first = false;
                            yield Step::Events(events);
                            continue;
                        }
                        Err(reading) => reading,
                    },
                };
                match reading {
                    Reading::Frames { bytes, to } => {
                        seen = to;
                        yield Step::Frames { bytes, to };
                    }
                    Reading::UpToDate => {
                        // Not if the store was read ahead of what was published: there a redrive may have followed.
                        let job = channel.job();
                        if let Some(job) = job.filter(|job| job.state.is_terminal() && job.seq == seen) {
                            yield Step::End(job.state);
                            return;
                        }
                        if first {
                            yield Step::UpToDate(seen);
                        }
                        subscription.changed().await;
                    }
                    Reading::Behind => {
                        let limit = match form {
                            Follow::Frames { .. } => page,
                            Follow::Events { limit } => page.min(limit as u32),
                        };
                        let events = gateway.read_after(id, seen, limit).await?;
                        let Some(last) = events.last() else {
                            // The job is being removed: the bus will say so, or the next read will.
                            let _ = tokio::time::timeout(Duration::from_secs(1), subscription.changed()).await;
                            gateway.load(id, &subscription).await?;
                            continue;
                        };
                        seen = last.seq;
                        let bytes: usize = events.iter().map(|event| event.data.as_str().len() + 100).sum();
                        let per_event = bytes / events.len();
                        page = ((PAGE_BYTES / per_event) as u32).clamp(*PAGE_EVENTS.start(), *PAGE_EVENTS.end());
                        yield match form {
                            Follow::Frames { unnamed } => Step::Frames { bytes: encode_replay(&events, unnamed), to: seen },
                            Follow::Events { .. } => Step::Events(events),
                        };
                    }
                    Reading::Removed => {
                        yield Step::Removed;
                        return;
                    }
                }
                first = false;
            }
        }
    }

    /// Where a reader goes on, or why (if there is a reason) it begins anew.
    fn resume(&self, cursor: Cursor, job: &Job) -> Result<u64, Option<ResetReason>> {
        match cursor {
            Cursor::Fresh => Err(None),
            Cursor::Invalid => Err(Some(ResetReason::Invalid)),
            Cursor::After(seq) if seq > job.seq => Err(Some(ResetReason::Ahead)),
            Cursor::After(seq) if job.seq - seq > self.inner.settings.replay_limit => {
                Err(Some(ResetReason::TooFarBehind))
            }
            Cursor::After(seq) => Ok(seq),
        }
    }

    /// Subscribes to a job and makes sure that its channel knows it. However many come at once, one reads the store.
    pub(super) async fn watch(&self, id: JobId, by: Reader) -> Result<Subscription, ServiceError> {
        let subscription = self.inner.bus.subscribe(id, by == Reader::Watcher);
        self.load(id, &subscription).await?;
        Ok(subscription)
    }

    async fn load(&self, id: JobId, subscription: &Subscription) -> Result<(), ServiceError> {
        let channel = subscription.channel();
        if channel.is_loaded() {
            return Ok(());
        }
        let _turn = channel.loading.lock().await;
        if channel.is_loaded() {
            return Ok(());
        }
        self.fill(id, channel).await
    }

    /// Reads a job that another node has changed.
    pub(super) async fn reload(&self, id: JobId) -> Result<(), ServiceError> {
        let Some(channel) = self.inner.bus.channel(id) else { return Ok(()) };
        let _turn = channel.loading.lock().await;
        match self.fill(id, &channel).await {
            Err(ServiceError::Refused(Refusal::JobNotFound)) => {
                self.inner.bus.forget(id);
                Ok(())
            }
            other => other,
        }
    }

    async fn fill(&self, id: JobId, channel: &Channel) -> Result<(), ServiceError> {
        let lookup = Lookup { jobs: vec![id], ..Lookup::default() };
        let Some((record, _)) = self.inner.store.resolve(&lookup).await?.jobs.pop() else {
            return Err(Refusal::JobNotFound.into());
        };
        let (job, unwatched_ms) = (record.job, record.policy.cancel_if_unwatched_ms);
        let range = EventRange {
            after: job.seq.saturating_sub(TAIL_EVENTS),
            upto: job.seq,
            output_only: false,
            newest_first: false,
            limit: TAIL_EVENTS as u32,
        };
        let tail = self.inner.store.events(id, &range).await?;
        channel.fill(job, &tail, unwatched_ms);
        Ok(())
    }

    async fn read_after(&self, id: JobId, after: u64, limit: u32) -> Result<Vec<Event>, ServiceError> {
        let range = EventRange { after, upto: u64::MAX, output_only: false, newest_first: false, limit };
        Ok(self.inner.store.events(id, &range).await?)
    }

    /// The output up to `job.seq`; those who ask at the same seq share one read.
    async fn opening_output(
        &self,
        subscription: &Subscription,
        job: &Arc<Job>,
    ) -> Result<Option<Arc<OutputSoFar>>, ServiceError> {
        if job.output_bytes == 0 {
            return Ok(None);
        }
        let channel = subscription.channel();
        let _turn = channel.loading.lock().await;
        if let Some(shared) = channel.opening_output(job.seq) {
            return Ok(Some(shared));
        }
        let output = Arc::new(self.read_output(job, OPENING_BYTES).await?);
        channel.keep_opening_output(job.seq, output.clone());
        Ok(Some(output))
    }
}
