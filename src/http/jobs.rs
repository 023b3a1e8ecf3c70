//! Jobs: enqueue, cancel, retry, delete.

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::header::{LOCATION, RETRY_AFTER};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::error::ApiError;
use super::extract::{JobPath, Params, idempotency, json_body, optional_json_body};
use super::{Api, ApiResult, HttpSettings, json_response, schema, url};
use crate::domain::{CancelRequest, Refusal, Spec};
use crate::service::{CancelAnswer, Enqueued, ServiceError};

/// Specs in one batch.
const MAX_BATCH: usize = 1_000;

/// Who acts, while there are no credentials.
const ANYBODY: &str = "anonymous";

fn enqueued_body(settings: &HttpSettings, enqueued: &Enqueued) -> Value {
    let path = format!("/v1/jobs/{}", enqueued.job.id);
    let mut body = json!({
        "job": enqueued.job, "created": enqueued.created,
        "urls": {
            "job": url(settings, &path), "events": url(settings, &format!("{path}/events")),
            "page": url(settings, &format!("/jobs/{}", enqueued.job.id)),
        },
    });
    if let Some(replaced) = enqueued.replaced {
        body["replaced"] = json!(replaced);
    }
    body
}

fn enqueued_status(enqueued: &Enqueued) -> StatusCode {
    if enqueued.created { StatusCode::ACCEPTED } else { StatusCode::OK }
}

/// Enqueue a job. Durable on return.
#[utoipa::path(
    post, path = "/v1/jobs", tag = "jobs",
    params(("Idempotency-Key" = Option<String>, Header, description = "1–255 visible ASCII characters; the same key and body within 24 h answer with the same job")),
    request_body = schema::Spec,
    responses(
        (status = 202, description = "Accepted", body = schema::Enqueued),
        (status = 200, description = "An existing job answers", body = schema::Enqueued),
        (status = 400, response = schema::ProblemResponse), (status = 413, response = schema::ProblemResponse),
        (status = 415, response = schema::ProblemResponse), (status = 422, response = schema::ProblemResponse),
        (status = 503, response = schema::ProblemResponse),
    )
)]
pub(super) async fn enqueue_job(
    State(api): State<Api>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> ApiResult {
    Params::of(query.as_deref(), &[])?;
    let body = json_body(&headers, body, api.settings.max_body).await?;
    let idempotency = idempotency(&headers, "anonymous POST /v1/jobs", &body)?;
    let spec = Spec::parse(body, api.gateway.limits())?;
    let enqueued = api.gateway.enqueue(vec![spec], idempotency).await?.pop();
    let enqueued = enqueued.unwrap_or(Err(ServiceError::Refused(Refusal::JobNotFound)))?;
    let location = url(&api.settings, &format!("/v1/jobs/{}", enqueued.job.id));
    let headers = [(LOCATION, location), (RETRY_AFTER, "2".to_owned())];
    Ok((enqueued_status(&enqueued), headers, json_response(&enqueued_body(&api.settings, &enqueued))).into_response())
}

/// Enqueue up to 1,000 jobs in one transaction. A bad one fails alone.
#[utoipa::path(
    post, path = "/v1/jobs/batch", tag = "jobs",
    params(("Idempotency-Key" = Option<String>, Header, description = "Covers the whole request")),
    request_body = schema::EnqueueBatch,
    responses(
        (status = 200, description = "A result per spec, in order", body = schema::BatchResults),
        (status = 400, response = schema::ProblemResponse), (status = 413, response = schema::ProblemResponse),
        (status = 415, response = schema::ProblemResponse), (status = 422, response = schema::ProblemResponse),
        (status = 503, response = schema::ProblemResponse),
    )
)]
pub(super) async fn enqueue_batch(
    State(api): State<Api>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> ApiResult {
    Params::of(query.as_deref(), &[])?;
    let mut body = json_body(&headers, body, api.settings.max_body).await?;
    let idempotency = idempotency(&headers, "anonymous POST /v1/jobs/batch", &body)?;
    let members = body.as_object_mut().ok_or_else(|| ApiError::invalid_request("must be a JSON object").at(""))?;
    let jobs = match members.remove("jobs") {
        Some(Value::Array(jobs)) if jobs.len() <= MAX_BATCH => jobs,
        Some(Value::Array(_)) => {
            return Err(ApiError::invalid_request(format!("must have at most {MAX_BATCH} items")).at("/jobs"));
        }
        Some(_) | None => return Err(ApiError::invalid_request("must be an array of specs").at("/jobs")),
    };
    if let Some(unknown) = members.keys().next() {
        return Err(ApiError::invalid_request("is not a known field").at(format!("/{unknown}")));
    }
    let parsed: Vec<Result<Spec, Refusal>> =
        jobs.into_iter().map(|job| Spec::parse(job, api.gateway.limits())).collect();
    let specs: Vec<Spec> = parsed.iter().filter_map(|spec| spec.as_ref().ok().cloned()).collect();
    let mut enqueued = match specs.is_empty() {
        true => Vec::new(),
        false => api.gateway.enqueue(specs, idempotency).await?,
    }
    .into_iter();
    let results: Vec<Value> = parsed
        .into_iter()
        .enumerate()
        .map(|(index, spec)| {
            let enqueued = spec.map_err(ApiError::from).and_then(|_| {
                let missing = || Err(ServiceError::Refused(Refusal::JobNotFound));
                enqueued.next().unwrap_or_else(missing).map_err(ApiError::from)
            });
            match enqueued {
                Ok(enqueued) => {
                    let mut result = enqueued_body(&api.settings, &enqueued);
                    result["status"] = json!(enqueued_status(&enqueued).as_u16());
                    result
                }
                Err(error) => {
                    let error = error.under(&format!("/jobs/{index}"));
                    json!({"status": error.status().as_u16(), "error": error.problem()})
                }
            }
        })
        .collect();
    Ok(json_response(&json!({"results": results})))
}

/// Cancel a job: at once if it waits, by asking its runner if it runs.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/cancel", tag = "jobs", params(schema::JobId),
    request_body(content = schema::CancelRequest, description = "May be left out"),
    responses(
        (status = 202, description = "Cancelled, or the runner is asked to stop", body = schema::Job),
        (status = 200, description = "It had been cancelled before", body = schema::Job),
        (status = 404, response = schema::ProblemResponse), (status = 409, response = schema::ProblemResponse),
        (status = 400, response = schema::ProblemResponse), (status = 415, response = schema::ProblemResponse),
        (status = 422, response = schema::ProblemResponse), (status = 503, response = schema::ProblemResponse),
    )
)]
pub(super) async fn cancel_job(
    State(api): State<Api>,
    JobPath(id): JobPath,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> ApiResult {
    Params::of(query.as_deref(), &[])?;
    let request = CancelRequest::parse(optional_json_body(&headers, body, api.settings.max_body).await?)?;
    Ok(match api.gateway.cancel(id, request.reason, request.grace_ms, ANYBODY.to_owned()).await? {
        CancelAnswer::Accepted(job) => (StatusCode::ACCEPTED, json_response(&job)).into_response(),
        CancelAnswer::Already(job) => json_response(&job),
    })
}

/// Put a failed, cancelled or expired job back into its queue: same id, attempts counted anew, the log goes on.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/retry", tag = "jobs", params(schema::JobId),
    responses(
        (status = 202, description = "Back in its queue", body = schema::Job),
        (status = 404, response = schema::ProblemResponse),
        (status = 409, response = schema::ProblemResponse),
        (status = 503, response = schema::ProblemResponse),
    )
)]
pub(super) async fn retry_job(State(api): State<Api>, JobPath(id): JobPath, RawQuery(query): RawQuery) -> ApiResult {
    Params::of(query.as_deref(), &[])?;
    let job = api.gateway.retry(id, ANYBODY.to_owned()).await?;
    Ok((StatusCode::ACCEPTED, json_response(&job)).into_response())
}

/// Remove a job that has ended, with its log. Open streams get `end`.
#[utoipa::path(
    delete, path = "/v1/jobs/{id}", tag = "jobs", params(schema::JobId),
    responses(
        (status = 204, description = "Removed"),
        (status = 404, response = schema::ProblemResponse), (status = 409, response = schema::ProblemResponse),
        (status = 503, response = schema::ProblemResponse),
    )
)]
pub(super) async fn delete_job(
    State(api): State<Api>,
    JobPath(id): JobPath,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    Params::of(query.as_deref(), &[])?;
    api.gateway.delete(id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
