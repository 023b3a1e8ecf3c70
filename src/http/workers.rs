//! Workers: who works on what.

use axum::extract::{RawQuery, State};
use axum::http::header::CACHE_CONTROL;
use axum::response::IntoResponse;
use serde_json::{Value, json};

use super::extract::Params;
use super::{Api, ApiResult, json_response, schema};
use crate::service::Worker;

/// Who works on what: workers that hold jobs, and those that asked for work within the last 60 s.
#[utoipa::path(
    get, path = "/v1/workers", tag = "workers",
    responses(
        (status = 200, description = "By name", body = schema::Workers),
        (status = 422, response = schema::ProblemResponse), (status = 503, response = schema::ProblemResponse),
    )
)]
pub(super) async fn list_workers(State(api): State<Api>, RawQuery(query): RawQuery) -> ApiResult {
    Params::of(query.as_deref(), &[])?;
    let workers = api.gateway.workers().await?;
    let body = json!({"workers": workers.iter().map(worker).collect::<Vec<_>>()});
    Ok(([(CACHE_CONTROL, "no-store")], json_response(&body)).into_response())
}

fn worker(worker: &Worker) -> Value {
    let jobs = worker.jobs.iter().map(|job| {
        json!({
            "id": job.id, "run": job.run, "expires_at": job.expires_at, "cancel_requested": job.cancel_requested,
        })
    });
    json!({"worker": worker.name.as_str(), "seen_at": worker.seen_at, "jobs": jobs.collect::<Vec<_>>()})
}
