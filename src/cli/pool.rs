//! What the commands that take work have in common: a name, what is asked for, and the worker loop until told to stop.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use super::signals;
use super::terminal::say;
use crate::client::{Client, ClientError};
use crate::config::client::WorkerArgs;
use crate::domain::{ClaimRequest, QueueName, WorkerName};
use crate::worker::name::default_name;
use crate::worker::pool::{Handler, Pool};
use crate::worker::remote::Remote;
use crate::worker::reporter::Notice;

/// Wrong configuration, as for a wrong command line.
const USAGE: u8 = 2;
/// How long one claim waits for work. Under what proxies cut.
const CLAIM_WAIT_MS: u64 = 25_000;

/// A worker and what is said when it begins.
pub struct Ready {
    pool: Pool,
    about: String,
}

/// Who is told about trouble, and who about jobs that begin and end.
#[must_use]
pub fn notices(args: &WorkerArgs) -> (Notice, Notice) {
    let notice: Notice = Arc::new(say);
    let progress = if args.quiet { Arc::new(|_: &str| {}) } else { Arc::clone(&notice) };
    (notice, progress)
}

/// A worker that does `doing` with `handler`.
///
/// # Errors
/// [`ClientError::Address`]-like words for the person who typed it.
pub fn ready(args: &WorkerArgs, client: Client, handler: Arc<dyn Handler>, doing: &str) -> Result<Ready, ClientError> {
    let names = |texts: &[String], flag: &str| texts.iter().map(|text| name(text, flag)).collect::<Result<Vec<_>, _>>();
    let worker = args.worker.clone().unwrap_or_else(default_name);
    let wrong_worker = || ClientError::Address(format!("--worker {worker:?} must match [A-Za-z0-9._:@-]{{1,128}}"));
    let about = format!(
        "{doing} as {worker}, up to {} at a time, from {} of {}",
        args.concurrency,
        args.queue.join(", "),
        client.address()
    );
    let request = ClaimRequest {
        worker: WorkerName::parse(&worker).ok_or_else(wrong_worker)?,
        queues: names(&args.queue, "--queue")?,
        kinds: names(&args.kind, "--kind")?,
        max: 1,
        wait_ms: CLAIM_WAIT_MS,
        lease_ms: args.lease_ms,
    };
    let pool = Pool {
        source: Arc::new(Remote(client)),
        request,
        handler,
        concurrency: args.concurrency,
        // Nothing that starts a process, or calls an endpoint, is short.
        is_ahead: false,
        grace: Duration::from_millis(args.grace_ms),
        notice: notices(args).0,
    };
    Ok(Ready { pool, about })
}

/// Works until told to stop. Exit codes: 0 stopped, 1 the gateway refuses to give work, 2 wrong usage.
pub async fn run(ready: Result<Ready, ClientError>) -> ExitCode {
    let Ready { pool, about } = match ready {
        Ok(ready) => ready,
        Err(error) => {
            say(&error.to_string());
            return ExitCode::from(USAGE);
        }
    };
    let stops = match signals::listen() {
        Ok((stops, _)) => stops,
        Err(error) => {
            say(&format!("cannot listen to signals: {error}"));
            return ExitCode::FAILURE;
        }
    };
    say(&about);
    match pool.run(stops).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(trouble) => {
            say(&format!("no work can be claimed: {trouble}"));
            ExitCode::FAILURE
        }
    }
}

fn name(text: &str, flag: &str) -> Result<QueueName, ClientError> {
    QueueName::parse(text)
        .ok_or_else(|| ClientError::Address(format!("{flag} {text:?} must match [A-Za-z0-9._-]{{1,64}}")))
}
