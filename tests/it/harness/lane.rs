//! A queue of the test's own, and work as a worker takes it from there: claims, and the lease that covers one run.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{Answer, Job, PATIENCE, Request, Server, Store, instant, number, text};

/// What the sweep is granted: "in the log within 2 s".
pub const SWEEP: Duration = Duration::from_secs(2);

/// A queue that no other test knows.
#[derive(Clone)]
pub struct Lane {
    pub server: Server,
    pub name: String,
}

impl Lane {
    pub async fn shared(store: Store) -> Self {
        Self::on(&store.shared().await)
    }

    pub fn on(server: &Server) -> Self {
        Self { server: server.clone(), name: server.own_queue() }
    }

    /// A spec for this queue.
    pub fn spec(&self, more: Value) -> Value {
        merged(json!({"kind": "k", "queue": self.name}), more)
    }

    pub async fn job(&self, more: Value) -> Job {
        self.server.job(self.spec(more)).await
    }

    /// Jobs in the order of their ids, by as few requests as the contract allows.
    pub async fn jobs(&self, specs: impl IntoIterator<Item = Value>) -> Vec<Job> {
        let specs: Vec<Value> = specs.into_iter().map(|more| self.spec(more)).collect();
        let mut jobs = Vec::new();
        for part in specs.chunks(1000) {
            let answer = self.server.post("/v1/jobs/batch").json(&json!({"jobs": part})).send().await.expect(200);
            for result in answer["results"].as_array().expect("results is a list") {
                assert_eq!(result["status"], 202, "{result}");
                jobs.push(Job::new(&self.server, text(&result["job"]["id"])));
            }
        }
        assert!(jobs.is_sorted_by(|a, b| a.id < b.id), "ids of one batch rise");
        jobs
    }

    /// The body of a claim on this queue: by default one job, at once or not at all, for half a minute.
    pub fn wish(&self, more: Value) -> Value {
        merged(json!({"queues": [self.name], "worker": "w"}), more)
    }

    pub fn request(&self, more: Value) -> Request {
        self.server.post("/v1/claims").json(&self.wish(more))
    }

    pub async fn claim(&self, more: Value) -> Vec<Lease> {
        Lease::all(&self.server, &self.request(more).send().await)
    }

    /// The one job that a claim must get, now or as soon as it may run.
    pub async fn take(&self, more: Value) -> Lease {
        let mut leases = self.claim(merged(json!({"wait_ms": 10_000}), more)).await;
        assert_eq!(leases.len(), 1, "a claim of one gets one");
        leases.remove(0)
    }

    /// So many jobs, which a claim must get at once.
    pub async fn take_all(&self, count: usize, more: Value) -> Vec<Lease> {
        let leases = self.claim(merged(json!({"max": 100}), more)).await;
        assert_eq!(leases.len(), count, "claimable jobs");
        leases
    }

    /// Nothing is claimable now.
    pub async fn assert_none(&self) {
        let ids: Vec<String> = self.claim(json!({"max": 100})).await.into_iter().map(|lease| lease.job.id).collect();
        assert_eq!(ids, [] as [String; 0], "nothing is claimable");
    }

    /// A claim that waits while the test goes on, and when it was answered.
    pub fn park(&self, more: Value) -> JoinHandle<(Vec<Lease>, Instant)> {
        let (lane, more) = (self.clone(), merged(json!({"wait_ms": 15_000}), more));
        tokio::spawn(async move { (lane.claim(more).await, Instant::now()) })
    }

    /// Changes the queue's settings.
    pub async fn set(&self, settings: Value) -> Value {
        let request = self.server.request("PATCH", &format!("/v1/queues/{}", self.name));
        request.json(&settings).send().await.expect(200)
    }

    pub async fn settings(&self) -> Value {
        self.server.get(&format!("/v1/queues/{}", self.name)).send().await.expect(200)
    }
}

/// One hand-out of a job.
#[derive(Clone)]
pub struct Lease {
    pub job: Job,
    /// The state document as the claim gave it, with the payload.
    pub document: Value,
    pub token: String,
    pub run: u64,
    pub expires_in_ms: u64,
    pub expires_at: Value,
}

impl Lease {
    /// The leases of an answer, whose shape is held against the contract.
    pub fn all(server: &Server, answer: &Answer) -> Vec<Self> {
        let body = answer.expect(200);
        assert_eq!(keys(&body), ["jobs"]);
        let jobs = body["jobs"].as_array().expect("jobs is a list");
        jobs.iter().map(|item| Self::of(server, item)).collect()
    }

    fn of(server: &Server, item: &Value) -> Self {
        assert_eq!(keys(item), ["job", "lease"]);
        let (document, lease) = (&item["job"], &item["lease"]);
        assert_eq!(keys(lease), ["expires_at", "expires_in_ms", "run", "token"]);
        let token = text(&lease["token"]);
        assert!(!token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic()), "a token fits a header: {token:?}");
        assert_eq!((&document["state"], &document["terminal"]), (&json!("running"), &json!(false)));
        Self {
            job: Job::new(server, text(&document["id"])),
            document: document.clone(),
            token: token.to_owned(),
            run: number(&lease["run"]),
            expires_in_ms: number(&lease["expires_in_ms"]),
            expires_at: lease["expires_at"].clone(),
        }
    }

    /// An append that carries the token; the body is still to come.
    pub fn post(&self) -> Request {
        self.job.post("/events").header("Lease-Token", &self.token)
    }

    pub async fn try_append(&self, body: &Value) -> Answer {
        self.post().json(body).send().await
    }

    /// Appends what must be accepted; the answer.
    pub async fn append(&self, body: Value) -> Value {
        self.try_append(&body).await.expect(200)
    }

    /// The heartbeat, which must be accepted.
    pub async fn beat(&self) -> Value {
        self.append(json!([])).await
    }

    pub async fn complete(&self) -> Value {
        self.append(json!({"type": "completed", "data": {}})).await
    }

    pub async fn fail(&self, data: Value) -> Value {
        self.append(json!({"type": "failed", "data": data})).await
    }

    pub async fn release(&self, data: Value) -> Value {
        self.append(json!({"type": "released", "data": data})).await
    }

    /// Sends nothing until the sweep has taken the run away; the state after that.
    pub async fn lapsed(&self) -> Value {
        self.job.until("the end of the lease", PATIENCE, |state| state["state"] != "running").await
    }

    /// Sleeps past the end of the lease as the claim's answer gave it.
    pub async fn sleep_past_end(&self, by: Duration) {
        let left = instant(&self.expires_at) - now_ms();
        tokio::time::sleep(Duration::from_millis(left.max(0) as u64) + by).await;
    }
}

/// The answer is 409 `lease_lost`, and nothing of the request was stored.
pub async fn assert_lost(job: &Job, request: Request) -> Value {
    job.untouched(request.send()).await.problem(409, "lease_lost")
}

/// The fields of `base`, and those of `more` over them.
#[track_caller]
pub fn merged(mut base: Value, more: Value) -> Value {
    for (name, value) in more.as_object().expect("fields are an object") {
        base[name] = value.clone();
    }
    base
}

/// The names of an object's fields, sorted.
#[track_caller]
pub fn keys(object: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = object.as_object().expect("an object").keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

/// Now, in milliseconds since 1970, by this machine's clock, which is that of the databases under test, too.
pub fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
    now.as_millis() as i64
}

/// `(type, attempt)` of each event, as a table reads.
pub fn tries(log: &[Value]) -> Vec<(&str, u64)> {
    log.iter().map(|event| (text(&event["type"]), number(&event["attempt"]))).collect()
}

/// State and log of a job agree. An event that comes between the two reads is waited for.
pub async fn assert_folds(job: &Job) -> Vec<Value> {
    let (log, state) = super::eventually(PATIENCE, "two reads of one moment", async || {
        let (log, state) = (job.log().await, job.state().await);
        (state["seq"] == log.len()).then_some((log, state))
    })
    .await;
    let mut expected = super::fold(&log);
    expected["id"] = job.id.clone().into();
    assert_eq!(super::plain(&state), super::plain(&expected), "state and log agree: {log:?}");
    log
}
