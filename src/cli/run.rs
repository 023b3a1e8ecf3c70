//! `milepost run`: any program, now, as a tracked job.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::signal::unix::SignalKind;

use super::signals::FirstSignal;
use super::terminal::say;
use super::{gateway, guard, signals};
use crate::client::{self, Client, ClientError, Enqueued};
use crate::config::client::{OutputKind, RunArgs};
use crate::worker::command::{Cause, DEFAULT_GRACE, Finished, Run, run as run_command};
use crate::worker::entry::Entry;
use crate::worker::exit::Exit;
use crate::worker::job::JobInfo;
use crate::worker::lines::Cut;
use crate::worker::process::{Input, Program};
use crate::worker::remote::RemoteJob;
use crate::worker::reporter::{Delivery, Notice};

/// The command was not run: no gateway, or it did not take the job. As `env`, `timeout` and `docker run` have it.
const NOT_RUN: u8 = 125;
/// Another run holds the unique key: try later (EX_TEMPFAIL).
const ALREADY_RUNNING: u8 = 75;
/// As if SIGTERM had ended the command.
const TERMINATED: u8 = 143;
/// In the job's meta: which run holds the unique key.
const RUN_MARK: &str = "milepost_run";
/// A killed runner is noticed after that long a silence; the reporter is never silent for more than 15 s.
const SILENCE_MS: u64 = 60_000;
/// How long a gateway that is just restarting is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs the command to its end; the answer is the command's exit code (see `--help`).
pub async fn run(args: RunArgs) -> ExitCode {
    let (mut interrupts, first_signal) = match signals::listen() {
        Ok(listening) => listening,
        Err(error) => {
            say(&format!("cannot listen to signals: {error}"));
            return ExitCode::from(NOT_RUN);
        }
    };
    let enqueued = tokio::select! {
        enqueued = enqueue(&args) => enqueued,
        Some(()) = interrupts.recv() => return ExitCode::from(signal_code(&first_signal)),
    };
    let (client, enqueued) = match enqueued {
        Ok(enqueued) => enqueued,
        Err(error) if args.best_effort && may_run_untracked(&error) => {
            say(&format!("{error}; running untracked"));
            return run_untracked(&args);
        }
        Err(error) => {
            say(&format!("{error}; the command was not run"));
            return ExitCode::from(NOT_RUN);
        }
    };
    let page = &enqueued.page;
    if !enqueued.created {
        say(&format!("already running: {page}; the command was not run"));
        return ExitCode::from(ALREADY_RUNNING);
    }
    if !args.quiet {
        say(page);
    }
    let report = RemoteJob { id: enqueued.id.clone(), token: None, lease: None, client };
    let run = Run {
        program: program(&args, &report.client, &enqueued),
        cut: match args.output {
            OutputKind::Log => Cut::Lines,
            OutputKind::Text => Cut::Text,
        },
        echo: !args.quiet,
        interrupted: Entry::from_event(&json!({"type": "cancelled", "data": {"reason": "interrupted"}})),
        grace: DEFAULT_GRACE,
    };
    let notice: Notice = Arc::new(say);
    let finished = run_command(run, Arc::new(report), interrupts, notice).await;
    conclude(&finished, &first_signal)
}

/// Says what the command line has to know beyond the command's own words, and finds the exit code.
fn conclude(finished: &Finished, first_signal: &FirstSignal) -> ExitCode {
    if let Exit::NotStarted { message, .. } = &finished.exit {
        say(message);
    }
    if let Delivery::Undelivered(reason) = &finished.delivery {
        say(&format!("the job does not know how it ended: {reason}"));
    }
    let own = finished.exit.shell_code();
    ExitCode::from(match &finished.cause {
        Cause::Interrupted => signal_code(first_signal),
        // A job that was cancelled must not look like one that did its work.
        Cause::Cancelled(_) | Cause::Lost if own == 0 && !finished.completed => TERMINATED,
        Cause::Itself | Cause::Cancelled(_) | Cause::Lost => own,
    })
}

/// 130 for Ctrl-C, and likewise for the others.
fn signal_code(first: &FirstSignal) -> u8 {
    let kind = first.get().copied().unwrap_or(SignalKind::interrupt());
    Exit::Signal(kind.as_raw_value()).shell_code()
}

/// The client, and the tracked job that is now running.
async fn enqueue(args: &RunArgs) -> Result<(Client, Enqueued), ClientError> {
    let client = gateway::connect(&args.client)?;
    let key = client::idempotency_key();
    let mut enqueued = gateway::enqueue(&client, &spec(args, &key)?, &key, PATIENCE).await?;
    // Without a unique key only our own first try, whose answer was lost, can have been there before.
    enqueued.created |= args.unique_key.is_none() || enqueued.answer["job"]["meta"][RUN_MARK] == key.as_str();
    Ok((client, enqueued))
}

fn spec(args: &RunArgs, key: &str) -> Result<Value, ClientError> {
    let kind = args.kind.clone().unwrap_or_else(|| kind_of(&args.command));
    let mut meta = gateway::meta(&args.meta)?;
    let mut spec = json!({
        "queue": args.queue, "kind": kind, "tracked": true, "timeout_ms": SILENCE_MS,
    });
    if let Some(subject) = &args.subject {
        spec["subject"] = subject.as_str().into();
    }
    if let Some(unique_key) = &args.unique_key {
        spec["unique_key"] = unique_key.as_str().into();
        meta.insert(RUN_MARK.to_owned(), key.into());
    }
    spec["meta"] = meta.into();
    Ok(spec)
}

/// A kind made of the command's file name, within what a kind may be.
fn kind_of(command: &[OsString]) -> String {
    let name = command.first().and_then(|program| Path::new(program).file_name());
    let name = name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let kind: String =
        name.chars().take(64).map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' }).collect();
    if kind.is_empty() { "command".to_owned() } else { kind }
}

fn program(args: &RunArgs, client: &Client, enqueued: &Enqueued) -> Program {
    // A tracked job has one run.
    let info = JobInfo::of_document(&enqueued.answer["job"], 1);
    Program {
        command: args.command.clone(),
        environment: info.environment(&client.address().to_string()),
        input: Input::Inherit,
        guard: guard::start(),
    }
}

/// Trouble of the gateway is no reason not to do the work; a mistake in the arguments is.
fn may_run_untracked(error: &ClientError) -> bool {
    match error {
        ClientError::Refused(problem) => problem.is_passing() || matches!(problem.status, 401 | 403 | 404),
        ClientError::Unreachable { .. } | ClientError::NotAGateway { .. } | ClientError::GaveUp { .. } => true,
        ClientError::Address(_) => false,
    }
}

/// Becomes the command: signals, exit code and all are its own. Returns only when it cannot be started.
fn run_untracked(args: &RunArgs) -> ExitCode {
    let (program, arguments) = args.command.split_first().expect("clap requires a command");
    let error = std::process::Command::new(program).args(arguments).exec();
    let exit = Exit::not_started(&program.to_string_lossy(), &error);
    if let Exit::NotStarted { message, .. } = &exit {
        say(message);
    }
    ExitCode::from(exit.shell_code())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_made_of_the_commands_name() {
        for (command, kind) in [
            ("/usr/bin/python3", "python3"),
            ("./render image.sh", "render_image.sh"),
            ("größe", "gr__e"),
            ("/", "command"),
        ] {
            assert_eq!(kind_of(&[command.into()]), kind);
        }
        assert_eq!(kind_of(&["x".repeat(300).into()]).len(), 64);
    }
}
