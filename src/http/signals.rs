//! What a worker is told while it works, by GET: as a stream for who asks for one, else what it has been asked so far.

use std::pin::Pin;

use axum::extract::{RawQuery, State};
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderMap, Method};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Serialize;
use serde_json::json;
use tokio_stream::{Stream, StreamExt};

use super::error::ApiError;
use super::extract::{Params, WorkerPath, accepts_stream};
use super::stream::{self, Live, Next, Source, Topic, trouble};
use super::{Api, ApiResult, json_response, schema};
use crate::bus::Control;
use crate::domain::{CancelSignal, WorkerName};
use crate::service::{ServiceError, Told};

/// What a worker is told while it works. A stream for `Accept: text/event-stream`: `state` first, then `cancel`,
/// `lease_lost` and `drain` as they come. Else the state alone. Processes of one name all get everything.
#[utoipa::path(
    get, path = "/v1/workers/{worker}/signals", tag = "workers",
    params(
        schema::WorkerName,
        ("unnamed" = Option<bool>, Query, description = "Streams: without `event:` lines, for a plain `onmessage`"),
    ),
    responses(
        (status = 200, description = "The stream, or what it begins with", content(
            (schema::Signals = "application/json"), (String = "text/event-stream"),
        )),
        (status = 422, response = schema::ProblemResponse), (status = 503, response = schema::ProblemResponse),
    )
)]
pub(super) async fn get_signals(
    State(api): State<Api>,
    path: Result<WorkerPath, ApiError>,
    method: Method,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    // HEAD tells what GET for JSON would; it never opens a stream.
    let wants_stream = method == Method::GET && accepts_stream(&headers);
    let answered = match path {
        Ok(WorkerPath(worker)) => answer(&api, worker, query.as_deref(), wants_stream).await,
        Err(error) => Err(error),
    };
    answered.unwrap_or_else(|error| stream::answer_trouble(error, wants_stream))
}

async fn answer(api: &Api, worker: WorkerName, query: Option<&str>, wants_stream: bool) -> ApiResult {
    let unnamed = Params::of(query, &["unnamed"])?.flag("unnamed")?;
    if wants_stream {
        return open(api, worker, unnamed).await;
    }
    let state = SignalState { cancel: &api.gateway.cancels(&worker).await?, drain: api.gateway.is_draining() };
    Ok(([(CACHE_CONTROL, "no-store")], json_response(&state)).into_response())
}

/// Opens a stream. The flags are read before the answer begins.
async fn open(api: &Api, worker: WorkerName, unnamed: bool) -> ApiResult {
    if api.gateway.is_draining() {
        return Err(ApiError::shutting_down());
    }
    let mut told: Signals = Box::pin(api.gateway.signals(worker.clone()));
    let Some(Told::State(cancels)) = told.next().await.transpose()? else {
        return Err(ServiceError::Internal.into());
    };
    let first = Control { retry_ms: Some(stream::retry_ms()), ..Control::named("state") };
    let first = first.encode(&SignalState { cancel: &cancels, drain: false }, unnamed);
    stream::begin(api, Live { topic: Topic::Worker(worker), first, unnamed }, SignalSource { told, unnamed })
}

#[derive(Serialize)]
struct SignalState<'a> {
    cancel: &'a [CancelSignal],
    drain: bool,
}

type Signals = Pin<Box<dyn Stream<Item = Result<Told, ServiceError>> + Send>>;

struct SignalSource {
    told: Signals,
    unnamed: bool,
}

impl SignalSource {
    fn frame(&self, name: &str, data: &impl Serialize) -> Bytes {
        Control::named(name).encode(data, self.unnamed)
    }
}

impl Source for SignalSource {
    async fn next(&mut self) -> Next {
        match self.told.next().await {
            Some(Ok(Told::State(cancels))) => {
                Next::Frames(self.frame("state", &SignalState { cancel: &cancels, drain: false }))
            }
            Some(Ok(Told::Cancel(cancel))) => Next::Frames(self.frame("cancel", &cancel)),
            Some(Ok(Told::LeaseLost { job, run })) => {
                Next::Frames(self.frame("lease_lost", &json!({"job": job, "run": run})))
            }
            Some(Err(error)) => trouble(error, self.unnamed).map_or(Next::Nothing, Next::End),
            None => Next::Nothing,
        }
    }

    fn ping(&self) -> Bytes {
        self.frame("ping", &json!({}))
    }

    fn drain(&self) -> Option<Bytes> {
        Some(self.frame("drain", &json!({})))
    }
}
