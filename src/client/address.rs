//! Where a gateway is, and what a person may paste to name one of its jobs.

use std::fmt;
use std::net::IpAddr;

use reqwest::Url;
use reqwest::header::HeaderValue;

use super::ClientError;

/// Base address of a gateway: scheme, host, port, and the path under which it is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Always with a path that ends in a slash, so that joining keeps the base path.
    base: Url,
}

/// A job as named on the command line: its id, and whatever else its URL told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobReference {
    /// The job's id.
    pub id: String,
    /// The gateway, when the reference was a URL.
    pub address: Option<Address>,
    /// The watch token, when the URL carried one (`#token=…` or `?token=…`).
    pub token: Option<String>,
}

impl Address {
    /// Reads `http://host:port/base/path`.
    ///
    /// # Errors
    /// [`ClientError::Address`] with words for the person who typed it.
    pub fn parse(text: &str) -> Result<Self, ClientError> {
        let mut base = parse_url(text)?;
        base.set_query(None);
        base.set_fragment(None);
        if !base.path().ends_with('/') {
            let path = format!("{}/", base.path());
            base.set_path(&path);
        }
        Ok(Self { base })
    }

    /// The absolute URL of a path of the API, written without a leading slash.
    #[must_use]
    pub fn join(&self, path: &str) -> Url {
        let mut url = self.base.clone();
        let (path, query) = match path.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (path, None),
        };
        url.set_path(&format!("{}{path}", self.base.path()));
        url.set_query(query);
        url
    }

    /// A URL from one of the gateway's answers, made absolute. A path that does not stand under our base path was
    /// written by a gateway that does not know under which prefix a proxy shows it.
    #[must_use]
    pub fn resolve(&self, url: &str) -> String {
        if let Ok(absolute) = Url::parse(url) {
            return absolute.to_string();
        }
        let origin = self.base.origin().ascii_serialization();
        if url.starts_with(self.base.path()) {
            format!("{origin}{url}")
        } else {
            format!("{origin}{}{}", self.base.path(), url.trim_start_matches('/'))
        }
    }

    /// Where a person sees a job.
    #[must_use]
    pub fn page(&self, id: &str) -> String {
        self.join(&format!("jobs/{id}")).to_string()
    }

    /// What a browser sends as the `Origin` of its pages.
    #[must_use]
    pub fn origin(&self) -> String {
        self.base.origin().ascii_serialization()
    }

    pub(super) fn is_plain_http(&self) -> bool {
        self.base.scheme() == "http"
    }

    pub(super) fn is_loopback(&self) -> bool {
        let Some(host) = self.base.host_str() else {
            return false;
        };
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }
}

/// As it is given to programs: without the slash at the end.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.base.as_str().trim_end_matches('/'))
    }
}

impl JobReference {
    /// Reads an id, or a URL of a job: `…/v1/jobs/ID`, `…/v1/jobs/ID/events` (`/output`, `/result`), `…/jobs/ID`.
    ///
    /// # Errors
    /// [`ClientError::Address`] with words for the person who typed it.
    pub fn parse(text: &str) -> Result<Self, ClientError> {
        let text = text.trim();
        if !text.contains('/') {
            return Ok(Self { id: checked_id(text)?, address: None, token: None });
        }
        let url = parse_url(text)?;
        let segments: Vec<&str> = url.path().split('/').filter(|s| !s.is_empty()).collect();
        // The last `jobs` counts: the gateway may itself be mounted under a path of that name.
        let Some(at) = segments.iter().rposition(|segment| *segment == "jobs") else {
            return Err(ClientError::Address(format!("{text} is no URL of a job")));
        };
        let rest = &segments[at + 1..];
        let (id, under) = match rest {
            [id] => (*id, ""),
            [id, under @ ("events" | "output" | "result")] => (*id, *under),
            _ => return Err(ClientError::Address(format!("{text} is no URL of a job"))),
        };
        let api = at > 0 && segments[at - 1] == "v1";
        if !under.is_empty() && !api {
            return Err(ClientError::Address(format!("{text} is no URL of a job")));
        }
        let base = &segments[..if api { at - 1 } else { at }];
        let mut address = url.clone();
        address.set_path(&base.join("/"));
        Ok(Self { id: checked_id(id)?, token: token_of(&url), address: Some(Address::parse(address.as_str())?) })
    }
}

fn parse_url(text: &str) -> Result<Url, ClientError> {
    let url = Url::parse(text)
        .map_err(|error| ClientError::Address(format!("{text:?} is no address ({error}); write http://host:port")))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(ClientError::Address(format!("{text:?} is no http(s) address; write http://host:port")));
    }
    if !url.username().is_empty() || url.password().is_some() {
        // It would end up in logs and in the environment of every command.
        return Err(ClientError::Address("an address must not contain a user or password; use --key".to_owned()));
    }
    Ok(url)
}

/// An id goes into a path: it must not bring a path of its own. Whether it exists is for the gateway to say.
fn checked_id(id: &str) -> Result<String, ClientError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if id.is_empty() || id.len() > 100 || !id.bytes().all(plain) {
        return Err(ClientError::Address(format!("{id:?} is no job id")));
    }
    Ok(id.to_owned())
}

fn token_of(url: &Url) -> Option<String> {
    let from_fragment = url
        .fragment()
        .into_iter()
        .flat_map(|fragment| fragment.split('&'))
        .find_map(|pair| pair.strip_prefix("token="))
        .map(str::to_owned);
    let token = from_fragment
        .or_else(|| url.query_pairs().find(|(name, _)| name == "token").map(|(_, value)| value.into_owned()))?;
    // It becomes a header.
    (!token.is_empty() && HeaderValue::from_str(&token).is_ok()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0199c0de-0000-7000-8000-000000000001";

    fn address(text: &str) -> Address {
        Address::parse(text).expect("a usable address")
    }

    #[test]
    fn a_base_path_is_kept() {
        for text in ["http://host/progress", "http://host/progress/", "http://host/progress?x=1#y"] {
            let address = address(text);
            assert_eq!(address.to_string(), "http://host/progress");
            assert_eq!(address.join("v1/jobs").as_str(), "http://host/progress/v1/jobs");
            assert_eq!(
                address.join("v1/jobs/a/events?wait_ms=1").as_str(),
                "http://host/progress/v1/jobs/a/events?wait_ms=1"
            );
        }
        assert_eq!(address("http://host:8080").join("v1/jobs").as_str(), "http://host:8080/v1/jobs");
        assert_eq!(address("http://host:8080").to_string(), "http://host:8080");
    }

    #[test]
    fn urls_of_answers_become_absolute() {
        let plain = address("http://host:8080");
        assert_eq!(plain.resolve("/jobs/a"), "http://host:8080/jobs/a");
        assert_eq!(plain.resolve("https://public/jobs/a#token=t"), "https://public/jobs/a#token=t");
        let based = address("http://host/progress");
        assert_eq!(based.resolve("/progress/jobs/a"), "http://host/progress/jobs/a");
        assert_eq!(based.resolve("/jobs/a"), "http://host/progress/jobs/a");
    }

    #[test]
    fn every_url_of_a_job_names_it() {
        for (text, base) in [
            (format!("http://host:8080/v1/jobs/{ID}"), "http://host:8080"),
            (format!("http://host:8080/v1/jobs/{ID}/events"), "http://host:8080"),
            (format!("http://host:8080/v1/jobs/{ID}/output?x=1"), "http://host:8080"),
            (format!("http://host:8080/jobs/{ID}"), "http://host:8080"),
            (format!("https://host/progress/jobs/{ID}/"), "https://host/progress"),
            (format!("https://host/progress/v1/jobs/{ID}/events"), "https://host/progress"),
            (format!("https://host/jobs/jobs/{ID}"), "https://host/jobs"),
        ] {
            let reference = JobReference::parse(&text).expect("a URL of a job");
            assert_eq!(reference.id, ID, "{text}");
            assert_eq!(reference.address.map(|a| a.to_string()).as_deref(), Some(base), "{text}");
            assert_eq!(reference.token, None, "{text}");
        }
        let bare = JobReference::parse(ID).expect("an id");
        assert_eq!((bare.id.as_str(), bare.address), (ID, None));
    }

    #[test]
    fn a_page_url_brings_its_token() {
        for text in [format!("http://host/jobs/{ID}#token=a.b-c"), format!("http://host/v1/jobs/{ID}?token=a.b-c")] {
            let reference = JobReference::parse(&text).expect("a URL of a job");
            assert_eq!(reference.token.as_deref(), Some("a.b-c"), "{text}");
        }
    }

    #[test]
    fn other_references_are_refused() {
        for text in [
            "",
            "..",
            "a b",
            "a/b",
            "ftp://host/jobs/a",
            "http://host/",
            "http://host/jobs",
            "http://host/v1/jobs/a/cancel",
            "http://host/jobs/a/events",
            "http://user:secret@host/jobs/a",
            "http://host/v1/jobs/%2e%2e",
        ] {
            assert!(JobReference::parse(text).is_err(), "{text:?}");
        }
    }
}
