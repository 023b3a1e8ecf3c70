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

/// Which queue.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct QueueName {
    /// `[A-Za-z0-9._-]{1,64}`.
    q: String,
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
    /// An `http` or `https` URL of a public address that the state document is posted to at the end, signed after
    /// Standard Webhooks 1.0 (`webhook-id`, the same on every try, `webhook-timestamp`, `webhook-signature`). At least
    /// once: up to 8 tries with growing waits; 410 stops them. Redirects are not followed. Needs a gateway with
    /// `--webhook-secret` and `--public-url`, else 422.
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
    /// Only with `include=waiting`; `null` if the job does not wait.
    waiting_for: Option<WaitingFor>,
}

/// Why a job waits: the first reason that holds, in this order, except that `no_worker` is looked at before `ahead`.
#[derive(ToSchema)]
pub(super) struct WaitingFor {
    /// `run_at paused held concurrency concurrency_key rate_limit ahead no_worker`. The last one also of a job that is
    /// next, while no worker asks.
    reason: String,
    /// `run_at`: when its time comes.
    run_at: Option<String>,
    /// `paused`: who stopped the queue, why and when.
    paused: Option<Pause>,
    /// `held`, `rate_limit`: when it may go on.
    until: Option<String>,
    /// `concurrency_key`, and `rate_limit` if each key has its own.
    key: Option<String>,
    /// `concurrency`, `concurrency_key`: slots taken.
    running: Option<u64>,
    /// `concurrency`, `concurrency_key`: slots there are; `rate_limit`: hand-outs per `per_ms`.
    limit: Option<u64>,
    /// `concurrency`, `concurrency_key`: up to ten of the jobs that run.
    jobs: Option<Vec<String>>,
    /// `rate_limit`.
    per_ms: Option<u64>,
    /// `rate_limit`.
    burst: Option<u64>,
    /// `ahead`: how many come first; not counted beyond 1,000.
    ahead: Option<u64>,
}

/// Who stopped a queue, why and when.
#[derive(ToSchema)]
pub(super) struct Pause {
    by: String,
    reason: Option<String>,
    at: String,
}

/// A page of a list.
#[derive(ToSchema)]
pub(super) struct JobPage {
    jobs: Vec<Job>,
    /// The `cursor` of the next page.
    next: Option<String>,
}

/// A page of the feed.
#[derive(ToSchema)]
pub(super) struct FeedPage {
    /// `invalid`, if the cursor could not be used; then everything is here, as without one.
    reset: Option<String>,
    /// Each is whole: what has changed since the cursor.
    jobs: Vec<Job>,
    /// Ids of jobs that are not there, or not any more.
    gone: Vec<String>,
    /// The `after` of the next page: opaque, visible ASCII, at most 64 characters. Usable for an hour.
    next: String,
    /// More jobs match than are here.
    truncated: Option<bool>,
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

/// Which of a queue's jobs: all of them, if nothing is said. Unknown fields are refused.
#[derive(ToSchema)]
pub(super) struct Selection {
    /// At most this many, the oldest.
    #[schema(minimum = 1)]
    limit: Option<u64>,
    /// Only those whose last error has this code.
    error_code: Option<String>,
    /// Only count them.
    dry_run: Option<bool>,
}

/// How many jobs it was.
#[derive(ToSchema)]
pub(super) struct Count {
    count: u64,
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

/// All queues, by name.
#[derive(ToSchema)]
pub(super) struct Queues {
    queues: Vec<Queue>,
}

/// A queue: its settings, and how it stands.
#[derive(ToSchema)]
pub(super) struct Queue {
    name: String,
    /// Nothing is handed out while it is paused.
    paused: Option<Pause>,
    concurrency: Option<u32>,
    concurrency_per_key: Option<u32>,
    rate_limit: Option<RateLimit>,
    defaults: QueueDefaults,
    /// Nothing is handed out until then: a worker said so.
    held_until: Option<String>,
    counts: QueueCounts,
    /// Since when the job has been claimable that has waited longest.
    oldest_queued_at: Option<String>,
    /// From when jobs could run to when they did, in the last 10 minutes.
    wait_ms: Percentiles,
    /// How long runs took, in the last 10 minutes.
    run_ms: Percentiles,
    /// Jobs that ended within the last minute.
    finished_per_min: u64,
}

/// A queue's jobs by where they are; those whose `run_at` has come count as queued.
#[derive(ToSchema)]
pub(super) struct QueueCounts {
    scheduled: u64,
    queued: u64,
    running: u64,
    retrying: u64,
    /// The dead letters.
    failed: u64,
}

/// Milliseconds, to within 5 %; `null`: there was none.
#[derive(ToSchema)]
pub(super) struct Percentiles {
    p50: Option<u64>,
    p95: Option<u64>,
}

/// A change of settings: what is named is set, or cleared by `null`; the rest stays. Unknown fields are refused.
#[derive(ToSchema)]
pub(super) struct QueueSettings {
    /// Runs at a time: 1–1,000,000.
    concurrency: Option<u32>,
    /// Runs at a time of each concurrency key: 1–1,000,000.
    concurrency_per_key: Option<u32>,
    rate_limit: Option<RateLimit>,
    /// Replaced whole.
    defaults: Option<QueueDefaults>,
}

/// `limit` hand-outs per `per_ms` in the long run, at most `burst` (default 1) at once.
#[derive(ToSchema)]
pub(super) struct RateLimit {
    limit: u32,
    per_ms: u64,
    burst: Option<u32>,
    /// Whether each concurrency key has a rate of its own, default false.
    per_key: Option<bool>,
}

/// For specs that leave these fields out.
#[derive(ToSchema)]
pub(super) struct QueueDefaults {
    timeout_ms: Option<u64>,
    ttl_ms: Option<u64>,
    deadline_ms: Option<u64>,
    #[schema(minimum = 1, maximum = 1000)]
    max_attempts: Option<u32>,
    backoff: Option<Backoff>,
    #[schema(minimum = -100, maximum = 100)]
    priority: Option<i32>,
}

/// May be left out.
#[derive(ToSchema)]
pub(super) struct PauseRequest {
    /// Why, for those who wonder: at most 8 KiB.
    reason: Option<String>,
}

/// Who works on what.
#[derive(ToSchema)]
pub(super) struct Workers {
    /// By name.
    workers: Vec<Worker>,
}

/// A name under which somebody works; processes may share one.
#[derive(ToSchema)]
pub(super) struct Worker {
    worker: String,
    /// Its last claim, or its last sign of life for a job.
    seen_at: String,
    /// What it holds.
    jobs: Vec<HeldJob>,
}

/// A job under a lease.
#[derive(ToSchema)]
pub(super) struct HeldJob {
    id: String,
    run: u64,
    expires_at: String,
    cancel_requested: bool,
}

/// Which worker.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct WorkerName {
    /// `[A-Za-z0-9._:@-]{1,128}`, as it claims.
    worker: String,
}

/// What a worker has been asked so far.
#[derive(ToSchema)]
pub(super) struct Signals {
    /// Runs to stop.
    cancel: Vec<CancelSignal>,
    /// Whether the gateway is about to stop.
    drain: bool,
}

/// A run is to stop.
#[derive(ToSchema)]
pub(super) struct CancelSignal {
    job: String,
    run: u64,
    reason: Option<String>,
    /// How long it may still take, in milliseconds; then it is ended by force.
    grace_ms: u64,
}
