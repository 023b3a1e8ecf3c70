//! Parses, hands over to `cli`, turns its answer into the exit code.

#[tokio::main]
async fn main() -> std::process::ExitCode {
    milepost::cli::run(milepost::config::Cli::read()).await
}
