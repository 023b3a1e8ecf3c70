//! An endpoint outside that something is posted to, and its answer as it arrives.
//!
//! A [`Reply`] that is dropped closes its connection: that is how a request is called off. Redirects are not followed,
//! so that a signed request goes nowhere but where it was addressed to.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{ACCEPT, CONTENT_TYPE, LOCATION, RETRY_AFTER};
use reqwest::{Response, Url};

use super::{CONNECT_TIMEOUT, error, install_tls_provider};
use crate::domain::{host_is_public, is_public};

/// `Retry-After` beyond a day is a mistake, not a plan.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// Why there is no (whole) answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// No connection, or one that broke.
    #[error("{0}")]
    Broken(String),
    /// The address is one that may not be called.
    #[error("{0}")]
    Refused(String),
    /// The answer is larger than what is read.
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
}

/// An `http` or `https` URL that can be posted to. Cheap to clone; clones share their connections.
#[derive(Clone, Debug)]
pub struct Endpoint {
    http: reqwest::Client,
    url: Url,
}

impl Endpoint {
    /// Whoever runs this process has named the URL, so it may be any; a proxy in the environment is used.
    ///
    /// # Errors
    /// What is wrong with the URL, or with the TLS set-up of this machine.
    pub fn trusted(url: &str) -> Result<Self, String> {
        let url = web_url(url)?;
        let mut builder = builder();
        if url.scheme() == "http" {
            // A machine without a certificate store can still speak to its own services.
            builder = builder.tls_certs_only([]);
        }
        if url.host_str().is_some_and(|host| host == "localhost" || host == "[::1]" || host.starts_with("127.")) {
            // `http_proxy` is set on many machines, and no proxy reaches our loopback.
            builder = builder.no_proxy();
        }
        let http = builder.build().map_err(|error| error::chain(&error))?;
        Ok(Self { http, url })
    }

    /// The URL as it may be shown: without credentials and query.
    #[must_use]
    pub fn shown(&self) -> String {
        format!("{}{}", self.url.origin().ascii_serialization(), self.url.path())
    }

    /// Posts JSON; the head of the answer has been read, the body has not.
    ///
    /// # Errors
    /// [`PostError::Broken`].
    pub async fn post(&self, body: String, accept: &str, headers: &[(&str, String)]) -> Result<Reply, PostError> {
        post(&self.http, self.url.clone(), body, accept, headers).await
    }
}

/// Posts to URLs that others have named: only to addresses that are public, unless the operator says otherwise. What is
/// judged is the address that is connected to, and no proxy stands between.
#[derive(Clone, Debug)]
pub struct Courier {
    http: reqwest::Client,
    is_private_allowed: bool,
}

impl Courier {
    /// A courier; `is_private_allowed`: addresses are not judged.
    ///
    /// # Errors
    /// What is wrong with the TLS set-up of this machine.
    pub fn new(is_private_allowed: bool) -> Result<Self, String> {
        let builder = builder().no_proxy().dns_resolver(Judge { is_private_allowed });
        let http = builder.build().map_err(|error| error::chain(&error))?;
        Ok(Self { http, is_private_allowed })
    }

    /// Posts JSON; the head of the answer has been read, the body has not.
    ///
    /// # Errors
    /// [`PostError::Refused`] for an address that is not public, else [`PostError::Broken`].
    pub async fn post(&self, url: &str, body: String, headers: &[(&str, String)]) -> Result<Reply, PostError> {
        let url = web_url(url).map_err(|wrong| PostError::Refused(format!("the URL {wrong}")))?;
        // An address in the URL is resolved by nobody.
        if !self.is_private_allowed && !url.host().is_some_and(|host| host_is_public(&host)) {
            return Err(PostError::Refused(NotPublic.to_string()));
        }
        post(&self.http, url, body, "*/*", headers).await
    }
}

/// A name stands for addresses of which none may be called.
#[derive(Debug, thiserror::Error)]
#[error("the host's address is private, loopback or link-local")]
struct NotPublic;

/// Resolves names to the addresses that may be connected to. What it lets through is what is connected to: nobody asks
/// a second time, when the answer could be another one.
#[derive(Debug)]
struct Judge {
    is_private_allowed: bool,
}

impl Resolve for Judge {
    fn resolve(&self, name: Name) -> Resolving {
        let is_private_allowed = self.is_private_allowed;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let fit: Vec<SocketAddr> = found.filter(|found| is_private_allowed || is_public(found.ip())).collect();
            if fit.is_empty() {
                return Err(NotPublic.into());
            }
            let fit: Addrs = Box::new(fit.into_iter());
            Ok(fit)
        })
    }
}

async fn post(
    http: &reqwest::Client,
    url: Url,
    body: String,
    accept: &str,
    headers: &[(&str, String)],
) -> Result<Reply, PostError> {
    let request = http.post(url).header(CONTENT_TYPE, "application/json").header(ACCEPT, accept);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, value));
    match request.body(body).send().await {
        Ok(response) => Ok(Reply { response }),
        Err(error) if is_not_public(&error) => Err(PostError::Refused(NotPublic.to_string())),
        Err(error) => Err(PostError::Broken(error::chain(&error))),
    }
}

fn is_not_public(error: &reqwest::Error) -> bool {
    let first: &(dyn std::error::Error + 'static) = error;
    std::iter::successors(Some(first), |error| error.source()).any(|error| error.is::<NotPublic>())
}

fn builder() -> reqwest::ClientBuilder {
    install_tls_provider();
    reqwest::Client::builder()
        .user_agent(concat!("milepost/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_keepalive(Duration::from_secs(30))
        // A reply that is dropped closes its connection: it must be its own.
        .http1_only()
        .redirect(reqwest::redirect::Policy::none())
}

fn web_url(text: &str) -> Result<Url, String> {
    // Not shown: there may be a password in it.
    let url = Url::parse(text).map_err(|error| format!("is no URL: {error}"))?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        scheme => Err(format!("must be an http or https URL, not {scheme}")),
    }
}

/// An answer whose body is still to come.
#[derive(Debug)]
pub struct Reply {
    response: Response,
}

impl Reply {
    /// HTTP status.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// The media type, in lower case, without parameters; empty if there is none.
    #[must_use]
    pub fn media_type(&self) -> String {
        let value = self.header(CONTENT_TYPE).unwrap_or_default();
        value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
    }

    /// Where a redirect points to.
    #[must_use]
    pub fn location(&self) -> Option<&str> {
        self.header(LOCATION)
    }

    /// How long to stay away: seconds, or until an HTTP date (RFC 9110 10.2.3), at most a day.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        parse_retry_after(self.header(RETRY_AFTER)?, SystemTime::now())
    }

    /// The next piece of the body; `None` at its end.
    ///
    /// # Errors
    /// [`PostError::Broken`]: also when it ends before it should.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, PostError> {
        self.response.chunk().await.map_err(|error| PostError::Broken(error::chain(&error)))
    }

    /// The whole body.
    ///
    /// # Errors
    /// [`PostError`]; [`PostError::TooLarge`] as soon as it is known to be larger than `limit`.
    pub async fn read(mut self, limit: usize) -> Result<Vec<u8>, PostError> {
        if self.response.content_length().is_some_and(|length| length > limit as u64) {
            return Err(PostError::TooLarge(limit));
        }
        let mut body = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            if body.len() + chunk.len() > limit {
                return Err(PostError::TooLarge(limit));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    /// The beginning of the body, as text: what comes within `patience`, up to `limit` bytes.
    pub async fn beginning(mut self, limit: usize, patience: Duration) -> String {
        let until = tokio::time::Instant::now() + patience;
        let mut body = Vec::new();
        while body.len() < limit
            && let Ok(Ok(Some(chunk))) = tokio::time::timeout_at(until, self.chunk()).await
        {
            body.extend_from_slice(&chunk[..chunk.len().min(limit - body.len())]);
        }
        String::from_utf8_lossy(&body).into_owned()
    }

    fn header(&self, name: reqwest::header::HeaderName) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }
}

fn parse_retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    let wait = match value.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        // One that is past means now.
        Err(_) => httpdate::parse_http_date(value).ok()?.duration_since(now).unwrap_or_default(),
    };
    Some(wait.min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let read = |value| parse_retry_after(value, now);
        assert_eq!(read(" 120 "), Some(Duration::from_secs(120)));
        assert_eq!(read("Sun, 06 Nov 1994 08:49:47 GMT"), Some(Duration::from_secs(10)));
        assert_eq!(read("Sunday, 06-Nov-94 08:49:47 GMT"), Some(Duration::from_secs(10)));
        assert_eq!(read("Sun, 06 Nov 1994 08:00:00 GMT"), Some(Duration::ZERO));
        assert_eq!(read("99999999"), Some(MAX_RETRY_AFTER));
        assert_eq!(read("soon"), None);
        assert_eq!(read("-1"), None);
    }

    #[test]
    fn only_web_urls_are_posted_to_and_no_secret_of_one_is_shown() {
        for url in ["", "app/run", "ftp://example.com/", "file:///etc/passwd", "http://"] {
            assert!(Endpoint::trusted(url).is_err(), "{url}");
        }
        let endpoint = Endpoint::trusted("http://user:pass@127.0.0.1:9/run?key=secret").expect("a URL");
        assert_eq!(endpoint.shown(), "http://127.0.0.1:9/run");
    }
}
