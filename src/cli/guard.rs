//! `milepost guard`: started by `run` and `work`, stops what they have left running should they be killed.

use std::process::{Command, ExitCode};

use super::signals;
use super::terminal::say;
use crate::worker::guard::{Guard, watch};

/// Watches over the commands of whoever has started it, by its standard input.
pub async fn run() -> ExitCode {
    // What asks every process of a service to stop leaves the runner time to finish; the guard stays as long as it does.
    let _deaf = signals::listen();
    watch(tokio::io::stdin()).await;
    ExitCode::SUCCESS
}

/// Starts one for this process. Without it commands still run, and outlive a runner that is killed.
pub fn start() -> Option<Guard> {
    let started = std::env::current_exe().and_then(|path| {
        let mut program = Command::new(path);
        program.arg("guard");
        Guard::start(program)
    });
    started.map_or_else(|error| missing(&error), Some)
}

fn missing(error: &std::io::Error) -> Option<Guard> {
    say(&format!("cannot start a guard ({error}): should this process be killed, its commands would go on"));
    None
}
