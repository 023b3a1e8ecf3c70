//! A job as its runner knows it.

use std::ffi::OsString;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::report::Report;
use crate::domain::{Job, Json};

/// What a runner is told of its job. Nothing in it changes while it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobInfo {
    /// The job's id.
    pub id: String,
    /// Its queue.
    pub queue: String,
    /// What is to be done.
    pub kind: String,
    /// What it is about, e.g. `article:42`.
    pub subject: Option<String>,
    /// Which try this is, from 1.
    pub attempt: u64,
    /// How many there may be.
    pub max_attempts: u64,
    /// Grows with every hand-out, also after a release.
    pub run: u64,
    /// What its caller wanted to be known about it.
    pub meta: Map<String, Value>,
}

impl JobInfo {
    /// Reads a state document.
    #[must_use]
    pub fn of_document(document: &Value, run: u64) -> Self {
        let text = |name: &str| document[name].as_str().map(str::to_owned);
        let number = |name: &str| document[name].as_u64().unwrap_or(1);
        Self {
            id: text("id").unwrap_or_default(),
            queue: text("queue").unwrap_or_default(),
            kind: text("kind").unwrap_or_default(),
            subject: text("subject"),
            attempt: number("attempt"),
            max_attempts: number("max_attempts"),
            run,
            meta: document["meta"].as_object().cloned().unwrap_or_default(),
        }
    }

    /// Reads a job that was just handed out.
    #[must_use]
    pub fn of_job(job: &Job) -> Self {
        Self {
            id: job.id.to_string(),
            queue: job.queue.as_str().to_owned(),
            kind: job.kind.as_str().to_owned(),
            subject: job.subject.clone(),
            attempt: job.attempt.into(),
            max_attempts: job.max_attempts.into(),
            run: job.run,
            meta: job.meta.to_map(),
        }
    }

    /// What a program finds in its environment; `None` removes a variable.
    #[must_use]
    pub fn environment(&self, url: &str) -> Vec<(&'static str, Option<OsString>)> {
        let text = |text: &str| Some(OsString::from(text));
        vec![
            ("MILEPOST_URL", text(url)),
            ("MILEPOST_JOB_ID", text(&self.id)),
            ("MILEPOST_QUEUE", text(&self.queue)),
            ("MILEPOST_KIND", text(&self.kind)),
            ("MILEPOST_SUBJECT", self.subject.as_deref().and_then(text)),
            ("MILEPOST_ATTEMPT", text(&self.attempt.to_string())),
            ("MILEPOST_RUN", text(&self.run.to_string())),
        ]
    }
}

/// A job that was handed to us, under a lease.
#[derive(Clone)]
pub struct Claimed {
    /// What it is.
    pub info: JobInfo,
    /// What it is to be done with: JSON.
    pub payload: String,
    /// All that was handed out.
    pub whole: Document,
    /// The way back.
    pub report: Arc<dyn Report>,
}

/// The state document, payload included, as it was when the job was handed out. Written when somebody wants it.
#[derive(Clone)]
pub enum Document {
    /// As it came over the wire.
    Read(Arc<Value>),
    /// As this process has it.
    Held(Arc<(Job, Json)>),
}

impl Document {
    /// As JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        match self {
            Self::Read(document) => document.to_string(),
            Self::Held(held) => {
                let (job, payload) = &**held;
                serde_json::to_string(&job.with_payload(payload)).expect("a document has string keys only")
            }
        }
    }
}

impl From<Value> for Document {
    fn from(document: Value) -> Self {
        Self::Read(Arc::new(document))
    }
}
