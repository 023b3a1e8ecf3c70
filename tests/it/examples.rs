//! The workers of `examples/`: right by construction, however they end and whatever becomes of the gateway.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::harness::*;

/// What runs them, and their files.
const EXAMPLES: [[&str; 2]; 3] = [["python3", "worker.py"], ["node", "worker.mjs"], ["bash", "worker.sh"]];

/// Three long steps: time enough to get in between.
const LONG: [u64; 2] = [3, 500];

on_both_stores!(
    job_is_run_with_progress_output_and_result,
    exception_fails_the_job,
    cancel_stops_the_work_in_the_middle_of_a_step,
    sigterm_gives_the_job_back_without_using_an_attempt,
    sigterm_of_an_idle_worker_ends_it_and_its_claim,
    sigkill_costs_an_attempt_and_stores_one_result,
    stalled_worker_says_nothing_about_a_job_it_has_lost,
    lost_answers_double_nothing,
    restart_of_the_gateway_loses_and_doubles_nothing,
);

/// One example, and a queue that is its alone.
struct Stage {
    server: Server,
    queue: String,
    example: [&'static str; 2],
}

/// Plays a scene with each example, all at the same time.
async fn with_each(server: Server, scene: impl AsyncFn(Stage)) {
    let [python, node, shell] =
        EXAMPLES.map(|example| scene(Stage { server: server.clone(), queue: server.own_queue(), example }));
    tokio::join!(python, node, shell);
}

impl Stage {
    /// A worker whose lease outlasts any pause of this machine.
    fn worker(&self) -> Session {
        self.worker_with_lease(Duration::from_secs(30))
    }

    fn worker_with_lease(&self, lease: Duration) -> Session {
        self.worker_at(self.server.address(), lease)
    }

    fn worker_at(&self, gateway: SocketAddr, lease: Duration) -> Session {
        let [program, file] = self.example;
        let mut command = Command::new(program);
        command
            .arg(format!("{}/examples/{file}", env!("CARGO_MANIFEST_DIR")))
            .args([&self.queue, file])
            .env("MILEPOST_URL", format!("http://{gateway}"))
            .env("LEASE_MS", lease.as_millis().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Session::start(command)
    }

    /// A job of so many steps of so many milliseconds.
    async fn job(&self, [steps, step_ms]: [u64; 2]) -> Job {
        self.job_with(json!({"payload": {"steps": steps, "step_ms": step_ms}, "backoff": {"initial_ms": 50}})).await
    }

    async fn job_with(&self, mut spec: Value) -> Job {
        spec["kind"] = "steps".into();
        spec["queue"] = self.queue.as_str().into();
        self.server.job(spec).await
    }
}

/// The job has reported its first step.
async fn first_step(job: &Job) {
    job.until("the first step", PATIENCE, |state| state["progress"]["current"] == 1).await;
}

/// The job is done, all steps of its last run in order and once, one result. Returns the types of the log before that
/// run.
async fn assert_done(job: &Job, [steps, _]: [u64; 2], attempt: u64) -> Vec<String> {
    let (state, _) = job.ended().await;
    assert_eq!((&state["state"], &state["attempt"]), (&json!("completed"), &json!(attempt)));
    assert_eq!((&state["outcome"]["items"], &state["outcome"]["ok"]), (&json!(steps), &json!(true)));
    assert_eq!(job.get("/result").send().await.expect(200), json!({"steps": steps}));
    let log = job.log().await;
    let run = log.iter().rposition(|event| event["type"] == "started").expect("it ran");
    let (before, run) = log.split_at(run);
    let mut expected = vec!["started".to_owned()];
    for step in 1..=steps {
        expected.push(format!("{step}/{steps} steps"));
        expected.push(format!("step {step} of {steps}\n"));
    }
    expected.push("completed".to_owned());
    let said = run.iter().map(|event| match (text(&event["type"]), &event["data"]) {
        ("progress", data) => format!("{}/{} {}", data["current"], data["total"], text(&data["unit"])),
        ("output", data) => text(&data["text"]).to_owned(),
        (other, _) => other.to_owned(),
    });
    assert_eq!(said.collect::<Vec<_>>(), expected);
    before.iter().map(|event| text(&event["type"]).to_owned()).collect()
}

async fn job_is_run_with_progress_output_and_result(store: Store) {
    with_each(store.shared().await, async |stage| {
        let _worker = stage.worker();
        let jobs = [stage.job([3, 10]).await, stage.job([1, 10]).await];
        assert_eq!(assert_done(&jobs[0], [3, 10], 1).await, ["queued"]);
        assert_eq!(assert_done(&jobs[1], [1, 10], 1).await, ["queued"]);
        assert_eq!(jobs[1].state().await["worker"], stage.example[1]);
    })
    .await;
}

async fn exception_fails_the_job(store: Store) {
    with_each(store.shared().await, async |stage| {
        let _worker = stage.worker();
        let job = stage.job_with(json!({"payload": {"steps": "many"}, "max_attempts": 1})).await;
        let (state, _) = job.ended().await;
        assert_eq!((&state["state"], &state["attempt"]), (&json!("failed"), &json!(1)));
        assert!(!text(&state["error"]["message"]).is_empty(), "{state}");
        let next = stage.job([1, 10]).await;
        assert_done(&next, [1, 10], 1).await;
    })
    .await;
}

async fn cancel_stops_the_work_in_the_middle_of_a_step(store: Store) {
    with_each(store.shared().await, async |stage| {
        let worker = stage.worker();
        let job = stage.job([1, 60_000]).await;
        job.until("a worker", PATIENCE, |state| state["state"] == "running").await;
        // Let it get to work: nothing but the held heartbeat can tell it.
        tokio::time::sleep(Duration::from_millis(500)).await;
        job.cancel(json!({"reason": "changed my mind"})).await.expect(202);
        let (state, after) = job.ended().await;
        assert_eq!(state["state"], "cancelled");
        assert!(after < Duration::from_secs(3), "{after:?} is no acknowledgement, but the end of the grace");
        assert_eq!(job.types().await, ["queued", "started", "cancel_requested", "cancelled"]);
        let next = stage.job([1, 10]).await;
        assert_done(&next, [1, 10], 1).await;
        // Nothing of the long step goes on, or the worker would not end.
        worker.terminate().await;
    })
    .await;
}

async fn sigterm_gives_the_job_back_without_using_an_attempt(store: Store) {
    with_each(store.shared().await, async |stage| {
        let worker = stage.worker();
        let job = stage.job(LONG).await;
        first_step(&job).await;
        worker.terminate().await;
        let state = job.state().await;
        assert_eq!((&state["state"], &state["attempt"], &state["worker"]), (&json!("queued"), &json!(0), &Value::Null));
        let _next = stage.worker();
        let before = assert_done(&job, LONG, 1).await;
        assert_eq!(before.iter().filter(|kind| *kind == "started").count(), 1);
        assert_eq!(before.last().map(String::as_str), Some("released"));
    })
    .await;
}

async fn sigterm_of_an_idle_worker_ends_it_and_its_claim(store: Store) {
    with_each(store.shared().await, async |stage| {
        let worker = stage.worker();
        let first = stage.job([1, 10]).await;
        assert_done(&first, [1, 10], 1).await;
        // It is parked again by now.
        tokio::time::sleep(Duration::from_millis(300)).await;
        worker.terminate().await;
        let job = stage.job([1, 10]).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(job.types().await, ["queued"]);
        let _next = stage.worker();
        assert_eq!(assert_done(&job, [1, 10], 1).await, ["queued"]);
    })
    .await;
}

async fn sigkill_costs_an_attempt_and_stores_one_result(store: Store) {
    with_each(store.shared().await, async |stage| {
        let worker = stage.worker_with_lease(Duration::from_secs(2));
        let job = stage.job(LONG).await;
        first_step(&job).await;
        drop(worker);
        let killed = job.until("the end of the lease", PATIENCE, |state| state["state"] == "retrying").await;
        assert_eq!((&killed["error"]["code"], &killed["attempt"]), (&json!("lease_expired"), &json!(1)));
        let _next = stage.worker();
        let before = assert_done(&job, LONG, 2).await;
        assert_eq!(before.last().map(String::as_str), Some("retrying"));
        assert!(!before.iter().any(|kind| kind == "completed"), "{before:?}");
    })
    .await;
}

async fn stalled_worker_says_nothing_about_a_job_it_has_lost(store: Store) {
    with_each(store.shared().await, async |stage| {
        let stalled = stage.worker_with_lease(Duration::from_secs(2));
        let job = stage.job(LONG).await;
        first_step(&job).await;
        stalled.signal_all(Signal::SIGSTOP);
        job.until("the end of the lease", PATIENCE, |state| state["state"] == "retrying").await;
        let next = stage.worker();
        job.until("another worker", PATIENCE, |state| state["state"] == "running").await;
        stalled.signal_all(Signal::SIGCONT);
        assert_eq!(assert_done(&job, LONG, 2).await.last().map(String::as_str), Some("retrying"));
        next.terminate().await;
        // It has noticed, and is there for others.
        let other = stage.job([1, 10]).await;
        assert_eq!(assert_done(&other, [1, 10], 1).await, ["queued"]);
    })
    .await;
}

async fn lost_answers_double_nothing(store: Store) {
    with_each(store.shared().await, async |stage| {
        let _worker = stage.worker_at(lossy(stage.server.address()).await, Duration::from_secs(30));
        let jobs = [stage.job([2, 10]).await, stage.job([1, 10]).await];
        assert_eq!(assert_done(&jobs[0], [2, 10], 1).await, ["queued"]);
        assert_eq!(assert_done(&jobs[1], [1, 10], 1).await, ["queued"]);
    })
    .await;
}

async fn restart_of_the_gateway_loses_and_doubles_nothing(store: Store) {
    let server = store.serve(&[]).await;
    let steps = [20, 100];
    let (mut workers, mut jobs) = (Vec::new(), Vec::new());
    for example in EXAMPLES {
        let stage = Stage { server: server.clone(), queue: server.own_queue(), example };
        workers.push(stage.worker());
        jobs.push(stage.job(steps).await);
        jobs.push(stage.job([1, 10]).await);
    }
    for current in [3, 10] {
        for job in jobs.iter().step_by(2) {
            job.until("some steps", PATIENCE, |state| state["progress"]["current"].as_u64() >= Some(current)).await;
        }
        server.kill9();
        tokio::time::sleep(Duration::from_millis(500)).await;
        server.restart().await;
    }
    for pair in jobs.chunks(2) {
        assert_eq!(assert_done(&pair[0], steps, 1).await, ["queued"]);
        assert_eq!(assert_done(&pair[1], [1, 10], 1).await, ["queued"]);
    }
}
