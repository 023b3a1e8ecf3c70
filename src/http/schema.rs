//! The shapes on the wire, for `/openapi.json`. They describe what the handlers read and write; a test compares them
//! with real answers, so that they cannot drift.
#![allow(dead_code, reason = "these types are described, never made")]

use serde_json::{Map, Value};
use utoipa::{IntoParams, ToResponse, ToSchema};

type Object = Map<String, Value>;

/// Which job.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct JobId {
    /// A UUIDv7 in lower case, as it was given out.
    id: String,
}

/// What may be asked for. Only `kind` is required; `null` counts as left out.
#[derive(ToSchema)]
pub(super) struct Spec {
    /// The lane: `[A-Za-z0-9._-]{1,64}`, default `default`.
    queue: Option<String>,
    /// What kind of work: `[A-Za-z0-9._-]{1,64}`.
    kind: String,
    /// What the worker is given, at most 256 KiB.
    payload: Option<Value>,
    /// What the job is about: 1–200 characters.
    subject: Option<String>,
    /// −100..100, higher first.
    #[schema(minimum = -100, maximum = 100)]
    priority: Option<i32>,
    /// Not before so many milliseconds from now.
    delay_ms: Option<u64>,
    /// Not before this instant (RFC 3339); excludes `delay_ms`.
    run_at: Option<String>,
    /// Must start within so many milliseconds of `run_at`, else `expired`.
    ttl_ms: Option<u64>,
    /// The longest one run may take; for a tracked job, the longest silence.
    timeout_ms: Option<u64>,
    /// From creation to the end of everything.
    deadline_ms: Option<u64>,
    /// Tries in all, default 3.
    #[schema(minimum = 1, maximum = 1000)]
    max_attempts: Option<u32>,
    /// Waits between tries.
    backoff: Option<Backoff>,
    /// At most one live job per queue and key: 1–200 characters.
    unique_key: Option<String>,
    /// `return` (default): the live job answers. `replace`: it ends, and this one takes its place.
    unique_on_conflict: Option<String>,
    /// Jobs of one key share a concurrency limit: 1–200 characters.
    concurrency_key: Option<String>,
    /// Once watched, cancel when nobody has watched for so long.
    cancel_if_unwatched_ms: Option<u64>,
    /// An outside runner runs it: it is `running` from the start.
    tracked: Option<bool>,
    /// Told the state document at the end; needs a gateway with a webhook secret.
    callback_url: Option<String>,
    /// Whatever every watcher may see, at most 8 KiB.
    meta: Option<Object>,
}

/// `initial_ms × factor^(n−1)`, at most `max_ms`, ± `jitter` of it.
#[derive(ToSchema)]
pub(super) struct Backoff {
    /// Default 1,000.
    initial_ms: Option<u64>,
    /// Default 2.0.
    factor: Option<f64>,
    /// Default 300,000.
    max_ms: Option<u64>,
    /// Default 0.2.
    jitter: Option<f64>,
}

/// Up to 1,000 specs.
#[derive(ToSchema)]
pub(super) struct EnqueueBatch {
    jobs: Vec<Spec>,
}

/// Where to go on.
#[derive(ToSchema)]
pub(super) struct Urls {
    /// The state document.
    job: String,
    /// The log, as a stream or in pages.
    events: String,
    /// A page for people.
    page: String,
}

/// The job that answers.
#[derive(ToSchema)]
pub(super) struct Enqueued {
    job: Job,
    /// Whether it is new.
    created: bool,
    urls: Urls,
    /// The live job whose place it took.
    replaced: Option<String>,
}

/// A result per spec, in order.
#[derive(ToSchema)]
pub(super) struct BatchResults {
    results: Vec<BatchResult>,
}

/// Either a job, as [`Enqueued`], or an error.
#[derive(ToSchema)]
pub(super) struct BatchResult {
    /// 202, 200, or the error's status.
    status: u16,
    job: Option<Job>,
    created: Option<bool>,
    urls: Option<Urls>,
    replaced: Option<String>,
    error: Option<Problem>,
}

/// How far the run is. Fields it never gave are `null`.
#[derive(ToSchema)]
pub(super) struct Progress {
    /// 0–100; within a run it never falls.
    percent: Option<f64>,
    current: Option<f64>,
    total: Option<f64>,
    unit: Option<String>,
    phase: Option<String>,
    message: Option<String>,
}

/// How much output the run has.
#[derive(ToSchema)]
pub(super) struct Output {
    /// Bytes of UTF-8.
    bytes: u64,
}

/// A file or page that the run produced.
#[derive(ToSchema)]
pub(super) struct Artifact {
    r#type: Option<String>,
    label: Option<String>,
    /// `http` or `https`.
    url: Option<String>,
}

/// The uniform result envelope.
#[derive(ToSchema)]
pub(super) struct Outcome {
    /// Whether the work really succeeded.
    ok: bool,
    status: Option<String>,
    items: Option<u64>,
    metrics: Option<Object>,
    note: Option<String>,
    artifacts: Option<Vec<Artifact>>,
    /// Where the data is, if there is any.
    result_url: Option<String>,
}

/// What went wrong.
#[derive(ToSchema)]
pub(super) struct JobError {
    code: String,
    message: String,
    retryable: Option<bool>,
    details: Option<Value>,
}

/// The state document: a fold of the log up to `seq`.
#[derive(ToSchema)]
pub(super) struct Job {
    id: String,
    queue: String,
    kind: String,
    subject: Option<String>,
    /// `scheduled queued running retrying completed failed cancelled expired`.
    state: String,
    /// Whether the job has ended.
    terminal: bool,
    seq: u64,
    attempt: u32,
    max_attempts: u32,
    priority: i32,
    tracked: bool,
    progress: Option<Progress>,
    output: Output,
    outcome: Option<Outcome>,
    error: Option<JobError>,
    cancel_requested: bool,
    worker: Option<String>,
    created_at: String,
    run_at: String,
    started_at: Option<String>,
    finished_at: Option<String>,
    updated_at: String,
    meta: Object,
    /// Only with `include=payload`.
    payload: Option<Value>,
}

/// A page of a list.
#[derive(ToSchema)]
pub(super) struct JobPage {
    jobs: Vec<Job>,
    /// The `cursor` of the next page.
    next: Option<String>,
}

/// One entry of a log.
#[derive(ToSchema)]
pub(super) struct Event {
    seq: u64,
    r#type: String,
    at: String,
    attempt: u32,
    data: Object,
}

/// A page of a log.
#[derive(ToSchema)]
pub(super) struct EventPage {
    events: Vec<Event>,
    /// The `after` of the next page.
    next: u64,
    state: String,
    terminal: bool,
    /// Whether there is more to read at once.
    more: bool,
    /// Why the cursor could not be used: `ahead` or `invalid`.
    reset: Option<String>,
    /// The state, with `reset`.
    job: Option<Job>,
}

/// An event, as a runner appends it.
#[derive(ToSchema)]
pub(super) struct NewEvent {
    /// `progress output log completed failed cancelled`, or one of your own: `[a-z][a-z0-9_.-]{0,63}`.
    r#type: String,
    data: Option<Object>,
}

/// One event, or several.
#[derive(ToSchema)]
pub(super) enum NewEvents {
    #[schema(title = "One")]
    One(NewEvent),
    #[schema(title = "Several")]
    Several(Vec<NewEvent>),
}

/// What an append did.
#[derive(ToSchema)]
pub(super) struct Appended {
    seq: u64,
    /// `null` for tracked jobs, which have no lease.
    lease: Option<Object>,
    /// Whether the runner is asked to stop.
    cancel_requested: bool,
    /// NDJSON: how many events were stored.
    stored: Option<u64>,
}

/// Both may be left out.
#[derive(ToSchema)]
pub(super) struct CancelRequest {
    reason: Option<String>,
    /// How long the runner may take to stop by itself, default 10,000.
    grace_ms: Option<u64>,
}

/// It is.
#[derive(ToSchema)]
pub(super) struct Health {
    status: String,
}

/// An error (RFC 9457).
#[derive(ToSchema)]
pub(super) struct Problem {
    /// `urn:milepost:error:<code>`.
    r#type: String,
    title: String,
    status: u16,
    /// Stable; see the README.
    code: String,
    detail: String,
    /// RFC 6901, on the body as sent.
    pointer: Option<String>,
}

/// An error (RFC 9457).
#[derive(ToResponse)]
#[response(description = "An error", content_type = "application/problem+json")]
pub(super) struct ProblemResponse(Problem);

/// A worker asks for work. Unknown fields are refused.
#[derive(ToSchema)]
pub(super) struct ClaimRequest {
    /// `[A-Za-z0-9._:@-]{1,128}`.
    worker: String,
    /// In this order; `["default"]` if left out.
    queues: Option<Vec<String>>,
    /// Only jobs of these kinds; empty or left out: of any.
    kinds: Option<Vec<String>>,
    /// 1–100, default 1.
    max: Option<u32>,
    /// Milliseconds; 0 if left out, more than 55,000 is capped.
    wait_ms: Option<u64>,
    /// Milliseconds, 1,000–3,600,000, default 30,000.
    lease_ms: Option<u64>,
}

/// What was handed out.
#[derive(ToSchema)]
pub(super) struct Claimed {
    jobs: Vec<HandedOut>,
}

/// A job, its payload within, and the lease that its worker shows with every append.
#[derive(ToSchema)]
pub(super) struct HandedOut {
    job: Job,
    lease: Lease,
}

/// Proof of one run, good as long as signs of life come.
#[derive(ToSchema)]
pub(super) struct Lease {
    /// For the header `Lease-Token`.
    token: String,
    run: u64,
    expires_in_ms: u64,
    expires_at: String,
}
