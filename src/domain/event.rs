//! Events: the entries of a job's log, and the check of what a worker appends.

use std::fmt;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::fields::{Fields, finite};
use super::json::replace_nuls;
use super::{Job, Json, Limits, Refusal, Timestamp, outcome};

/// One entry of a job's append-only log.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Event {
    /// Dense, from 1, per job; handed out in the transaction that stores the event.
    pub seq: u64,
    /// What happened.
    #[serde(rename = "type")]
    pub kind: EventType,
    /// When, by the store's clock.
    pub at: Timestamp,
    /// The job's attempt after this event's own effect.
    pub attempt: u32,
    /// An object; its shape depends on the type.
    pub data: Json,
}

/// What an event says. The words are the wire's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventType {
    /// The job was accepted; always seq 1.
    Queued,
    /// A run began.
    Started,
    /// A try failed; another one follows.
    Retrying,
    /// A job that had ended was put back.
    Requeued,
    /// Somebody asked a running job to stop.
    CancelRequested,
    /// The job was not started in time.
    Expired,
    /// How far the run is.
    Progress,
    /// Text that the run produced.
    Output,
    /// A line for people.
    Log,
    /// The run reached its end; whether with success is said by its Outcome.
    Completed,
    /// The job ended in an error.
    Failed,
    /// The job was called off.
    Cancelled,
    /// The run gave the job back.
    Released,
    /// A type of the user's own.
    User(UserType),
}

/// A type name of the user's own: `[a-z][a-z0-9_.-]{0,63}`, no reserved word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserType(Box<str>);

/// Control frames of streams and feeds, and names with a meaning of their own in `EventSource`.
const RESERVED: [&str; 12] =
    ["state", "reset", "ping", "end", "bye", "gone", "cancel", "drain", "lease_lost", "open", "message", "error"];

/// Every type with a meaning of its own.
const BUILT_IN: [EventType; 13] = [
    EventType::Queued,
    EventType::Started,
    EventType::Retrying,
    EventType::Requeued,
    EventType::CancelRequested,
    EventType::Expired,
    EventType::Progress,
    EventType::Output,
    EventType::Log,
    EventType::Completed,
    EventType::Failed,
    EventType::Cancelled,
    EventType::Released,
];

impl EventType {
    /// The word on the wire.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Queued => "queued",
            Self::Started => "started",
            Self::Retrying => "retrying",
            Self::Requeued => "requeued",
            Self::CancelRequested => "cancel_requested",
            Self::Expired => "expired",
            Self::Progress => "progress",
            Self::Output => "output",
            Self::Log => "log",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Released => "released",
            Self::User(name) => &name.0,
        }
    }

    /// Reads the word; `None` if it can be no type's name.
    pub fn parse(word: &str) -> Option<Self> {
        if let Some(known) = BUILT_IN.iter().find(|known| known.as_str() == word) {
            return Some(known.clone());
        }
        let name_bytes = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'.' | b'-');
        let well_formed =
            (1..=64).contains(&word.len()) && word.as_bytes()[0].is_ascii_lowercase() && word.bytes().all(name_bytes);
        (well_formed && !RESERVED.contains(&word)).then(|| Self::User(UserType(word.into())))
    }

    /// Whether an append of this type ends the run: nothing may follow it in one request.
    pub fn ends_run(&self) -> bool {
        match self {
            Self::Completed | Self::Failed | Self::Cancelled | Self::Released => true,
            Self::Queued
            | Self::Started
            | Self::Retrying
            | Self::Requeued
            | Self::CancelRequested
            | Self::Expired
            | Self::Progress
            | Self::Output
            | Self::Log
            | Self::User(_) => false,
        }
    }

    /// Whether the limits on event size, output and log length bind it; lifecycle events are always accepted.
    pub fn is_capped(&self) -> bool {
        match self {
            Self::Progress | Self::Output | Self::Log | Self::User(_) => true,
            Self::Queued
            | Self::Started
            | Self::Retrying
            | Self::Requeued
            | Self::CancelRequested
            | Self::Expired
            | Self::Completed
            | Self::Failed
            | Self::Cancelled
            | Self::Released => false,
        }
    }
}

impl fmt::Display for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for EventType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// An event as a worker appends it: checked by itself, not yet against its job.
#[derive(Clone, Debug)]
pub struct NewEvent {
    /// Its type.
    pub kind: EventType,
    /// Its data, normalised: no U+0000, long lifecycle texts cut, defaults filled in.
    pub data: Map<String, Value>,
    /// The same data as text.
    encoded: Json,
    /// A `completed` Outcome's `data`, which never travels in events.
    pub result: Option<Json>,
}

impl NewEvent {
    /// Reads `{"type":…,"data":{…}}`. Pointers of refusals are relative to the event.
    pub fn parse(value: Value, limits: &Limits) -> Result<Self, Refusal> {
        let mut fields = Fields::of(value, "")?;
        let Some(word) = fields.string("type")? else {
            return fields.wrong("type", "is required");
        };
        let Some(kind) = EventType::parse(&word) else {
            return fields
                .wrong("type", "must be a known type, or one of your own: [a-z][a-z0-9_.-]{0,63} and not reserved");
        };
        let data = fields.take("data");
        fields.finish()?;
        let mut data = match data {
            None => Map::new(),
            Some(Value::Object(map)) => map,
            Some(_) => return Err(Refusal::invalid("/data", "must be a JSON object")),
        };
        replace_nuls_in(&mut data);
        if !kind.is_capped() {
            // What a serializer writes for an option that was not set must not cost a run its end.
            data.retain(|name, value| !value.is_null() || name == "data");
        }
        let mut result = None;
        match &kind {
            EventType::Progress => check_progress(&data, limits)?,
            EventType::Output => {
                check_strings(&data, &["text"], &["text"])?;
                // What the gateway says about output, nobody else may.
                for name in ["offset", "truncated", "from_seq"] {
                    data.shift_remove(name);
                }
            }
            EventType::Log => check_log(&data)?,
            EventType::Completed => result = outcome::normalise(&mut data, limits)?,
            EventType::Failed => check_failed(&mut data, limits)?,
            EventType::Cancelled => {
                check_strings(&data, &["reason"], &[])?;
                cut_lifecycle_text(&mut data, "reason", limits);
            }
            EventType::Released => {
                check_strings(&data, &["reason"], &[])?;
                check_duration(&data, "delay_ms")?;
                cut_lifecycle_text(&mut data, "reason", limits);
            }
            EventType::User(_) => {}
            EventType::Queued
            | EventType::Started
            | EventType::Retrying
            | EventType::Requeued
            | EventType::CancelRequested
            | EventType::Expired => {
                return Err(Refusal::invalid("/type", format!("`{kind}` is written by the gateway alone")));
            }
        }
        if !kind.is_capped() {
            shrink(&mut data, limits.event_bytes);
        }
        let encoded = Json::from_map(&data);
        if kind.is_capped() {
            let bytes = encoded.as_str().len();
            if bytes > limits.event_bytes {
                let detail = format!("event data has {bytes} bytes; the limit is {}", limits.event_bytes);
                return Err(Refusal::too_large("/data", detail));
            }
        }
        Ok(Self { kind, data, encoded, result })
    }

    /// About how many bytes it brings into the store.
    pub fn size(&self) -> usize {
        self.encoded.as_str().len() + self.result.as_ref().map_or(0, |result| result.as_str().len())
    }

    /// The same event with one more field in its data.
    pub(super) fn with_field(&self, name: &str, value: Value) -> Self {
        let mut data = self.data.clone();
        data.insert(name.to_owned(), value);
        Self { encoded: Json::from_map(&data), data, kind: self.kind.clone(), result: self.result.clone() }
    }

    /// The event that this becomes as the next of `job`'s log.
    pub(super) fn stamp(&self, job: &Job, at: Timestamp) -> Event {
        let data = if self.kind == EventType::Output {
            self.with_field("offset", job.output_bytes.into()).encoded
        } else if self.result.is_some() {
            self.with_field("result_url", format!("/v1/jobs/{}/result", job.id).into()).encoded
        } else {
            self.encoded.clone()
        };
        Event { seq: job.seq + 1, kind: self.kind.clone(), at, attempt: job.attempt, data }
    }
}

fn replace_nuls_in(data: &mut Map<String, Value>) {
    let mut value = Value::Object(std::mem::take(data));
    replace_nuls(&mut value);
    if let Value::Object(map) = value {
        *data = map;
    }
}

fn check_progress(data: &Map<String, Value>, limits: &Limits) -> Result<(), Refusal> {
    let number = |name: &str, max: f64| match data.get(name) {
        None => Ok(None),
        Some(value) => match finite(value).filter(|n| (0.0..=max).contains(n)) {
            Some(n) => Ok(Some(n)),
            None => Err(Refusal::invalid(
                format!("/data/{name}"),
                match max {
                    f64::MAX => "must be a finite number from 0".to_owned(),
                    max => format!("must be a finite number from 0 to {max}"),
                },
            )),
        },
    };
    number("percent", 100.0)?;
    let (current, total) = (number("current", f64::MAX)?, number("total", f64::MAX)?);
    if total == Some(0.0) {
        return Err(Refusal::invalid("/data/total", "must be above 0"));
    }
    if let (Some(current), Some(total)) = (current, total)
        && current > total
    {
        return Err(Refusal::invalid("/data/current", "must not be above total"));
    }
    let texts = ["unit", "phase", "message"];
    check_strings(data, &texts, &[])?;
    for name in texts {
        if data.get(name).and_then(Value::as_str).is_some_and(|text| text.len() > limits.progress_text_bytes) {
            let detail = format!("must have at most {} bytes", limits.progress_text_bytes);
            return Err(Refusal::invalid(format!("/data/{name}"), detail));
        }
    }
    Ok(())
}

fn check_log(data: &Map<String, Value>) -> Result<(), Refusal> {
    check_strings(data, &["level", "message"], &[])?;
    if !matches!(data.get("level").and_then(Value::as_str), None | Some("debug" | "info" | "warn" | "error")) {
        return Err(Refusal::invalid("/data/level", "must be debug, info, warn or error"));
    }
    match data.get("fields") {
        None | Some(Value::Object(_)) => Ok(()),
        Some(_) => Err(Refusal::invalid("/data/fields", "must be a JSON object")),
    }
}

fn check_failed(data: &mut Map<String, Value>, limits: &Limits) -> Result<(), Refusal> {
    check_strings(data, &["code", "message", "scope"], &[])?;
    check_duration(data, "retry_after_ms")?;
    if data.get("retryable").is_some_and(|value| !value.is_boolean()) {
        return Err(Refusal::invalid("/data/retryable", "must be true or false"));
    }
    if !matches!(data.get("scope").and_then(Value::as_str), None | Some("job" | "queue")) {
        return Err(Refusal::invalid("/data/scope", "must be job or queue"));
    }
    data.entry("code").or_insert_with(|| "failed".into());
    data.entry("message").or_insert_with(|| "".into());
    for name in ["code", "message", "details"] {
        cut_lifecycle_text(data, name, limits);
    }
    Ok(())
}

/// Fields named `names` are strings where present; those also in `required` are present.
pub(super) fn check_strings(data: &Map<String, Value>, names: &[&str], required: &[&str]) -> Result<(), Refusal> {
    for name in names {
        match data.get(*name) {
            Some(Value::String(_)) => {}
            None if !required.contains(name) => {}
            None => return Err(Refusal::invalid(format!("/data/{name}"), "is required")),
            Some(_) => {
                return Err(Refusal::invalid(format!("/data/{name}"), "must be a string"));
            }
        }
    }
    Ok(())
}

fn check_duration(data: &Map<String, Value>, name: &str) -> Result<(), Refusal> {
    match data.get(name) {
        None => Ok(()),
        Some(value) if value.as_u64().is_some_and(|ms| ms <= super::spec::LONGEST_MS as u64) => Ok(()),
        Some(_) => Err(Refusal::invalid(
            format!("/data/{name}"),
            format!("must be an integer from 0 to {} (milliseconds)", super::spec::LONGEST_MS),
        )),
    }
}

/// Cuts the text `data[name]` at a character boundary and marks the cut: the end of a job must always be storable.
/// What is no text (`details`) is cut as its JSON.
pub(super) fn cut_lifecycle_text(data: &mut Map<String, Value>, name: &str, limits: &Limits) {
    let text = match data.get(name) {
        None => return,
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    if text.len() > limits.lifecycle_text_bytes {
        let end = text.floor_char_boundary(limits.lifecycle_text_bytes);
        data.insert(name.to_owned(), text[..end].into());
        data.insert("truncated".to_owned(), true.into());
    }
}

/// Makes the data of a lifecycle event fit: the end of a job must always be storable, and travels in every state
/// document. Halves a list of artifacts, drops other large fields, the largest first, and marks the cut.
fn shrink(data: &mut Map<String, Value>, limit: usize) {
    let size = |value: &Value| Json::from_value(value).as_str().len();
    while Json::from_map(data).as_str().len() > limit {
        let largest = data.iter().map(|(name, value)| (size(value) + name.len(), name.clone())).max();
        let Some((_, name)) = largest else { return };
        match data.get_mut(&name) {
            Some(Value::Array(items)) if items.len() > 1 => items.truncate(items.len() / 2),
            Some(_) | None => drop(data.shift_remove(&name)),
        }
        data.insert("truncated".to_owned(), true.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(value: Value) -> Result<NewEvent, Refusal> {
        NewEvent::parse(value, &Limits::default())
    }

    fn pointer(value: Value) -> String {
        match parse(value.clone()) {
            Err(Refusal::Invalid { pointer, .. } | Refusal::TooLarge { pointer, .. }) => pointer,
            other => panic!("{value} gave {other:?}"),
        }
    }

    #[test]
    fn a_wrong_field_is_named() {
        for (event, at) in [
            (json!([]), ""),
            (json!({}), "/type"),
            (json!({"type": 5}), "/type"),
            (json!({"type": "x", "seq": 1}), "/seq"),
            (json!({"type": "x", "data": []}), "/data"),
            (json!({"type": "queued"}), "/type"),
            (json!({"type": "ping"}), "/type"),
            (json!({"type": "Ab"}), "/type"),
            (json!({"type": "x\nevent: completed"}), "/type"),
            (json!({"type": "output", "data": {}}), "/data/text"),
            (json!({"type": "progress", "data": {"percent": "50"}}), "/data/percent"),
            (json!({"type": "progress", "data": {"percent": null}}), "/data/percent"),
            (json!({"type": "progress", "data": {"percent": 100.0001}}), "/data/percent"),
            (json!({"type": "progress", "data": {"percent": 5, "current": 5, "total": 4}}), "/data/current"),
            (json!({"type": "progress", "data": {"current": 0, "total": 0}}), "/data/total"),
            (json!({"type": "progress", "data": {"message": "x".repeat(2049)}}), "/data/message"),
            (json!({"type": "log", "data": {"level": "fatal"}}), "/data/level"),
            (json!({"type": "failed", "data": {"retry_after_ms": -1}}), "/data/retry_after_ms"),
            (json!({"type": "completed", "data": {"artifacts": [{"url": "javascript:x"}]}}), "/data/artifacts/0/url"),
            (json!({"type": "mine", "data": {"x": "y".repeat(65536)}}), "/data"),
        ] {
            assert_eq!(pointer(event), at);
        }
        let infinite = super::super::parse_json(br#"{"type":"progress","data":{"percent":1e999}}"#).unwrap();
        assert_eq!(pointer(infinite), "/data/percent");
    }

    #[test]
    fn a_failure_is_always_storable() {
        let event = parse(
            json!({"type": "failed", "data": {"message": "é\0".repeat(9000), "details": {"a\0": "x".repeat(9000)}}}),
        );
        let data = event.unwrap().data;
        assert!(data["message"].as_str().unwrap().len() <= 8192 && data["details"].as_str().unwrap().len() <= 8192);
        assert_eq!((&data["truncated"], &data["code"]), (&json!(true), &json!("failed")));
        assert!(!data["message"].as_str().unwrap().contains('\0'));

        let artifact = json!({"url": "https://example.com/x", "label": "y".repeat(500)});
        let huge = json!({"type": "completed", "data": {"items": 7, "zz": "z".repeat(200_000), "artifacts": vec![artifact; 300]}});
        let data = parse(huge).unwrap().data;
        assert!(Json::from_map(&data).as_str().len() <= 65536);
        assert_eq!(
            (&data["ok"], &data["items"], &data["truncated"], data.get("zz")),
            (&json!(true), &json!(7), &json!(true), None)
        );
        assert!(data["artifacts"].as_array().unwrap().len() > 30);
    }
}
