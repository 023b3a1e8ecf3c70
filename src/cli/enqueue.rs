//! `milepost enqueue`: hands a job to the workers, and says what is known then: it is queued, no more.

use std::io::{Read, Write};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

use super::gateway;
use super::show::{self, OTHER};
use super::terminal::{printable, say};
use crate::client::{self, Client, ClientError, Enqueued};
use crate::config::client::{EnqueueArgs, ShowArgs};

/// How long a gateway that is just restarting is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// Enqueues; prints the id on stdout, and what it means on stderr.
pub async fn run(args: EnqueueArgs) -> ExitCode {
    let (client, enqueued) = match enqueue(&args).await {
        Ok(enqueued) => enqueued,
        Err(error) => {
            say(&error.to_string());
            return ExitCode::from(OTHER);
        }
    };
    let answer = if args.json { enqueued.answer.to_string() } else { enqueued.id.clone() };
    if writeln!(std::io::stdout(), "{}", printable(&answer)).is_err() {
        return ExitCode::from(OTHER);
    }
    say(&fact(&enqueued));
    if !args.wait {
        return ExitCode::SUCCESS;
    }
    let show = ShowArgs { output: args.output, logs: args.logs, json: args.json };
    show::to_end(client, enqueued.id, &show).await
}

/// What has happened so far, in words that promise nothing more.
fn fact(enqueued: &Enqueued) -> String {
    let state = enqueued.answer["job"]["state"].as_str().unwrap_or("queued");
    let page = &enqueued.page;
    match (enqueued.created, enqueued.answer["replaced"].as_str()) {
        (true, Some(old)) => format!("{state}, in place of {old}: {page}"),
        (true, None) => format!("{state}: {page}"),
        (false, _) => format!("was there already, {state}: {page}"),
    }
}

async fn enqueue(args: &EnqueueArgs) -> Result<(Client, Enqueued), ClientError> {
    let client = gateway::connect(&args.client)?;
    let spec = spec(args)?;
    let own_key = client::idempotency_key();
    let key = args.idempotency_key.as_deref().unwrap_or(&own_key);
    let mut enqueued = gateway::enqueue(&client, &spec, key, PATIENCE).await?;
    // Only our own first try, whose answer was lost, can have been there before.
    enqueued.created |= args.idempotency_key.is_none() && args.unique_key.is_none();
    Ok((client, enqueued))
}

fn spec(args: &EnqueueArgs) -> Result<Value, ClientError> {
    let mut spec = json!({"kind": args.kind});
    let mut set = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            spec[key] = value;
        }
    };
    let meta = gateway::meta(&args.meta)?;
    set("queue", args.queue.clone().map(Value::from));
    set("subject", args.subject.clone().map(Value::from));
    set("payload", args.payload.as_deref().map(payload).transpose()?);
    set("unique_key", args.unique_key.clone().map(Value::from));
    set("unique_on_conflict", args.replace.then(|| "replace".into()));
    set("delay_ms", args.delay_ms.map(Value::from));
    set("priority", args.priority.map(Value::from));
    set("max_attempts", args.max_attempts.map(Value::from));
    set("tracked", args.tracked.then_some(true.into()));
    set("meta", (!meta.is_empty()).then(|| meta.into()));
    Ok(spec)
}

fn payload(argument: &str) -> Result<Value, ClientError> {
    let unreadable = |what: &str, error: &dyn std::fmt::Display| {
        ClientError::Address(format!("--payload: cannot read {what}: {error}"))
    };
    let json = if argument == "-" {
        let mut json = String::new();
        let read = std::io::stdin().read_to_string(&mut json);
        read.map_err(|error| unreadable("stdin", &error))?;
        json
    } else if let Some(path) = argument.strip_prefix('@') {
        std::fs::read_to_string(path).map_err(|error| unreadable(path, &error))?
    } else {
        argument.to_owned()
    };
    serde_json::from_str(&json).map_err(|error| ClientError::Address(format!("--payload is no JSON: {error}")))
}
