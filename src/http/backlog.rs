//! Purge and redrive: what an operator does to a queue's jobs all at once.

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::HeaderMap;
use serde::Serialize;

use super::extract::{Params, QueuePath, optional_json_body};
use super::{ANYBODY, Api, ApiResult, json_response, schema};
use crate::domain::Selection;

#[derive(Serialize)]
struct CountBody {
    count: u64,
}

/// Cancel what waits in a queue: scheduled, queued and retrying jobs, never running ones. Only jobs that are there when
/// it begins. Answered when it is done; if the client hangs up before that, some jobs are cancelled and some are not.
#[utoipa::path(
    post, path = "/v1/queues/{q}/purge", tag = "queues", params(schema::QueueName),
    request_body(content = schema::Selection, description = "May be left out"),
    responses(
        (status = 200, description = "How many were cancelled", body = schema::Count),
        (status = 404, response = schema::ProblemResponse),
        (status = 400, response = schema::ProblemResponse), (status = 415, response = schema::ProblemResponse),
        (status = 422, response = schema::ProblemResponse), (status = 503, response = schema::ProblemResponse),
    )
)]
pub(super) async fn purge_queue(
    State(api): State<Api>,
    queue: QueuePath,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> ApiResult {
    Params::of(query.as_deref(), &[])?;
    let selection = Selection::parse(optional_json_body(&headers, body, api.settings.max_body).await?)?;
    let count = api.gateway.purge(queue.known()?, &selection, ANYBODY).await?;
    Ok(json_response(&CountBody { count }))
}

/// Put a queue's dead letters (failed jobs) back into it, the oldest first. Tracked jobs, and jobs whose unique key is
/// held by a live one, are passed over. Answered when it is done; if the client hangs up before that, some jobs are put
/// back and some are not.
#[utoipa::path(
    post, path = "/v1/queues/{q}/redrive", tag = "queues", params(schema::QueueName),
    request_body(content = schema::Selection, description = "May be left out"),
    responses(
        (status = 200, description = "How many were put back", body = schema::Count),
        (status = 404, response = schema::ProblemResponse),
        (status = 400, response = schema::ProblemResponse), (status = 415, response = schema::ProblemResponse),
        (status = 422, response = schema::ProblemResponse), (status = 503, response = schema::ProblemResponse),
    )
)]
pub(super) async fn redrive_queue(
    State(api): State<Api>,
    queue: QueuePath,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> ApiResult {
    Params::of(query.as_deref(), &[])?;
    let selection = Selection::parse(optional_json_body(&headers, body, api.settings.max_body).await?)?;
    let count = api.gateway.redrive(queue.known()?, &selection, ANYBODY).await?;
    Ok(json_response(&CountBody { count }))
}
