//! Rust workers against a real gateway on SQLite, in one process.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::*;
use crate::domain::{Event, Job, JobId, Limits, Spec, State};
use crate::service::{Cursor, Settings, maintenance};
use crate::store::SqliteStore;
use crate::worker::context::EventError;
use crate::worker::job::JobInfo;
use crate::worker::outcome::{Level, Progress};
use crate::worker::report::{Appended, CancelRequest, Report};

/// A gateway of the test's own.
struct House {
    gateway: Gateway,
    directory: PathBuf,
}

impl Drop for House {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl House {
    async fn open() -> Self {
        let directory = std::env::temp_dir().join(format!("milepost-worker-{:016x}", rand::random::<u64>()));
        std::fs::create_dir_all(&directory).expect("a directory can be made");
        let store = SqliteStore::open(&directory.join("test.db"), 2).await.expect("the store opens");
        let (gateway, _) = Gateway::start(Arc::new(store), Limits::default(), Settings::default());
        tokio::spawn(maintenance::run(gateway.clone()));
        Self { gateway, directory }
    }

    async fn enqueue(&self, specs: Vec<Value>) -> Vec<JobId> {
        let limits = Limits::default();
        let specs = specs.into_iter().map(|spec| Spec::parse(spec, &limits).expect("a right spec")).collect();
        let enqueued = self.gateway.enqueue(specs, None).await.expect("the store works");
        enqueued.into_iter().map(|enqueued| enqueued.expect("nothing is refused").job.id).collect()
    }

    async fn job(&self, kind: &str, payload: Value) -> JobId {
        let spec = json!({"kind": kind, "payload": payload, "backoff": {"initial_ms": 1}, "max_attempts": 2});
        self.enqueue(vec![spec]).await[0]
    }

    async fn until(&self, id: JobId, is: impl Fn(&Job) -> bool) -> Arc<Job> {
        let reached = async {
            loop {
                let job = self.gateway.job(id).await.expect("the job is there");
                if is(&job) {
                    return job;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        within(reached).await
    }

    async fn ended(&self, id: JobId) -> Arc<Job> {
        self.until(id, |job| job.state.is_terminal()).await
    }

    async fn log(&self, id: JobId) -> Vec<Event> {
        let page = self.gateway.events_page(id, Cursor::Fresh, 1_000, Duration::ZERO).await;
        page.expect("the store works").events
    }

    async fn types(&self, id: JobId) -> Vec<String> {
        self.log(id).await.iter().map(|event| event.kind.as_str().to_owned()).collect()
    }

    async fn last(&self, id: JobId) -> (String, Value) {
        let last = self.log(id).await.pop().expect("no log is empty");
        (last.kind.as_str().to_owned(), last.data.to_map().into())
    }

    /// Lets the worker work until the returned end is told to stop.
    fn start(&self, worker: Worker) -> Shift {
        let (stop, stopped) = oneshot::channel::<()>();
        let run = worker.run(async {
            let _ = stopped.await;
        });
        Shift { stop, running: tokio::spawn(run) }
    }
}

struct Shift {
    stop: oneshot::Sender<()>,
    running: tokio::task::JoinHandle<Result<(), WorkerError>>,
}

impl Shift {
    async fn end(self) {
        let _ = self.stop.send(());
        assert_eq!(within(self.running).await.expect("no panic"), Ok(()));
    }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("in time")
}

fn error_code(job: &Job) -> String {
    job.error.as_ref().map(|error| error.to_map()["code"].as_str().expect("a code").to_owned()).unwrap_or_default()
}

#[derive(Deserialize)]
struct Summarize {
    url: String,
}

#[tokio::test]
async fn a_handler_reports_and_its_outcome_ends_the_job() {
    let house = House::open().await;
    let id = house.job("summarize", json!({"url": "https://example.com"})).await;
    let worker =
        Worker::new(house.gateway.clone()).name("w-1").handle("summarize", |ctx, payload: Summarize| async move {
            assert_eq!((ctx.job().kind.as_str(), ctx.job().attempt, ctx.job().run), ("summarize", 1, 1));
            assert!(ctx.document().contains("\"payload\":{\"url\""));
            ctx.progress(Progress::of(1.0, 4.0).unit("pages")).await?;
            ctx.output("to").await?;
            ctx.output("ken").await?;
            ctx.log(Level::Warn, "slow").await?;
            ctx.event("chapter", json!({"n": 1})).await?;
            ctx.progress(50.0).await?;
            Ok(Outcome::ok().items(1).data(json!({"from": payload.url})).metric("pages", 4))
        });
    let shift = house.start(worker);
    let job = house.ended(id).await;
    assert_eq!((job.state, job.worker.as_deref(), job.output_bytes), (State::Completed, Some("w-1"), 5));
    assert_eq!(job.progress.as_ref().and_then(|progress| progress.percent), Some(50.0));
    let outcome = job.outcome.as_ref().expect("an outcome").to_map();
    assert_eq!((&outcome["items"], &outcome["metrics"]["pages"]), (&json!(1), &json!(4)));
    let (_, result) = house.gateway.result(id).await.expect("a result");
    assert_eq!(result.as_str(), r#"{"from":"https://example.com"}"#);
    let types = house.types(id).await;
    assert_eq!(types, ["queued", "started", "progress", "output", "log", "chapter", "progress", "completed"]);
    shift.end().await;
}

#[tokio::test]
async fn what_cannot_be_an_event_is_an_error_at_once() {
    let house = House::open().await;
    let id = house.job("bad", json!(null)).await;
    let worker = Worker::new(house.gateway.clone()).handle("bad", |ctx, (): ()| async move {
        for (kind, data) in [("progress", json!({"percent": 101})), ("state", json!({})), ("x", json!(1))] {
            assert!(matches!(ctx.event(kind, data).await, Err(EventError::Invalid(_))), "{kind}");
        }
        assert!(matches!(ctx.progress(f64::NAN).await, Err(EventError::Invalid(_))));
        assert!(matches!(ctx.event("completed", json!({})).await, Err(EventError::Invalid(_))));
        Ok(())
    });
    let shift = house.start(worker);
    assert_eq!(house.ended(id).await.state, State::Completed);
    assert_eq!(house.types(id).await, ["queued", "started", "completed"]);
    shift.end().await;
}

#[tokio::test]
async fn failures_panics_and_wrong_payloads_have_their_codes() {
    let house = House::open().await;
    let worker = Worker::new(house.gateway.clone())
        .concurrency(4)
        .handle("error", |_, (): ()| async move {
            let number: u32 = "seven".parse()?;
            Ok(Outcome::ok().items(number.into()))
        })
        .handle("fatal", |_, (): ()| async move { Err::<(), _>(Failure::new("quota", "none left").fatal()) })
        .handle("panic", |ctx, (): ()| async move {
            assert_eq!(ctx.job().attempt, 2, "not yet");
            Ok(())
        })
        .handle("typed", |_, _: Summarize| async move { Ok(()) });
    let shift = house.start(worker);
    for (kind, payload, state, attempt, code) in [
        ("error", Value::Null, State::Failed, 2, "error"),
        ("fatal", Value::Null, State::Failed, 1, "quota"),
        ("panic", Value::Null, State::Completed, 2, ""),
        ("typed", json!({"uri": 1}), State::Failed, 1, "invalid_payload"),
    ] {
        let id = house.job(kind, payload).await;
        let job = house.ended(id).await;
        assert_eq!((job.state, job.attempt, error_code(&job).as_str()), (state, attempt, code), "{kind}");
        if kind == "panic" {
            let log = house.log(id).await;
            let retrying = log.iter().find(|event| event.kind.as_str() == "retrying").expect("a retry").data.to_map();
            assert_eq!(retrying["error"]["code"], "panicked");
            assert!(retrying["error"]["message"].as_str().is_some_and(|message| message.contains("not yet")));
        }
    }
    shift.end().await;
}

#[tokio::test]
async fn a_cancel_reaches_the_handler_at_once_and_a_deaf_one_is_dropped() {
    let house = House::open().await;
    let worker = Worker::new(house.gateway.clone())
        .concurrency(2)
        .handle("polite", |ctx, (): ()| async move {
            ctx.progress(10.0).await?;
            ctx.cancelled().await;
            assert!(ctx.is_cancelled());
            ctx.log(Level::Info, "tidied up").await?;
            Err::<(), _>(Failure::cancelled())
        })
        .handle("deaf", |_, (): ()| std::future::pending::<Result<(), Failure>>());
    let shift = house.start(worker);
    for (kind, grace_ms) in [("polite", 10_000), ("deaf", 300)] {
        let id = house.job(kind, Value::Null).await;
        house.until(id, |job| job.state == State::Running).await;
        tokio::time::sleep(Duration::from_millis(150)).await;
        let begun = Instant::now();
        let cancel = house.gateway.cancel(id, Some("enough".to_owned()), grace_ms, "test".to_owned());
        cancel.await.expect("it can be cancelled");
        assert_eq!(house.ended(id).await.state, State::Cancelled, "{kind}");
        assert!(begun.elapsed() < Duration::from_secs(3), "{kind} took {:?}", begun.elapsed());
        if kind == "polite" {
            assert_eq!(house.last(id).await, ("cancelled".to_owned(), json!({"reason": "enough"})));
            assert!(house.types(id).await.contains(&"log".to_owned()));
        }
    }
    shift.end().await;
}

#[tokio::test]
async fn a_completion_after_the_cancel_wins_and_an_error_is_kept() {
    let house = House::open().await;
    let worker = Worker::new(house.gateway.clone())
        .concurrency(2)
        .handle("done", |ctx, (): ()| async move {
            ctx.cancelled().await;
            Ok(Outcome::ok().note("just done"))
        })
        .handle("broken", |ctx, (): ()| async move {
            ctx.cancelled().await;
            Err::<(), _>(Failure::new("disk", "full"))
        });
    let shift = house.start(worker);
    for (kind, state, code) in [("done", State::Completed, ""), ("broken", State::Cancelled, "disk")] {
        let id = house.job(kind, Value::Null).await;
        house.until(id, |job| job.state == State::Running).await;
        house.gateway.cancel(id, None, 10_000, "test".to_owned()).await.expect("it can be cancelled");
        let job = house.ended(id).await;
        assert_eq!((job.state, error_code(&job).as_str()), (state, code), "{kind}");
    }
    shift.end().await;
}

#[tokio::test]
async fn shutdown_finishes_what_it_can_and_gives_the_rest_back() {
    let house = House::open().await;
    let worker = Worker::new(house.gateway.clone())
        .concurrency(3)
        .grace(Duration::from_millis(500))
        .handle("short", |_, (): ()| async move {
            tokio::time::sleep(Duration::from_millis(200)).await;
            Ok(())
        })
        .handle("polite", |ctx, (): ()| async move {
            ctx.cancelled().await;
            Err::<(), _>(Failure::cancelled())
        })
        .handle("deaf", |_, (): ()| std::future::pending::<Result<(), Failure>>());
    let mut ids = Vec::new();
    for kind in ["short", "polite", "deaf"] {
        ids.push(house.job(kind, Value::Null).await);
    }
    let shift = house.start(worker);
    for id in &ids {
        house.until(*id, |job| job.state == State::Running).await;
    }
    let late = house.job("short", Value::Null).await;
    shift.end().await;
    assert_eq!(house.gateway.job(ids[0]).await.expect("it is there").state, State::Completed);
    for id in &ids[1..] {
        let job = house.gateway.job(*id).await.expect("it is there");
        assert_eq!((job.state, job.attempt), (State::Queued, 0), "{}", job.kind.as_str());
        assert_eq!(house.last(*id).await.0, "released");
    }
    assert_eq!(house.types(late).await, ["queued"], "nothing more is taken");
}

#[tokio::test]
async fn a_gateway_that_drains_ends_its_worker() {
    let house = House::open().await;
    let worker = Worker::new(house.gateway.clone()).handle_any(|_, _: Value| async move { Ok(()) });
    let running = tokio::spawn(worker.run(std::future::pending()));
    house.gateway.drain();
    assert_eq!(within(running).await.expect("no panic"), Ok(()));
}

#[tokio::test]
async fn a_lost_lease_drops_the_handler_and_appends_nothing() {
    let house = House::open().await;
    let dropped = Arc::new(AtomicUsize::new(0));
    struct Counts(Arc<AtomicUsize>);
    impl Drop for Counts {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let counter = Arc::clone(&dropped);
    let worker = Worker::new(house.gateway.clone()).handle("slow", move |_, (): ()| {
        let guard = Counts(Arc::clone(&counter));
        async move {
            let _guard = guard;
            std::future::pending::<Result<(), Failure>>().await
        }
    });
    let spec = json!({"kind": "slow", "timeout_ms": 500, "max_attempts": 1});
    let id = house.enqueue(vec![spec]).await[0];
    let shift = house.start(worker);
    let job = house.ended(id).await;
    assert_eq!((job.state, error_code(&job).as_str()), (State::Failed, "timed_out"));
    within(async {
        while dropped.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert_eq!(house.types(id).await, ["queued", "started", "failed"]);
    shift.end().await;
}

#[tokio::test]
async fn a_worker_that_is_dropped_leaves_its_jobs_to_their_leases() {
    let house = House::open().await;
    let id = house.job("slow", Value::Null).await;
    let worker = || Worker::new(house.gateway.clone()).lease(Duration::from_secs(1));
    let deaf = worker().handle("slow", |_, (): ()| std::future::pending::<Result<(), Failure>>());
    let running = tokio::spawn(deaf.run(std::future::pending()));
    house.until(id, |job| job.state == State::Running).await;
    // Long enough for a heartbeat: from then on it is an attempt.
    tokio::time::sleep(Duration::from_millis(300)).await;
    running.abort();
    let shift = house.start(worker().handle("slow", |_, (): ()| async move { Ok(()) }));
    let job = house.ended(id).await;
    assert_eq!((job.state, job.attempt), (State::Completed, 2));
    shift.end().await;
}

#[tokio::test]
async fn a_context_that_is_kept_can_do_nothing_more() {
    let house = House::open().await;
    let id = house.job("leak", Value::Null).await;
    let (keep, kept) = std::sync::mpsc::channel();
    let worker = Worker::new(house.gateway.clone()).handle("leak", move |ctx, (): ()| {
        let keep = keep.clone();
        async move {
            keep.send(ctx).expect("the test waits");
            Ok(())
        }
    });
    let shift = house.start(worker);
    house.ended(id).await;
    let context: Context = kept.recv().expect("the handler ran");
    assert_eq!(context.output("late").await, Err(EventError::Over));
    shift.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocking_work_on_its_own_thread_delays_nobody() {
    let house = House::open().await;
    let worker = Worker::new(house.gateway.clone())
        .concurrency(5)
        .lease(Duration::from_secs(1))
        .handle("block", |ctx, (): ()| async move {
            let waited = tokio::task::spawn_blocking(move || {
                while !ctx.is_cancelled() {
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
            waited.await?;
            Err::<(), _>(Failure::cancelled())
        })
        .handle("quick", |_, (): ()| async move { Ok(()) });
    let shift = house.start(worker);
    let mut blocking = Vec::new();
    for _ in 0..4 {
        blocking.push(house.job("block", Value::Null).await);
    }
    for id in &blocking {
        house.until(*id, |job| job.state == State::Running).await;
    }
    let quick = house.job("quick", Value::Null).await;
    assert_eq!(house.ended(quick).await.state, State::Completed);
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    for id in blocking {
        assert_eq!(house.gateway.job(id).await.expect("it is there").attempt, 1, "its lease was kept");
        house.gateway.cancel(id, None, 10_000, "test".to_owned()).await.expect("it can be cancelled");
        assert_eq!(house.ended(id).await.state, State::Cancelled);
    }
    shift.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_jobs_are_each_done_once_and_never_too_many_at_a_time() {
    const JOBS: usize = 10_000;
    const AT_A_TIME: usize = 50;
    let house = House::open().await;
    let (running, most, done) = <(Arc<AtomicUsize>, Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
    let counters = (Arc::clone(&running), Arc::clone(&most), Arc::clone(&done));
    let worker = Worker::new(house.gateway.clone()).concurrency(AT_A_TIME).handle("noop", move |_, n: usize| {
        let (running, most, done) = (Arc::clone(&counters.0), Arc::clone(&counters.1), Arc::clone(&counters.2));
        async move {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            running.fetch_sub(1, Ordering::SeqCst);
            done.fetch_add(1, Ordering::SeqCst);
            Ok(Outcome::ok().items(n as u64))
        }
    });
    let mut ids = Vec::new();
    for thousand in 0..JOBS / 1_000 {
        let specs = (0..1_000).map(|n| json!({"kind": "noop", "payload": thousand * 1_000 + n})).collect();
        ids.extend(house.enqueue(specs).await);
    }
    let begun = Instant::now();
    let shift = house.start(worker);
    within(async {
        while done.load(Ordering::SeqCst) < JOBS {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    println!("{JOBS} no-op jobs in {:?}", begun.elapsed());
    shift.end().await;
    for (n, id) in ids.iter().enumerate() {
        let job = house.gateway.job(*id).await.expect("the job is there");
        assert_eq!(
            (job.state, job.seq, job.run),
            (State::Completed, 3, 1),
            "done once, and told before the worker went"
        );
        assert_eq!(job.outcome.as_ref().expect("an outcome").to_map()["items"], json!(n));
    }
    assert_eq!(done.load(Ordering::SeqCst), JOBS);
    assert!((2..=AT_A_TIME).contains(&most.load(Ordering::SeqCst)));
}

/// A fake gateway with work without end, whose store stands still until it is told to go on.
struct Still {
    handed: AtomicUsize,
    stored: AtomicUsize,
    goes_on: tokio::sync::Semaphore,
}

struct StillSource(Arc<Still>);
struct StillJob(Arc<Still>);

#[async_trait]
impl Source for StillSource {
    async fn claim(&self, request: &ClaimRequest, _: &str) -> Result<Vec<Claimed>, Trouble> {
        let claimed = |_| Claimed {
            info: JobInfo { kind: "noop".to_owned(), ..JobInfo::default() },
            payload: "null".to_owned(),
            whole: json!({}).into(),
            report: Arc::new(StillJob(Arc::clone(&self.0))),
        };
        self.0.handed.fetch_add(request.max, Ordering::SeqCst);
        Ok((0..request.max).map(claimed).collect())
    }
}

#[async_trait]
impl Report for StillJob {
    async fn append(&self, _: String, _: Option<&str>) -> Result<Appended, Trouble> {
        let _turn = self.0.goes_on.acquire().await.expect("it is never closed");
        self.0.stored.fetch_add(1, Ordering::SeqCst);
        Ok(Appended { seq: 3, cancel_requested: false })
    }

    async fn heartbeat(&self, _: Duration) -> Result<Appended, Trouble> {
        std::future::pending().await
    }

    async fn state(&self) -> Result<String, Trouble> {
        Ok("completed".to_owned())
    }

    async fn cancel_request(&self, _: u64) -> Result<CancelRequest, Trouble> {
        Ok(CancelRequest::default())
    }

    fn lease(&self) -> Option<Duration> {
        Some(DEFAULT_LEASE)
    }
}

#[tokio::test]
async fn the_next_jobs_are_taken_while_ends_are_stored_but_not_without_end() {
    let still = Arc::new(Still { handed: 0.into(), stored: 0.into(), goes_on: tokio::sync::Semaphore::const_new(0) });
    let worker = Worker::of(Arc::new(StillSource(Arc::clone(&still)))).concurrency(2);
    let worker = worker.handle("noop", |_, (): ()| async move { Ok(()) });
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(worker.run(async {
        let _ = stopped.await;
    }));
    let until = async |is: &dyn Fn() -> bool| {
        within(async {
            while !is() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    };
    until(&|| still.handed.load(Ordering::SeqCst) >= 100).await;
    assert_eq!(still.stored.load(Ordering::SeqCst), 0);
    // It takes more for as long as it can: a moment later it has stopped.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let most = 2 + crate::worker::pool::MAX_ENDING + 2 * 500;
    assert!(still.handed.load(Ordering::SeqCst) <= most, "{} were taken", still.handed.load(Ordering::SeqCst));
    still.goes_on.add_permits(1);
    until(&|| still.stored.load(Ordering::SeqCst) > 2 * most).await;
    let _ = stop.send(());
    assert_eq!(within(running).await.expect("no panic"), Ok(()));
    // Those that nobody had begun are given back, the others have ended.
    assert_eq!(still.stored.load(Ordering::SeqCst), still.handed.load(Ordering::SeqCst), "each end is told");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_claimed_ahead_is_not_kept_waiting_behind_a_long_one() {
    let house = House::open().await;
    let worker = || Worker::new(house.gateway.clone()).handle("quick", |_, (): ()| async move { Ok(()) });
    let both = worker().handle("slow", |ctx, (): ()| async move {
        ctx.cancelled().await;
        Err::<(), _>(Failure::cancelled())
    });
    let spec = |kind: &str| json!({"kind": kind});
    // So many quick ones that more are claimed ahead, and then one that stands in the way.
    house.enqueue(vec![spec("quick"); 400]).await;
    let slow = house.enqueue(vec![spec("slow")]).await[0];
    let behind = house.enqueue(vec![spec("quick"); 50]).await;
    let shift = house.start(both);
    house.until(slow, |job| job.state == State::Running).await;
    let given_back = async |id: JobId| house.until(id, |job| job.state == State::Queued).await;
    for id in &behind {
        assert_eq!(given_back(*id).await.attempt, 0, "no attempt is used");
    }
    let other = house.start(worker());
    for id in &behind {
        let job = house.ended(*id).await;
        assert_eq!((job.state, job.attempt), (State::Completed, 1));
    }
    house.gateway.cancel(slow, None, 10_000, "test".to_owned()).await.expect("it can be cancelled");
    house.ended(slow).await;
    shift.end().await;
    other.end().await;
}

#[tokio::test]
async fn a_worker_that_is_set_up_wrongly_says_so() {
    let house = House::open().await;
    let noop = |_: Context, _: Value| async move { Ok(()) };
    let worker = || Worker::new(house.gateway.clone());
    for wrong in [worker(), worker().queue("a b").handle("x", noop), worker().name("").handle("x", noop)] {
        assert!(matches!(wrong.run(std::future::pending()).await, Err(WorkerError::SetUp(_))));
    }
}
