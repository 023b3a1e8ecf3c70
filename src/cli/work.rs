//! `milepost work`: any program, once per job of a queue.

use std::process::ExitCode;
use std::sync::Arc;

use super::pool::Ready;
use super::{gateway, guard, pool};
use crate::client::ClientError;
use crate::config::client::{OutputKind, WorkArgs};
use crate::worker::commands::Commands;
use crate::worker::lines::Cut;

/// Works until told to stop, see [`pool::run`].
pub async fn run(args: WorkArgs) -> ExitCode {
    pool::run(ready(args)).await
}

fn ready(args: WorkArgs) -> Result<Ready, ClientError> {
    let client = gateway::connect(&args.client)?;
    let (notice, progress) = pool::notices(&args.worker);
    let commands = Commands {
        command: args.command,
        guard: guard::start(),
        url: client.address().to_string(),
        cut: match args.output {
            OutputKind::Log => Cut::Lines,
            OutputKind::Text => Cut::Text,
        },
        notice,
        progress,
    };
    pool::ready(&args.worker, client, Arc::new(commands), "working")
}
