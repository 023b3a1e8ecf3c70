//! The life of a stream, whatever it carries: a first frame, then what its [`Source`] has, with pings in between, until
//! the source ends, it is time to rotate, or the gateway stops. Knows no transport: the answer it makes is right on any.

pub(super) mod log;

use std::convert::Infallible;
use std::time::{Duration, Instant};

use async_stream::stream;
use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::sleep_until;
use tokio_stream::Stream;

use super::error::ApiError;
use super::{Api, ApiResult};
use crate::bus::Control;
use crate::domain::{JobId, WorkerName};
use crate::service::ServiceError;

/// Reconnect after: on a healthy gateway, and after a passing trouble. Drawn, so that clients do not come back in step.
const RETRY_MS: std::ops::RangeInclusive<u64> = 1_000..=3_000;
const TROUBLE_RETRY_MS: std::ops::RangeInclusive<u64> = 5_000..=15_000;

/// On shutdown streams end over at most this share of the drain time, and sooner if they are few.
const FAREWELL_SHARE: f64 = 0.6;
const FAREWELL_PER_STREAM: Duration = Duration::from_millis(20);

/// A live stream, as an extension of its response: enough for a transport to deliver it without the response's body.
#[derive(Clone, Debug)]
pub struct Live {
    /// What it is about.
    pub topic: Topic,
    /// What leaves with the headers.
    pub first: Bytes,
    /// Whether `event:` lines are left out.
    pub unnamed: bool,
}

/// What a stream is about.
#[derive(Clone, Debug)]
pub enum Topic {
    /// A job's log.
    Job {
        /// The job.
        id: JobId,
        /// The seq of the last event in [`Live::first`]: what follows begins after it.
        cursor: u64,
    },
    /// What a worker is told.
    Worker(WorkerName),
    /// The states of jobs.
    Feed,
}

/// What a stream carries after its first frame.
pub(super) trait Source: Send + 'static {
    /// Waits for what comes next. Dropping the future loses nothing.
    fn next(&mut self) -> impl Future<Output = Next> + Send;

    /// What is said after a silence.
    fn ping(&self) -> Bytes;

    /// What is said as soon as the gateway begins to drain; the `bye` follows in its own time.
    fn drain(&self) -> Option<Bytes> {
        None
    }
}

/// What comes next on a stream.
pub(super) enum Next {
    /// Whole frames.
    Frames(Bytes),
    /// The last ones.
    End(Bytes),
    /// Nothing, any more.
    Nothing,
}

/// The answer that is a live stream, if there is room for one more.
pub(super) fn begin(api: &Api, live: Live, source: impl Source) -> ApiResult {
    let permit = api.streams.clone().try_acquire_owned().map_err(|_| ApiError::from(ServiceError::Overloaded))?;
    let mut response = stream_response(Body::from_stream(body(api.clone(), live.clone(), source, permit)));
    response.extensions_mut().insert(live);
    Ok(response)
}

/// The line with which the first frame of every stream begins.
fn retry_line() -> String {
    format!("retry: {}\n", retry_ms())
}

/// The same for a first frame that is a control frame.
pub(super) fn retry_ms() -> u64 {
    rand::random_range(RETRY_MS)
}

/// The answer to a request that ran into an error. For a stream a passing trouble is not an error status, which makes
/// a bare `EventSource` give up for good, but a `bye` with the time to come back.
pub(super) fn answer_trouble(error: ApiError, wants_stream: bool) -> Response {
    match error.passing_reason().filter(|_| wants_stream) {
        Some(reason) => {
            // As a stream of one frame: like every stream it has no Content-Length.
            let bye = Ok::<_, Infallible>(bye(reason, TROUBLE_RETRY_MS, false));
            stream_response(Body::from_stream(tokio_stream::once(bye)))
        }
        None => error.into_response(),
    }
}

/// The last frame of a stream that ran into an error; `None` if the trouble is none that passes.
pub(super) fn trouble(error: ServiceError, unnamed: bool) -> Option<Bytes> {
    ApiError::from(error).passing_reason().map(|reason| bye(reason, TROUBLE_RETRY_MS, unnamed))
}

fn stream_response(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    // Exactly this: some proxies decide by the whole value.
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store, no-transform"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

fn bye(reason: &str, retry_ms: std::ops::RangeInclusive<u64>, unnamed: bool) -> Bytes {
    let retry_ms = Some(rand::random_range(retry_ms));
    Control { retry_ms, ..Control::named("bye") }.encode(&json!({"reason": reason}), unnamed)
}

/// What a stream writes. It is driven by the transport: while the client takes nothing, nothing is read for it.
fn body(
    api: Api,
    live: Live,
    mut source: impl Source,
    permit: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    let settings = api.settings.clone();
    let (opened, unnamed) = (Instant::now(), live.unnamed);
    let rotate_at = opened + settings.stream_max_age.mul_f64(rand::random_range(0.75..=1.0));
    let drained = api.gateway.drained();
    stream! {
        let _permit = permit;
        yield Ok(live.first);
        let mut written = Instant::now();
        let mut quiet = settings.ping.mul_f64(rand::random_range(13.0 / 15.0..=17.0 / 15.0));
        let mut drained = Box::pin(drained);
        let mut timer = Box::pin(sleep_until((written + quiet).min(rotate_at).into()));
        loop {
            // The drain first, or a busy stream would never hear of it.
            tokio::select! {
                biased;
                () = &mut drained => break,
                () = &mut timer => {
                    let now = Instant::now();
                    if now >= rotate_at {
                        yield Ok(bye("rotate", RETRY_MS, unnamed));
                        return;
                    }
                    // One timer per stream, not one per write: it finds out by itself that there were writes.
                    if now.duration_since(written) >= quiet {
                        yield Ok(source.ping());
                        written = Instant::now();
                        quiet = settings.ping.mul_f64(rand::random_range(13.0 / 15.0..=17.0 / 15.0));
                    }
                    timer.as_mut().reset((written + quiet).min(rotate_at).into());
                }
                next = source.next() => match next {
                    Next::Frames(frames) => {
                        yield Ok(frames);
                        written = Instant::now();
                    }
                    Next::End(frames) => {
                        yield Ok(frames);
                        return;
                    }
                    Next::Nothing => return,
                }
            }
        }
        if let Some(frame) = source.drain() {
            yield Ok(frame);
        }
        // Everybody leaves by himself, spread out; what is committed meanwhile is found on the next node.
        let open = (settings.max_streams - api.streams.available_permits()) as u32;
        let farewell = settings.drain.mul_f64(FAREWELL_SHARE).min(FAREWELL_PER_STREAM * open);
        tokio::time::sleep(farewell.mul_f64(rand::random_range(0.0..=1.0))).await;
        yield Ok(bye("shutdown", TROUBLE_RETRY_MS, unnamed));
    }
}
