//! The life of a stream: state or replay first, then live, with pings, until the job ends, it is time to rotate, or
//! the gateway stops. Knows no transport: the answer it makes is right on any.

use std::convert::Infallible;
use std::pin::Pin;
use std::time::{Duration, Instant};

use async_stream::stream;
use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::sleep_until;
use tokio_stream::{Stream, StreamExt};

use super::error::ApiError;
use super::{Api, ApiResult};
use crate::bus::Control;
use crate::domain::JobId;
use crate::service::{Cursor, Follow, Opening, Reader, ServiceError, Step};

/// Reconnect after: on a healthy gateway, and after a passing trouble. Drawn, so that clients do not come back in step.
const RETRY_MS: std::ops::RangeInclusive<u64> = 1_000..=3_000;
const TROUBLE_RETRY_MS: std::ops::RangeInclusive<u64> = 5_000..=15_000;

/// On shutdown streams end over at most this share of the drain time, and sooner if they are few.
const FAREWELL_SHARE: f64 = 0.6;
const FAREWELL_PER_STREAM: Duration = Duration::from_millis(20);

/// A live stream, as an extension of its response: enough for a transport to deliver it without the response's body.
#[derive(Clone, Debug)]
pub struct Live {
    /// The job.
    pub job: JobId,
    /// The seq of the last event in `first`: what follows begins after it.
    pub cursor: u64,
    /// What leaves with the headers.
    pub first: Bytes,
    /// Whether `event:` lines are left out.
    pub unnamed: bool,
}

type Steps = Pin<Box<dyn Stream<Item = Result<Step, ServiceError>> + Send>>;

/// Opens a stream of a job. The state is read before the answer begins: an unknown job is a 404.
pub(super) async fn open(api: &Api, id: JobId, cursor: Cursor, unnamed: bool) -> ApiResult {
    if api.gateway.is_draining() {
        return Err(ApiError::shutting_down());
    }
    let mut steps: Steps = Box::pin(api.gateway.follow(id, cursor, Follow::Frames { unnamed }, Reader::Watcher));
    let Some(step) = steps.next().await.transpose()? else {
        return Err(ServiceError::ShuttingDown.into());
    };
    let mut first = BytesMut::from(format!("retry: {}\n", rand::random_range(RETRY_MS)).as_bytes());
    let cursor = match step {
        Step::Opening(opening) => {
            write_opening(&mut first, &opening, unnamed);
            opening.job.seq
        }
        Step::Frames { bytes, to } => {
            first.extend_from_slice(&bytes);
            to
        }
        Step::UpToDate(seq) => {
            first.extend_from_slice(&ping(seq, unnamed));
            seq
        }
        // Nothing to say, and nothing will follow: the status that makes a browser stop for good.
        Step::End(_) => return Ok((StatusCode::NO_CONTENT, [(CACHE_CONTROL, "no-store")]).into_response()),
        Step::Removed => return Err(crate::domain::Refusal::JobNotFound.into()),
        Step::Events(_) => unreachable!("frames were asked for"),
    };
    // Only now: a job that is not there, or has nothing more to say, is that also for the newcomer over the cap.
    let permit = api.streams.clone().try_acquire_owned().map_err(|_| ApiError::from(ServiceError::Overloaded))?;
    let first = first.freeze();
    let live = Live { job: id, cursor, first: first.clone(), unnamed };
    let mut response = stream_response(Body::from_stream(body(api.clone(), live.clone(), steps, permit)));
    response.extensions_mut().insert(live);
    Ok(response)
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

fn stream_response(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    // Exactly this: some proxies decide by the whole value.
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store, no-transform"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

fn ping(seq: u64, unnamed: bool) -> Bytes {
    Control::named("ping").encode(&json!({"seq": seq}), unnamed)
}

fn bye(reason: &str, retry_ms: std::ops::RangeInclusive<u64>, unnamed: bool) -> Bytes {
    let retry_ms = Some(rand::random_range(retry_ms));
    Control { retry_ms, ..Control::named("bye") }.encode(&json!({"reason": reason}), unnamed)
}

fn end(state: &str, unnamed: bool) -> Bytes {
    Control::named("end").encode(&json!({"state": state}), unnamed)
}

fn write_opening(out: &mut BytesMut, opening: &Opening, unnamed: bool) {
    let Opening { reset, job, output } = opening;
    if let Some(reason) = reset {
        out.extend_from_slice(&Control::named("reset").encode(&json!({"reason": reason.as_str()}), unnamed));
    }
    // An id counts once its frame is whole. So it stands on the last frame of the opening: a cut before that gives a
    // fresh opening, not lost text.
    let state_id = output.is_none().then_some(job.seq);
    out.extend_from_slice(&Control { id: state_id, ..Control::named("state") }.encode(&**job, unnamed));
    if let Some(output) = output {
        let mut data = json!({"offset": output.offset, "text": output.text});
        if output.offset > 0 {
            data["truncated"] = true.into();
        }
        let frame = Control { id: Some(job.seq), ..Control::named("output") };
        out.extend_from_slice(&frame.encode(&json!({"type": "output", "data": data}), unnamed));
    }
}

/// What a stream writes. It is driven by the transport: while the client takes nothing, nothing is read for it.
fn body(
    api: Api,
    live: Live,
    mut steps: Steps,
    permit: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    let settings = api.settings.clone();
    let (opened, unnamed) = (Instant::now(), live.unnamed);
    let rotate_at = opened + settings.stream_max_age.mul_f64(rand::random_range(0.75..=1.0));
    let drained = api.gateway.drained();
    stream! {
        let _permit = permit;
        let mut seen = live.cursor;
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
                        yield Ok(ping(seen, unnamed));
                        written = Instant::now();
                        quiet = settings.ping.mul_f64(rand::random_range(13.0 / 15.0..=17.0 / 15.0));
                    }
                    timer.as_mut().reset((written + quiet).min(rotate_at).into());
                }
                step = steps.next() => {
                    match step {
                        Some(Ok(Step::Frames { bytes, to })) => {
                            seen = to;
                            yield Ok(bytes);
                            written = Instant::now();
                        }
                        Some(Ok(Step::End(state))) => {
                            yield Ok(end(state.as_str(), unnamed));
                            return;
                        }
                        Some(Ok(Step::Removed)) => {
                            yield Ok(end("deleted", unnamed));
                            return;
                        }
                        Some(Ok(Step::Opening(_) | Step::UpToDate(_) | Step::Events(_))) => {}
                        Some(Err(error)) => {
                            let error = ApiError::from(error);
                            yield Ok(match error.passing_reason() {
                                Some(reason) => bye(reason, TROUBLE_RETRY_MS, unnamed),
                                // Removed while it was read.
                                None => end("deleted", unnamed),
                            });
                            return;
                        }
                        None => return,
                    }
                }
            }
        }
        // Everybody leaves by himself, spread out; what is committed meanwhile is found on the next node.
        let open = (settings.max_streams - api.streams.available_permits()) as u32;
        let farewell = settings.drain.mul_f64(FAREWELL_SHARE).min(FAREWELL_PER_STREAM * open);
        tokio::time::sleep(farewell.mul_f64(rand::random_range(0.0..=1.0))).await;
        yield Ok(bye("shutdown", TROUBLE_RETRY_MS, unnamed));
    }
}
