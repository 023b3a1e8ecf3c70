//! What a Rust handler has in its hands while it works on a job.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::sync::watch;

use super::entry::{Entry, fitting};
use super::job::{Document, JobInfo};
use super::outcome::{Level, Progress};
use super::reporter::Entries;
use crate::domain::{Limits, NewEvent, Refusal};

/// One job, as its handler sees it. Cheap to clone; a clone that outlives the handler can do nothing any more.
///
/// What is sent is stored in order, once each, over any absence of the gateway. Sending waits only while much is
/// waiting to be stored already.
#[derive(Clone)]
pub struct Context {
    job: Arc<JobInfo>,
    whole: Document,
    way: Arc<Way>,
    stop: watch::Receiver<bool>,
}

/// The way to the job's log, until it is closed.
pub(super) struct Way(Mutex<Option<Entries>>);

impl Way {
    /// Nothing more gets through.
    pub fn close(&self) {
        self.lock().take();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Entries>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

/// Why an event was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// It is not as events have to be.
    #[error("{0}")]
    Invalid(Refusal),
    /// The job is over, or no longer ours: stop.
    #[error("the job is over")]
    Over,
}

impl Context {
    pub(super) fn new(
        job: JobInfo,
        whole: Document,
        entries: Entries,
        stop: watch::Receiver<bool>,
    ) -> (Self, Arc<Way>) {
        let way = Arc::new(Way(Mutex::new(Some(entries))));
        (Self { job: Arc::new(job), whole, way: Arc::clone(&way), stop }, way)
    }

    /// What the job is.
    #[must_use]
    pub fn job(&self) -> &JobInfo {
        &self.job
    }

    /// The job's state document when it was handed out, payload included, as JSON.
    #[must_use]
    pub fn document(&self) -> String {
        self.whole.to_json()
    }

    /// Says how far the work is: `40.0`, or `Progress::of(3.0, 7.0).unit("pages")`.
    ///
    /// # Errors
    /// [`EventError`].
    pub async fn progress(&self, progress: impl Into<Progress>) -> Result<(), EventError> {
        let progress = serde_json::to_value(progress.into()).map_err(|_| EventError::Invalid(not_json()))?;
        self.event("progress", progress).await
    }

    /// Appends text to the job's output. Small pieces are fine: they are joined while they wait.
    ///
    /// # Errors
    /// [`EventError::Over`].
    pub async fn output(&self, text: &str) -> Result<(), EventError> {
        if text.is_empty() {
            return Ok(());
        }
        for piece in fitting(text) {
            self.send(Entry::output(piece)).await?;
        }
        Ok(())
    }

    /// Adds a line to the job's log.
    ///
    /// # Errors
    /// [`EventError::Over`].
    pub async fn log(&self, level: Level, message: &str) -> Result<(), EventError> {
        for piece in fitting(message) {
            self.send(Entry::Log { level: level.as_str(), message: piece.to_owned() }).await?;
        }
        Ok(())
    }

    /// Adds an event of any type that does not end the run: `progress`, `output`, `log`, or one of your own.
    ///
    /// # Errors
    /// [`EventError`].
    pub async fn event(&self, event_type: &str, data: Value) -> Result<(), EventError> {
        let event = json!({"type": event_type, "data": data});
        let entry = Entry::from_event(&event);
        // The limits of the gateway may be others: what only it refuses becomes a warning in the job's log.
        let parsed = NewEvent::parse(event, &Limits::default()).map_err(EventError::Invalid)?;
        if parsed.kind.ends_run() {
            let detail = format!("`{}` is what the handler returns", parsed.kind);
            return Err(EventError::Invalid(Refusal::invalid("/type", detail)));
        }
        self.send(entry).await
    }

    /// Completes when the handler must stop: the job is cancelled or lost, or the worker shuts down and its grace time
    /// is over. A handler that goes on is dropped at its next `.await` when its own grace is over.
    pub async fn cancelled(&self) {
        let mut stop = self.stop.clone();
        // The sender goes when the handler does.
        let _ = stop.wait_for(|stop| *stop).await;
    }

    /// Whether the handler must stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        *self.stop.borrow()
    }

    /// Sends what is an event already.
    pub(crate) async fn send(&self, entry: Entry) -> Result<(), EventError> {
        // Taken out for this one: a clone of ours must not keep the way open.
        let entries = self.way.lock().clone().ok_or(EventError::Over)?;
        entries.send(entry).await;
        Ok(())
    }
}

fn not_json() -> Refusal {
    Refusal::invalid("/data", "must be JSON: its numbers must be finite")
}
