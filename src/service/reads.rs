//! Reads that answer at once: state, output, result, lists, pages of a log; and the wait for the next change.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio_stream::StreamExt;

use super::follow::{Cursor, Follow, Reader, ResetReason, Step};
use super::{Gateway, ServiceError};
use crate::bus::OutputSoFar;
use crate::domain::waiting::WaitingFor;
use crate::domain::{Event, Job, JobId, Json, Record, Refusal};
use crate::store::{EventRange, JobFilter, Lookup, Part};

/// What one page of a log holds at most, in bytes of event data; the rest is on the next page.
const PAGE_BYTES: usize = 2 * 1024 * 1024;

/// Events read from the store at a time.
const CHUNK: u32 = 250;

/// A page of a list.
#[derive(Debug)]
pub struct JobPage {
    /// Newest first.
    pub jobs: Vec<Job>,
    /// Where the next page begins, if there is one.
    pub next: Option<JobId>,
}

/// A page of a log.
#[derive(Debug)]
pub struct EventPage {
    /// Why the cursor could not be used; then there are no events.
    pub reset: Option<ResetReason>,
    /// The events after the cursor.
    pub events: Vec<Event>,
    /// The seq of the last event, or the cursor again.
    pub next: u64,
    /// The job, as it is now.
    pub job: Arc<Job>,
    /// Whether there is more to read at once.
    pub more: bool,
}

impl Gateway {
    /// A job's state. Watched jobs cost no read.
    pub async fn job(&self, id: JobId) -> Result<Arc<Job>, ServiceError> {
        if let Some(channel) = self.inner.bus.channel(id) {
            if channel.is_removed() {
                return Err(Refusal::JobNotFound.into());
            }
            if let Some(job) = channel.job() {
                return Ok(job);
            }
        }
        Ok(Arc::new(self.record(id).await?.job))
    }

    /// A job's state, for somebody who looks at it: that counts as watching for a while.
    pub async fn look_at(&self, id: JobId) -> Result<Arc<Job>, ServiceError> {
        let channel = self.inner.bus.channel(id).filter(|channel| channel.is_loaded());
        if let Some((channel, job)) = channel.and_then(|channel| Some((channel.clone(), channel.job()?))) {
            channel.glimpse();
            return Ok(job);
        }
        let record = self.record(id).await?;
        if record.policy.cancel_if_unwatched_ms.is_some() {
            self.watch(id, Reader::Watcher).await?.channel().glimpse();
        }
        Ok(Arc::new(record.job))
    }

    /// A job's state with what it waits for, if it waits; looking counts as watching, as for [`Gateway::look_at`].
    pub async fn explained_job(&self, id: JobId) -> Result<(Job, Option<WaitingFor>), ServiceError> {
        let job = self.look_at(id).await?;
        let is_asked_for = self.inner.presence.asks_for(&job.queue, &job.kind);
        self.inner.store.waiting_for(id, is_asked_for).await?.ok_or_else(|| Refusal::JobNotFound.into())
    }

    async fn record(&self, id: JobId) -> Result<Record, ServiceError> {
        let lookup = Lookup { jobs: vec![id], ..Lookup::default() };
        let found = self.inner.store.resolve(&lookup).await?.jobs.pop();
        found.map(|(record, _)| record).ok_or_else(|| Refusal::JobNotFound.into())
    }

    /// Waits until the job's seq is another one than `seq`, for `wait` at most, or until the gateway drains; answers
    /// with the state then. Holds no database connection while it waits.
    pub async fn changed_job(&self, id: JobId, seq: u64, wait: Duration, by: Reader) -> Result<Arc<Job>, ServiceError> {
        self.next_step(id, seq, 1, wait, by).await?;
        self.job(id).await
    }

    /// The first events after `seq`, once there are any; `None` when `wait` is over, the gateway drains, or the log
    /// has come to its end.
    async fn next_step(
        &self,
        id: JobId,
        seq: u64,
        limit: usize,
        wait: Duration,
        by: Reader,
    ) -> Result<Option<Vec<Event>>, ServiceError> {
        let mut steps = pin!(self.follow(id, Cursor::After(seq), Follow::Events { limit }, by));
        let mut over = pin!(tokio::time::sleep(wait));
        let mut drained = pin!(self.drained());
        loop {
            let step = tokio::select! {
                step = steps.next() => step,
                () = &mut over => return Ok(None),
                () = &mut drained => return Ok(None),
            };
            match step.transpose()? {
                Some(Step::UpToDate(_)) => {}
                Some(Step::Events(events)) => return Ok(Some(events)),
                Some(Step::Removed) => return Err(Refusal::JobNotFound.into()),
                Some(Step::Opening(_) | Step::Frames { .. } | Step::End(_)) | None => return Ok(None),
            }
        }
    }

    /// A page of a job's log after `cursor`; if it is empty and the job has not ended, waits for the next event.
    pub async fn events_page(
        &self,
        id: JobId,
        cursor: Cursor,
        limit: usize,
        wait: Duration,
    ) -> Result<EventPage, ServiceError> {
        let mut job = self.look_at(id).await?;
        let after = match cursor {
            Cursor::Fresh => 0,
            Cursor::After(seq) if seq <= job.seq => seq,
            Cursor::After(_) | Cursor::Invalid => {
                let reset = if cursor == Cursor::Invalid { ResetReason::Invalid } else { ResetReason::Ahead };
                let next = job.seq;
                return Ok(EventPage { reset: Some(reset), events: Vec::new(), next, job, more: false });
            }
        };
        let mut events = match after < job.seq {
            true => self.stored_page(id, after, job.seq, limit).await?,
            false => Vec::new(),
        };
        if events.is_empty() && !job.state.is_terminal() && !wait.is_zero() {
            events = self.next_step(id, after, limit, wait, Reader::Watcher).await?.unwrap_or_default();
            job = self.job(id).await?;
        }
        let next = events.last().map_or(after, |event| event.seq);
        Ok(EventPage { reset: None, more: next < job.seq, events, next, job })
    }

    /// Reads up to `limit` events, in chunks, so that large ones do not pile up.
    async fn stored_page(&self, id: JobId, after: u64, upto: u64, limit: usize) -> Result<Vec<Event>, ServiceError> {
        if let Some(Ok(events)) = self.inner.bus.channel(id).map(|channel| channel.events(after, limit)) {
            return Ok(events);
        }
        let (mut events, mut bytes) = (Vec::new(), 0);
        while events.len() < limit && bytes < PAGE_BYTES {
            let limit = CHUNK.min((limit - events.len()) as u32);
            let after = events.last().map_or(after, |event: &Event| event.seq);
            let range = EventRange { after, upto, output_only: false, newest_first: false, limit };
            let chunk = self.inner.store.events(id, &range).await?;
            bytes += chunk.iter().map(|event| event.data.as_str().len()).sum::<usize>();
            let is_last = chunk.len() < limit as usize;
            events.extend(chunk);
            if is_last {
                break;
            }
        }
        Ok(events)
    }

    /// What the worker was given.
    pub async fn payload(&self, id: JobId) -> Result<Json, ServiceError> {
        self.inner.store.part(id, Part::Payload).await?.ok_or_else(|| Refusal::JobNotFound.into())
    }

    /// The Outcome's data of a job that has ended.
    pub async fn result(&self, id: JobId) -> Result<(Arc<Job>, Json), ServiceError> {
        let job = self.job(id).await?;
        if !job.state.is_terminal() {
            return Err(Refusal::NotFinished(job.state).into());
        }
        match self.inner.store.part(id, Part::Result).await? {
            Some(data) => Ok((job, data)),
            None => Err(Refusal::NoResult.into()),
        }
    }

    /// The whole output of the latest run so far.
    pub async fn output(&self, id: JobId) -> Result<(Arc<Job>, OutputSoFar), ServiceError> {
        let job = self.job(id).await?;
        let output = self.read_output(&job, u64::MAX).await?;
        Ok((job, output))
    }

    /// The output of the run that `job` is in, up to `job.seq`; of more than `tail_bytes`, the end.
    pub(super) async fn read_output(&self, job: &Job, tail_bytes: u64) -> Result<OutputSoFar, ServiceError> {
        let mut parts: Vec<String> = Vec::new();
        let (mut upto, mut bytes) = (job.seq, 0);
        while bytes < tail_bytes.min(job.output_bytes) {
            let range =
                EventRange { after: job.output_after_seq, upto, output_only: true, newest_first: true, limit: CHUNK };
            let events = self.inner.store.events(job.id, &range).await?;
            let Some(last) = events.last() else { break };
            upto = last.seq - 1;
            for event in &events {
                let data = event.data.to_map();
                let text = data.get("text").and_then(|text| text.as_str()).unwrap_or_default();
                bytes += text.len() as u64;
                parts.push(text.to_owned());
            }
        }
        parts.reverse();
        let mut text = parts.concat();
        if job.output_bytes >= tail_bytes && text.len() as u64 > tail_bytes {
            let cut = text.ceil_char_boundary(text.len() - tail_bytes as usize);
            text.drain(..cut);
        }
        let offset = job.output_bytes.saturating_sub(text.len() as u64);
        Ok(OutputSoFar { offset, text })
    }

    /// Jobs, newest first.
    pub async fn jobs(&self, filter: &JobFilter, limit: u32) -> Result<JobPage, ServiceError> {
        let mut jobs = self.inner.store.list(filter, limit + 1).await?;
        let more = jobs.len() > limit as usize;
        jobs.truncate(limit as usize);
        let next = jobs.last().filter(|_| more).map(|job| job.id);
        Ok(JobPage { jobs, next })
    }
}
