//! `milepost doctor`: what stands between here and a gateway, and what it does to streams, polls and their headers.
//!
//! It asks as a browser would, of two jobs of its own: a busy one, to see how late its events are, and a quiet one, to
//! see what is cut for silence. What was seen is `measure`; what is wrong with it, `findings`; what helps, `remedy`.

mod findings;
mod measure;
mod remedy;
mod report;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;

use self::findings::Findings;
use self::measure::Measured;
use super::terminal::say;
use crate::client::{Address, Client, ClientError, idempotency_key};
use crate::config::client::DoctorArgs;

/// Nothing could be said, for want of a gateway.
const NO_ANSWER: u8 = 2;
/// How much longer than the measurement a job of a doctor that was killed stays.
const TIMEOUT_SLACK: Duration = Duration::from_secs(60);

/// Examines the way to the gateway.
pub async fn run(args: DoctorArgs) -> ExitCode {
    let (address, measured) = match examine(&args).await {
        Ok(examined) => examined,
        Err(error) => {
            say(&error.to_string());
            return ExitCode::from(NO_ANSWER);
        }
    };
    let findings = Findings::of(&measured);
    let text = match args.json {
        true => report::json(&address, &measured, &findings).to_string(),
        false => report::text(&address, &measured, &findings),
    };
    if writeln!(std::io::stdout(), "{}", text.trim_end()).is_err() {
        return ExitCode::from(NO_ANSWER);
    }
    if findings.troubles.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn examine(args: &DoctorArgs) -> Result<(String, Measured), ClientError> {
    let address = Address::parse(&args.url)?;
    let shown = address.to_string();
    let client = Client::like_a_browser(address, args.key.clone())?;
    let time = Duration::from_secs(args.seconds);
    let (busy, quiet) = (job(&client, time).await?, job(&client, time).await?);
    let measured = measure::all(&client, &busy, &quiet, time).await;
    for job in [busy, quiet] {
        clean_up(&client, &job).await;
    }
    Ok((shown, measured))
}

/// A job to be looked at. One that nobody ends any more ends by itself.
async fn job(client: &Client, time: Duration) -> Result<String, ClientError> {
    let timeout_ms = (time + TIMEOUT_SLACK).as_millis() as u64;
    let spec = json!({"kind": "milepost.doctor", "tracked": true, "timeout_ms": timeout_ms});
    Ok(client.enqueue(&spec, Some(&idempotency_key())).await?.id)
}

async fn clean_up(client: &Client, job: &str) {
    let end = json!({"type": "completed"}).to_string();
    let removed = match client.append(job, None, end, None).await {
        Ok(_) => client.delete(job).await,
        Err(error) => Err(error),
    };
    if let Err(error) = removed {
        say(&format!("the test job {job} could not be deleted: {error}"));
    }
}
