//! The commands, one file each.

use std::process::ExitCode;

use crate::config::Command;

pub mod doctor;
pub mod enqueue;
pub mod forward;
pub mod gateway;
pub mod guard;
pub mod pool;
pub mod run;
pub mod serve;
pub mod show;
pub mod signals;
pub mod terminal;
pub mod watch;
pub mod work;

/// Carries a command out; its exit code says how it went.
pub async fn run(command: Command) -> ExitCode {
    match command {
        Command::Serve(args) => serve::run(*args).await,
        Command::Run(args) => run::run(args).await,
        Command::Work(args) => work::run(args).await,
        Command::Forward(args) => forward::run(args).await,
        Command::Watch(args) => watch::run(args).await,
        Command::Enqueue(args) => enqueue::run(args).await,
        Command::Doctor(args) => doctor::run(args).await,
        Command::Guard => guard::run().await,
    }
}
