//! The flags of `milepost serve`. Each is also `MILEPOST_<UPPER_SNAKE>` in the environment.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use thiserror::Error;

use super::webhook_secret;
use crate::domain::{Callbacks, Limits, QueueName, Signer, WebhookSecret};
use crate::http::HttpSettings;
use crate::server::ServerSettings;
use crate::service::Settings;

/// `milepost serve`: run the gateway.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// Where to listen; a loopback address, since there are no keys yet
    #[arg(long, env = "MILEPOST_LISTEN", default_value = "127.0.0.1:8080", value_name = "ADDRESS")]
    pub listen: String,
    /// Where the embedded store keeps its file
    #[arg(long, env = "MILEPOST_DATA_DIR", default_value = "milepost-data", value_name = "DIR")]
    pub data_dir: PathBuf,
    /// postgres://… or sqlite:PATH; else DATABASE_URL; else a SQLite file in the data directory
    #[arg(long, env = "MILEPOST_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub database_url: Option<String>,
    /// Connections to the database at most
    #[arg(long, env = "MILEPOST_POOL", default_value_t = 10, value_parser = clap::value_parser!(u32).range(2..=1_000))]
    pub pool: u32,
    /// A stream is written to at least this often, in milliseconds
    #[arg(long, env = "MILEPOST_PING_MS", default_value_t = 15_000, value_parser = at_least_one_ms())]
    pub ping_ms: u64,
    /// A stream lives at most this long, in milliseconds
    #[arg(long, env = "MILEPOST_STREAM_MAX_AGE_MS", default_value_t = 900_000, value_parser = at_least_one_ms())]
    pub stream_max_age_ms: u64,
    /// How long a shutdown may take, in milliseconds
    #[arg(long, env = "MILEPOST_DRAIN_MS", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(0..=3_600_000))]
    pub drain_ms: u64,
    /// Open streams at most
    #[arg(long, env = "MILEPOST_MAX_STREAMS", default_value_t = 10_000)]
    pub max_streams: usize,
    /// A job's payload at most, in bytes of JSON
    #[arg(long, env = "MILEPOST_MAX_PAYLOAD", default_value_t = Limits::default().payload_bytes)]
    pub max_payload: usize,
    /// An event's data at most, in bytes of JSON
    #[arg(long, env = "MILEPOST_MAX_EVENT", default_value_t = Limits::default().event_bytes)]
    pub max_event: usize,
    /// A request body at most, in bytes
    #[arg(long, env = "MILEPOST_MAX_BODY", default_value_t = HttpSettings::default().max_body)]
    pub max_body: usize,
    /// The output of one run at most, in bytes
    #[arg(long, env = "MILEPOST_MAX_OUTPUT", default_value_t = Limits::default().output_bytes)]
    pub max_output: u64,
    /// Events in one job's log at most
    #[arg(long, env = "MILEPOST_MAX_EVENTS", default_value_t = Limits::default().events_per_job)]
    pub max_events: u64,
    /// A result's data at most, in bytes of JSON
    #[arg(long, env = "MILEPOST_MAX_RESULT", default_value_t = Limits::default().result_bytes)]
    pub max_result: usize,
    /// A reader further behind than this many events gets the state instead
    #[arg(long, env = "MILEPOST_REPLAY_LIMIT", default_value_t = Settings::default().replay_limit)]
    pub replay_limit: u64,
    /// How long ended jobs are kept, such as 7d or 12h
    #[arg(long, env = "MILEPOST_KEEP", default_value = "7d", value_parser = humantime::parse_duration, value_name = "TIME")]
    pub keep: Duration,
    /// Cancel whatever waits in these queues before the first request is served
    #[arg(long, env = "MILEPOST_PURGE_ON_START", value_delimiter = ',', value_name = "QUEUE")]
    pub purge_on_start: Vec<String>,
    /// Where the gateway is reached from outside: URLs in answers become absolute
    #[arg(long, env = "MILEPOST_PUBLIC_URL", value_name = "URL")]
    pub public_url: Option<String>,
    /// Serve everything under this prefix, such as /progress
    #[arg(long, env = "MILEPOST_BASE_PATH", default_value = "", value_name = "PATH")]
    pub base_path: String,
    /// What callbacks are signed with, whsec_…; several, separated by commas, while secrets are being exchanged. Without
    /// one, and --public-url, no job may have a callback_url
    #[arg(long, env = "MILEPOST_WEBHOOK_SECRET", hide_env_values = true, value_delimiter = ',', value_name = "SECRET", value_parser = webhook_secret)]
    pub webhook_secret: Vec<WebhookSecret>,
    /// Send callbacks to private, loopback and link-local addresses, too
    #[arg(long, env = "MILEPOST_ALLOW_PRIVATE_CALLBACKS")]
    pub allow_private_callbacks: bool,
    /// A request's head must have arrived within this, in milliseconds
    #[arg(long, env = "MILEPOST_HEADER_TIMEOUT_MS", default_value_t = 10_000, value_parser = at_least_one_ms())]
    pub header_timeout_ms: u64,
    /// What to log, such as `info` or `milepost=debug`
    #[arg(long, env = "MILEPOST_LOG", default_value = "info", value_name = "FILTER")]
    pub log: String,
}

fn at_least_one_ms() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(1..=31_536_000_000)
}

/// Everything that `milepost serve` is told.
#[derive(Clone, Debug)]
pub struct ServeSettings {
    /// Addresses to try, in order.
    pub listen: Vec<SocketAddr>,
    /// Where the embedded store keeps its file.
    pub data_dir: PathBuf,
    /// Which database; `None`: SQLite in the data directory.
    pub database_url: Option<String>,
    /// Connections to it at most.
    pub connections: u32,
    /// Queues to empty before the first request is served.
    pub purge_on_start: Vec<QueueName>,
    /// How callbacks are sent, if they are.
    pub callbacks: Option<CallbackSettings>,
    /// What callers may store.
    pub limits: Limits,
    /// For the service.
    pub service: Settings,
    /// For the API.
    pub http: HttpSettings,
    /// For the server.
    pub server: ServerSettings,
}

/// How callbacks are sent.
#[derive(Clone, Debug)]
pub struct CallbackSettings {
    /// What they are signed with.
    pub signer: Signer,
    /// The gateway's address from outside.
    pub url: String,
    /// Also to addresses that are not public.
    pub is_private_allowed: bool,
}

/// What is wrong with the configuration.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The address to listen on is none.
    #[error("--listen {0}: not an address such as 127.0.0.1:8080 ({1})")]
    Listen(String, std::io::Error),
    /// The address can be reached from other machines.
    #[error(
        "--listen {0}: other machines could reach it, and without keys anybody there could do anything; use a loopback address"
    )]
    NotLoopback(String),
    /// The name of a queue is none.
    #[error("--purge-on-start {0}: not the name of a queue, which must match [A-Za-z0-9._-]{{1,64}}")]
    QueueName(String),
    /// The public URL is none.
    #[error("--public-url {0}: must be an http or https URL without query")]
    PublicUrl(String),
    /// The base path is none.
    #[error("--base-path {0}: must look like /progress: letters, digits, `-`, `_`, `.`, `~`, not ending in a slash")]
    BasePath(String),
}

impl ServeArgs {
    /// Checks what the flags say, and deals it out.
    pub fn settings(self) -> Result<ServeSettings, ConfigError> {
        let listen: Vec<SocketAddr> = match self.listen.to_socket_addrs() {
            Ok(addresses) => addresses.collect(),
            Err(error) => return Err(ConfigError::Listen(self.listen, error)),
        };
        if !listen.iter().all(|address| address.ip().is_loopback()) {
            return Err(ConfigError::NotLoopback(self.listen));
        }
        let base_path = match self.base_path.trim_end_matches('/') {
            path if is_base_path(path) => path.to_owned(),
            _ => return Err(ConfigError::BasePath(self.base_path)),
        };
        let public_url = match self.public_url {
            None => None,
            Some(url) if !is_public_url(&url) => return Err(ConfigError::PublicUrl(url)),
            // Whether or not the URL was given with the base path: it is added to every path.
            Some(url) => {
                let url = url.trim_end_matches('/');
                Some(url.strip_suffix(base_path.as_str()).unwrap_or(url).to_owned())
            }
        };
        let purged = self.purge_on_start.into_iter().filter(|name| !name.is_empty());
        let purge_on_start = purged.map(|name| QueueName::parse(&name).ok_or(ConfigError::QueueName(name)));
        let database_url =
            self.database_url.or_else(|| std::env::var("DATABASE_URL").ok()).filter(|url| !url.is_empty());
        let callbacks = public_url.as_deref().filter(|_| !self.webhook_secret.is_empty()).map(|url| CallbackSettings {
            signer: Signer::new(self.webhook_secret),
            url: format!("{url}{base_path}"),
            is_private_allowed: self.allow_private_callbacks,
        });
        let may_call = match &callbacks {
            None => Callbacks::Off,
            Some(callbacks) if callbacks.is_private_allowed => Callbacks::Anywhere,
            Some(_) => Callbacks::Public,
        };
        Ok(ServeSettings {
            listen,
            data_dir: self.data_dir,
            database_url,
            connections: self.pool,
            purge_on_start: purge_on_start.collect::<Result<_, _>>()?,
            callbacks,
            limits: Limits {
                payload_bytes: self.max_payload,
                event_bytes: self.max_event,
                output_bytes: self.max_output,
                events_per_job: self.max_events,
                result_bytes: self.max_result,
                callbacks: may_call,
                ..Limits::default()
            },
            service: Settings { replay_limit: self.replay_limit, keep_ms: self.keep.as_millis() as u64 },
            http: HttpSettings {
                max_body: self.max_body,
                ping: Duration::from_millis(self.ping_ms),
                stream_max_age: Duration::from_millis(self.stream_max_age_ms),
                drain: Duration::from_millis(self.drain_ms),
                max_streams: self.max_streams.min(tokio::sync::Semaphore::MAX_PERMITS),
                public_url,
                base_path,
            },
            server: ServerSettings {
                header_timeout: Duration::from_millis(self.header_timeout_ms),
                drain: Duration::from_millis(self.drain_ms),
            },
        })
    }
}

fn is_base_path(path: &str) -> bool {
    let segment = |segment: &str| {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'~');
        !segment.is_empty() && segment != "." && segment != ".." && segment.bytes().all(allowed)
    };
    path.is_empty() || path.strip_prefix('/').is_some_and(|rest| rest.split('/').all(segment))
}

fn is_public_url(url: &str) -> bool {
    let is_web = |uri: &hyper::Uri| matches!(uri.scheme_str(), Some("http" | "https"));
    url.parse().is_ok_and(|uri: hyper::Uri| is_web(&uri) && uri.authority().is_some() && uri.query().is_none())
        && !url.contains('#')
}
