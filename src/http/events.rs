//! A job's log, by GET: as a stream for who asks for one, else as a page.

use axum::extract::{RawQuery, State};
use axum::http::header::{CACHE_CONTROL, ETAG};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::error::ApiError;
use super::extract::{JobPath, Params, Wait, accepts_stream, cursor, is_not_modified, stream_cursor};
use super::{Api, ApiResult, json_response, schema, stream};
use crate::domain::{Event, Job, JobId, State as JobState};
use crate::service::{EventPage, ResetReason};

/// Events on a page.
const PAGE_LIMIT: u64 = 1_000;
const DEFAULT_LIMIT: u64 = 500;

/// A job's log: a stream for `Accept: text/event-stream`, else a page. The same events, the same cursor.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/events", tag = "events",
    params(
        schema::JobId,
        ("after" = Option<String>, Query, description = "The seq of the last event seen"),
        ("If-None-Match" = Option<String>, Header, description = "Pages of a completed job: the page the client has"),
        ("Last-Event-ID" = Option<String>, Header, description = "Streams: the same, and it wins"),
        ("unnamed" = Option<bool>, Query, description = "Streams: without `event:` lines, for a plain `onmessage`"),
        ("limit" = Option<u32>, Query, description = "Pages: 1–1,000 events (more is capped), default 500"),
        ("wait" = Option<u32>, Query, description = "Pages: park up to so many seconds (capped at 55) for the next event"),
        ("Prefer" = Option<String>, Header, description = "Pages: `wait=25`, as the query parameter"),
    ),
    responses(
        (status = 200, description = "The stream, or a page", content(
            (schema::EventPage = "application/json"), (String = "text/event-stream"),
        )),
        (status = 204, description = "Streams: the job has ended and the client has seen all of it"),
        (status = 304, description = "Pages of a completed job: the client has it"),
        (status = 404, response = schema::ProblemResponse), (status = 422, response = schema::ProblemResponse),
        (status = 503, response = schema::ProblemResponse),
    )
)]
pub(super) async fn get_events(
    State(api): State<Api>,
    path: Result<JobPath, ApiError>,
    method: Method,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    // HEAD tells what GET on the JSON route would; it never opens a stream.
    let wants_stream = method == Method::GET && accepts_stream(&headers);
    let answered = match path {
        Ok(JobPath(id)) if wants_stream => open_stream(&api, id, query.as_deref(), &headers).await,
        Ok(JobPath(id)) => get_page(&api, id, query.as_deref(), &headers).await,
        Err(error) => Err(error),
    };
    answered.unwrap_or_else(|error| stream::answer_trouble(error, wants_stream))
}

const KNOWN: [&str; 5] = ["after", "limit", "wait", "unnamed", "token"];

async fn open_stream(api: &Api, id: JobId, query: Option<&str>, headers: &HeaderMap) -> ApiResult {
    let params = Params::of(query, &KNOWN)?;
    let unnamed = params.flag("unnamed")?;
    stream::log::open(api, id, stream_cursor(&params, headers), unnamed).await
}

async fn get_page(api: &Api, id: JobId, query: Option<&str>, headers: &HeaderMap) -> ApiResult {
    let params = Params::of(query, &KNOWN)?;
    let limit = params.capped("limit", 1, PAGE_LIMIT)?.unwrap_or(DEFAULT_LIMIT) as usize;
    let wait = Wait::of(&params, headers)?;
    let cursor = cursor(params.get("after").unwrap_or_default().as_bytes());
    let page = api.gateway.events_page(id, cursor, limit, wait.time).await?;
    let mut response = page_response(api, &page, limit, headers);
    if let Some(applied) = wait.applied {
        response.headers_mut().insert("preference-applied", applied.parse().expect("digits are visible ASCII"));
    }
    Ok(response)
}

#[derive(Serialize)]
struct PageBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    reset: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<&'a Job>,
    events: &'a [Event],
    next: u64,
    state: JobState,
    terminal: bool,
    more: bool,
}

fn page_response(api: &Api, page: &EventPage, limit: usize, headers: &HeaderMap) -> Response {
    let body = PageBody {
        reset: page.reset.map(ResetReason::as_str),
        job: page.reset.map(|_| &*page.job),
        events: &page.events,
        next: page.next,
        state: page.job.state,
        terminal: page.job.state.is_terminal(),
        more: page.more,
    };
    // A completed job's log changes no more: any cache of the client's may keep its pages.
    if page.job.state != JobState::Completed || page.reset.is_some() {
        return ([(CACHE_CONTROL, "no-store")], json_response(&body)).into_response();
    }
    let first = page.events.first().map_or(page.next + 1, |event| event.seq);
    let etag = format!("\"{}-{}-{first}-{}-{limit}\"", api.gateway.epoch(), page.job.id, page.next);
    let mut response = match is_not_modified(headers, &etag) {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => json_response(&body),
    };
    let answered = response.headers_mut();
    answered.insert(ETAG, etag.parse().expect("an etag is visible ASCII"));
    answered.insert(CACHE_CONTROL, HeaderValue::from_static("private, max-age=31536000, immutable"));
    response
}
