//! The flags of the commands that speak to a gateway: `run`, `watch`, `enqueue`.

use std::ffi::OsString;

use clap::{Args, ValueEnum};

const RUN_EXIT_CODES: &str = "\
Exit codes: the command's own; 128+n when it was killed by signal n; 130 on Ctrl-C; 143 when the job was cancelled and
the command exited with 0. Before the command runs: 75 when --unique-key is held by another run, 125 when the gateway
cannot be reached or refuses the job (the command is then not run, unless --best-effort). 126 when the command cannot
be executed, 127 when it is not found.

A line on stdout that is a JSON object {\"type\":…,\"data\":…} is an event of the job, e.g.
{\"type\":\"progress\",\"data\":{\"percent\":40,\"phase\":\"encoding\"}}. A `completed` line is appended when the command
exits with 0. The command finds its job in MILEPOST_URL, MILEPOST_JOB_ID, MILEPOST_QUEUE, MILEPOST_KIND,
MILEPOST_SUBJECT, MILEPOST_ATTEMPT and MILEPOST_RUN. It runs in a process group of its own: SIGTERM goes to the whole
group on Ctrl-C and on a cancel, SIGKILL after the grace time or on a second Ctrl-C.";

const WATCH_EXIT_CODES: &str = "\
Exit codes: 0 completed and succeeded, 3 completed but without success (ok: false), 4 failed, 5 cancelled, 6 expired,
7 no such job (or deleted), 1 anything else (no access, no gateway), 2 wrong usage.

On a terminal a bar is drawn on stderr. Otherwise one line per change is printed on stdout, or, with --output, on
stderr, so that stdout holds exactly the job's output.";

const ENQUEUE_EXIT_CODES: &str = "\
Exit codes: 0 the job is queued (or, with --unique-key or --idempotency-key, was there already), 1 refused or no
gateway, 2 wrong usage. With --wait those of `milepost watch`: 0 only if the work really succeeded.";

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
