//! For operators: is it alive, is it ready, what does it offer.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::json;
use utoipa::openapi::{OpenApi, Ref, RefOr, ServerBuilder};

use super::error::ApiError;
use super::{Api, ApiResult, json_response, schema};

/// The description of the API, encoded once.
#[derive(Clone)]
pub(super) struct Described(Arc<Bytes>);

impl Described {
    /// Encodes `description`; its server is the base path.
    pub fn new(description: &OpenApi, base_path: &str) -> Self {
        let mut description = description.clone();
        for item in description.paths.paths.values_mut() {
            for operation in [&mut item.get, &mut item.post, &mut item.patch, &mut item.delete].into_iter().flatten() {
                // What any route may answer: to a foreign page, and after a fault of ours.
                for status in ["403", "500"] {
                    let problem = RefOr::Ref(Ref::from_response_name("ProblemResponse"));
                    operation.responses.responses.entry(status.to_owned()).or_insert(problem);
                }
            }
        }
        let root = if base_path.is_empty() { "/" } else { base_path };
        description.servers = Some(vec![ServerBuilder::new().url(root).build()]);
        let text = description.to_json().expect("the description has string keys only");
        Self(Arc::new(text.into()))
    }
}

/// Whether the process runs.
#[utoipa::path(get, path = "/livez", tag = "operations", responses((status = 200, description = "It does", body = schema::Health)))]
pub(super) async fn get_livez() -> Response {
    ([(CACHE_CONTROL, "no-store")], json_response(&json!({"status": "ok"}))).into_response()
}

/// Whether the gateway takes work: its store accepts writes, and it is not about to stop.
#[utoipa::path(
    get, path = "/readyz", tag = "operations",
    responses(
        (status = 200, description = "It does", body = schema::Health),
        (status = 503, response = schema::ProblemResponse),
    )
)]
pub(super) async fn get_readyz(State(api): State<Api>) -> ApiResult {
    api.gateway.ready().await.map_err(ApiError::from)?;
    Ok((StatusCode::OK, [(CACHE_CONTROL, "no-store")], json_response(&json!({"status": "ok"}))).into_response())
}

/// This description (OpenAPI 3.1).
#[utoipa::path(
    get, path = "/openapi.json", tag = "operations",
    responses((status = 200, description = "The description", body = serde_json::Value))
)]
pub(super) async fn get_openapi(Extension(described): Extension<Described>) -> Response {
    let body = axum::body::Body::from(Bytes::clone(&described.0));
    ([(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-cache")], body).into_response()
}
