//! What a Rust handler says of its work: how far it is, how it went, why it failed.

use std::any::Any;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::context::EventError;
use super::entry::Entry;

/// How far a run is. Numbers that are no progress (over 100 %, negative, not finite) are refused when it is sent.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Progress {
    #[serde(skip_serializing_if = "Option::is_none")]
    percent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unit: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

impl Progress {
    /// So many of a hundred.
    #[must_use]
    pub fn percent(percent: f64) -> Self {
        Self { percent: Some(percent), ..Self::default() }
    }

    /// So many of so many.
    #[must_use]
    pub fn of(current: f64, total: f64) -> Self {
        Self { current: Some(current), total: Some(total), ..Self::default() }
    }

    /// What is counted.
    #[must_use]
    pub fn unit(mut self, unit: impl Into<String>) -> Self {
        self.unit = Some(unit.into());
        self
    }

    /// What is being done.
    #[must_use]
    pub fn phase(mut self, phase: impl Into<String>) -> Self {
        self.phase = Some(phase.into());
        self
    }

    /// A line for people.
    #[must_use]
    pub fn message(mut self, message: impl Into<String>) -> Self {
        self.message = Some(message.into());
        self
    }
}

impl From<f64> for Progress {
    fn from(percent: f64) -> Self {
        Self::percent(percent)
    }
}

/// How important a log entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// For those who look for a fault.
    Debug,
    /// For whoever looks.
    Info,
    /// Something is not as it should be.
    Warn,
    /// Something went wrong.
    Error,
}

impl Level {
    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

/// How the work went, once it has been done. `()` is an Outcome too: it went well.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome(Map<String, Value>);

impl Outcome {
    /// It went well.
    #[must_use]
    pub fn ok() -> Self {
        Self::default()
    }

    /// It was done, and produced nothing useful: shown as a warning, not as a success.
    #[must_use]
    pub fn empty_handed(status: impl Into<String>) -> Self {
        Self::default().with("ok", false.into()).with("status", status.into().into())
    }

    /// What there is to fetch at `/v1/jobs/{id}/result`: up to 1 MiB of JSON. A value that is none (a map whose keys
    /// are no text) is left out, and a note says so.
    #[must_use]
    pub fn data(self, data: impl Serialize) -> Self {
        match serde_json::to_value(data) {
            Ok(data) => self.with("data", data),
            Err(error) => self.note(format!("the result is no JSON: {error}")),
        }
    }

    /// A word for machines.
    #[must_use]
    pub fn status(self, status: impl Into<String>) -> Self {
        self.with("status", status.into().into())
    }

    /// How many things were made.
    #[must_use]
    pub fn items(self, items: u64) -> Self {
        self.with("items", items.into())
    }

    /// A line for people.
    #[must_use]
    pub fn note(self, note: impl Into<String>) -> Self {
        self.with("note", note.into().into())
    }

    /// A number worth keeping.
    #[must_use]
    pub fn metric(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        if let Value::Object(metrics) = self.0.entry("metrics").or_insert_with(|| json!({})) {
            metrics.insert(name.into(), value.into());
        }
        self
    }

    /// Where something lies that was made: an `http` or `https` URL.
    #[must_use]
    pub fn artifact(mut self, label: impl Into<String>, url: impl Into<String>) -> Self {
        if let Value::Array(artifacts) = self.0.entry("artifacts").or_insert_with(|| json!([])) {
            artifacts.push(json!({"type": "url", "label": label.into(), "url": url.into()}));
        }
        self
    }

    fn with(mut self, name: &str, value: Value) -> Self {
        self.0.insert(name.to_owned(), value);
        self
    }

    pub(super) fn into_entry(self) -> Entry {
        Entry::from_event(&json!({"type": "completed", "data": self.0}))
    }
}

impl From<()> for Outcome {
    fn from((): ()) -> Self {
        Self::default()
    }
}

/// An Outcome in the words of the wire.
impl From<Map<String, Value>> for Outcome {
    fn from(outcome: Map<String, Value>) -> Self {
        Self(outcome)
    }
}

/// Why the work could not be done. Any error becomes one by `?`, to be tried again, with the code `error` (`panicked`,
/// if it tells of a panic in a task of the handler's own).
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    code: String,
    message: String,
    retryable: bool,
    retry_after: Option<Duration>,
    holds_queue: bool,
    details: Option<Value>,
    /// The handler ended because it was told to, not because of a fault.
    pub(super) is_obedience: bool,
}

impl Failure {
    /// A failure with a stable code for machines and a message for people. It is tried again while attempts are left.
    #[must_use]
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            message: message.into(),
            retryable: true,
            retry_after: None,
            holds_queue: false,
            details: None,
            is_obedience: false,
        }
    }

    /// The handler stops because [`super::Context::cancelled`] said so.
    #[must_use]
    pub fn cancelled() -> Self {
        Self { is_obedience: true, ..Self::new("cancelled", "stopped as asked") }
    }

    /// Trying again would not help.
    #[must_use]
    pub fn fatal(mut self) -> Self {
        self.retryable = false;
        self
    }

    /// Not before this time has passed.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }

    /// Hold the whole queue back for as long as this job ("the provider said 429").
    #[must_use]
    pub fn hold_queue(mut self) -> Self {
        self.holds_queue = true;
        self
    }

    /// More for machines.
    #[must_use]
    pub fn details(mut self, details: Value) -> Self {
        self.details = Some(details);
        self
    }

    pub(super) fn into_entry(self) -> Entry {
        let mut data = json!({"code": self.code, "message": self.message, "retryable": self.retryable});
        if let Some(delay) = self.retry_after {
            data["retry_after_ms"] = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX).into();
        }
        if self.holds_queue {
            data["scope"] = "queue".into();
        }
        if let Some(details) = self.details {
            data["details"] = details;
        }
        Entry::from_event(&json!({"type": "failed", "data": data}))
    }
}

impl<E: std::error::Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        if let Some(EventError::Over) = (&error as &dyn Any).downcast_ref::<EventError>() {
            return Self::cancelled();
        }
        let join_error = (&error as &dyn Any).downcast_ref::<tokio::task::JoinError>();
        let code = if join_error.is_some_and(tokio::task::JoinError::is_panic) { "panicked" } else { "error" };
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            message = format!("{message}: {cause}");
            source = cause.source();
        }
        Self::new(code, message)
    }
}
