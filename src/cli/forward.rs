//! `milepost forward`: an HTTP endpoint, called once per job of a queue.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use super::pool::Ready;
use super::{gateway, pool};
use crate::client::ClientError;
use crate::client::endpoint::Endpoint;
use crate::config::client::ForwardArgs;
use crate::domain::Signer;
use crate::worker::answer::Reading;
use crate::worker::forward::Forward;

/// Works until told to stop, see [`pool::run`].
pub async fn run(args: ForwardArgs) -> ExitCode {
    pool::run(ready(args)).await
}

fn ready(args: ForwardArgs) -> Result<Ready, ClientError> {
    let client = gateway::connect(&args.client)?;
    let endpoint = Endpoint::trusted(&args.to).map_err(|wrong| ClientError::Address(format!("--to {wrong}")))?;
    let doing = format!("posting jobs to {}", endpoint.shown());
    let (notice, progress) = pool::notices(&args.worker);
    let forward = Forward {
        endpoint,
        signer: Signer::new(args.webhook_secret),
        reading: Reading { openai: args.openai, max_answer: args.max_answer },
        timeout: Duration::from_millis(args.timeout_ms),
        notice,
        progress,
    };
    pool::ready(&args.worker, client, Arc::new(forward), &doing)
}
