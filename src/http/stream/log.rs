//! A job's log as a stream: state or replay first, then live, until the job ends.

use std::pin::Pin;

use axum::http::StatusCode;
use axum::http::header::CACHE_CONTROL;
use axum::response::IntoResponse;
use bytes::{Bytes, BytesMut};
use serde_json::json;
use tokio_stream::{Stream, StreamExt};

use super::{Live, Next, Source, Topic, begin, retry_line, trouble};
use crate::bus::Control;
use crate::domain::{JobId, Refusal};
use crate::http::error::ApiError;
use crate::http::{Api, ApiResult};
use crate::service::{Cursor, Follow, Opening, Reader, ServiceError, Step};

/// Opens a stream of a job. The state is read before the answer begins: an unknown job is a 404.
pub(in crate::http) async fn open(api: &Api, id: JobId, cursor: Cursor, unnamed: bool) -> ApiResult {
    if api.gateway.is_draining() {
        return Err(ApiError::shutting_down());
    }
    let mut steps: Steps = Box::pin(api.gateway.follow(id, cursor, Follow::Frames { unnamed }, Reader::Watcher));
    let Some(step) = steps.next().await.transpose()? else {
        return Err(ServiceError::ShuttingDown.into());
    };
    let mut first = BytesMut::from(retry_line().as_bytes());
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
        Step::Removed => return Err(Refusal::JobNotFound.into()),
        Step::Events(_) => unreachable!("frames were asked for"),
    };
    // Only now: a job that is not there, or has nothing more to say, is that also for the newcomer over the cap.
    let live = Live { topic: Topic::Job { id, cursor }, first: first.freeze(), unnamed };
    begin(api, live, Log { steps, seen: cursor, unnamed })
}

type Steps = Pin<Box<dyn Stream<Item = Result<Step, ServiceError>> + Send>>;

struct Log {
    steps: Steps,
    /// The seq of the last event that was passed on.
    seen: u64,
    unnamed: bool,
}

impl Source for Log {
    async fn next(&mut self) -> Next {
        loop {
            return match self.steps.next().await {
                Some(Ok(Step::Frames { bytes, to })) => {
                    self.seen = to;
                    Next::Frames(bytes)
                }
                Some(Ok(Step::End(state))) => Next::End(end(state.as_str(), self.unnamed)),
                Some(Ok(Step::Removed)) => Next::End(end("deleted", self.unnamed)),
                Some(Ok(Step::Opening(_) | Step::UpToDate(_) | Step::Events(_))) => continue,
                // What is no passing trouble: removed while it was read.
                Some(Err(error)) => {
                    Next::End(trouble(error, self.unnamed).unwrap_or_else(|| end("deleted", self.unnamed)))
                }
                None => Next::Nothing,
            };
        }
    }

    fn ping(&self) -> Bytes {
        ping(self.seen, self.unnamed)
    }
}

fn ping(seq: u64, unnamed: bool) -> Bytes {
    Control::named("ping").encode(&json!({"seq": seq}), unnamed)
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
    let state_id = output.is_none().then(|| job.seq.to_string());
    out.extend_from_slice(&Control { id: state_id, ..Control::named("state") }.encode(&**job, unnamed));
    if let Some(output) = output {
        let mut data = json!({"offset": output.offset, "text": output.text});
        if output.offset > 0 {
            data["truncated"] = true.into();
        }
        let frame = Control { id: Some(job.seq.to_string()), ..Control::named("output") };
        out.extend_from_slice(&frame.encode(&json!({"type": "output", "data": data}), unnamed));
    }
}
