//! A job's state: the fold of its log.
//!
//! ```text
//!  scheduled ──► queued ──► running ──► completed | failed | cancelled
//!      ▲           │ ▲        │ └─► retrying ──► (claimable like queued)
//!      └─ released ┼─┴────────┘
//!                  └──► expired          failed | cancelled | expired ── requeued ──► queued
//! ```
//!
//! [`Job::apply`] is the one place where a job changes. Whoever wants a change builds an [`Event`] and applies it.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Number, Value};

use super::waiting::WaitingFor;
use super::{Event, EventType, JobId, Json, QueueName, Refusal, Timestamp};

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Waits for its `run_at`.
    Scheduled,
    /// Waits for a worker.
    Queued,
    /// A run is on.
    Running,
    /// A try failed, the next one waits for its back-off.
    Retrying,
    /// Ended: the run reached its end.
    Completed,
    /// Ended in an error: the dead letters.
    Failed,
    /// Ended: called off.
    Cancelled,
    /// Ended: not started in time.
    Expired,
}

impl State {
    /// All states, in the order of a life.
    pub const ALL: [Self; 8] = [
        Self::Scheduled,
        Self::Queued,
        Self::Running,
        Self::Retrying,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::Expired,
    ];

    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Retrying => "retrying",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
        }
    }

    /// Reads the word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }

    /// Whether the job has ended; only a redrive leads out of these.
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Completed | Self::Failed | Self::Cancelled | Self::Expired => true,
            Self::Scheduled | Self::Queued | Self::Running | Self::Retrying => false,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How far the run is, as far as it said. Fields it never gave are `null`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// 0–100; within a run it never falls.
    #[serde(serialize_with = "whole_numbers_without_fraction")]
    pub percent: Option<f64>,
    /// Units done.
    pub current: Option<Number>,
    /// Units in all.
    pub total: Option<Number>,
    /// What the units are.
    pub unit: Option<String>,
    /// The stage the run is in.
    pub phase: Option<String>,
    /// A line for people.
    pub message: Option<String>,
}

/// `50`, not `50.0`: clients in other languages print what they read.
fn whole_numbers_without_fraction<S: Serializer>(percent: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    match percent {
        None => serializer.serialize_none(),
        Some(n) if n.fract() == 0.0 => serializer.serialize_u64(*n as u64),
        Some(n) => serializer.serialize_f64(*n),
    }
}

impl Progress {
    /// A field left out keeps its value; percent is given, or derived from a pair, and only ever rises.
    fn merge(&mut self, new: Self) {
        let ratio = |current: &Number, total: &Number| {
            let (current, total) = (as_f64(current)?, as_f64(total)?);
            let percent = 100.0 * current / total;
            // 100 × current overflows near the end of f64; such a ratio is still a ratio.
            Some(if percent.is_finite() { percent } else { 100.0 * (current / total) })
        };
        let derived = new.current.as_ref().zip(new.total.as_ref()).and_then(|(c, t)| ratio(c, t));
        let given = new.percent.or(derived).map(|n| n.clamp(0.0, 100.0) + 0.0);
        self.percent = match (self.percent, given) {
            (Some(shown), Some(given)) => Some(shown.max(given)),
            (shown, given) => given.or(shown),
        };
        self.current = new.current.or(self.current.take());
        self.total = new.total.or(self.total.take());
        self.unit = new.unit.or(self.unit.take());
        self.phase = new.phase.or(self.phase.take());
        self.message = new.message.or(self.message.take());
    }
}

/// Through the text: it works for every spelling of a number.
fn as_f64(number: &Number) -> Option<f64> {
    number.to_string().parse().ok()
}

/// A job's state. It serialises as the state document of the API; fields marked *inner* stay inside.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// Its lane.
    pub queue: QueueName,
    /// What kind of work it is.
    pub kind: QueueName,
    /// What it is about.
    pub subject: Option<String>,
    /// Where it stands.
    pub state: State,
    /// The seq of the last event folded in.
    pub seq: u64,
    /// Which try this is; 0 before the first.
    pub attempt: u32,
    /// Tries in all.
    pub max_attempts: u32,
    /// −100..100, higher first.
    pub priority: i32,
    /// Whether an outside runner runs it.
    pub tracked: bool,
    /// How far the run is.
    pub progress: Option<Progress>,
    /// Bytes of output of the run.
    pub output_bytes: u64,
    /// The Outcome of a completed job.
    pub outcome: Option<Json>,
    /// The last error.
    pub error: Option<Json>,
    /// Whether somebody asked the run to stop.
    pub cancel_requested: bool,
    /// Who runs or last ran it.
    pub worker: Option<String>,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// From when it may run.
    pub run_at: Timestamp,
    /// When the latest run began; `None` before the first since enqueue or redrive.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// When the last event came.
    pub updated_at: Timestamp,
    /// The caller's own notes.
    pub meta: Json,
    /// *Inner*: the number of the latest run; it never falls.
    pub run: u64,
    /// *Inner*: the seq at which the latest run's output begins to count.
    pub output_after_seq: u64,
    /// *Inner*: when it was enqueued or last redriven; `deadline_ms` counts from here.
    pub enqueued_at: Timestamp,
    /// *Inner*: why a cancel was asked for.
    pub cancel_reason: Option<String>,
}

#[derive(Deserialize)]
struct QueuedData {
    queue: String,
    kind: String,
    subject: Option<String>,
    priority: i32,
    max_attempts: u32,
    tracked: bool,
    run_at: String,
    meta: Map<String, Value>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct StartedData {
    worker: Option<String>,
    run: u64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct TextData {
    text: String,
}

/// The data of events that end, hand back or put off a run, as far as the fold needs it.
#[derive(Deserialize, Default)]
#[serde(default)]
struct EndData {
    error: Option<Value>,
    run_at: Option<String>,
    delay_ms: Option<u64>,
    reason: Option<String>,
}

/// A stored event always has the shape that the gateway gave it; should one not, it counts as empty: a log that was
/// tampered with must not take the gateway down.
fn read<'a, T: Deserialize<'a> + Default>(data: &'a Json) -> T {
    serde_json::from_str(data.as_str()).unwrap_or_default()
}

impl Job {
    /// The job that a log's first event, `queued`, describes; `None` if it is no such event.
    pub fn from_queued(id: JobId, event: &Event) -> Option<Self> {
        if event.kind != EventType::Queued || event.seq != 1 {
            return None;
        }
        let data: QueuedData = serde_json::from_str(event.data.as_str()).ok()?;
        let run_at = Timestamp::parse(&data.run_at)?;
        Some(Self {
            id,
            queue: QueueName::parse(&data.queue)?,
            kind: QueueName::parse(&data.kind)?,
            subject: data.subject,
            state: if run_at > event.at { State::Scheduled } else { State::Queued },
            seq: 1,
            attempt: event.attempt,
            max_attempts: data.max_attempts,
            priority: data.priority,
            tracked: data.tracked,
            progress: None,
            output_bytes: 0,
            outcome: None,
            error: None,
            cancel_requested: false,
            worker: None,
            created_at: event.at,
            run_at,
            started_at: None,
            finished_at: None,
            updated_at: event.at,
            meta: Json::from_map(&data.meta),
            run: 0,
            output_after_seq: 0,
            enqueued_at: event.at,
            cancel_reason: None,
        })
    }

    /// The `data` of the `queued` event that describes this job: with it the log alone is enough for the fold.
    pub(super) fn queued_data(&self) -> Json {
        Json::from_value(&serde_json::json!({
            "queue": self.queue, "kind": self.kind, "subject": self.subject, "priority": self.priority,
            "max_attempts": self.max_attempts, "tracked": self.tracked, "run_at": self.run_at, "meta": self.meta.to_map(),
        }))
    }

    /// The code of its last error; `failed` if that has none.
    pub fn error_code(&self) -> String {
        #[derive(Deserialize)]
        struct Code {
            code: String,
        }
        let code = self.error.as_ref().and_then(|error| serde_json::from_str(error.as_str()).ok());
        code.map_or_else(|| "failed".to_owned(), |Code { code }| code)
    }

    /// Folds the next event in.
    ///
    /// Refuses, and changes nothing, if the state does not allow it: after the end comes nothing but `requeued`,
    /// and what belongs to a run needs one.
    pub fn apply(&mut self, event: &Event) -> Result<(), Refusal> {
        self.allows(&event.kind)?;
        match &event.kind {
            EventType::Queued | EventType::Log | EventType::User(_) => {}
            EventType::Started => {
                let data: StartedData = read(&event.data);
                self.state = State::Running;
                self.worker = data.worker;
                self.run = data.run;
                self.started_at = Some(event.at);
                self.error = None;
                self.clear_run(event.seq);
            }
            EventType::Progress => self.progress.get_or_insert_default().merge(read(&event.data)),
            EventType::Output => self.output_bytes += read::<TextData>(&event.data).text.len() as u64,
            EventType::Retrying => {
                let data: EndData = read(&event.data);
                self.state = State::Retrying;
                self.error = data.error.as_ref().map(Json::from_value);
                self.run_at = data.run_at.as_deref().and_then(Timestamp::parse).unwrap_or(event.at);
                self.worker = None;
            }
            EventType::Released => {
                let delay_ms = read::<EndData>(&event.data).delay_ms.unwrap_or(0);
                self.state = if delay_ms > 0 { State::Scheduled } else { State::Queued };
                self.run_at = event.at.plus_millis(delay_ms);
                self.worker = None;
            }
            EventType::CancelRequested => {
                self.cancel_requested = true;
                self.cancel_reason = read::<EndData>(&event.data).reason;
            }
            EventType::Completed => {
                self.outcome = Some(event.data.clone());
                self.end(State::Completed, event.at);
            }
            EventType::Failed => {
                self.error = Some(event.data.clone());
                self.end(State::Failed, event.at);
            }
            EventType::Cancelled => {
                if let Some(error) = read::<EndData>(&event.data).error {
                    self.error = Some(Json::from_value(&error));
                }
                self.end(State::Cancelled, event.at);
            }
            EventType::Expired => self.end(State::Expired, event.at),
            EventType::Requeued => {
                self.state = State::Queued;
                self.run_at = event.at;
                self.enqueued_at = event.at;
                self.error = None;
                self.outcome = None;
                self.started_at = None;
                self.finished_at = None;
                self.worker = None;
                self.cancel_requested = false;
                self.cancel_reason = None;
                self.clear_run(event.seq);
            }
        }
        self.seq = event.seq;
        self.attempt = event.attempt;
        self.updated_at = event.at;
        Ok(())
    }

    fn clear_run(&mut self, seq: u64) {
        self.progress = None;
        self.output_bytes = 0;
        self.output_after_seq = seq;
    }

    fn end(&mut self, state: State, at: Timestamp) {
        self.state = state;
        self.finished_at = Some(at);
    }

    /// The state machine: whether an event of this type may come next.
    fn allows(&self, kind: &EventType) -> Result<(), Refusal> {
        let waiting = matches!(self.state, State::Scheduled | State::Queued | State::Retrying);
        let redrivable = matches!(self.state, State::Failed | State::Cancelled | State::Expired);
        let allowed = match kind {
            EventType::Queued => false,
            EventType::Started => waiting,
            EventType::Progress
            | EventType::Output
            | EventType::Log
            | EventType::User(_)
            | EventType::Retrying
            | EventType::Released
            | EventType::CancelRequested
            | EventType::Completed => self.state == State::Running,
            EventType::Failed | EventType::Cancelled => !self.state.is_terminal(),
            EventType::Expired => waiting && self.started_at.is_none(),
            EventType::Requeued if redrivable && !self.tracked => true,
            EventType::Requeued if self.tracked => {
                return Err(Refusal::NotRetryable("an outside runner runs it"));
            }
            EventType::Requeued => {
                return Err(Refusal::NotRetryable("only failed, cancelled and expired jobs can be retried"));
            }
        };
        match allowed {
            true => Ok(()),
            false if self.state.is_terminal() => Err(Refusal::JobTerminal(self.state)),
            false => Err(Refusal::LeaseLost),
        }
    }
}

#[derive(Serialize)]
struct OutputDocument {
    bytes: u64,
}

/// The state document, field by field as the API has it.
#[derive(Serialize)]
struct Document<'a> {
    id: JobId,
    queue: &'a QueueName,
    kind: &'a QueueName,
    subject: &'a Option<String>,
    state: State,
    terminal: bool,
    seq: u64,
    attempt: u32,
    max_attempts: u32,
    priority: i32,
    tracked: bool,
    progress: &'a Option<Progress>,
    output: OutputDocument,
    outcome: &'a Option<Json>,
    error: &'a Option<Json>,
    cancel_requested: bool,
    worker: &'a Option<String>,
    created_at: Timestamp,
    run_at: Timestamp,
    started_at: Option<Timestamp>,
    finished_at: Option<Timestamp>,
    updated_at: Timestamp,
    meta: &'a Json,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_for: Option<&'a Option<WaitingFor>>,
}

impl Job {
    fn document(&self) -> Document<'_> {
        Document {
            id: self.id,
            queue: &self.queue,
            kind: &self.kind,
            subject: &self.subject,
            state: self.state,
            terminal: self.state.is_terminal(),
            seq: self.seq,
            attempt: self.attempt,
            max_attempts: self.max_attempts,
            priority: self.priority,
            tracked: self.tracked,
            progress: &self.progress,
            output: OutputDocument { bytes: self.output_bytes },
            outcome: &self.outcome,
            error: &self.error,
            cancel_requested: self.cancel_requested,
            worker: &self.worker,
            created_at: self.created_at,
            run_at: self.run_at,
            started_at: self.started_at,
            finished_at: self.finished_at,
            updated_at: self.updated_at,
            meta: &self.meta,
            payload: None,
            waiting_for: None,
        }
    }

    /// Whether it is running, and in this run; `None`: in whichever.
    pub fn is_in_run(&self, run: Option<u64>) -> bool {
        self.state == State::Running && run.is_none_or(|run| run == self.run)
    }

    /// The state document with the job's payload beside it (`?include=payload`).
    pub fn with_payload<'a>(&'a self, payload: &'a Json) -> impl Serialize + 'a {
        Document { payload: Some(payload), ..self.document() }
    }

    /// The state document with what the job waits for beside it (`?include=waiting`), and possibly its payload.
    pub fn with_reason<'a>(
        &'a self,
        waiting_for: &'a Option<WaitingFor>,
        payload: Option<&'a Json>,
    ) -> impl Serialize + 'a {
        Document { payload, waiting_for: Some(waiting_for), ..self.document() }
    }
}

impl Serialize for Job {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.document().serialize(serializer)
    }
}
