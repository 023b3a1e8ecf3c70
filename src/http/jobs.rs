//! Jobs: enqueue, cancel, retry, delete.

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::header::{LOCATION, RETRY_AFTER};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;

use super::error::ApiError;
use super::extract::{JobPath, Params, idempotency, json_body, no_fields, optional_json_body};
use super::{ANYBODY, Api, ApiResult, HttpSettings, json_response, schema, url};
use crate::domain::{CancelRequest, Job, JobId, Refusal, Spec};
use crate::service::{CancelAnswer, Enqueued, ServiceError};

/// Specs in one batch.
const MAX_BATCH: usize = 1_000;

#[derive(Serialize)]
struct Urls {
    job: String,
    events: String,
    page: String,
}

/// The answer for one spec; in a batch with its status.
#[derive(Serialize)]
struct EnqueuedBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    job: &'a Job,
    created: bool,
    urls: Urls,
    #[serde(skip_serializing_if = "Option::is_none")]
    replaced: Option<JobId>,
}

impl<'a> EnqueuedBody<'a> {
    fn of(settings: &HttpSettings, enqueued: &'a Enqueued) -> Self {
        let id = enqueued.job.id;
        let urls = Urls {
            job: url(settings, &format!("/v1/jobs/{id}")),
            events: url(settings, &format!("/v1/jobs/{id}/events")),
            page: url(settings, &format!("/jobs/{id}")),
        };
        Self { status: None, job: &enqueued.job, created: enqueued.created, urls, replaced: enqueued.replaced }
    }
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
    let body = EnqueuedBody::of(&api.settings, &enqueued);
    let headers = [(LOCATION, body.urls.job.clone()), (RETRY_AFTER, "2".to_owned())];
    Ok((enqueued_status(&enqueued), headers, json_response(&body)).into_response())
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
    let results: Vec<Result<Enqueued, ApiError>> = parsed
        .into_iter()
        .map(|spec| {
            let missing = || Err(ServiceError::Refused(Refusal::JobNotFound));
            spec.map_err(ApiError::from).and_then(|_| Ok(enqueued.next().unwrap_or_else(missing)?))
        })
        .collect();
    #[derive(Serialize)]
    #[serde(untagged)]
    enum ItemBody<'a> {
        Enqueued(EnqueuedBody<'a>),
        Refused { status: u16, error: Value },
    }
    let body = results.iter().enumerate().map(|(index, result)| match result {
        Ok(enqueued) => {
            let status = Some(enqueued_status(enqueued).as_u16());
            ItemBody::Enqueued(EnqueuedBody { status, ..EnqueuedBody::of(&api.settings, enqueued) })
        }
        Err(error) => ItemBody::Refused {
            status: error.status().as_u16(),
            error: error.clone().under(&format!("/jobs/{index}")).problem(),
        },
    });
    #[derive(Serialize)]
    struct BatchBody<'a> {
        results: Vec<ItemBody<'a>>,
    }
    Ok(json_response(&BatchBody { results: body.collect() }))
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
        CancelAnswer::NotWaiting => unreachable!("a cancel means whatever state the job is in"),
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
pub(super) async fn retry_job(
    State(api): State<Api>,
    JobPath(id): JobPath,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> ApiResult {
    Params::of(query.as_deref(), &[])?;
    no_fields(&headers, body, api.settings.max_body).await?;
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
