//! Who may come in while there are no keys: whoever is on this machine, and no foreign web page.
//!
//! Any page in a browser on this machine can send requests to a loopback server, and a name that its owner points at
//! 127.0.0.1 makes such a page look like ours. So the `Host` must be a loopback name, and an unsafe method that says
//! where it comes from (`Origin`) must come from here.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, Method, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::ApiError;

/// Where requests may be sent to, and come from.
pub struct Origins {
    /// Scheme, host and port of the public URL, lower case.
    public: Option<String>,
}

impl Origins {
    /// Open mode, with the public URL if there is one.
    pub fn open(public_url: Option<&str>) -> Self {
        let origin = |url: &str| {
            let uri: Uri = url.parse().ok()?;
            Some(format!("{}://{}", uri.scheme_str()?, uri.authority()?.as_str()).to_ascii_lowercase())
        };
        Self { public: public_url.and_then(origin) }
    }

    fn is_our_host(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        let public = self.public.as_deref().and_then(|origin| origin.split_once("://")).map(|(_, host)| host);
        is_loopback_host(&host)
            || public.is_some_and(|public| public == host || without_port(public) == without_port(&host))
    }

    fn is_our_origin(&self, origin: &str, host: &str) -> bool {
        let origin = origin.to_ascii_lowercase();
        let host = host.to_ascii_lowercase();
        let is_host = origin.split_once("://").is_some_and(|(_, from)| from == host);
        match self.public.as_deref().and_then(|public| Some((public, public.split_once("://")?.1))) {
            Some((public, _)) if public == origin => true,
            // The public host has one scheme.
            Some((_, public_host)) => is_host && public_host != host,
            None => is_host,
        }
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !name.ends_with(':') => name,
        Some(_) | None => host,
    }
}

fn is_loopback_host(host: &str) -> bool {
    let name = without_port(host);
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name == "localhost" || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The `Host` of a request: one, and no other in the request line.
fn host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    let mut lines = headers.get_all(HOST).into_iter();
    match (uri.authority(), lines.next(), lines.next()) {
        (Some(authority), _, None) => Some(authority.as_str()),
        (None, Some(line), None) => line.to_str().ok(),
        (Some(_) | None, _, _) => None,
    }
}

pub(super) async fn check(State(origins): State<Arc<Origins>>, request: Request, next: Next) -> Response {
    let host = host(request.uri(), request.headers());
    let Some(host) = host.filter(|host| origins.is_our_host(host)) else {
        return ApiError::forbidden(
            "the Host is not this gateway's: a loopback address, localhost, or that of --public-url",
        )
        .into_response();
    };
    let is_safe = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    let mut from = request.headers().get_all(ORIGIN).into_iter();
    let is_ours = from.all(|origin| origin.to_str().is_ok_and(|origin| origins.is_our_origin(origin, host)));
    if !is_safe && !is_ours {
        return ApiError::forbidden("the request comes from a page of another origin").into_response();
    }
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_and_the_public_host_are_ours() {
        let open = Origins::open(Some("https://Jobs.example.com/progress"));
        for host in [
            "localhost",
            "localhost:8080",
            "127.0.0.1:1",
            "127.9.9.9",
            "[::1]:8080",
            "LOCALHOST:1",
            "jobs.example.com",
            "jobs.example.com:443",
        ] {
            assert!(open.is_our_host(host), "{host}");
        }
        for host in
            ["evil.test", "localhost.evil.test", "10.0.0.1", "127.0.0.1.evil.test:80", "", "0.0.0.0", "example.com"]
        {
            assert!(!open.is_our_host(host), "{host}");
        }
    }

    #[test]
    fn an_origin_is_ours_if_it_is_the_host_as_sent_or_the_public_url() {
        let open = Origins::open(Some("https://jobs.example.com"));
        assert!(open.is_our_origin("http://localhost:8080", "localhost:8080"));
        assert!(open.is_our_origin("https://jobs.example.com", "127.0.0.1:8080"));
        for origin in ["null", "http://localhost:8081", "http://127.0.0.1:8080", "https://evil.test", ""] {
            assert!(!open.is_our_origin(origin, "localhost:8080"), "{origin}");
        }
    }
}
