//! Plain GETs: state (with long-poll), list, output, result.

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_NONE_MATCH, IF_RANGE, RANGE, RETRY_AFTER, VARY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::future::OptionFuture;
use serde::Serialize;

use super::error::ApiError;
use super::extract::{JobPath, Params, Wait, cursor, is_not_modified};
use super::{Api, ApiResult, json_response, schema};
use crate::domain::{Interest, Job, JobId, State as JobState};
use crate::service::{Cursor, Reader};
use crate::store::JobFilter;

/// What answers depend on.
pub(super) const VARY_ON: HeaderValue = HeaderValue::from_static("Accept, Authorization, Cookie");

/// A validator: strong, and different whenever the representation could be.
pub(super) fn etag(api: &Api, job: &Job, view: &str) -> String {
    format!("\"{}-{}-{}{view}\"", api.gateway.epoch(), job.id, job.seq)
}

/// Marks an answer as one to be revalidated each time; for a client that has it already, the empty 304.
pub(super) fn validated(headers: &HeaderMap, etag: &str, answer: impl FnOnce() -> Response) -> Response {
    let mut response = match is_not_modified(headers, etag) {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => answer(),
    };
    let answered = response.headers_mut();
    answered.insert(ETAG, etag.parse().expect("an etag is visible ASCII"));
    answered.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    answered.insert(VARY, VARY_ON);
    response
}

/// A job's state document. With `wait` it is answered when it differs from what the client has.
#[utoipa::path(
    get, path = "/v1/jobs/{id}", tag = "jobs",
    params(
        schema::JobId,
        ("include" = Option<String>, Query, description = "`payload` adds the payload; `waiting` adds `waiting_for`: why the job waits, or null. Both: separated by a comma. An answer with `waiting` has no ETag, and ignores validators and `wait`"),
        ("wait" = Option<u32>, Query, description = "Park up to so many seconds (capped at 55) until the document changes"),
        ("after" = Option<u64>, Query, description = "With `wait`: the seq the client has"),
        ("If-None-Match" = Option<String>, Header, description = "The document the client has"),
        ("Prefer" = Option<String>, Header, description = "`wait=25`, as the query parameter"),
    ),
    responses(
        (status = 200, description = "The state document", body = schema::Job),
        (status = 304, description = "The client has it"),
        (status = 404, response = schema::ProblemResponse), (status = 422, response = schema::ProblemResponse),
        (status = 503, response = schema::ProblemResponse),
    )
)]
pub(super) async fn get_job(
    State(api): State<Api>,
    JobPath(id): JobPath,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> ApiResult {
    let params = Params::of(query.as_deref(), &["include", "wait", "after", "token"])?;
    let wait = Wait::of(&params, &headers)?;
    let include = Include::of(&params)?;
    let view = if include.payload { "-payload" } else { "" };
    let after = match cursor(params.get("after").unwrap_or_default().as_bytes()) {
        Cursor::Fresh => None,
        Cursor::After(seq) => Some(seq),
        Cursor::Invalid => return Err(ApiError::invalid_request("query parameter `after` must be a seq")),
    };
    if include.waiting {
        return explain_job(&api, id, include.payload).await;
    }
    let mut job = api.gateway.look_at(id).await?;
    // Without any validator the client wants the next change.
    let is_known = match headers.contains_key(IF_NONE_MATCH) {
        true => is_not_modified(&headers, &etag(&api, &job, view)),
        false => after.is_none_or(|seq| seq == job.seq),
    };
    if !wait.time.is_zero() && is_known && !job.state.is_terminal() {
        job = api.gateway.changed_job(id, job.seq, wait.time, Reader::Watcher).await?;
    }
    let payload = include.payload.then(|| api.gateway.payload(id));
    let payload = OptionFuture::from(payload).await.transpose()?;
    let mut response = validated(&headers, &etag(&api, &job, view), || match &payload {
        None => json_response(&*job),
        Some(payload) => json_response(&job.with_payload(payload)),
    });
    if !job.state.is_terminal() {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("2"));
    }
    if let Some(applied) = wait.applied {
        response.headers_mut().insert("preference-applied", applied.parse().expect("digits are visible ASCII"));
    }
    Ok(response)
}

/// What stands beside the state in an answer.
#[derive(Default)]
struct Include {
    payload: bool,
    waiting: bool,
}

impl Include {
    fn of(params: &Params) -> Result<Self, ApiError> {
        let mut include = Self::default();
        for word in params.get("include").into_iter().flat_map(|words| words.split(',')) {
            match word {
                "payload" => include.payload = true,
                "waiting" => include.waiting = true,
                _ => return Err(ApiError::invalid_request("query parameter `include` must be payload or waiting")),
            }
        }
        Ok(include)
    }
}

/// What a job waits for changes with what stands around it: no validator could tell.
async fn explain_job(api: &Api, id: JobId, with_payload: bool) -> ApiResult {
    let (job, waiting_for) = api.gateway.explained_job(id).await?;
    let payload = with_payload.then(|| api.gateway.payload(id));
    let payload = OptionFuture::from(payload).await.transpose()?;
    let mut response = json_response(&job.with_reason(&waiting_for, payload.as_ref()));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response.headers_mut().insert(VARY, VARY_ON);
    if !job.state.is_terminal() {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("2"));
    }
    Ok(response)
}

#[derive(Serialize)]
struct ListBody {
    jobs: Vec<Job>,
    next: Option<String>,
}

/// Jobs, newest first.
#[utoipa::path(
    get, path = "/v1/jobs", tag = "jobs",
    params(
        ("queue" = Option<String>, Query), ("kind" = Option<String>, Query), ("subject" = Option<String>, Query),
        ("state" = Option<String>, Query, description = "One or more states, separated by commas"),
        ("error_code" = Option<String>, Query, description = "Only failed jobs whose error has this code"),
        ("active" = Option<bool>, Query, description = "Only jobs that have not ended"),
        ("created_after" = Option<String>, Query, description = "RFC 3339"),
        ("finished_after" = Option<String>, Query, description = "RFC 3339"),
        ("limit" = Option<u32>, Query, description = "1–200, default 50"),
        ("cursor" = Option<String>, Query, description = "`next` of the page before"),
    ),
    responses(
        (status = 200, description = "A page", body = schema::JobPage),
        (status = 422, response = schema::ProblemResponse), (status = 503, response = schema::ProblemResponse),
    )
)]
pub(super) async fn list_jobs(State(api): State<Api>, RawQuery(query): RawQuery) -> ApiResult {
    const KNOWN: [&str; 10] = [
        "queue",
        "kind",
        "subject",
        "state",
        "error_code",
        "active",
        "created_after",
        "finished_after",
        "limit",
        "cursor",
    ];
    let params = Params::of(query.as_deref(), &KNOWN)?;
    let texts = |name| params.get(name).map(str::to_owned).into_iter().collect();
    let mut states = Vec::new();
    for word in params.get("state").unwrap_or_default().split(',').filter(|word| !word.is_empty()) {
        let unknown = || ApiError::invalid_request(format!("`{word}` is not a state"));
        states.push(JobState::parse(word).ok_or_else(unknown)?);
    }
    let read_cursor = |text: &str| {
        let bytes: [u8; 16] = URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok()?;
        Some(JobId::from_uuid(uuid::Uuid::from_bytes(bytes)))
    };
    let wrong_cursor = || ApiError::invalid_request("query parameter `cursor` is not one that was given out");
    let filter = JobFilter {
        of: Interest { queues: texts("queue"), kinds: texts("kind"), subjects: texts("subject"), jobs: None },
        error_code: params.get("error_code").map(str::to_owned),
        states,
        active: params.flag("active")?,
        active_or_finished_after: None,
        updated_after: None,
        created_after: params.instant("created_after")?,
        finished_after: params.instant("finished_after")?,
        before: params.get("cursor").map(|text| read_cursor(text).ok_or_else(wrong_cursor)).transpose()?,
    };
    let limit = params.capped("limit", 1, 200)?.unwrap_or(50) as u32;
    let page = api.gateway.jobs(&filter, limit).await?;
    let next = page.next.map(|id| URL_SAFE_NO_PAD.encode(id.as_uuid().as_bytes()));
    Ok(([(CACHE_CONTROL, "no-store")], json_response(&ListBody { jobs: page.jobs, next })).into_response())
}

/// The whole output of the latest run so far.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/output", tag = "jobs",
    params(
        schema::JobId,
        ("Range" = Option<String>, Header, description = "`bytes=…`, one range"),
        ("If-Range" = Option<String>, Header, description = "The output that the range is of"),
        ("If-None-Match" = Option<String>, Header, description = "The output the client has"),
    ),
    responses(
        (status = 200, description = "All of it", body = String, content_type = "text/plain; charset=utf-8"),
        (status = 206, description = "The range", body = String, content_type = "text/plain; charset=utf-8"),
        (status = 304, description = "The client has it"),
        (status = 404, response = schema::ProblemResponse), (status = 416, response = schema::ProblemResponse),
        (status = 422, response = schema::ProblemResponse), (status = 503, response = schema::ProblemResponse),
    )
)]
pub(super) async fn get_output(
    State(api): State<Api>,
    JobPath(id): JobPath,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> ApiResult {
    Params::of(query.as_deref(), &["token"])?;
    let (job, output) = api.gateway.output(id).await?;
    // The text changes with its length within a run, and with the run.
    let etag = format!("\"{}-{}-{}-{}-output\"", api.gateway.epoch(), id, job.output_after_seq, job.output_bytes);
    let text = output.text.into_bytes();
    let range = match if_range_allows(&headers, &etag).then(|| headers.get(RANGE)).flatten() {
        Some(range) if !is_not_modified(&headers, &etag) => one_range(range, text.len())?,
        Some(_) | None => None,
    };
    let mut response = validated(&headers, &etag, || match range {
        None => Body::from(text).into_response(),
        Some((first, last)) => {
            let range = format!("bytes {first}-{last}/{}", text.len());
            let part = Body::from(text[first..=last].to_vec());
            (StatusCode::PARTIAL_CONTENT, [(CONTENT_RANGE, range)], part).into_response()
        }
    });
    let answered = response.headers_mut();
    answered.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answered.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    // A job's text must not become a page of ours.
    answered.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    Ok(response)
}

/// RFC 9110 13.1.5: a range of another text is of no use to the client.
fn if_range_allows(headers: &HeaderMap, etag: &str) -> bool {
    headers.get(IF_RANGE).is_none_or(|tag| tag.as_bytes() == etag.as_bytes())
}

/// The one range asked for, first and last byte; `None` if what was asked for is not understood (RFC 9110 14.2: then
/// everything is sent) or is several ranges.
fn one_range(range: &HeaderValue, length: usize) -> Result<Option<(usize, usize)>, ApiError> {
    let Some(parsed) = range.to_str().ok().and_then(|text| http_range_header::parse_range_header(text).ok()) else {
        return Ok(None);
    };
    match parsed.validate(length as u64).as_deref() {
        Ok([range]) => Ok(Some((*range.start() as usize, *range.end() as usize))),
        Ok(_) => Ok(None),
        Err(_) => Err(ApiError::range_not_satisfiable(length)),
    }
}

/// The `data` of a completed job's Outcome.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/result", tag = "jobs",
    params(schema::JobId, ("If-None-Match" = Option<String>, Header, description = "The data the client has")),
    responses(
        (status = 200, description = "The data", body = serde_json::Value),
        (status = 304, description = "The client has it"),
        (status = 404, response = schema::ProblemResponse),
        (status = 409, response = schema::ProblemResponse),
        (status = 422, response = schema::ProblemResponse), (status = 503, response = schema::ProblemResponse),
    )
)]
pub(super) async fn get_result(
    State(api): State<Api>,
    JobPath(id): JobPath,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> ApiResult {
    Params::of(query.as_deref(), &["token"])?;
    let (job, data) = api.gateway.result(id).await?;
    Ok(validated(&headers, &etag(&api, &job, "-result"), || json_response(&data)))
}
