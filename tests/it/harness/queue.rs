//! A queue as a test handles it, and a worker that claims from it.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::job::{Lease, number, text};
use super::{Answer, Job, Request, Server, Stream, unique};

#[derive(Clone)]
pub struct Queue {
    pub server: Server,
    pub name: String,
}

impl Queue {
    /// A queue that no other test knows, and the server neither.
    pub fn own(server: &Server) -> Self {
        Self { server: server.clone(), name: server.own_queue() }
    }

    pub fn path(&self, rest: &str) -> String {
        format!("/v1/queues/{}{rest}", self.name)
    }

    pub fn get(&self) -> Request {
        self.server.get(&self.path(""))
    }

    /// What the gateway says of it.
    pub async fn read(&self) -> Value {
        self.get().send().await.expect(200)
    }

    /// Waits until what the gateway says of it satisfies the test.
    pub async fn until(&self, what: &str, limit: Duration, is: impl Fn(&Value) -> bool) -> Value {
        super::eventually(limit, what, async || {
            let queue = self.read().await;
            is(&queue).then_some(queue)
        })
        .await
    }

    pub async fn patch(&self, settings: &Value) -> Answer {
        self.server.request("PATCH", &self.path("")).json(settings).send().await
    }

    /// Settings that must be accepted.
    pub async fn set(&self, settings: Value) -> Value {
        self.patch(&settings).await.expect(200)
    }

    pub async fn post(&self, rest: &str, body: Value) -> Answer {
        self.server.post(&self.path(rest)).json(&body).send().await
    }

    /// How many jobs a purge or a redrive says it has changed.
    pub async fn count(&self, rest: &str, body: Value) -> u64 {
        let answer = self.post(rest, body).await.expect(200);
        assert_eq!(answer.as_object().map(|fields| fields.len()), Some(1), "{answer}");
        number(&answer["count"])
    }

    /// A spec for this queue, of kind `k` if it names none.
    pub fn spec(&self, mut spec: Value) -> Value {
        spec["queue"] = self.name.clone().into();
        if spec["kind"].is_null() {
            spec["kind"] = "k".into();
        }
        spec
    }

    /// A new job of this queue.
    pub async fn job(&self, spec: Value) -> Job {
        self.server.job(self.spec(spec)).await
    }

    /// So many new jobs alike, oldest first.
    pub async fn jobs(&self, count: usize, spec: Value) -> Vec<Job> {
        let spec = self.spec(spec);
        let mut jobs = Vec::new();
        while jobs.len() < count {
            let part = vec![spec.clone(); (count - jobs.len()).min(1000)];
            let body = self.server.post("/v1/jobs/batch").json(&json!({"jobs": part})).send().await.expect(200);
            let results = body["results"].as_array().expect("results is a list");
            jobs.extend(results.iter().map(|result| Job::new(&self.server, text(&result["job"]["id"]))));
        }
        jobs
    }

    /// Ids of its jobs in such a state, newest first.
    pub async fn ids(&self, query: &str) -> Vec<String> {
        let jobs = self.server.list(&format!("queue={}&{query}", self.name)).await;
        jobs.iter().map(|job| text(&job["id"]).to_owned()).collect()
    }

    /// A worker of this queue whose name no other test knows.
    pub fn worker(&self) -> Worker {
        Worker { queue: self.clone(), name: unique("worker"), lease_ms: 30_000 }
    }

    /// A running job of this queue: enqueued, and claimed by a worker of its own.
    pub async fn running(&self, spec: Value) -> Job {
        self.running_at(&self.worker(), spec).await
    }

    /// A new job that this worker has claimed. The queue must hold nothing else that could be claimed.
    pub async fn running_at(&self, worker: &Worker, spec: Value) -> Job {
        let job = self.job(spec).await;
        let claimed = worker.take().await;
        assert_eq!(claimed.id, job.id, "the queue held another job");
        claimed
    }
}

/// Somebody who claims. It beats no heart: a lease runs out unless the test appends.
#[derive(Clone)]
pub struct Worker {
    pub queue: Queue,
    pub name: String,
    lease_ms: u64,
}

impl Worker {
    pub fn with_lease(self, lease_ms: u64) -> Self {
        Self { lease_ms, ..self }
    }

    pub fn path(&self, rest: &str) -> String {
        format!("/v1/workers/{}{rest}", self.name)
    }

    pub fn claim(&self, max: usize, wait_ms: u64) -> Request {
        self.queue.server.post("/v1/claims").json(&json!({
            "queues": [self.queue.name], "worker": self.name, "max": max, "wait_ms": wait_ms, "lease_ms": self.lease_ms,
        }))
    }

    /// The jobs that a claim was given.
    #[track_caller]
    pub fn given(&self, answer: &Answer) -> Vec<Job> {
        let body = answer.expect(200);
        let jobs = body["jobs"].as_array().unwrap_or_else(|| panic!("jobs is no list in {body}"));
        let of = |given: &Value| {
            let lease = &given["lease"];
            let lease = Lease {
                token: text(&lease["token"]).to_owned(),
                run: number(&lease["run"]),
                expires_at: lease["expires_at"].clone(),
            };
            Job::new(&self.queue.server, text(&given["job"]["id"])).under(lease)
        };
        jobs.iter().map(of).collect()
    }

    /// What can be claimed at once, at most so many.
    pub async fn take_up_to(&self, max: usize) -> Vec<Job> {
        self.given(&self.claim(max, 0).send().await)
    }

    /// The job that can be claimed at once, which there must be.
    pub async fn take(&self) -> Job {
        self.take_up_to(1).await.pop().expect("there was a job to be claimed")
    }

    /// The next job, for which the worker waits.
    pub async fn next(&self) -> Job {
        self.given(&self.claim(1, 15_000).send().await).pop().expect("a job came")
    }

    /// Whoever claims now gets nothing.
    pub async fn finds_nothing(&self) {
        let found: Vec<String> = self.take_up_to(100).await.into_iter().map(|job| job.id).collect();
        assert_eq!(found, [] as [String; 0], "there was nothing to be claimed");
    }

    /// Claims one job, and waits long enough for any test. The claim is parked when this returns.
    pub async fn park(&self) -> JoinHandle<Vec<Job>> {
        let (worker, request) = (self.clone(), self.claim(1, 50_000));
        let parked = tokio::spawn(async move { worker.given(&request.patient(Duration::from_secs(60)).send().await) });
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(!parked.is_finished(), "a claim with nothing to claim waits");
        parked
    }

    pub fn signals_request(&self, query: &str) -> Request {
        self.queue.server.get(&self.path(&format!("/signals{query}")))
    }

    /// Its open signals stream.
    pub async fn signals(&self) -> Stream {
        let stream = self.signals_request("").stream().await;
        assert_eq!(stream.head.status, 200, "{:?}", stream.head.headers);
        stream
    }
}
