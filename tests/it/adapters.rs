//! The adapters of `examples/`: what BullMQ, Celery and RQ run, each with a Redis of its own, is shown as it is, and
//! whatever becomes of the gateway their jobs are done.

use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::harness::*;

on_both_stores!(
    a_run_is_shown_from_its_start_to_its_end,
    a_retry_is_a_run_of_its_own,
    the_last_failure_is_final,
    a_cancel_stops_the_run_and_it_is_not_tried_again,
    a_gateway_that_is_away_hinders_nobody_and_learns_of_it_later,
    a_worker_that_ends_waits_a_little_for_its_reports,
    a_killed_worker_is_noticed_by_its_silence,
    a_job_that_another_worker_takes_up_is_a_run_of_its_own,
    a_job_that_is_moved_back_has_not_failed,
);

struct Adapter {
    name: &'static str,
    script: &'static str,
    /// What the queue itself calls a job that is done, one that failed, and one that was stopped.
    done: &'static str,
    failed: &'static str,
    stopped: &'static str,
}

const ADAPTERS: [Adapter; 3] = [
    Adapter { name: "bullmq", script: "bullmq.mjs", done: "completed", failed: "failed", stopped: "failed" },
    Adapter { name: "celery", script: "celery_tasks.py", done: "SUCCESS", failed: "FAILURE", stopped: "REVOKED" },
    Adapter { name: "rq", script: "rq_jobs.py", done: "finished", failed: "failed", stopped: "stopped" },
];

/// A run of which nothing is heard for so long has ended.
const SHORT_SILENCE: (&str, &str) = ("MILEPOST_SILENCE_MS", "3000");

/// One adapter, and a queue that is its alone.
struct Stage<'a> {
    server: &'a Server,
    redis: &'a Redis,
    queue: String,
    adapter: &'a Adapter,
}

/// Plays a scene with each adapter, all at the same time.
async fn with_each(server: Server, scene: impl AsyncFn(Stage)) {
    let redis = Redis::start().await;
    let [bullmq, celery, rq] = ADAPTERS
        .each_ref()
        .map(|adapter| scene(Stage { server: &server, redis: &redis, queue: server.own_queue(), adapter }));
    tokio::join!(bullmq, celery, rq);
}

impl Stage<'_> {
    fn command(&self, arguments: &[&str]) -> Command {
        let script = format!("{}/tests/adapters/{}", env!("CARGO_MANIFEST_DIR"), self.adapter.script);
        let mut command = if script.ends_with(".py") { Command::new(python()) } else { Command::new("node") };
        command
            .arg(script)
            .args(arguments)
            .env("MILEPOST_URL", format!("http://{}", self.server.address()))
            .env("REDIS_URL", &self.redis.url)
            .env("QUEUE", &self.queue)
            .stdin(Stdio::null());
        command
    }

    fn worker(&self) -> Session {
        self.worker_with(&[])
    }

    fn worker_with(&self, environment: &[(&str, &str)]) -> Session {
        let mut command = self.command(&["work"]);
        command.envs(environment.iter().copied()).stdout(Stdio::null()).stderr(Stdio::null());
        Session::start(command)
    }

    /// What the queue's own client prints.
    async fn ask(&self, arguments: &[&str]) -> String {
        let mut command = self.command(arguments);
        let ended =
            within(Duration::from_secs(60), "an answer of the queue", command.kill_on_drop(true).output()).await;
        let output = ended.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// The queue's id of a new job.
    async fn add(&self, task: &str, arguments: Value) -> String {
        self.ask(&["add", task, &arguments.to_string()]).await
    }

    /// How the queue says that its job ended.
    async fn wait(&self, id: &str) -> String {
        self.ask(&["wait", id]).await
    }

    /// What Milepost shows of the queue's job, the newest run first.
    async fn runs(&self, id: &str) -> Vec<Value> {
        let subject = match self.adapter.name {
            "bullmq" => format!("bullmq:{}:{id}", self.queue),
            name => format!("{name}:{id}"),
        };
        self.server.list(&format!("subject={subject}")).await
    }

    /// Its only run, once there is one.
    async fn run(&self, id: &str) -> Job {
        let runs = eventually(PATIENCE, "a run", async || Some(self.runs(id).await).filter(|runs| !runs.is_empty()));
        let runs = runs.await;
        assert_eq!(runs.len(), 1, "{runs:?}");
        Job::new(self.server, text(&runs[0]["id"]))
    }

    /// A job that is at work until it is stopped.
    async fn endless(&self) -> (String, Job) {
        let id = self.add("endless", json!({})).await;
        let run = self.run(&id).await;
        run.until("the work", PATIENCE, |state| state["progress"]["message"] == "begun").await;
        (id, run)
    }
}

/// With the packages of `tests/requirements.txt`.
fn python() -> String {
    let made_by_run_sh = concat!(env!("CARGO_MANIFEST_DIR"), "/target/venv/bin/python3");
    std::env::var("MILEPOST_TEST_PYTHON").unwrap_or_else(|_| made_by_run_sh.to_owned())
}

/// An empty Redis that writes nothing.
struct Redis {
    url: String,
    _session: Session,
    _directory: Directory,
}

impl Redis {
    async fn start() -> Self {
        let directory = Directory::create();
        // A port that is free now may be taken when Redis binds it: then another is tried.
        for _ in 0..5 {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
            let port = listener.local_addr().expect("it is bound").port();
            drop(listener);
            let mut command = Command::new("redis-server");
            command
                .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"])
                .arg(directory.path())
                .stdin(Stdio::null())
                .stdout(Stdio::piped());
            let mut session = Session::start(command);
            let mut lines = BufReader::new(session.stdout()).lines();
            while let Some(line) = within(PATIENCE, "Redis", lines.next_line()).await.expect("it prints text") {
                if line.contains("Ready to accept connections") {
                    return Self { url: format!("redis://127.0.0.1:{port}"), _session: session, _directory: directory };
                }
            }
        }
        panic!("Redis did not start");
    }
}

async fn a_run_is_shown_from_its_start_to_its_end(store: Store) {
    with_each(store.shared().await, async |stage| {
        let _worker = stage.worker();
        let id = stage.add("steps", json!({"steps": 3})).await;
        assert_eq!(stage.wait(&id).await, stage.adapter.done);
        let run = stage.run(&id).await;
        let (state, _) = run.ended().await;
        assert_eq!((&state["state"], &state["outcome"]["ok"]), (&json!("completed"), &json!(true)));
        assert_eq!((&state["queue"], &state["tracked"]), (&json!(stage.queue), &json!(true)));
        assert!(text(&state["kind"]).ends_with("steps"), "{state}");
        assert_eq!(run.get("/result").send().await.expect(200), json!({"steps": 3}));
        let log = run.log().await;
        let said = log.iter().filter_map(|event| match text(&event["type"]) {
            "progress" => Some(event["data"]["current"].to_string()),
            "output" => Some(text(&event["data"]["text"]).trim().to_owned()),
            // The words of RQ's and BullMQ's own logs.
            "log" => Some(text(&event["data"]["message"]).to_owned()).filter(|message| message != "all done"),
            _ => None,
        });
        let expected = ["1", "step 1", "2", "step 2", "3", "step 3"];
        assert_eq!(said.collect::<Vec<_>>(), expected, "{}", stage.adapter.name);
        assert_eq!(log.last().map(|event| text(&event["type"])), Some("completed"));
    })
    .await;
}

async fn a_retry_is_a_run_of_its_own(store: Store) {
    with_each(store.shared().await, async |stage| {
        let _worker = stage.worker();
        let id = stage.add("flaky", json!({})).await;
        assert_eq!(stage.wait(&id).await, stage.adapter.done);
        let runs = eventually(PATIENCE, "the end of both runs", async || {
            let runs = stage.runs(&id).await;
            runs.iter().all(|run| run["terminal"] == true).then_some(runs).filter(|runs| runs.len() > 1)
        });
        let runs = runs.await;
        let told: Vec<_> = runs.iter().map(|run| (text(&run["state"]), &run["error"]["code"])).collect();
        assert_eq!(told, [("completed", &Value::Null), ("failed", &json!("retry"))], "{}", stage.adapter.name);
        assert!(text(&runs[1]["error"]["message"]).contains("not yet"), "{}", runs[1]);
    })
    .await;
}

async fn the_last_failure_is_final(store: Store) {
    with_each(store.shared().await, async |stage| {
        let _worker = stage.worker();
        let id = stage.add("broken", json!({})).await;
        assert_eq!(stage.wait(&id).await, stage.adapter.failed);
        let (state, _) = stage.run(&id).await.ended().await;
        assert_eq!((&state["state"], &state["error"]["retryable"]), (&json!("failed"), &json!(false)));
        assert!(state["error"]["code"] != "retry" && text(&state["error"]["message"]).contains("never"), "{state}");
    })
    .await;
}

async fn a_cancel_stops_the_run_and_it_is_not_tried_again(store: Store) {
    with_each(store.shared().await, async |stage| {
        let _worker = stage.worker();
        let (id, run) = stage.endless().await;
        run.cancel(json!({"grace_ms": 60_000})).await.expect(202);
        let (state, _) = run.ended().await;
        assert_eq!(state["state"], "cancelled", "{}: {state}", stage.adapter.name);
        assert_eq!(stage.wait(&id).await, stage.adapter.stopped);
        // The worker is there for others, and has not begun this one anew before.
        let next = stage.add("steps", json!({"steps": 1})).await;
        assert_eq!(stage.wait(&next).await, stage.adapter.done);
        assert_eq!(stage.runs(&id).await.len(), 1);
    })
    .await;
}

async fn a_gateway_that_is_away_hinders_nobody_and_learns_of_it_later(store: Store) {
    let server = store.serve(&[]).await;
    let away = tokio::sync::Barrier::new(ADAPTERS.len());
    with_each(server.clone(), async |stage| {
        let _worker = stage.worker();
        let warm = stage.add("steps", json!({"steps": 1})).await;
        stage.run(&warm).await.ended().await;
        if away.wait().await.is_leader() {
            server.kill9();
        }
        away.wait().await;
        let id = stage.add("steps", json!({"steps": 2})).await;
        assert_eq!(stage.wait(&id).await, stage.adapter.done);
        if away.wait().await.is_leader() {
            server.restart().await;
        }
        away.wait().await;
        let (state, _) = stage.run(&id).await.ended().await;
        assert_eq!(state["state"], "completed", "{}: {state}", stage.adapter.name);
    })
    .await;
}

async fn a_worker_that_ends_waits_a_little_for_its_reports(store: Store) {
    let server = store.serve(&[]).await;
    let halted = tokio::sync::Barrier::new(ADAPTERS.len());
    with_each(server.clone(), async |stage| {
        let worker = stage.worker();
        let warm = stage.add("steps", json!({"steps": 1})).await;
        stage.run(&warm).await.ended().await;
        if halted.wait().await.is_leader() {
            kill(server.pid(), Signal::SIGSTOP).expect("our child takes a signal");
        }
        halted.wait().await;
        let id = stage.add("steps", json!({"steps": 1})).await;
        assert_eq!(stage.wait(&id).await, stage.adapter.done);
        halted.wait().await;
        let ends = worker.terminate();
        let goes_on = async {
            // Time for a worker that does not wait to be gone.
            tokio::time::sleep(Duration::from_secs(3)).await;
            kill(server.pid(), Signal::SIGCONT).expect("our child takes a signal");
        };
        tokio::join!(ends, goes_on);
        let state = stage.run(&id).await.state().await;
        assert_eq!(state["state"], "completed", "{}: {state}", stage.adapter.name);
    })
    .await;
}

async fn a_killed_worker_is_noticed_by_its_silence(store: Store) {
    with_each(store.shared().await, async |stage| {
        let worker = stage.worker_with(&[SHORT_SILENCE]);
        let (_, run) = stage.endless().await;
        drop(worker);
        let (state, _) = run.ended().await;
        assert_eq!((&state["state"], &state["error"]["code"]), (&json!("failed"), &json!("timed_out")));
    })
    .await;
}

async fn a_job_that_another_worker_takes_up_is_a_run_of_its_own(store: Store) {
    with_each(store.shared().await, async |stage| {
        if stage.adapter.name == "rq" {
            return; // It fails such jobs.
        }
        // What a queue's dead worker held is free again soon.
        let short_locks = ("SHORT_LOCKS", "1");
        let killed = stage.worker_with(&[SHORT_SILENCE, short_locks]);
        let id = stage.add("again", json!({})).await;
        let first = stage.run(&id).await;
        first.until("the work", PATIENCE, |state| state["progress"]["message"] == "begun").await;
        drop(killed);
        let (state, _) = first.ended().await;
        assert_eq!((&state["state"], &state["error"]["code"]), (&json!("failed"), &json!("timed_out")));
        let _next = stage.worker_with(&[short_locks]);
        assert_eq!(stage.wait(&id).await, stage.adapter.done);
        let newest = Job::new(stage.server, text(&stage.runs(&id).await[0]["id"]));
        assert_ne!(newest.id, first.id);
        assert_eq!(newest.ended().await.0["state"], "completed", "{}", stage.adapter.name);
    })
    .await;
}

async fn a_job_that_is_moved_back_has_not_failed(store: Store) {
    with_each(store.shared().await, async |stage| {
        if stage.adapter.name != "bullmq" {
            return; // The others know no such thing.
        }
        let _worker = stage.worker();
        let id = stage.add("delayed", json!({})).await;
        assert_eq!(stage.wait(&id).await, stage.adapter.done);
        let runs = eventually(PATIENCE, "the end of both runs", async || {
            let runs = stage.runs(&id).await;
            runs.iter().all(|run| run["terminal"] == true).then_some(runs).filter(|runs| runs.len() > 1)
        });
        let states: Vec<_> = runs.await.iter().map(|run| text(&run["state"]).to_owned()).collect();
        assert_eq!(states, ["completed", "cancelled"]);
    })
    .await;
}
