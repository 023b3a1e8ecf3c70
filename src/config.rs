//! The only reader of flags, files and environment. Each layer gets a small struct of its own.

pub mod client;
pub mod serve;

use clap::{Parser, Subcommand};

use crate::domain::WebhookSecret;

/// Milepost, a progress gateway for long-running jobs.
#[derive(Debug, Parser)]
#[command(version, about, disable_help_subcommand = true)]
pub struct Cli {
    /// What to do; without it, `serve`.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// Not shown when it is wrong: it may be a secret with a typing error.
fn webhook_secret(text: &str) -> Result<WebhookSecret, String> {
    WebhookSecret::parse(text).ok_or_else(|| "must be whsec_ and 24 to 64 bytes of base64".to_owned())
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the gateway (also without any command)
    Serve(Box<serve::ServeArgs>),
    /// Run a command now, as a tracked job
    Run(client::RunArgs),
    /// Run a command once per job of a queue
    Work(client::WorkArgs),
    /// Post each job of a queue to an HTTP endpoint
    Forward(client::ForwardArgs),
    /// Follow a job to its end
    Watch(client::WatchArgs),
    /// Hand a job to the workers
    Enqueue(client::EnqueueArgs),
    /// Find out what stands between here and a gateway, and what it does to streams
    Doctor(client::DoctorArgs),
    /// Stop what a killed `run` or `work` has left running; started by them
    #[command(hide = true)]
    Guard,
}

impl Cli {
    /// Reads the command line; exits with 2 and a message if it is wrong. No command at all is `serve`, which then has
    /// its flags from the environment.
    pub fn read() -> Command {
        let serve = || Self::parse_from(["milepost", "serve"]);
        let command = Self::parse().command.or_else(|| serve().command);
        command.expect("`milepost serve` is a command")
    }
}
