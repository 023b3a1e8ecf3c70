//! Parses, hands over to `cli`, turns its answer into the exit code.

use clap::Parser;

#[tokio::main]
async fn main() -> std::process::ExitCode {
    milepost::cli::Cli::parse().run().await
}
