//! What can go wrong between a client and the gateway, and which of it passes by itself.

use std::error::Error as _;
use std::time::Duration;

use reqwest::Response;
use reqwest::header::{CONTENT_TYPE, LOCATION, RETRY_AFTER};
use serde::Deserialize;

/// `Retry-After` beyond this is a mistake of some box in the middle, not a plan.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

/// A call that gave no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The gateway (or something before it) answered with an error.
    #[error("{0}")]
    Refused(Box<Problem>),
    /// No connection, a connection that broke, or no answer in time.
    #[error("cannot reach the gateway at {url}: {reason}")]
    Unreachable {
        /// The gateway's address.
        url: String,
        /// The transport's words.
        reason: String,
    },
    /// Something answered that does not speak like a gateway.
    #[error("{url} does not answer like a Milepost gateway: {reason}")]
    NotAGateway {
        /// The gateway's address.
        url: String,
        /// What was wrong with the answer.
        reason: String,
    },
    /// The address, or what is needed to connect to it, cannot be used.
    #[error("{0}")]
    Address(String),
    /// What was followed did not come back within the time that the caller set.
    #[error("gave up after {} s: {reason}", .after.as_secs())]
    GaveUp {
        /// How long it was tried.
        after: Duration,
        /// The last trouble.
        reason: String,
    },
}

impl ClientError {
    /// Whether the same request may well succeed later: the gateway is away, restarting or busy.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Refused(problem) => problem.is_passing(),
            Self::Unreachable { .. } | Self::NotAGateway { .. } => true,
            Self::Address(_) | Self::GaveUp { .. } => false,
        }
    }

    /// How long the answer asks to wait before the next try.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused(problem) => problem.retry_after,
            Self::Unreachable { .. } | Self::NotAGateway { .. } | Self::Address(_) | Self::GaveUp { .. } => None,
        }
    }

    /// The gateway's stable code (design 9), if it was the gateway that answered.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        self.problem().map(|problem| problem.code.as_str())
    }

    /// The refusal, if this is one.
    #[must_use]
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Refused(problem) => Some(problem),
            Self::Unreachable { .. } | Self::NotAGateway { .. } | Self::Address(_) | Self::GaveUp { .. } => None,
        }
    }
}

/// An error answer, read from `application/problem+json` or made up from the bare status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problem {
    /// HTTP status.
    pub status: u16,
    /// Stable code of section 9; `http_<status>` when the answer was not the gateway's.
    pub code: String,
    /// One line for people.
    pub detail: String,
    /// Where in the body as sent the fault is (RFC 6901).
    pub pointer: Option<String>,
    /// The job that a conflict names.
    pub job: Option<String>,
    /// How long to wait before the next try, at most five minutes.
    pub retry_after: Option<Duration>,
    /// The answer came as JSON.
    pub is_json: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ProblemBody {
    code: Option<String>,
    title: Option<String>,
    detail: Option<String>,
    pointer: Option<String>,
    job: Option<String>,
}

impl Problem {
    /// What status line and headers tell.
    pub(super) fn begin(response: &Response) -> Self {
        let status = response.status();
        let header = |name| {
            let value = response.headers().get(name)?;
            value.to_str().ok()
        };
        let mut detail = status.canonical_reason().unwrap_or("").to_lowercase();
        if status.is_redirection()
            && let Some(location) = header(LOCATION)
        {
            detail = format!("redirected to {location}: use that address");
        }
        Self {
            status: status.as_u16(),
            code: format!("http_{}", status.as_u16()),
            detail,
            retry_after: header(RETRY_AFTER)
                .and_then(|value| value.trim().parse().ok())
                .map(|seconds| Duration::from_secs(seconds).min(MAX_RETRY_AFTER)),
            is_json: header(CONTENT_TYPE).is_some_and(|value| value.contains("json")),
            pointer: None,
            job: None,
        }
    }

    /// Completed by the body, if it is a problem document.
    pub(super) fn with_body(mut self, body: &[u8]) -> Self {
        if self.is_json
            && let Ok(body) = serde_json::from_slice::<ProblemBody>(body)
        {
            self.code = body.code.unwrap_or(self.code);
            self.detail = body.detail.or(body.title).unwrap_or(self.detail);
            self.pointer = body.pointer;
            self.job = body.job;
        }
        self
    }

    /// See [`ClientError::is_passing`].
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(self.status, 408 | 425 | 429 | 500..=599) || self.code == "idempotency_in_flight"
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.detail, self.code)?;
        if let Some(pointer) = self.pointer.as_deref().filter(|pointer| !pointer.is_empty()) {
            write!(f, " at {pointer}")?;
        }
        Ok(())
    }
}

/// reqwest's own text says little without its causes ("error sending request"); the last one says it all.
pub(super) fn chain(error: &reqwest::Error) -> String {
    let mut deepest = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        deepest = cause.to_string();
        source = cause.source();
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json_problem(status: u16, body: &str) -> Problem {
        let begun = Problem { status, code: format!("http_{status}"), is_json: true, ..Problem::default() };
        begun.with_body(body.as_bytes())
    }

    #[test]
    fn a_problem_document_gives_code_detail_and_pointer() {
        let problem = json_problem(
            422,
            r#"{"code":"invalid_request","detail":"percent must be at most 100","pointer":"/3/data/percent","status":422}"#,
        );
        assert_eq!(problem.code, "invalid_request");
        assert_eq!(problem.pointer.as_deref(), Some("/3/data/percent"));
        assert_eq!(problem.to_string(), "percent must be at most 100 (invalid_request) at /3/data/percent");
        assert!(!problem.is_passing());
    }

    #[test]
    fn passing_trouble_is_told_from_refusals() {
        for status in [408, 425, 429, 500, 502, 503, 504] {
            assert!(json_problem(status, "<html>").is_passing(), "{status}");
        }
        for status in [301, 400, 401, 403, 404, 409, 413, 415, 422] {
            assert!(!json_problem(status, "{}").is_passing(), "{status}");
        }
        let waiting = json_problem(409, r#"{"code":"idempotency_in_flight"}"#);
        assert!(waiting.is_passing());
    }
}
