//! Queues: how they stand; settings, pause, resume.

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::HeaderMap;
use axum::http::header::CACHE_CONTROL;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::extract::{Params, QueuePath, json_body, no_fields, optional_json_body};
use super::{ANYBODY, Api, ApiResult, json_response, schema};
use crate::domain::{SettingsPatch, parse_pause};
use crate::service::QueueReport;

/// How a queue stands changes by the moment.
fn answer(body: &impl Serialize) -> Response {
    ([(CACHE_CONTROL, "no-store")], json_response(body)).into_response()
}

#[derive(Serialize)]
struct QueuesBody {
    queues: Vec<QueueReport>,
}

/// All queues, by name: settings, counts, how long jobs wait and run.
#[utoipa::path(
    get, path = "/v1/queues", tag = "queues",
    responses(
        (status = 200, description = "Every queue that was ever used or set", body = schema::Queues),
        (status = 422, response = schema::ProblemResponse), (status = 503, response = schema::ProblemResponse),
    )
)]
pub(super) async fn list_queues(State(api): State<Api>, RawQuery(query): RawQuery) -> ApiResult {
    Params::of(query.as_deref(), &[])?;
    Ok(answer(&QueuesBody { queues: api.gateway.queues().await? }))
}

/// One queue: settings, counts, how long jobs wait and run.
#[utoipa::path(
    get, path = "/v1/queues/{q}", tag = "queues", params(schema::QueueName),
    responses(
        (status = 200, description = "How it stands", body = schema::Queue),
        (status = 404, response = schema::ProblemResponse), (status = 422, response = schema::ProblemResponse),
        (status = 503, response = schema::ProblemResponse),
    )
)]
pub(super) async fn get_queue(State(api): State<Api>, path: QueuePath, RawQuery(query): RawQuery) -> ApiResult {
    Params::of(query.as_deref(), &[])?;
    Ok(answer(&api.gateway.queue(&path.known()?).await?))
}

/// Change a queue's settings: what is named is set, or cleared by `null`; the rest stays. Makes the queue if need be.
#[utoipa::path(
    patch, path = "/v1/queues/{q}", tag = "queues", params(schema::QueueName),
    request_body = schema::QueueSettings,
    responses(
        (status = 200, description = "How it stands now", body = schema::Queue),
        (status = 400, response = schema::ProblemResponse), (status = 413, response = schema::ProblemResponse),
        (status = 415, response = schema::ProblemResponse), (status = 422, response = schema::ProblemResponse),
        (status = 503, response = schema::ProblemResponse),
    )
)]
pub(super) async fn set_queue(
    State(api): State<Api>,
    path: QueuePath,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> ApiResult {
    Params::of(query.as_deref(), &[])?;
    let patch = SettingsPatch::parse(json_body(&headers, body, api.settings.max_body).await?)?;
    Ok(answer(&api.gateway.set_queue(&path.nameable()?, patch).await?))
}

/// Hand nothing of a queue out any more; what runs goes on. Makes the queue if need be.
#[utoipa::path(
    post, path = "/v1/queues/{q}/pause", tag = "queues", params(schema::QueueName),
    request_body(content = schema::PauseRequest, description = "May be left out"),
    responses(
        (status = 200, description = "How it stands now", body = schema::Queue),
        (status = 400, response = schema::ProblemResponse), (status = 413, response = schema::ProblemResponse),
        (status = 415, response = schema::ProblemResponse), (status = 422, response = schema::ProblemResponse),
        (status = 503, response = schema::ProblemResponse),
    )
)]
pub(super) async fn pause_queue(
    State(api): State<Api>,
    path: QueuePath,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> ApiResult {
    Params::of(query.as_deref(), &[])?;
    let reason = parse_pause(optional_json_body(&headers, body, api.settings.max_body).await?)?;
    Ok(answer(&api.gateway.pause_queue(&path.nameable()?, ANYBODY.to_owned(), reason).await?))
}

/// Hand a queue's jobs out again.
#[utoipa::path(
    post, path = "/v1/queues/{q}/resume", tag = "queues", params(schema::QueueName),
    responses(
        (status = 200, description = "How it stands now", body = schema::Queue),
        (status = 400, response = schema::ProblemResponse), (status = 404, response = schema::ProblemResponse),
        (status = 413, response = schema::ProblemResponse), (status = 415, response = schema::ProblemResponse),
        (status = 422, response = schema::ProblemResponse), (status = 503, response = schema::ProblemResponse),
    )
)]
pub(super) async fn resume_queue(
    State(api): State<Api>,
    path: QueuePath,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> ApiResult {
    Params::of(query.as_deref(), &[])?;
    no_fields(&headers, body, api.settings.max_body).await?;
    Ok(answer(&api.gateway.resume_queue(&path.known()?).await?))
}
