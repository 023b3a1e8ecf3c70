//! Takes requests apart, strictly: what is wrong is named, what is unknown is refused.

use std::collections::HashMap;
use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::header::{CONTENT_TYPE, IF_NONE_MATCH};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName};
use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use http_body_util::BodyExt;
use serde_json::{Map, Value};

use super::error::ApiError;
use crate::domain::{
    JobId, ParseError, QueueName, Refusal, Timestamp, WorkerName, body_hash, check_no_fields, parse_json,
};
use crate::service::{Cursor, Idempotency};
use crate::store::RequestKey;

/// The job that a path names. What is no id of ours names no job: 404 `job_not_found`.
pub struct JobPath(pub JobId);

impl<S: Send + Sync> FromRequestParts<S> for JobPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let not_found = || ApiError::from(Refusal::JobNotFound);
        let params = RawPathParams::from_request_parts(parts, state).await.map_err(|_| not_found())?;
        let id = params.iter().find(|(name, _)| *name == "id").map(|(_, value)| value);
        id.and_then(JobId::parse).map(JobPath).ok_or_else(not_found)
    }
}

/// The queue that a path names; `None`: what it names can be no queue.
pub struct QueuePath(Option<QueueName>);

impl QueuePath {
    /// For what needs a queue that is there: 404 `not_found`.
    pub fn known(self) -> Result<QueueName, ApiError> {
        self.0.ok_or_else(|| Refusal::QueueNotFound.into())
    }

    /// For what would make the queue, which must then have a name that callers may give: 422.
    pub fn nameable(self) -> Result<QueueName, ApiError> {
        match self.0 {
            None => Err(ApiError::invalid_request("the path must name a queue: [A-Za-z0-9._-]{1,64}")),
            Some(name) if name.is_ours() => {
                Err(ApiError::invalid_request("queues that begin with `milepost.` belong to the gateway"))
            }
            Some(name) => Ok(name),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for QueuePath {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Infallible> {
        let params = RawPathParams::from_request_parts(parts, state).await.ok();
        let name = |params: &RawPathParams| params.iter().find(|(name, _)| *name == "q").map(|(_, q)| q.to_owned());
        Ok(Self(params.as_ref().and_then(name).and_then(|name| QueueName::parse(&name))))
    }
}

/// The worker that a path names. What is no name: 422.
pub struct WorkerPath(pub WorkerName);

impl<S: Send + Sync> FromRequestParts<S> for WorkerPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let wrong = || ApiError::invalid_request("a worker's name must match [A-Za-z0-9._:@-]{1,128}");
        let params = RawPathParams::from_request_parts(parts, state).await.map_err(|_| wrong())?;
        let name = params.iter().find(|(name, _)| *name == "worker").map(|(_, value)| value);
        name.and_then(WorkerName::parse).map(WorkerPath).ok_or_else(wrong)
    }
}

/// The query parameters of a request, all of them known, each at most once but for lists.
pub struct Params {
    single: HashMap<String, String>,
    lists: HashMap<String, Vec<String>>,
}

impl Params {
    /// Reads the query of `parts`; refuses what is not in `known`.
    pub fn of(query: Option<&str>, known: &[&str]) -> Result<Self, ApiError> {
        Self::with_lists(query, known, &[])
    }

    /// As [`Self::of`]; those in `lists` may be given several times.
    pub fn with_lists(query: Option<&str>, known: &[&str], lists: &[&str]) -> Result<Self, ApiError> {
        let mut params = Self { single: HashMap::new(), lists: HashMap::new() };
        for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            let is_list = lists.contains(&name.as_ref());
            if !is_list && !known.contains(&name.as_ref()) {
                return Err(ApiError::invalid_request(format!("unknown query parameter `{name}`")));
            }
            if value.contains('\0') {
                return Err(ApiError::invalid_request(format!("query parameter `{name}` must not contain U+0000")));
            }
            if is_list {
                params.lists.entry(name.into_owned()).or_default().push(value.into_owned());
            } else if params.single.insert(name.clone().into_owned(), value.into_owned()).is_some() {
                return Err(ApiError::invalid_request(format!("query parameter `{name}` is given more than once")));
            }
        }
        Ok(params)
    }

    /// The values of a list; `None`, if it was not given.
    pub fn list(&mut self, name: &str) -> Option<Vec<String>> {
        self.lists.remove(name)
    }

    /// The parameter's value, if it was given.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.single.get(name).map(String::as_str)
    }

    /// A whole number from `min`; more than `max` is capped.
    pub fn capped(&self, name: &str, min: u64, max: u64) -> Result<Option<u64>, ApiError> {
        self.get(name).map(|text| whole_number(text, min, max).ok_or_else(|| wrong_number(name, min))).transpose()
    }

    /// `1` or `true`, `0` or `false`.
    pub fn flag(&self, name: &str) -> Result<bool, ApiError> {
        match self.get(name) {
            None | Some("0" | "false") => Ok(false),
            Some("1" | "true") => Ok(true),
            Some(_) => Err(ApiError::invalid_request(format!("query parameter `{name}` must be true or false"))),
        }
    }

    /// A time after RFC 3339.
    pub fn instant(&self, name: &str) -> Result<Option<Timestamp>, ApiError> {
        let wrong = || ApiError::invalid_request(format!("query parameter `{name}` must be a time after RFC 3339"));
        self.get(name).map(|text| Timestamp::parse(text).ok_or_else(wrong)).transpose()
    }
}

fn wrong_number(name: &str, min: u64) -> ApiError {
    ApiError::invalid_request(format!("`{name}` must be a whole number of at least {min}"))
}

/// Digits only. Numbers too long for 64 bits are large numbers all the same.
fn whole_number(text: &str, min: u64, max: u64) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some(text.parse().unwrap_or(u64::MAX).min(max)).filter(|n| *n >= min)
}

/// The longest that a request is parked.
const LONGEST_WAIT_S: u64 = 55;

/// How long a poll may be parked.
pub struct Wait {
    /// The time; zero if none was asked for.
    pub time: Duration,
    /// The `Preference-Applied` to answer with.
    pub applied: Option<String>,
}

impl Wait {
    /// `?wait=25`, else `Prefer: wait=25` (RFC 7240).
    pub fn of(params: &Params, headers: &HeaderMap) -> Result<Self, ApiError> {
        if let Some(seconds) = params.capped("wait", 0, LONGEST_WAIT_S)? {
            return Ok(Self { time: Duration::from_secs(seconds), applied: None });
        }
        let preferences = headers.get_all("prefer").into_iter().filter_map(|value| value.to_str().ok());
        let wait = preferences.flat_map(split_list).find_map(|preference| {
            let preference = preference.split(';').next()?;
            let (name, value) = preference.split_once('=').unwrap_or((preference, ""));
            name.trim().eq_ignore_ascii_case("wait").then(|| value.trim().trim_matches('"'))
        });
        let Some(wait) = wait else {
            return Ok(Self { time: Duration::ZERO, applied: None });
        };
        let seconds = whole_number(wait, 0, LONGEST_WAIT_S).ok_or_else(|| wrong_number("wait", 0))?;
        Ok(Self { time: Duration::from_secs(seconds), applied: Some(format!("wait={seconds}")) })
    }
}

/// The members of a list in a header; a comma within quotes separates nothing (RFC 9110 5.6.1).
fn split_list(value: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    value.split(move |c| {
        quoted ^= c == '"';
        c == ',' && !quoted
    })
}

/// Reads a cursor: `0`, or digits without a leading zero, below 2^53. Empty is none.
pub fn cursor(bytes: &[u8]) -> Cursor {
    let is_number = bytes.iter().all(u8::is_ascii_digit) && (bytes.len() == 1 || bytes.first() != Some(&b'0'));
    match std::str::from_utf8(bytes).ok().filter(|_| is_number).and_then(|text| text.parse::<u64>().ok()) {
        _ if bytes.is_empty() => Cursor::Fresh,
        Some(seq) if seq < 1 << 53 => Cursor::After(seq),
        Some(_) | None => Cursor::Invalid,
    }
}

/// The cursor of a stream: the `Last-Event-ID` header wins, even as garbage, since a browser re-uses the old URL.
pub fn stream_cursor(params: &Params, headers: &HeaderMap) -> Cursor {
    let mut lines = headers.get_all("last-event-id").into_iter();
    let from_header = match (lines.next(), lines.next()) {
        (None, _) => Cursor::Fresh,
        (Some(line), None) => cursor(line.as_bytes()),
        (Some(_), Some(_)) => Cursor::Invalid,
    };
    match from_header {
        Cursor::Fresh => cursor(params.get("after").unwrap_or_default().as_bytes()),
        given => given,
    }
}

/// Whether the request asks for a stream: its `Accept` names `text/event-stream` with a quality above 0.
pub fn accepts_stream(headers: &HeaderMap) -> bool {
    let values = headers.get_all("accept").into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("text/event-stream"));
        let refused = parts.any(|parameter| {
            let quality = parameter.strip_prefix("q=").or_else(|| parameter.strip_prefix("Q="));
            quality.is_some_and(|quality| quality.parse::<f32>() == Ok(0.0))
        });
        named && !refused
    })
}

/// Whether the client has this representation already (RFC 9110 13.1.2: weak comparison, lists, `*`).
pub fn is_not_modified(headers: &HeaderMap, etag: &str) -> bool {
    let values = headers.get_all(IF_NONE_MATCH).into_iter().filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .any(|tag| tag == "*" || tag.trim_start_matches("W/") == etag)
}

/// The media type of the body, lower case, without parameters; `None` if the header is missing.
pub fn media_type(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(CONTENT_TYPE)?;
    let essence = value.to_str().unwrap_or("?").split(';').next().unwrap_or_default();
    Some(essence.trim().to_ascii_lowercase())
}

/// Reads a body of `application/json` (or of no stated type) whole.
pub async fn json_body(headers: &HeaderMap, body: Body, limit: usize) -> Result<Value, ApiError> {
    if media_type(headers).is_some_and(|media_type| media_type != "application/json") {
        return Err(ApiError::unsupported_media_type("application/json"));
    }
    Ok(parse_json(&whole_body(body, limit).await?)?)
}

/// As [`json_body`], but nothing at all stands for an object without fields.
pub async fn optional_json_body(headers: &HeaderMap, body: Body, limit: usize) -> Result<Value, ApiError> {
    let bytes = whole_body(body, limit).await?;
    if bytes.is_empty() {
        return Ok(Value::Object(Map::new()));
    }
    json_body(headers, Body::from(bytes), limit).await
}

/// Reads the body of a request that says everything by its path: nothing at all, or an object without fields.
pub async fn no_fields(headers: &HeaderMap, body: Body, limit: usize) -> Result<(), ApiError> {
    Ok(check_no_fields(optional_json_body(headers, body, limit).await?)?)
}

/// A body that stops arriving for this long is given up.
const BODY_PATIENCE: Duration = Duration::from_secs(30);

async fn whole_body(mut body: Body, limit: usize) -> Result<Bytes, ApiError> {
    if body.size_hint().lower() > limit as u64 {
        return Err(ApiError::body_too_large(limit));
    }
    let mut bytes = BytesMut::new();
    while let Some(frame) = tokio::time::timeout(BODY_PATIENCE, body.frame()).await.transpose() {
        let ended_early = || ApiError::invalid_json("the body ended early");
        let frame = frame.map_err(|_| ended_early())?.map_err(|_| ended_early())?;
        let Some(data) = frame.data_ref() else { continue };
        if bytes.len() + data.len() > limit {
            return Err(ApiError::body_too_large(limit));
        }
        bytes.extend_from_slice(data);
    }
    Ok(bytes.freeze())
}

impl From<ParseError> for ApiError {
    fn from(error: ParseError) -> Self {
        match error {
            ParseError::Syntax(detail) => Self::invalid_json(detail),
            ParseError::TooDeep => Self::invalid_request("the body is nested deeper than 127 levels"),
        }
    }
}

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The request's `Idempotency-Key`, if it has one: one header line of 1–255 visible ASCII characters.
pub fn idempotency(headers: &HeaderMap, scope: &str, body: &Value) -> Result<Option<Idempotency>, ApiError> {
    let mut lines = headers.get_all(IDEMPOTENCY_KEY).into_iter();
    let Some(line) = lines.next() else {
        return Ok(None);
    };
    let visible = |key: &&str| (1..=255).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_graphic());
    match (line.to_str().ok().filter(visible), lines.next()) {
        (Some(key), None) => {
            let request = RequestKey { scope: scope.to_owned(), key: key.to_owned() };
            Ok(Some(Idempotency { request, body_hash: body_hash(body) }))
        }
        (Some(_) | None, _) => Err(ApiError::invalid_request(
            "Idempotency-Key must be one header line of 1 to 255 visible ASCII characters",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_numbers_below_2_53_are_cursors() {
        for (text, expected) in [
            ("", Cursor::Fresh),
            ("0", Cursor::After(0)),
            ("17", Cursor::After(17)),
            ("9007199254740991", Cursor::After((1 << 53) - 1)),
        ] {
            assert_eq!(cursor(text.as_bytes()), expected, "{text}");
        }
        for text in
            ["007", "00", "-1", "+1", "1.5", "abc", " 1", "9007199254740992", "18446744073709551616", "1\u{661}"]
        {
            assert_eq!(cursor(text.as_bytes()), Cursor::Invalid, "{text}");
        }
    }

    #[test]
    fn accept_must_name_the_stream() {
        let accepts =
            |value: &str| accepts_stream(&HeaderMap::from_iter([("accept".parse().unwrap(), value.parse().unwrap())]));
        assert!(accepts("text/event-stream") && accepts("application/json, Text/Event-Stream;q=0.5"));
        assert!(!accepts("*/*") && !accepts("text/event-stream;q=0") && !accepts("application/json"));
    }
}
