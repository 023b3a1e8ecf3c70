//! Claims: a worker asks for work and waits for it.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::HeaderMap;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use serde::Serialize;
use serde_json::{Value, json};

use super::extract::{Params, idempotency, json_body};
use super::{Api, ApiResult, schema};
use crate::domain::ClaimRequest;
use crate::service::{Delivery, Gateway, Taken};

/// Claim work: at once what is there, else the first that comes within `wait_ms`, else nothing.
#[utoipa::path(
    post, path = "/v1/claims", tag = "workers",
    params(("Idempotency-Key" = Option<String>, Header, description = "The same key and body answers with the same leases while they live")),
    request_body = schema::ClaimRequest,
    responses(
        (status = 200, description = "Up to `max` jobs, each with its lease; none after `wait_ms`", body = schema::Claimed),
        (status = 400, response = schema::ProblemResponse), (status = 413, response = schema::ProblemResponse),
        (status = 415, response = schema::ProblemResponse), (status = 422, response = schema::ProblemResponse),
        (status = 503, response = schema::ProblemResponse),
    )
)]
pub(super) async fn claim_jobs(
    State(api): State<Api>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> ApiResult {
    Params::of(query.as_deref(), &[])?;
    let body = json_body(&headers, body, api.settings.max_body).await?;
    let idempotency = idempotency(&headers, "claims", &body)?;
    let request = ClaimRequest::parse(body)?;
    let delivery = api.gateway.claim(request, idempotency).await?;
    Ok(Parcel::wrap(&api.gateway, delivery))
}

#[derive(Serialize)]
struct Handed<J> {
    job: J,
    lease: Value,
}

fn lease(gateway: &Gateway, taken: &Taken) -> Value {
    let expires_in_ms = taken.expires_at.as_millis() - gateway.now().as_millis();
    json!({
        "token": gateway.lease_token(taken.job.id, taken.job.run), "run": taken.job.run,
        "expires_in_ms": expires_in_ms.clamp(0, taken.lease_ms as i64), "expires_at": taken.expires_at,
    })
}

/// An answer that knows whether it was written: dropped before its last byte, its jobs go back.
struct Parcel {
    rest: Bytes,
    delivery: Delivery,
}

/// Handed to the connection at a time: a large answer to somebody who is gone is noticed on the way.
const PIECE: usize = 64 * 1024;

impl Parcel {
    fn wrap(gateway: &Gateway, mut delivery: Delivery) -> Response {
        let jobs = delivery.taken().iter();
        let jobs =
            jobs.map(|taken| Handed { job: taken.job.with_payload(&taken.payload), lease: lease(gateway, taken) });
        #[derive(Serialize)]
        struct Answer<T> {
            jobs: Vec<T>,
        }
        let rest = serde_json::to_vec(&Answer { jobs: jobs.collect() }).expect("our types have string keys only");
        if delivery.taken().is_empty() {
            delivery.delivered();
        }
        let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")];
        (headers, Body::new(Self { rest: rest.into(), delivery })).into_response()
    }
}

impl http_body::Body for Parcel {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let parcel = self.get_mut();
        if parcel.rest.is_empty() {
            return Poll::Ready(None);
        }
        let piece = parcel.rest.split_to(parcel.rest.len().min(PIECE));
        if parcel.rest.is_empty() {
            parcel.delivery.delivered();
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}
