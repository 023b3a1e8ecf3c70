//! The flags of the commands that speak to a gateway: `run`, `work`, `forward`, `watch`, `enqueue`, `doctor`.

use std::ffi::OsString;

use clap::{Args, ValueEnum};

use super::webhook_secret;
use crate::domain::{Limits, WebhookSecret};

const RUN_EXIT_CODES: &str = "\
Exit codes: the command's own; 128+n when it was killed by signal n; 130 on Ctrl-C; 143 when the job was cancelled and
the command exited with 0. Before the command runs: 75 when --unique-key is held by another run, 125 when the gateway
cannot be reached or refuses the job (the command is then not run, unless --best-effort). 126 when the command cannot
be executed, 127 when it is not found.

A line on stdout that is a JSON object {\"type\":…,\"data\":…} is an event of the job, e.g.
{\"type\":\"progress\",\"data\":{\"percent\":40,\"phase\":\"encoding\"}}. A `completed` line is appended when the command
exits with 0. The command finds its job in MILEPOST_URL, MILEPOST_JOB_ID, MILEPOST_QUEUE, MILEPOST_KIND,
MILEPOST_SUBJECT, MILEPOST_ATTEMPT and MILEPOST_RUN. It runs in a process group of its own: SIGTERM goes to the whole
group on Ctrl-C and on a cancel, SIGKILL after the grace time or on a second Ctrl-C. If milepost itself is killed, a
second process of it (\"milepost guard\") stops the group: SIGTERM, SIGKILL 5 s later. A process that has left the group
(setsid) is not reached, and nothing is stopped when that second process is killed, too.";

const WORK_CONTRACT: &str = "\
The command is run once per job, in a process group of its own. It reads the job's payload, as JSON, from stdin, and
finds its job in MILEPOST_URL, MILEPOST_JOB_ID, MILEPOST_QUEUE, MILEPOST_KIND, MILEPOST_SUBJECT, MILEPOST_ATTEMPT and
MILEPOST_RUN. A line on stdout that is a JSON object {\"type\":…,\"data\":…} is an event of the job, e.g.
{\"type\":\"progress\",\"data\":{\"percent\":40}}; other lines are log entries, stderr is log entries of level error.

Its end is the job's: exit code 0 completes it, with what a `completed` line said; 75 (EX_TEMPFAIL) fails it, to be
tried again; another code fails it for good; a signal fails it, to be tried again. A `failed` line says it in the
command's own words (code, message, retryable, retry_after_ms). A cancel sends SIGTERM to the whole group, and SIGKILL
when the cancel's grace time is over; a lost lease does so within a second.

On SIGTERM, SIGINT and SIGHUP no more jobs are taken. What runs may go on for --grace-ms; then it is sent SIGTERM (5 s
later SIGKILL), and its job is released, which uses no attempt. A second signal does that at once.

If the worker itself is killed, a second process of it (\"milepost guard\") stops what still runs: SIGTERM, SIGKILL 5 s
later; the job is given to another worker when its lease has run out. A process that has left the command's group
(setsid) is not reached, and nothing is stopped when that second process is killed, too.

Exit codes: 0 stopped, 1 the gateway refuses to give work (a wrong key, say), 2 wrong usage. A gateway that cannot be
reached is waited for.";

const FORWARD_CONTRACT: &str = "\
Each job is POSTed as {\"job\":{its state and its payload},\"run\":3}. With a secret the request carries webhook-id,
webhook-timestamp and webhook-signature (Standard Webhooks 1.0); the id is that of the run. Redirects are not followed.
https needs a certificate that this machine trusts, or the authority that SSL_CERT_FILE names.

The answer is the job's end:
  2xx, JSON          completes it. An object of an Outcome's fields alone (ok, status, items, metrics, note, artifacts,
                     data) is the Outcome, any other JSON its data.
  204, or no body    completes it.
  2xx, a stream      application/x-ndjson or text/event-stream: each line, or each event's data, that is a JSON object
                     {\"type\":…,\"data\":…} is an event of the job, at once; other text is a log entry. `completed`,
                     `failed` or `released` ends the job; so does the stream's end, as completed. A stream that breaks
                     off, or ends in the middle of a line, fails it, to be tried again.
  429, 503           fails it, to be tried again when Retry-After says; 429 holds the whole queue back that long.
  other 5xx, no (whole) answer, --timeout-ms over (timed_out)
                     fails it, to be tried again.
  anything else      fails it for good: 3xx, 4xx, an answer that is no JSON, one that is too large.

With --openai the text of a chat completion becomes output, chunk by chunk or whole; the Outcome's data says model,
finish_reason and usage (or is the whole completion). Events may stand between the chunks.

A cancel, and a lost lease, close the connection at once.

On SIGTERM, SIGINT and SIGHUP no more jobs are taken. What runs may go on for --grace-ms; then its connection is closed
and its job released, which uses no attempt. A second signal does that at once.

Exit codes: 0 stopped, 1 the gateway refuses to give work (a wrong key, say), 2 wrong usage. A gateway that cannot be
reached is waited for.";

const WATCH_EXIT_CODES: &str = "\
Exit codes: 0 completed and succeeded, 3 completed but without success (ok: false), 4 failed, 5 cancelled, 6 expired,
7 no such job (or deleted), 1 anything else (no access, no gateway), 2 wrong usage.

On a terminal a bar is drawn on stderr. Otherwise one line per change is printed on stdout, or, with --output, on
stderr, so that stdout holds exactly the job's output.";

const ENQUEUE_EXIT_CODES: &str = "\
Exit codes: 0 the job is queued (or, with --unique-key or --idempotency-key, was there already), 1 refused or no
gateway, 2 wrong usage. With --wait those of `milepost watch`: 0 only if the work really succeeded.";

const DOCTOR_CONTRACT: &str = "\
Two tracked jobs of kind milepost.doctor are made, one of which gets an event each second; streams, a long-poll and plain
GETs of them are opened through whatever stands between, watched for --seconds, and the jobs deleted again. The key, if
the gateway wants one, must be allowed to enqueue. Limits longer than --seconds are not found.

Exit codes: 0 nothing is wrong, 1 trouble was found, 2 the gateway could not be reached or the jobs not be made (or
wrong usage).";

/// Which gateway, and as whom.
#[derive(Args, Clone, Debug)]
pub struct ClientArgs {
    /// The gateway's address, with its base path if it has one
    #[arg(long, env = "MILEPOST_URL", value_name = "URL", default_value = "http://127.0.0.1:8080")]
    pub url: String,
    /// The key to present to the gateway (better given by the environment: arguments are seen by every user)
    #[arg(long, env = "MILEPOST_KEY", value_name = "KEY", hide_env_values = true)]
    pub key: Option<String>,
}

/// What becomes of stdout lines that are no events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputKind {
    /// Each line is a log entry of level info
    Log,
    /// The job's output text, line ends included
    Text,
}

/// `milepost run`: run a command now, as a tracked job.
#[derive(Args, Clone, Debug)]
#[command(after_help = RUN_EXIT_CODES)]
pub struct RunArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub client: ClientArgs,
    /// The job's kind [default: the command's file name]
    #[arg(long)]
    pub kind: Option<String>,
    /// What the job is about, e.g. article:42
    #[arg(long)]
    pub subject: Option<String>,
    /// The job's queue
    #[arg(long, default_value = "default")]
    pub queue: String,
    /// What becomes of stdout lines that are no events
    #[arg(long, value_enum, default_value = "log")]
    pub output: OutputKind,
    /// Run only if no other job of the queue holds this key
    #[arg(long, value_name = "KEY")]
    pub unique_key: Option<String>,
    /// Something to know about the job; VALUE is JSON, or else text (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    pub meta: Vec<String>,
    /// Do not pass the command's output through, and print no page address
    #[arg(long, short)]
    pub quiet: bool,
    /// Run the command even if the gateway cannot be reached, untracked then
    #[arg(long)]
    pub best_effort: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `milepost work`: run a command once per job of a queue.
#[derive(Args, Clone, Debug)]
#[command(after_help = WORK_CONTRACT)]
pub struct WorkArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub client: ClientArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub worker: WorkerArgs,
    /// What becomes of stdout lines that are no events
    #[arg(long, value_enum, default_value = "log")]
    pub output: OutputKind,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// What is taken, and how much of it at a time.
#[derive(Args, Clone, Debug)]
pub struct WorkerArgs {
    /// Where to take jobs from; several are served in this order (repeatable)
    #[arg(long, short = 'Q', value_name = "QUEUE", default_value = "default")]
    pub queue: Vec<String>,
    /// Take only jobs of this kind (repeatable)
    #[arg(long)]
    pub kind: Vec<String>,
    /// How many jobs to work on at a time
    #[arg(long, short, value_name = "N", default_value = "1", value_parser = concurrency)]
    pub concurrency: usize,
    /// The worker's name, for those who look after the gateway [default: host:pid]
    #[arg(long)]
    pub worker: Option<String>,
    /// A job whose worker has fallen silent for that long is given to another one
    #[arg(long, value_name = "MS", default_value = "30000", value_parser = clap::value_parser!(u64).range(1_000..=3_600_000))]
    pub lease_ms: u64,
    /// How long jobs may go on when the worker is asked to stop
    #[arg(long, value_name = "MS", default_value = "10000")]
    pub grace_ms: u64,
    /// Say nothing of jobs that begin and end
    #[arg(long, short)]
    pub quiet: bool,
}

/// `milepost forward`: post each job of a queue to an endpoint.
#[derive(Args, Clone, Debug)]
#[command(after_help = FORWARD_CONTRACT)]
pub struct ForwardArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub client: ClientArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub worker: WorkerArgs,
    /// The endpoint that each job is posted to
    #[arg(long, value_name = "URL")]
    pub to: String,
    /// Answers are chat completions: their text becomes the job's output, as it arrives
    #[arg(long)]
    pub openai: bool,
    /// The longest that one call may take, to the end of its answer
    #[arg(long, value_name = "MS", default_value = "600000", value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    pub timeout_ms: u64,
    /// The largest answer that is read, if it is no stream
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().result_bytes)]
    pub max_answer: usize,
    /// What requests are signed with, whsec_…; several, separated by commas, while secrets are being exchanged (better
    /// given by the environment)
    #[arg(long, env = "MILEPOST_WEBHOOK_SECRET", hide_env_values = true, value_delimiter = ',', value_name = "SECRET", value_parser = webhook_secret)]
    pub webhook_secret: Vec<WebhookSecret>,
}

fn concurrency(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| (1..=1_000).contains(n)).ok_or_else(|| "must be 1 to 1,000".to_owned())
}

/// `milepost watch`: follow a job to its end.
#[derive(Args, Clone, Debug)]
#[command(after_help = WATCH_EXIT_CODES)]
pub struct WatchArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub client: ClientArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub show: ShowArgs,
    /// The job's id, or the URL of the job, of its events or of its page
    #[arg(value_name = "ID|URL")]
    pub job: String,
}

/// What of a job is shown.
#[derive(Args, Clone, Debug, Default)]
pub struct ShowArgs {
    /// Print the job's output text
    #[arg(long)]
    pub output: bool,
    /// Print the job's log entries
    #[arg(long)]
    pub logs: bool,
    /// Print every event, and the state when it is sent whole, as a line of JSON
    #[arg(long, conflicts_with_all = ["output", "logs"])]
    pub json: bool,
}

/// `milepost enqueue`: hand a job to the workers.
#[derive(Args, Clone, Debug)]
#[command(after_help = ENQUEUE_EXIT_CODES)]
pub struct EnqueueArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub client: ClientArgs,
    /// What is to be done
    #[arg(long)]
    pub kind: String,
    /// The job's queue [default: default]
    #[arg(long)]
    pub queue: Option<String>,
    /// What the job is about, e.g. article:42
    #[arg(long)]
    pub subject: Option<String>,
    /// The payload: JSON, @FILE, or - for stdin
    #[arg(long, value_name = "JSON|@FILE|-")]
    pub payload: Option<String>,
    /// At most one live job of the queue has this key
    #[arg(long, value_name = "KEY")]
    pub unique_key: Option<String>,
    /// End the live job that holds the unique key, instead of answering with it
    #[arg(long, requires = "unique_key")]
    pub replace: bool,
    /// Makes repeating this command safe: the same key answers with the same job
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
    /// Wait that long before the job may start
    #[arg(long, value_name = "MS")]
    pub delay_ms: Option<u64>,
    /// Higher goes first (-100 to 100)
    #[arg(long, allow_negative_numbers = true)]
    pub priority: Option<i32>,
    /// Tries in all
    #[arg(long, value_name = "N", conflicts_with = "tracked")]
    pub max_attempts: Option<u32>,
    /// The job belongs to an outside runner: it is running from the start and never handed to a worker
    #[arg(long, conflicts_with = "delay_ms")]
    pub tracked: bool,
    /// Something to know about the job; VALUE is JSON, or else text (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    pub meta: Vec<String>,
    /// Follow the job to its end, as `milepost watch` does
    #[arg(long)]
    pub wait: bool,
    /// Print the whole answer instead of the id; with --wait also every event
    #[arg(long)]
    pub json: bool,
    /// With --wait: print the job's output text
    #[arg(long, requires = "wait", conflicts_with = "json")]
    pub output: bool,
    /// With --wait: print the job's log entries
    #[arg(long, requires = "wait", conflicts_with = "json")]
    pub logs: bool,
}

/// `milepost doctor`: what stands between here and a gateway, and what it does to streams.
#[derive(Args, Clone, Debug)]
#[command(after_help = DOCTOR_CONTRACT)]
pub struct DoctorArgs {
    /// The address at which browsers reach the gateway, with its base path if it has one
    #[arg(env = "MILEPOST_URL", value_name = "URL", default_value = "http://127.0.0.1:8080")]
    pub url: String,
    /// The key to present to the gateway (better given by the environment: arguments are seen by every user)
    #[arg(long, env = "MILEPOST_KEY", value_name = "KEY", hide_env_values = true)]
    pub key: Option<String>,
    /// How long to watch: the longer, the longer the time limits that are found
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(3..=3600))]
    pub seconds: u64,
    /// Print what was found as JSON
    #[arg(long)]
    pub json: bool,
}
