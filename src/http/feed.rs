//! The feed, by GET: the states of many jobs, as a stream for who asks for one, else as a page.

use std::pin::Pin;

use axum::extract::{RawQuery, State};
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderMap, Method};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep_until};
use tokio_stream::{Stream, StreamExt};

use super::error::ApiError;
use super::extract::{Params, Wait, accepts_stream};
use super::stream::{self, Live, Next, Source, Topic, trouble};
use super::{Api, ApiResult, json_response, schema};
use crate::bus::Control;
use crate::domain::{Interest, JobId};
use crate::service::{Fate, FeedCursor, FeedStep, ServiceError};

/// Values of one filter. More ids make a request line that proxies refuse.
const FILTERS: usize = 150;

/// The states of many jobs: a stream for `Accept: text/event-stream`, else a page. First every job that matches (jobs
/// named by id: all of them; else those that are live or ended in the last 10 minutes, at most 1,000, latest first), then
/// each again when it changes. A slow reader gets the newest state of each.
#[utoipa::path(
    get, path = "/v1/events", tag = "events",
    params(
        ("job" = Option<Vec<String>>, Query, description = "These jobs, at most 150. Filters are repeatable: OR within a name, AND between names; none at all: every job"),
        ("subject" = Option<Vec<String>>, Query, description = "Jobs about these"),
        ("queue" = Option<Vec<String>>, Query, description = "Jobs of these queues"),
        ("kind" = Option<Vec<String>>, Query, description = "Jobs of these kinds"),
        ("after" = Option<String>, Query, description = "The cursor: only what has changed since"),
        ("Last-Event-ID" = Option<String>, Header, description = "The same, and it wins"),
        ("unnamed" = Option<bool>, Query, description = "Streams: without `event:` lines, for a plain `onmessage`"),
        ("wait" = Option<u32>, Query, description = "Pages: park up to so many seconds (capped at 55) for the next change"),
        ("Prefer" = Option<String>, Header, description = "Pages: `wait=25`, as the query parameter"),
    ),
    responses(
        (status = 200, description = "The stream, or a page", content(
            (schema::FeedPage = "application/json"), (String = "text/event-stream"),
        )),
        (status = 422, response = schema::ProblemResponse), (status = 503, response = schema::ProblemResponse),
    )
)]
pub(super) async fn get_feed(
    State(api): State<Api>,
    method: Method,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    // HEAD tells what GET for JSON would; it never opens a stream.
    let wants_stream = method == Method::GET && accepts_stream(&headers);
    let answered = match Asked::of(query.as_deref(), &headers) {
        Ok(asked) if wants_stream => open(&api, asked).await,
        Ok(asked) => get_page(&api, asked).await,
        Err(error) => Err(error),
    };
    answered.unwrap_or_else(|error| stream::answer_trouble(error, wants_stream))
}

/// What a request asks for.
struct Asked {
    interest: Interest,
    /// Named jobs that cannot be any.
    unknown: Vec<String>,
    cursor: Option<String>,
    unnamed: bool,
    wait: Wait,
}

impl Asked {
    fn of(query: Option<&str>, headers: &HeaderMap) -> Result<Self, ApiError> {
        let known = ["after", "unnamed", "wait", "token"];
        let mut params = Params::with_lists(query, &known, &["job", "subject", "queue", "kind"])?;
        let mut list = |name: &str| match params.list(name) {
            Some(values) if values.len() > FILTERS => {
                Err(ApiError::invalid_request(format!("query parameter `{name}` may be given {FILTERS} times at most")))
            }
            given => Ok(given),
        };
        let (jobs, subjects) = (list("job")?, list("subject")?.unwrap_or_default());
        let (queues, kinds) = (list("queue")?.unwrap_or_default(), list("kind")?.unwrap_or_default());
        let mut unknown = Vec::new();
        let jobs = jobs.map(|ids| {
            let mut jobs = Vec::new();
            for text in ids {
                match JobId::parse(&text) {
                    None if !unknown.contains(&text) => unknown.push(text),
                    Some(id) if !jobs.contains(&id) => jobs.push(id),
                    None | Some(_) => {}
                }
            }
            jobs
        });
        let interest = Interest { jobs, subjects, queues, kinds };
        let cursor = cursor(&params, headers);
        Ok(Self { interest, unknown, cursor, unnamed: params.flag("unnamed")?, wait: Wait::of(&params, headers)? })
    }
}

/// The `Last-Event-ID` header wins, even as garbage: a browser re-uses the old URL. Several lines are garbage.
fn cursor(params: &Params, headers: &HeaderMap) -> Option<String> {
    let mut lines = headers.get_all("last-event-id").into_iter();
    match (lines.next(), lines.next()) {
        (Some(line), None) if line.is_empty() => params.get("after").map(str::to_owned),
        (Some(line), None) => Some(String::from_utf8_lossy(line.as_bytes()).into_owned()),
        (Some(_), Some(_)) => Some("?".to_owned()),
        (None, _) => params.get("after").map(str::to_owned),
    }
}

type Steps = Pin<Box<dyn Stream<Item = Result<FeedStep, ServiceError>> + Send>>;

/// Opens a stream. The states are read before the answer begins.
async fn open(api: &Api, asked: Asked) -> ApiResult {
    if api.gateway.is_draining() {
        return Err(ApiError::shutting_down());
    }
    let mut feed = Feed {
        steps: Box::pin(api.gateway.feed(asked.interest, asked.cursor.as_deref())),
        epoch: api.gateway.epoch().to_owned(),
        unnamed: asked.unnamed,
        unknown: asked.unknown,
        retry_ms: Some(stream::retry_ms()),
    };
    let mut first = BytesMut::new();
    loop {
        let step = feed.steps.next().await.transpose()?.ok_or(ServiceError::Internal)?;
        let (is_reset, is_live) = (matches!(step, FeedStep::Reset), matches!(step, FeedStep::Live { .. }));
        feed.write_step(&mut first, step);
        if is_live && first.is_empty() {
            feed.write(&mut first, "ping", None, &json!({}));
        }
        if is_live || (!is_reset && !first.is_empty()) {
            break;
        }
    }
    stream::begin(api, Live { topic: Topic::Feed, first: first.freeze(), unnamed: asked.unnamed }, feed)
}

struct Feed {
    steps: Steps,
    epoch: String,
    unnamed: bool,
    /// Named jobs that cannot be any, until they have been reported.
    unknown: Vec<String>,
    /// For the first frame.
    retry_ms: Option<u64>,
}

impl Feed {
    fn write_step(&mut self, out: &mut BytesMut, step: FeedStep) {
        match step {
            FeedStep::Reset => self.write(out, "reset", None, &json!({"reason": "invalid"})),
            FeedStep::Changes { fates, before, after } => {
                self.report_unknown(out, before);
                let last = fates.len();
                for (index, fate) in fates.iter().enumerate() {
                    // An id counts once its frame is whole: before the last one not everything up to `after` is there.
                    let cursor = if index + 1 == last { after } else { before }.to_text(&self.epoch);
                    match fate {
                        Fate::State(shown) => self.write(out, "state", Some(cursor), shown.document()),
                        Fate::Gone(id) => self.write(out, "gone", Some(cursor), &json!({"id": id})),
                    }
                }
            }
            FeedStep::Live { truncated, after } => {
                self.report_unknown(out, after);
                if truncated {
                    self.write(out, "ping", None, &json!({"truncated": true}));
                }
            }
        }
    }

    fn report_unknown(&mut self, out: &mut BytesMut, cursor: FeedCursor) {
        for id in std::mem::take(&mut self.unknown) {
            self.write(out, "gone", Some(cursor.to_text(&self.epoch)), &json!({"id": id}));
        }
    }

    fn write(&mut self, out: &mut BytesMut, name: &str, id: Option<String>, data: &(impl Serialize + ?Sized)) {
        let frame = Control { name, id, retry_ms: self.retry_ms.take() };
        out.extend_from_slice(&frame.encode(data, self.unnamed));
    }
}

impl Source for Feed {
    async fn next(&mut self) -> Next {
        loop {
            let mut out = BytesMut::new();
            match self.steps.next().await {
                Some(Ok(step)) => self.write_step(&mut out, step),
                Some(Err(error)) => return trouble(error, self.unnamed).map_or(Next::Nothing, Next::End),
                None => return Next::Nothing,
            }
            if !out.is_empty() {
                return Next::Frames(out.freeze());
            }
        }
    }

    fn ping(&self) -> Bytes {
        Control::named("ping").encode(&json!({}), self.unnamed)
    }
}

#[derive(Serialize)]
struct PageBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    reset: Option<&'static str>,
    jobs: Vec<&'a RawValue>,
    gone: Vec<String>,
    next: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

/// A page: what there is, or, for a cursor after which nothing has changed, what comes within the time.
async fn get_page(api: &Api, asked: Asked) -> ApiResult {
    let until = Instant::now() + asked.wait.time;
    let mut steps: Steps = Box::pin(api.gateway.feed(asked.interest, asked.cursor.as_deref()));
    let (mut states, mut gone, mut reset) = (Vec::new(), asked.unknown, None);
    let (mut is_live, mut is_truncated, mut next) = (false, false, FeedCursor::Beginning);
    let resumes = asked.cursor.is_some_and(|cursor| !cursor.is_empty());
    while !is_live || (resumes && reset.is_none() && states.is_empty() && gone.is_empty()) {
        let step = tokio::select! {
            step = steps.next() => step.transpose()?.ok_or(ServiceError::Internal)?,
            () = sleep_until(until), if is_live => break,
            () = api.gateway.drained(), if is_live => break,
        };
        match step {
            FeedStep::Reset => reset = Some("invalid"),
            FeedStep::Changes { fates, after, .. } => {
                next = after;
                for fate in fates {
                    match fate {
                        Fate::State(shown) => states.push(shown),
                        Fate::Gone(id) => gone.push(id.to_string()),
                    }
                }
            }
            FeedStep::Live { truncated, after } => {
                (is_live, next) = (true, after);
                is_truncated |= truncated;
            }
        }
    }
    let jobs = states.iter().map(|shown| shown.document()).collect();
    let body = PageBody { reset, jobs, gone, next: next.to_text(api.gateway.epoch()), truncated: is_truncated };
    let mut response = ([(CACHE_CONTROL, "no-store")], json_response(&body)).into_response();
    if let Some(applied) = asked.wait.applied {
        response.headers_mut().insert("preference-applied", applied.parse().expect("digits are visible ASCII"));
    }
    Ok(response)
}
