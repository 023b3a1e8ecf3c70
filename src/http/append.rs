//! A runner's events, by POST: one object, an array (all or nothing), or NDJSON (line by line, as it arrives).

use std::pin::pin;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::header::CONNECTION;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use http_body::Body as _;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use super::error::ApiError;
use super::extract::{JobPath, Params, idempotency, json_body, media_type};
use super::{Api, ApiResult, json_response, schema};
use crate::domain::{JobId, NewEvent, Refusal, body_hash, parse_json};
use crate::service::{Appended, Gateway, Reader, ServiceError};

/// Events in one array.
const MAX_EVENTS: usize = 1_000;

/// Lines of one NDJSON body that are stored together.
const MAX_LINES: usize = 1_000;

/// The longest that a heartbeat is held, in milliseconds.
const LONGEST_HOLD_MS: u64 = 55_000;

/// Append events to a job. Durable on return; every append is a sign of life, and every answer says whether to stop.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/events", tag = "events",
    params(
        schema::JobId,
        ("wait_ms" = Option<u64>, Query, description = "With an empty array: hold the answer up to so long (capped at 55,000) until there is something to say"),
        ("Lease-Token" = Option<String>, Header, description = "From the claim; tracked jobs need none"),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a retry after a lost answer safe; not with NDJSON"),
    ),
    request_body(description = "One event, an array of up to 1,000 (all or nothing; none is a heartbeat), or NDJSON", content(
        (schema::NewEvents = "application/json"), (String = "application/x-ndjson"),
    )),
    responses(
        (status = 200, description = "Stored", body = schema::Appended),
        (status = 400, response = schema::ProblemResponse), (status = 404, response = schema::ProblemResponse),
        (status = 409, response = schema::ProblemResponse),
        (status = 413, response = schema::ProblemResponse), (status = 415, response = schema::ProblemResponse),
        (status = 422, response = schema::ProblemResponse), (status = 503, response = schema::ProblemResponse),
    )
)]
pub(super) async fn append_events(
    State(api): State<Api>,
    JobPath(id): JobPath,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> ApiResult {
    append(&api, id, query.as_deref(), &headers, body).await
}

/// Who appends: a job's runner, and the run that its lease token proves, if it has one.
#[derive(Clone, Copy)]
struct Runner {
    id: JobId,
    run: Option<u64>,
}

const LEASE_TOKEN: HeaderName = HeaderName::from_static("lease-token");

impl Runner {
    fn of(api: &Api, id: JobId, headers: &HeaderMap) -> Self {
        let mut lines = headers.get_all(LEASE_TOKEN).into_iter();
        let token = lines.next().filter(|_| lines.next().is_none()).and_then(|token| token.to_str().ok());
        Self { id, run: token.and_then(|token| api.gateway.proven_run(id, token)) }
    }

    async fn heartbeat(self, gateway: &Gateway) -> Result<Appended, ServiceError> {
        gateway.append(self.id, self.run, Vec::new(), [0; 32], None).await
    }
}

async fn append(api: &Api, id: JobId, query: Option<&str>, headers: &HeaderMap, body: Body) -> ApiResult {
    let params = Params::of(query, &["wait_ms"])?;
    let hold_ms = params.capped("wait_ms", 0, LONGEST_HOLD_MS)?;
    match media_type(headers).as_deref() {
        Some("application/x-ndjson") if hold_ms.is_some() => Err(wait_ms_needs_an_empty_array()),
        Some("application/x-ndjson") if headers.contains_key("idempotency-key") => Err(ApiError::invalid_request(
            "Idempotency-Key cannot stand for NDJSON: its lines are stored as they arrive",
        )),
        Some("application/x-ndjson") => Lines::new(api, Runner::of(api, id, headers)).read(body).await,
        None | Some("application/json") => {
            let body = json_body(headers, body, api.settings.max_body).await?;
            append_json(api, id, headers, body, hold_ms).await
        }
        Some(_) => Err(ApiError::unsupported_media_type("application/json, application/x-ndjson")),
    }
}

fn wait_ms_needs_an_empty_array() -> ApiError {
    ApiError::invalid_request("`wait_ms` needs an empty array as the body")
}

async fn append_json(api: &Api, id: JobId, headers: &HeaderMap, body: Value, hold_ms: Option<u64>) -> ApiResult {
    let runner = Runner::of(api, id, headers);
    // A worker may name the requests of each of its runs alike.
    let scope = runner.run.map_or_else(|| format!("append {id}"), |run| format!("append {id} {run}"));
    let idempotency = idempotency(headers, &scope, &body)?;
    let body_hash = body_hash(&body);
    let is_array = body.is_array();
    let items = match body {
        Value::Array(items) => items,
        single => vec![single],
    };
    if items.len() > MAX_EVENTS {
        return Err(ApiError::invalid_request(format!("must have at most {MAX_EVENTS} events")).at(""));
    }
    if hold_ms.is_some() && !items.is_empty() {
        return Err(wait_ms_needs_an_empty_array());
    }
    let place = |index: usize| if is_array { format!("/{index}") } else { String::new() };
    let last = items.len().saturating_sub(1);
    let mut events = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        let event = NewEvent::parse(item, api.gateway.limits()).map_err(|refusal| refusal.under(&place(index)))?;
        if index < last && event.kind.ends_run() {
            return Err(nothing_may_follow(&event).under(&place(index)).into());
        }
        events.push(event);
    }
    let appended =
        api.gateway.append(id, runner.run, events, body_hash, idempotency).await.map_err(|error| match error {
            ServiceError::RefusedItem { index, refusal } => ApiError::from(refusal.under(&place(index))),
            other => other.into(),
        })?;
    let appended = match hold_ms {
        Some(ms) => api.gateway.hold(id, runner.run, appended, Duration::from_millis(ms)).await?,
        None => appended,
    };
    Ok(json_response(&answer(&appended)))
}

fn answer(appended: &Appended) -> Value {
    let lease = appended.silence_ms.filter(|_| appended.leased).map(|ms| json!({"expires_in_ms": ms}));
    json!({"seq": appended.seq, "lease": lease, "cancel_requested": appended.cancel_requested})
}

fn nothing_may_follow(event: &NewEvent) -> Refusal {
    Refusal::invalid("/type", format!("`{}` ends the run: nothing may follow it", event.kind))
}

/// An NDJSON body on its way in.
struct Lines<'a> {
    api: &'a Api,
    runner: Runner,
    /// What has arrived of a line that is not whole.
    partial: Vec<u8>,
    /// Lines seen, blank ones included: the index in pointers.
    lines: usize,
    stored: usize,
    last: Option<Appended>,
    ended: bool,
}

/// Why reading stops before the body ends.
enum Stop {
    /// The runner is asked to stop, or the job has ended.
    Job,
    /// The gateway is about to stop.
    Drain,
}

/// The last moments of a body: whole lines that are on their way are stored, then the client is answered, whether or not
/// it has ended the body.
struct Closing {
    why: Stop,
    until: tokio::time::Instant,
}

/// A body that may go on for ever is read for this much longer, an upload of known length for this.
const LAST_LINES: Duration = Duration::from_millis(100);
const LAST_UPLOAD: Duration = Duration::from_secs(2);

impl Closing {
    fn begin(why: Stop, body: &Body) -> Self {
        let time = if body.size_hint().exact().is_some() { LAST_UPLOAD } else { LAST_LINES };
        Self { why, until: tokio::time::Instant::now() + time }
    }

    /// Completes when the last moments are over; never, if they have not begun.
    async fn over(closing: Option<&Self>) {
        match closing {
            Some(closing) => tokio::time::sleep_until(closing.until).await,
            None => std::future::pending().await,
        }
    }
}

impl<'a> Lines<'a> {
    fn new(api: &'a Api, runner: Runner) -> Self {
        Self { api, runner, partial: Vec::new(), lines: 0, stored: 0, last: None, ended: false }
    }

    async fn read(mut self, mut body: Body) -> ApiResult {
        // A sign of life, and the answer to "may I?", before the first line.
        let (mut over, mut closing) = (None, None);
        match self.heartbeat().await {
            Ok(begun) => self.last = Some(begun),
            // It may be the repetition of the line that ended the run.
            Err(error @ ServiceError::Refused(Refusal::JobTerminal(_))) => over = Some(error),
            Err(error @ ServiceError::Refused(Refusal::LeaseLost)) if self.runner.run.is_some() => {
                over = Some(error);
                closing = Some(Closing::begin(Stop::Job, &body));
            }
            Err(error) => return Err(self.with_count(error.into())),
        }
        let seq = self.last.as_ref().map_or(0, |last| last.seq);
        let mut stop = pin!(stop(self.api.gateway.clone(), self.runner, seq));
        loop {
            let must_close = self.ended || self.last.as_ref().is_some_and(|last| last.cancel_requested);
            if must_close && closing.is_none() {
                closing = Some(Closing::begin(Stop::Job, &body));
            }
            let frame = tokio::select! {
                frame = body.frame() => frame,
                why = &mut stop, if closing.is_none() && over.is_none() => {
                    closing = Some(Closing::begin(why, &body));
                    continue;
                }
                () = Closing::over(closing.as_ref()) => break,
            };
            match frame {
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        self.partial.extend_from_slice(&bytes);
                        self.append_whole_lines(false).await?;
                    }
                }
                // The client is gone in the middle of a line: what is whole is stored, the rest is not an event.
                Some(Err(_)) => return Err(self.with_count(ApiError::invalid_json("the body ended early"))),
                None => {
                    self.append_whole_lines(true).await?;
                    break;
                }
            }
        }
        if let Some(Closing { why: Stop::Drain, .. }) = closing {
            return Err(self.with_count(ApiError::shutting_down()));
        }
        if closing.is_some() && !self.ended {
            // What it must be told: to stop, or that the job is over.
            match self.heartbeat().await {
                Ok(told) => self.last = Some(told),
                Err(error) => return Err(self.with_count(error.into())),
            }
        }
        match (&self.last, over) {
            (Some(last), _) => Ok(self.answer(last)),
            (None, error) => Err(self.with_count(error.unwrap_or(ServiceError::Internal).into())),
        }
    }

    async fn heartbeat(&self) -> Result<Appended, ServiceError> {
        self.runner.heartbeat(&self.api.gateway).await
    }

    /// Takes the whole lines out of what has arrived, and stores them. `at_end`: the rest is a line, too.
    async fn append_whole_lines(&mut self, at_end: bool) -> Result<(), ApiError> {
        let limits = self.api.gateway.limits();
        let longest = limits.event_bytes.max(limits.result_bytes) + limits.event_bytes;
        let mut arrived = std::mem::take(&mut self.partial);
        let mut from = 0;
        loop {
            let mut events: Vec<(usize, NewEvent)> = Vec::new();
            let mut hash = [0; 32];
            let mut bad = None;
            let mut blank = false;
            while bad.is_none() && events.len() < MAX_LINES {
                let line = match memchr::memchr(b'\n', &arrived[from..]) {
                    Some(length) => &arrived[from..from + length],
                    None if at_end && from < arrived.len() => &arrived[from..],
                    None => break,
                };
                from = (from + line.len() + 1).min(arrived.len());
                let index = self.lines;
                self.lines += 1;
                if line.trim_ascii().is_empty() {
                    blank = true;
                    continue;
                }
                match self.parse_line(line, longest) {
                    Ok((event, line_hash)) => {
                        self.ended |= event.kind.ends_run();
                        hash = line_hash;
                        events.push((index, event));
                    }
                    Err(error) => bad = Some(error.under(&format!("/{index}"))),
                }
            }
            let is_last = events.len() < MAX_LINES;
            if !events.is_empty() || blank {
                self.store(events, hash).await?;
            }
            if let Some(error) = bad {
                return Err(self.with_count(error));
            }
            if is_last {
                break;
            }
        }
        arrived.drain(..from);
        self.partial = arrived;
        if self.partial.len() > longest {
            let error = ApiError::from(Refusal::too_large("", format!("a line has more than {longest} bytes")));
            return Err(self.with_count(error.under(&format!("/{}", self.lines))));
        }
        Ok(())
    }

    fn parse_line(&self, line: &[u8], longest: usize) -> Result<(NewEvent, [u8; 32]), ApiError> {
        if self.ended {
            return Err(Refusal::invalid("", "the run has ended with the line before: nothing may follow it").into());
        }
        if line.len() > longest {
            return Err(Refusal::too_large("", format!("a line has more than {longest} bytes")).into());
        }
        let value = parse_json(line).map_err(|error| Refusal::invalid("", format!("the line is not JSON: {error}")))?;
        let hash = body_hash(&value);
        Ok((NewEvent::parse(value, self.api.gateway.limits())?, hash))
    }

    /// Stores whole lines, each with its index.
    async fn store(&mut self, lines: Vec<(usize, NewEvent)>, hash: [u8; 32]) -> Result<(), ApiError> {
        let (places, events): (Vec<usize>, Vec<NewEvent>) = lines.into_iter().unzip();
        match self.api.gateway.append_lines(self.runner.id, self.runner.run, events, hash).await {
            Ok(mut appended) => {
                let (stored, refused) = (appended.stored, appended.refused.take());
                self.stored += stored;
                self.last = Some(appended);
                match refused {
                    None => Ok(()),
                    Some(refusal) => {
                        Err(self.with_count(ApiError::from(refusal).under(&format!("/{}", places[stored]))))
                    }
                }
            }
            Err(error) => Err(self.with_count(error.into())),
        }
    }

    /// NDJSON says what it stored, whatever the answer.
    fn with_count(&self, error: ApiError) -> ApiError {
        let error = error.with_member("stored", self.stored);
        match &self.last {
            Some(last) => error.with_member("seq", last.seq),
            None => error,
        }
    }

    fn answer(&self, appended: &Appended) -> Response {
        let mut body = answer(appended);
        body["stored"] = self.stored.into();
        // The body may not have been read to its end.
        ([(CONNECTION, HeaderValue::from_static("close"))], json_response(&body)).into_response()
    }
}

/// Completes when a runner in the middle of a body must be told something.
async fn stop(gateway: Gateway, runner: Runner, mut seq: u64) -> Stop {
    loop {
        match gateway.changed_job(runner.id, seq, Duration::from_secs(3_600), Reader::Runner).await {
            _ if gateway.is_draining() => return Stop::Drain,
            Ok(job) if job.cancel_requested || !job.is_in_run(runner.run) => return Stop::Job,
            Ok(job) => seq = job.seq,
            Err(_) => return Stop::Job,
        }
    }
}
