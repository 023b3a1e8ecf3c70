//! Errors on the wire: RFC 9457 problems with stable codes. The one place where a service error meets HTTP.

use axum::body::Body;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_RANGE, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use tracing::{error, warn};

use crate::domain::Refusal;
use crate::service::ServiceError;

/// An answer that is an error. Boxed: it is what every handler may return.
#[derive(Clone, Debug)]
pub struct ApiError(Box<Problem>);

#[derive(Clone, Debug)]
struct Problem {
    status: StatusCode,
    code: &'static str,
    title: &'static str,
    detail: String,
    pointer: Option<String>,
    /// Further members, such as `job` of a `unique_conflict`.
    members: Map<String, Value>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// Seconds after which a passing trouble may be over.
const RETRY_AFTER_S: u32 = 2;

impl ApiError {
    fn new(status: StatusCode, code: &'static str, title: &'static str, detail: impl Into<String>) -> Self {
        Self(Box::new(Problem {
            status,
            code,
            title,
            detail: detail.into(),
            pointer: None,
            members: Map::new(),
            headers: Vec::new(),
        }))
    }

    fn with_retry_after(mut self) -> Self {
        self.0.headers.push((RETRY_AFTER, RETRY_AFTER_S.into()));
        self
    }

    /// 400: the body is not JSON.
    pub fn invalid_json(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_json", "The body is not JSON", detail)
    }

    /// 422: something of the request is wrong.
    pub fn invalid_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request", "The request is not valid", detail)
    }

    /// 413: the body is over the limit.
    pub fn body_too_large(limit: usize) -> Self {
        Self::too_large(format!("the body has more than {limit} bytes"))
    }

    fn too_large(detail: String) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", "Too large", detail)
    }

    /// 404: no such route.
    pub fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", "There is nothing here", "no route has this path")
    }

    /// 405; `Allow` is added by the router.
    pub fn method_not_allowed() -> Self {
        let detail = "this path does not take this method";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "The method is not allowed", detail)
    }

    /// 415, saying what is taken.
    pub fn unsupported_media_type(accepted: &'static str) -> Self {
        let detail = format!("this route takes {accepted}");
        let mut problem = Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            "The media type is not supported",
            detail,
        );
        problem.0.headers.push((ACCEPT, HeaderValue::from_static(accepted)));
        problem
    }

    /// 416 for a text of `length` bytes.
    pub fn range_not_satisfiable(length: usize) -> Self {
        let detail = format!("the range lies outside of the {length} bytes");
        let mut problem =
            Self::new(StatusCode::RANGE_NOT_SATISFIABLE, "range_not_satisfiable", "The range cannot be served", detail);
        let range = format!("bytes */{length}");
        problem.0.headers.push((CONTENT_RANGE, range.try_into().expect("digits are visible ASCII")));
        problem
    }

    /// 403: not from here.
    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", "Not allowed", detail)
    }

    /// 503: about to stop.
    pub fn shutting_down() -> Self {
        ServiceError::ShuttingDown.into()
    }

    /// 500 for a bug; says nothing from inside. The request id finds the log line.
    pub fn internal(request_id: &str) -> Self {
        let detail = format!("an unexpected fault; request {request_id}");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "Internal error", detail)
            .with_member("request_id", request_id)
            .with_retry_after()
    }

    /// The same problem with one more member.
    pub fn with_member(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.members.insert(name.to_owned(), value.into());
        self
    }

    /// The same problem about what stands below `prefix` in the body.
    pub fn under(mut self, prefix: &str) -> Self {
        self.0.pointer = self.0.pointer.take().map(|pointer| format!("{prefix}{pointer}"));
        self
    }

    /// The same problem, at this place of the body.
    pub fn at(mut self, pointer: impl Into<String>) -> Self {
        self.0.pointer = Some(pointer.into());
        self
    }

    /// The `reason` with which a stream ends for it, if it is a passing trouble: a bare `EventSource` gives up for
    /// good on any status but 200.
    pub fn passing_reason(&self) -> Option<&'static str> {
        match self.0.code {
            "store_unavailable" => Some("store_unavailable"),
            "overloaded" | "too_many_requests" => Some("overloaded"),
            "shutting_down" => Some("shutdown"),
            "internal" => Some("error"),
            _ => None,
        }
    }

    /// Its status.
    pub fn status(&self) -> StatusCode {
        self.0.status
    }

    /// Its body.
    pub fn problem(&self) -> Value {
        let mut problem = json!({
            "type": format!("urn:milepost:error:{}", self.0.code), "title": self.0.title, "status": self.0.status.as_u16(),
            "code": self.0.code, "detail": self.0.detail,
        });
        let members = problem.as_object_mut().expect("it is an object");
        if let Some(pointer) = &self.0.pointer {
            members.insert("pointer".to_owned(), pointer.as_str().into());
        }
        members.extend(self.0.members.clone());
        problem
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let detail = refusal.to_string();
        let conflict = |code, title| Self::new(StatusCode::CONFLICT, code, title, detail.clone());
        match refusal {
            Refusal::Invalid { pointer, detail } => Self::invalid_request(detail).at(pointer),
            Refusal::TooLarge { pointer, detail } => Self::too_large(detail).at(pointer),
            Refusal::JobNotFound => Self::new(StatusCode::NOT_FOUND, "job_not_found", "There is no such job", detail),
            Refusal::QueueNotFound => Self::new(StatusCode::NOT_FOUND, "not_found", "There is no such queue", detail),
            Refusal::NoResult => Self::new(StatusCode::NOT_FOUND, "no_result", "The job has no result", detail),
            Refusal::JobTerminal(state) => {
                conflict("job_terminal", "The job has ended").with_member("state", state.as_str())
            }
            Refusal::NotFinished(state) => {
                conflict("not_finished", "The job has not ended").with_member("state", state.as_str())
            }
            Refusal::LeaseLost => conflict("lease_lost", "The lease is not held"),
            Refusal::NotRetryable(_) => conflict("not_retryable", "The job cannot be retried"),
            Refusal::UniqueConflict(job) => {
                conflict("unique_conflict", "The unique key is held").with_member("job", job.to_string())
            }
            Refusal::IdempotencyMismatch => Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "idempotency_mismatch",
                "The idempotency key was used for something else",
                detail,
            ),
        }
    }
}

impl From<ServiceError> for ApiError {
    fn from(error: ServiceError) -> Self {
        let trouble = |code, title, detail: &str| {
            Self::new(StatusCode::SERVICE_UNAVAILABLE, code, title, detail).with_retry_after()
        };
        match error {
            ServiceError::Refused(refusal) => refusal.into(),
            ServiceError::RefusedItem { index, refusal } => Self::from(refusal).under(&format!("/{index}")),
            ServiceError::StoreUnavailable(cause) => {
                error!(cause, "a request could not be served: the store is unavailable");
                trouble("store_unavailable", "The store is unavailable", "the store does not answer at the moment")
            }
            ServiceError::Overloaded => {
                warn!("a request was turned away: overloaded");
                trouble("overloaded", "Too much to do", "the gateway has more to do than it can")
            }
            ServiceError::Internal => {
                let request_id = format!("{:016x}", rand::random::<u64>());
                error!(request_id, "a request ran into a fault of ours");
                Self::internal(&request_id)
            }
            ServiceError::ShuttingDown => trouble("shutting_down", "Shutting down", "this gateway is about to stop"),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = self.problem().to_string();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.0.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.extend(self.0.headers);
        response
    }
}
