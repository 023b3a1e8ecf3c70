//! The gateway from outside: every call the command line and the workers make over HTTP.
//!
//! A [`Client`] is an [`Address`] and an optional key; it holds no state of a job. Calls that write are safe to
//! repeat: an append that could store something carries an `Idempotency-Key`, so [`Client::append`] may be sent again
//! after a lost answer without storing twice. Repeating is the caller's decision, by [`ClientError::is_passing`] and
//! [`Backoff`], because only the caller knows how long it may wait.
//!
//! [`follow`] reads one job's stream for as long as it takes: over cuts, restarts of the gateway and planned ends.
//! [`endpoint`] posts to somebody else: where jobs are
//! forwarded to, and who is told of their end. [`probe`] looks at answers as they come, for `milepost doctor`.
//! Imports only rules of the domain; used by `cli`, `worker` and the tests.

pub mod address;
pub mod backoff;
pub mod endpoint;
pub mod error;
pub mod follow;
pub mod probe;
pub mod sse;

use std::sync::Once;
use std::time::Duration;

use reqwest::header::{ACCEPT, CONTENT_TYPE};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde::Deserialize;
use serde_json::Value;

pub use address::{Address, JobReference};
pub use backoff::Backoff;
pub use error::{ClientError, Problem};

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for an answer that the gateway gives at once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The largest JSON answer that is read: a state document is a few KiB, a page of the log at most a few MiB.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// A gateway and the credential to speak to it with. Cheap to clone; clones share their connections.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    address: Address,
    key: Option<Key>,
}

/// A bearer credential that does not show itself in debug output.
#[derive(Clone)]
struct Key(String);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

/// The answer to an enqueue.
#[derive(Clone, Debug)]
pub struct Enqueued {
    /// The whole answer as sent.
    pub answer: Value,
    /// The job's id.
    pub id: String,
    /// False when a job that already existed answered.
    pub created: bool,
    /// Where a person sees the job, absolute, with its watch token if there is one.
    pub page: String,
}

/// A job that was handed out.
#[derive(Clone, Debug, Deserialize)]
pub struct HandedOut {
    /// Its state document, with its payload.
    pub job: Value,
    /// What it is ours by.
    pub lease: Lease,
}

/// The lease of one run.
#[derive(Clone, Debug, Deserialize)]
pub struct Lease {
    /// Goes with every append.
    pub token: String,
    /// Which run it is for.
    pub run: u64,
}

/// The answer to an append.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Appended {
    /// The job's newest seq after the append.
    pub seq: u64,
    /// The runner is asked to stop.
    #[serde(default)]
    pub cancel_requested: bool,
}

impl Client {
    /// A client of the gateway at `address`. Connects to nothing yet.
    ///
    /// # Errors
    /// [`ClientError::Address`] when the TLS set-up of this machine cannot be used (no certificate store).
    pub fn new(address: Address, key: Option<String>) -> Result<Self, ClientError> {
        // One connection each: a claim that is held and a stream do not share the fate, or the window, of one.
        Self::build(address, key, reqwest::ClientBuilder::http1_only)
    }

    /// A client that speaks HTTP/2 where a browser would: over TLS, with whoever offers it.
    ///
    /// # Errors
    /// As [`Client::new`].
    pub fn like_a_browser(address: Address, key: Option<String>) -> Result<Self, ClientError> {
        Self::build(address, key, |builder| builder)
    }

    fn build(
        address: Address,
        key: Option<String>,
        adjust: impl FnOnce(reqwest::ClientBuilder) -> reqwest::ClientBuilder,
    ) -> Result<Self, ClientError> {
        install_tls_provider();
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("milepost/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_keepalive(Duration::from_secs(30))
            // A redirected POST becomes a GET without a body: rather say where the gateway went.
            .redirect(reqwest::redirect::Policy::none());
        if address.is_plain_http() {
            // A machine without a certificate store can still speak to its own loopback gateway.
            builder = builder.tls_certs_only([]);
        }
        if address.is_loopback() {
            // `http_proxy` is set on many machines, and no proxy reaches our loopback.
            builder = builder.no_proxy();
        }
        let http = adjust(builder).build().map_err(|error| ClientError::Address(error::chain(&error)))?;
        Ok(Self { http, address, key: key.filter(|key| !key.is_empty()).map(Key) })
    }

    /// The gateway's address.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Enqueues `spec` (design 2.1). Safe to repeat with the same `idempotency_key`.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the gateway's problem; otherwise the transport's trouble.
    pub async fn enqueue(&self, spec: &Value, idempotency_key: Option<&str>) -> Result<Enqueued, ClientError> {
        let mut request = self.request(Method::POST, "v1/jobs").json(spec);
        if let Some(key) = idempotency_key {
            request = request.header("Idempotency-Key", key);
        }
        let answer = self.json(request, ANSWER_TIMEOUT).await?;
        let id = answer["job"]["id"].as_str().map(str::to_owned);
        let Some(id) = id else {
            return Err(self.not_a_gateway("the answer names no job"));
        };
        let mut page = match answer["urls"]["page"].as_str() {
            Some(path) => self.address.resolve(path),
            None => self.address.page(&id),
        };
        if let Some(token) = answer["watch_token"].as_str()
            && !page.contains('#')
        {
            page = format!("{page}#token={token}");
        }
        Ok(Enqueued { created: answer["created"].as_bool().unwrap_or(true), id, page, answer })
    }

    /// Takes work (design 5): waits for some as long as the request says, which is `wait`. The same `idempotency_key`
    /// with the same request answers with the same leases while they live.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the gateway's problem; otherwise the transport's trouble.
    pub async fn claim(
        &self,
        request: &Value,
        wait: Duration,
        idempotency_key: &str,
    ) -> Result<Vec<HandedOut>, ClientError> {
        #[derive(Deserialize)]
        struct Answer {
            jobs: Vec<HandedOut>,
        }
        let request = self.request(Method::POST, "v1/claims").header("Idempotency-Key", idempotency_key).json(request);
        let answer = self.json(request, wait + ANSWER_TIMEOUT).await?;
        let answer: Result<Answer, _> = serde_json::from_value(answer);
        answer.map(|answer| answer.jobs).map_err(|_| self.not_a_gateway("the answer to a claim has no jobs"))
    }

    /// Appends `body`, one event object or an array of them, already encoded (design 5). The same `idempotency_key`
    /// with the same body is stored once, however often it is sent; the event that ends a run needs none for that.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when the gateway says no: then nothing of it is stored.
    pub async fn append(
        &self,
        job: &str,
        lease: Option<&str>,
        body: String,
        idempotency_key: Option<&str>,
    ) -> Result<Appended, ClientError> {
        let mut request = self.append_request(job, lease, None).body(body);
        if let Some(key) = idempotency_key {
            request = request.header("Idempotency-Key", key);
        }
        self.appended(request, ANSWER_TIMEOUT).await
    }

    /// An empty append: the heartbeat. Held by the gateway for up to `wait`, and answered early when there is
    /// something to say. Stores nothing, so it may be repeated freely.
    ///
    /// # Errors
    /// As [`Client::append`].
    pub async fn heartbeat(&self, job: &str, lease: Option<&str>, wait: Duration) -> Result<Appended, ClientError> {
        let request = self.append_request(job, lease, (!wait.is_zero()).then_some(wait)).body("[]");
        self.appended(request, wait + ANSWER_TIMEOUT).await
    }

    /// Asks for a job to be cancelled; answers with its state document.
    ///
    /// # Errors
    /// [`ClientError::Refused`], `job_terminal` when it ended otherwise.
    pub async fn cancel(&self, job: &str, reason: Option<&str>, grace: Option<Duration>) -> Result<Value, ClientError> {
        let mut body = serde_json::Map::new();
        if let Some(reason) = reason {
            body.insert("reason".into(), reason.into());
        }
        if let Some(grace) = grace {
            body.insert("grace_ms".into(), (grace.as_millis() as u64).into());
        }
        let request = self.request(Method::POST, &format!("v1/jobs/{job}/cancel")).json(&body);
        self.json(request, ANSWER_TIMEOUT).await
    }

    /// The state document of a job (design 2.2).
    ///
    /// # Errors
    /// [`ClientError::Refused`], `job_not_found` for one that is not there.
    pub async fn state(&self, job: &str) -> Result<Value, ClientError> {
        let request = self.request(Method::GET, &format!("v1/jobs/{job}"));
        self.json(request, ANSWER_TIMEOUT).await
    }

    /// Up to 1,000 events after `after`, as the plain page of the log (design 4).
    ///
    /// # Errors
    /// As [`Client::state`].
    pub async fn events(&self, job: &str, after: u64) -> Result<Vec<Value>, ClientError> {
        let path = format!("v1/jobs/{job}/events?after={after}&limit=1000");
        let request = self.request(Method::GET, &path);
        match self.json(request, ANSWER_TIMEOUT).await?["events"].take() {
            Value::Array(events) => Ok(events),
            _ => Err(self.not_a_gateway("the page of the log has no events")),
        }
    }

    /// Opens a job's stream; the headers have been read, the body has not.
    ///
    /// # Errors
    /// Only the transport's: every status is handed back, since a stream's reader treats them in its own way.
    async fn open_stream(&self, job: &str, last_event_id: Option<&str>) -> Result<Response, ClientError> {
        let mut request = self
            .request(Method::GET, &format!("v1/jobs/{job}/events"))
            .header(ACCEPT, "text/event-stream")
            .header("Cache-Control", "no-store");
        if let Some(id) = last_event_id {
            request = request.header("Last-Event-ID", id);
        }
        // Only the way to the headers is bounded here; the body is watched by its pings.
        match tokio::time::timeout(ANSWER_TIMEOUT, request.send()).await {
            Ok(answer) => answer.map_err(|error| self.unreachable(&error)),
            Err(_) => Err(self.silent()),
        }
    }

    fn append_request(&self, job: &str, lease: Option<&str>, wait: Option<Duration>) -> RequestBuilder {
        let path = match wait {
            Some(wait) => format!("v1/jobs/{job}/events?wait_ms={}", wait.as_millis()),
            None => format!("v1/jobs/{job}/events"),
        };
        let request = self.request(Method::POST, &path).header(CONTENT_TYPE, "application/json");
        match lease {
            Some(token) => request.header("Lease-Token", token),
            None => request,
        }
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, self.address.join(path));
        match &self.key {
            Some(Key(key)) => request.bearer_auth(key),
            None => request,
        }
    }

    async fn appended(&self, request: RequestBuilder, timeout: Duration) -> Result<Appended, ClientError> {
        let answer = self.json(request, timeout).await?;
        serde_json::from_value(answer).map_err(|_| self.not_a_gateway("the answer to an append has no seq"))
    }

    /// Sends, reads the whole answer, and tells an answer from a refusal.
    async fn json(&self, request: RequestBuilder, timeout: Duration) -> Result<Value, ClientError> {
        let exchange = async {
            let mut response = request.send().await.map_err(|e| self.unreachable(&e))?;
            let status = response.status();
            let problem = Problem::begin(&response);
            let mut body = Vec::new();
            while let Some(chunk) = response.chunk().await.map_err(|e| self.unreachable(&e))? {
                if body.len() + chunk.len() > MAX_ANSWER_BYTES {
                    return Err(self.not_a_gateway("the answer is too large"));
                }
                body.extend_from_slice(&chunk);
            }
            self.judge(status, problem, &body)
        };
        match tokio::time::timeout(timeout, exchange).await {
            Ok(answer) => answer,
            Err(_) => Err(self.silent()),
        }
    }

    fn judge(&self, status: StatusCode, problem: Problem, body: &[u8]) -> Result<Value, ClientError> {
        if status.is_success() {
            // A box in the middle that answers 200 with a page of its own is treated as a passing trouble.
            return serde_json::from_slice(body).map_err(|_| self.not_a_gateway("the answer is no JSON"));
        }
        Err(ClientError::Refused(Box::new(problem.with_body(body))))
    }

    fn unreachable(&self, error: &reqwest::Error) -> ClientError {
        ClientError::Unreachable { url: self.address.to_string(), reason: error::chain(error) }
    }

    fn silent(&self) -> ClientError {
        ClientError::Unreachable { url: self.address.to_string(), reason: "no answer in time".to_owned() }
    }

    fn not_a_gateway(&self, reason: &str) -> ClientError {
        ClientError::NotAGateway { url: self.address.to_string(), reason: reason.to_owned() }
    }
}

/// A key for one write and its repetitions: never given twice.
#[must_use]
pub fn idempotency_key() -> String {
    uuid::Uuid::now_v7().to_string()
}

/// reqwest is built without a TLS provider of its own; ring is the process's, unless somebody chose one before.
fn install_tls_provider() {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        // An error says that a provider is installed already, which is all we want.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}
