//! `milepost work`: any program, once per job of a queue.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use super::terminal::say;
use super::{gateway, signals};
use crate::client::ClientError;
use crate::config::client::{OutputKind, WorkArgs};
use crate::domain::{ClaimRequest, QueueName, WorkerName};
use crate::worker::commands::Commands;
use crate::worker::lines::Cut;
use crate::worker::pool::Pool;
use crate::worker::remote::Remote;
use crate::worker::reporter::Notice;

/// Wrong configuration, as for a wrong command line.
const USAGE: u8 = 2;
/// How long one claim waits for work. Under what proxies cut.
const CLAIM_WAIT_MS: u64 = 25_000;

/// Works until told to stop. Exit codes: 0 stopped, 1 the gateway refuses to give work, 2 wrong usage.
pub async fn run(args: WorkArgs) -> ExitCode {
    let (pool, about) = match pool(args) {
        Ok(pool) => pool,
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

fn pool(args: WorkArgs) -> Result<(Pool, String), ClientError> {
    let client = gateway::connect(&args.client)?;
    let names = |texts: &[String], flag: &str| texts.iter().map(|text| name(text, flag)).collect::<Result<Vec<_>, _>>();
    let worker = args.worker.unwrap_or_else(default_name);
    let wrong_worker = || ClientError::Address(format!("--worker {worker:?} must match [A-Za-z0-9._:@-]{{1,128}}"));
    let about = format!(
        "working on {} as {worker}, up to {} at a time, for {}",
        args.queue.join(", "),
        args.concurrency,
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
    let notice: Notice = Arc::new(say);
    let progress: Notice = if args.quiet { Arc::new(|_: &str| {}) } else { Arc::clone(&notice) };
    let commands = Commands {
        command: args.command,
        url: client.address().to_string(),
        cut: match args.output {
            OutputKind::Log => Cut::Lines,
            OutputKind::Text => Cut::Text,
        },
        notice: Arc::clone(&notice),
        progress,
    };
    let pool = Pool {
        source: Arc::new(Remote(client)),
        request,
        handler: Arc::new(commands),
        concurrency: args.concurrency,
        grace: Duration::from_millis(args.grace_ms),
        notice,
    };
    Ok((pool, about))
}

fn name(text: &str, flag: &str) -> Result<QueueName, ClientError> {
    QueueName::parse(text)
        .ok_or_else(|| ClientError::Address(format!("{flag} {text:?} must match [A-Za-z0-9._-]{{1,64}}")))
}

/// The machine and the process, within what a worker's name may be.
fn default_name() -> String {
    let host = nix::unistd::gethostname().ok();
    let host = host.map(|host| host.to_string_lossy().into_owned()).unwrap_or_default();
    let host: String =
        host.chars().take(100).map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' }).collect();
    format!("{}:{}", if host.is_empty() { "worker" } else { &host }, std::process::id())
}
