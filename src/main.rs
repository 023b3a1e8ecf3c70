//! Parses, hands over to `cli`, turns its answer into the exit code.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> std::process::ExitCode {
    milepost::cli::run(milepost::config::Cli::read()).await
}
