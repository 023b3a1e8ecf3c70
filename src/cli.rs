//! The commands (minimal version of this branch).

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::client::{EnqueueArgs, RunArgs, WatchArgs};

pub mod enqueue;
pub mod gateway;
pub mod run;
pub mod show;
pub mod terminal;
pub mod watch;

/// Milepost, a progress gateway for long-running jobs.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a command now, as a tracked job
    Run(RunArgs),
    /// Follow a job to its end
    Watch(WatchArgs),
    /// Hand a job to the workers
    Enqueue(EnqueueArgs),
}

impl Cli {
    /// Runs the command.
    pub async fn run(self) -> ExitCode {
        match self.command {
            Command::Run(args) => run::run(args).await,
            Command::Watch(args) => watch::run(args).await,
            Command::Enqueue(args) => enqueue::run(args).await,
        }
    }
}
