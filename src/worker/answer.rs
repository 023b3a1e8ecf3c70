//! What an endpoint's answer means for the job that was posted to it: events while it arrives, and the job's end.
//!
//! A JSON answer is the Outcome. A stream (NDJSON, SSE) is relayed line by line; a line that ends the run ends it at
//! once, and a stream that ends without one completes the job, unless it breaks off in the middle of a line. Nothing
//! here repeats anything: the queue does, by what a failure says about itself.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::entry::{Entry, fitting};
use super::lines::MAX_EVENT_LINE;
use super::reporter::Entries;
use crate::client::endpoint::{PostError, Reply};
use crate::client::sse::SseParser;
use crate::domain::{is_outcome, parse_json};

/// What is asked for.
pub const ACCEPT: &str = "application/json, application/x-ndjson, text/event-stream";

/// How much of an error's body is kept in the failure.
const MAX_ERROR_BYTES: usize = 2_000;
/// How long an error's body is waited for: its status has said what matters.
pub(super) const ERROR_PATIENCE: Duration = Duration::from_secs(2);

/// How answers are read.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// Chat completions, streamed or whole, become output.
    pub openai: bool,
    /// The largest answer that is no stream, in bytes.
    pub max_answer: usize,
}

/// Reads an answer to its end, or to what ends the run; returns the job's last event.
pub(super) async fn relay(reply: Reply, reading: Reading, entries: &Entries) -> Entry {
    match reply.status() {
        204 | 205 => return completed(json!({})),
        200..=299 => {}
        _ => return refused(reply).await,
    }
    let stream = Stream { entries, completion: reading.openai.then(Completion::default) };
    let end = match reply.media_type().as_str() {
        "application/x-ndjson" | "application/ndjson" | "application/jsonl" => stream.relay_lines(reply).await,
        "text/event-stream" => stream.relay_events(reply).await,
        _ => stream.take_whole(reply, reading.max_answer).await,
    };
    end.unwrap_or_else(|error| broken(&error))
}

/// The failure that stands for no answer, or for one that is not whole.
pub(super) fn broken(error: &PostError) -> Entry {
    let (code, retryable) = match error {
        PostError::Broken(_) => ("upstream_unreachable", true),
        PostError::Refused(_) => ("address_refused", false),
        PostError::TooLarge(_) => ("answer_too_large", false),
    };
    failed(code, &error.to_string(), json!({"retryable": retryable}))
}

/// A failure; `more` is what it says beside code and message.
pub(super) fn failed(code: &str, message: &str, more: Value) -> Entry {
    let mut data = json!({"code": code, "message": message});
    if let (Value::Object(data), Value::Object(more)) = (&mut data, more) {
        data.extend(more);
    }
    Entry::from_event(&json!({"type": "failed", "data": data}))
}

fn completed(outcome: Value) -> Entry {
    Entry::from_event(&json!({"type": "completed", "data": outcome}))
}

/// An answer that is no success.
async fn refused(reply: Reply) -> Entry {
    let status = reply.status();
    let retry_after = reply.retry_after().filter(|_| matches!(status, 429 | 503));
    let location = reply.location().map(|to| format!(", redirecting to {to}")).unwrap_or_default();
    let body = reply.beginning(MAX_ERROR_BYTES, ERROR_PATIENCE).await;
    let line = body.lines().find(|line| !line.trim().is_empty()).map(|line| format!(": {}", line.trim()));
    let mut more = Map::new();
    more.insert("retryable".into(), matches!(status, 429 | 500..=599).into());
    if let Some(wait) = retry_after {
        more.insert("retry_after_ms".into(), (wait.as_millis() as u64).into());
        // "Too many" is said to all of us; "unavailable" may be this one request's lot.
        if status == 429 {
            more.insert("scope".into(), "queue".into());
        }
    }
    more.insert("details".into(), json!({"status": status, "body": body}));
    let message = format!("the endpoint answered {status}{location}{}", line.unwrap_or_default());
    failed(&format!("http_{status}"), &message, more.into())
}

/// An answer on its way to the job.
struct Stream<'a> {
    entries: &'a Entries,
    completion: Option<Completion>,
}

impl Stream<'_> {
    async fn take_whole(mut self, reply: Reply, limit: usize) -> Result<Entry, PostError> {
        let body = reply.read(limit).await?;
        if body.iter().all(u8::is_ascii_whitespace) {
            return Ok(completed(json!({})));
        }
        let Ok(answer) = parse_json(&body) else {
            return Ok(failed("invalid_answer", "the answer is no JSON", json!({"retryable": false})));
        };
        if let Some(completion) = &mut self.completion {
            if let Some(failed) = error_of(&answer) {
                return Ok(failed);
            }
            if let Some(text) = completion.take(&answer) {
                self.output(&text).await;
                let metrics = answer.get("usage").cloned();
                return Ok(completed(outcome(answer, metrics)));
            }
        }
        if is_outcome(&answer) {
            return Ok(completed(answer));
        }
        // Whatever else it says, it says whether it went well.
        let ok = answer.get("ok").and_then(Value::as_bool);
        let mut wrapped = json!({"data": answer});
        if let Some(ok) = ok {
            wrapped["ok"] = ok.into();
        }
        Ok(completed(wrapped))
    }

    async fn relay_lines(mut self, mut reply: Reply) -> Result<Entry, PostError> {
        let mut line = Vec::new();
        while let Some(chunk) = reply.chunk().await? {
            let mut rest = &chunk[..];
            while let Some(end) = memchr::memchr(b'\n', rest) {
                line.extend_from_slice(&rest[..end]);
                check_length(&line)?;
                if let Some(last) = self.take(&String::from_utf8_lossy(&line)).await {
                    return Ok(last);
                }
                line.clear();
                rest = &rest[end + 1..];
            }
            line.extend_from_slice(rest);
            check_length(&line)?;
        }
        // Many leave the last line's end out; a line that is whole without it is not half a line.
        let line = String::from_utf8_lossy(&line);
        let line = line.trim();
        if line.is_empty() {
            return self.end();
        }
        if serde_json::from_str::<serde::de::IgnoredAny>(line).is_err() {
            return Err(half());
        }
        match self.take(line).await {
            Some(last) => Ok(last),
            None => self.end(),
        }
    }

    async fn relay_events(mut self, mut reply: Reply) -> Result<Entry, PostError> {
        let (mut parser, mut events) = (SseParser::default(), Vec::new());
        while let Some(chunk) = reply.chunk().await? {
            parser.feed(&chunk, &mut events).map_err(|_| PostError::TooLarge(crate::client::sse::MAX_EVENT_BYTES))?;
            for (event, _) in events.drain(..) {
                if let Some(last) = self.take(&event.data).await {
                    return Ok(last);
                }
            }
        }
        if parser.is_inside_event() {
            return Err(half());
        }
        self.end()
    }

    /// Passes on what one line says; the last event, if it is one.
    async fn take(&mut self, text: &str) -> Option<Entry> {
        let text = text.trim();
        if text.is_empty() {
            return None;
        }
        if let Some(completion) = &mut self.completion {
            if text == "[DONE]" {
                return Some(completion.completed());
            }
            let chunk = parse_json(text.as_bytes()).unwrap_or_default();
            if let Some(failed) = error_of(&chunk) {
                return Some(failed);
            }
            if let Some(text) = completion.take(&chunk) {
                self.output(&text).await;
                return None;
            }
        }
        match Entry::said(text) {
            Some(entry) if entry.ends_run() => return Some(entry),
            Some(entry) => self.entries.send(entry).await,
            None => {
                for piece in fitting(text) {
                    self.entries.send(Entry::Log { level: "info", message: piece.to_owned() }).await;
                }
            }
        }
        None
    }

    /// The stream has ended without a last event.
    fn end(self) -> Result<Entry, PostError> {
        match self.completion {
            // A generation that stops in the middle looks like any other end, but for this.
            Some(completion) if completion.finish_reason.is_null() && completion.has_begun => {
                Err(PostError::Broken("the completion stopped without [DONE] or a finish_reason".to_owned()))
            }
            Some(completion) => Ok(completion.completed()),
            None => Ok(completed(json!({}))),
        }
    }

    async fn output(&self, text: &str) {
        for piece in fitting(text).filter(|piece| !piece.is_empty()) {
            self.entries.send(Entry::output(piece)).await;
        }
    }
}

/// What a chat completion has said beside its text.
#[derive(Debug, Default)]
struct Completion {
    has_begun: bool,
    model: Value,
    finish_reason: Value,
    usage: Value,
}

impl Completion {
    /// The text of a completion or of a chunk of one, perhaps empty; `None`: it is something else.
    fn take(&mut self, chunk: &Value) -> Option<String> {
        let choices = chunk.get("choices")?.as_array()?;
        self.has_begun = true;
        // One job has one output: that of the first choice.
        let is_first = |choice: &&Value| choice.get("index").and_then(Value::as_u64).unwrap_or(0) == 0;
        let first = choices.iter().find(is_first);
        for (kept, said) in [
            (&mut self.model, chunk.get("model")),
            (&mut self.usage, chunk.get("usage")),
            (&mut self.finish_reason, first.and_then(|choice| choice.get("finish_reason"))),
        ] {
            if let Some(said) = said.filter(|said| !said.is_null()) {
                *kept = said.clone();
            }
        }
        let text = first.and_then(|choice| {
            ["/delta/content", "/message/content", "/text"].iter().find_map(|at| choice.pointer(at)?.as_str())
        });
        Some(text.unwrap_or_default().to_owned())
    }

    fn completed(&self) -> Entry {
        let said = [("model", &self.model), ("finish_reason", &self.finish_reason), ("usage", &self.usage)];
        let said: Map<String, Value> = said
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name.to_owned(), value.clone()))
            .collect();
        let data = if said.is_empty() { Value::Null } else { said.into() };
        completed(outcome(data, Some(self.usage.clone())))
    }
}

/// The Outcome of a completion: what it said about itself, and what it has used up.
fn outcome(data: Value, usage: Option<Value>) -> Value {
    let mut outcome = Map::new();
    if let Some(Value::Object(usage)) = usage {
        outcome.insert("metrics".into(), usage.into_iter().filter(|(_, value)| value.is_number()).collect());
    }
    if !data.is_null() {
        outcome.insert("data".into(), data);
    }
    outcome.into()
}

/// What an API says that has answered 200 before it knew that it cannot go on.
fn error_of(said: &Value) -> Option<Entry> {
    let error = said.get("error").filter(|error| error.is_object() || error.is_string())?;
    let message = error.as_str().or_else(|| error["message"].as_str()).unwrap_or("no message");
    let more = json!({"retryable": true, "details": {"error": error}});
    Some(failed("upstream_error", &format!("the completion broke off with an error: {message}"), more))
}

fn check_length(line: &[u8]) -> Result<(), PostError> {
    if line.len() > MAX_EVENT_LINE { Err(PostError::TooLarge(MAX_EVENT_LINE)) } else { Ok(()) }
}

fn half() -> PostError {
    PostError::Broken("the answer ended in the middle of a line".to_owned())
}
