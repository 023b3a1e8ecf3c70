//! Requests whose answers are looked at as they come over the wire, with every header, for whoever wants to know what
//! became of them on their way.

use std::time::Duration;

use bytes::Bytes;
use reqwest::{Method, Response};
use serde_json::Value;
use tokio::time::Instant;

use super::{ANSWER_TIMEOUT, Client, ClientError, MAX_ANSWER_BYTES, Problem, error};

/// An answer whose head has been read, and whose body comes piece by piece.
#[derive(Debug)]
pub struct Probe {
    response: Response,
    /// How long its head took.
    pub head_after: Duration,
}

impl Client {
    /// Asks for a path of the API with these headers; any status is an answer.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`], also when no head came within `patience`.
    pub async fn probe(&self, path: &str, headers: &[(&str, &str)], patience: Duration) -> Result<Probe, ClientError> {
        let request = self.request(Method::GET, path);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let begun = Instant::now();
        match tokio::time::timeout(patience, request.send()).await {
            Ok(Ok(response)) => Ok(Probe { response, head_after: begun.elapsed() }),
            Ok(Err(error)) => Err(self.unreachable(&error)),
            Err(_) => Err(self.silent()),
        }
    }

    /// Appends as a page of this origin would: with the `Origin` of the address that the client knows.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when the gateway takes the page for somebody else's.
    pub async fn append_as_page(&self, job: &str, body: String) -> Result<(), ClientError> {
        let request = self.append_request(job, None, None).header("Origin", self.address().origin()).body(body);
        self.appended(request, ANSWER_TIMEOUT).await.map(drop)
    }

    /// Removes a job that has ended.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when it may not be, or has not.
    pub async fn delete(&self, job: &str) -> Result<(), ClientError> {
        let request = self.request(Method::DELETE, &format!("v1/jobs/{job}"));
        let answer = match tokio::time::timeout(ANSWER_TIMEOUT, request.send()).await {
            Ok(answer) => answer.map_err(|error| self.unreachable(&error))?,
            Err(_) => return Err(self.silent()),
        };
        if answer.status().is_success() {
            return Ok(());
        }
        Err(ClientError::Refused(Box::new(Problem::begin(&answer))))
    }
}

impl Probe {
    /// HTTP status.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// The version of HTTP that was spoken, as `HTTP/1.1`.
    #[must_use]
    pub fn version(&self) -> String {
        format!("{:?}", self.response.version())
    }

    /// The values of a header, joined as one line; `None` if there is none.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<String> {
        let values: Vec<_> = self.response.headers().get_all(name).iter().collect();
        let text = values.iter().map(|value| String::from_utf8_lossy(value.as_bytes())).collect::<Vec<_>>();
        (!text.is_empty()).then(|| text.join(", "))
    }

    /// The names of all headers, in lower case.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.response.headers().keys().map(|name| name.as_str())
    }

    /// The next piece of the body; `None` at its end, as its framing tells it.
    ///
    /// # Errors
    /// The transport's words when it breaks off.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, String> {
        self.response.chunk().await.map_err(|error| error::chain(&error))
    }

    /// The whole body, as JSON; `None` if it is none, or breaks off.
    pub async fn json(mut self) -> Option<Value> {
        let mut body = Vec::new();
        while let Some(chunk) = self.chunk().await.ok()? {
            body.extend_from_slice(&chunk);
            if body.len() > MAX_ANSWER_BYTES {
                return None;
            }
        }
        serde_json::from_slice(&body).ok()
    }
}
