//! A job as a test handles it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Answer, Connection, PATIENCE, Request, Server, Stream, eventually, fold, plain, unique, within};

impl Server {
    pub async fn enqueue(&self, spec: &Value) -> Answer {
        self.post("/v1/jobs").json(spec).send().await
    }

    /// A new job from a spec that must be accepted.
    pub async fn job(&self, spec: Value) -> Job {
        let body = self.enqueue(&spec).await.expect(202);
        Job::new(self, text(&body["job"]["id"]))
    }

    /// A running job that this test appends to without a lease.
    pub async fn tracked(&self) -> Job {
        self.job(json!({"kind": "test", "tracked": true})).await
    }

    /// The jobs of a list, one page of at most 200.
    pub async fn list(&self, query: &str) -> Vec<Value> {
        let page = self.get(&format!("/v1/jobs?limit=200&{query}")).send().await.expect(200);
        page["jobs"].as_array().expect("jobs is a list").clone()
    }

    /// A queue name and how to list it: the trace that a refused enqueue must not leave.
    pub fn own_queue(&self) -> String {
        unique("queue")
    }
}

#[derive(Clone)]
pub struct Job {
    pub server: Server,
    pub id: String,
    /// With one, appends are written under it.
    lease: Option<Lease>,
}

/// What a claim hands out beside the job. Nothing renews it but the test's own appends.
#[derive(Debug, Clone)]
pub struct Lease {
    pub token: String,
    pub run: u64,
    pub expires_at: Value,
}

impl Job {
    pub fn new(server: &Server, id: &str) -> Self {
        Self { server: server.clone(), id: id.to_owned(), lease: None }
    }

    pub fn under(mut self, lease: Lease) -> Self {
        self.lease = Some(lease);
        self
    }

    pub fn lease(&self) -> &Lease {
        self.lease.as_ref().expect("the job was claimed")
    }

    pub fn run(&self) -> u64 {
        self.lease().run
    }

    pub fn path(&self, rest: &str) -> String {
        format!("/v1/jobs/{}{rest}", self.id)
    }

    pub fn get(&self, rest: &str) -> Request {
        self.server.get(&self.path(rest))
    }

    pub fn post(&self, rest: &str) -> Request {
        let request = self.server.post(&self.path(rest));
        match &self.lease {
            Some(lease) if rest.starts_with("/events") => request.header("Lease-Token", &lease.token),
            _ => request,
        }
    }

    /// A heartbeat that is held for so long unless there is something to say.
    pub fn hold(&self, wait_ms: u64) -> Request {
        self.post(&format!("/events?wait_ms={wait_ms}")).json(&json!([]))
    }

    pub async fn state(&self) -> Value {
        self.get("").send().await.expect(200)
    }

    /// The state document, which must be the fold of the log.
    pub async fn folded(&self) -> Value {
        let (state, log) = (self.state().await, self.log().await);
        let mut expected = fold(&log);
        expected["id"] = self.id.clone().into();
        assert_eq!(plain(&state), plain(&expected), "the log: {log:#?}");
        state
    }

    /// Sends an event or an array of events.
    pub async fn try_append(&self, body: &Value) -> Answer {
        self.post("/events").json(body).send().await
    }

    /// Sends a body as it stands.
    pub async fn append_raw(&self, body: impl Into<Vec<u8>>) -> Answer {
        self.post("/events").header("Content-Type", "application/json").body(body).send().await
    }

    /// Appends what must be accepted; the seq of the answer.
    pub async fn append(&self, body: Value) -> u64 {
        number(&self.try_append(&body).await.expect(200)["seq"])
    }

    pub async fn note(&self, message: &str) -> u64 {
        self.append(json!({"type": "log", "data": {"level": "info", "message": message}})).await
    }

    pub async fn output(&self, text: &str) -> u64 {
        self.append(json!({"type": "output", "data": {"text": text}})).await
    }

    pub async fn complete(&self) -> u64 {
        self.append(json!({"type": "completed", "data": {}})).await
    }

    pub async fn fail(&self, data: Value) -> u64 {
        self.append(json!({"type": "failed", "data": data})).await
    }

    /// `count` log events, as few requests as the contract allows.
    pub async fn fill(&self, count: usize) {
        let all: Vec<Value> = (0..count).map(|n| json!({"type": "log", "data": {"message": n.to_string()}})).collect();
        for part in all.chunks(1000) {
            self.append(Value::from(part)).await;
        }
    }

    pub async fn cancel(&self, body: Value) -> Answer {
        self.post("/cancel").json(&body).send().await
    }

    pub async fn retry(&self) -> Answer {
        self.post("/retry").send().await
    }

    pub async fn delete(&self) -> Answer {
        self.server.request("DELETE", &self.path("")).send().await
    }

    /// The whole log, page by page.
    pub async fn log(&self) -> Vec<Value> {
        let mut log = Vec::new();
        loop {
            let after = log.last().map_or(0, |event: &Value| number(&event["seq"]));
            let page = self.get(&format!("/events?after={after}&limit=1000")).send().await.expect(200);
            log.extend(page["events"].as_array().expect("events is a list").iter().cloned());
            if page["more"] == false {
                assert_dense(&log);
                return log;
            }
        }
    }

    /// The log, of which only the types are looked at.
    pub async fn types(&self) -> Vec<String> {
        self.log().await.iter().map(|event| text(&event["type"]).to_owned()).collect()
    }

    /// A fresh stream, as a reloaded page opens it.
    pub async fn stream(&self) -> Stream {
        self.get("/events").stream().await.ok()
    }

    /// A stream that resumes as a browser does.
    pub async fn resume(&self, cursor: impl ToString) -> Stream {
        self.get("/events").header("Last-Event-ID", cursor.to_string()).stream().await.ok()
    }

    /// Waits until the state document satisfies the test.
    pub async fn until(&self, what: &str, limit: Duration, is: impl Fn(&Value) -> bool) -> Value {
        eventually(limit, what, async || {
            let state = self.state().await;
            is(&state).then_some(state)
        })
        .await
    }

    /// Long-polls the log until the job has ended; the time this took.
    pub async fn ended(&self) -> (Value, Duration) {
        let begun = Instant::now();
        let state = self.until("the end of the job", PATIENCE, |state| state["terminal"] == true).await;
        (state, begun.elapsed())
    }

    /// A line request whose body has not ended yet.
    pub async fn open_lines(&self) -> Connection {
        let mut connection = Connection::open(self.server.address()).await.expect("the server accepts");
        let head = self.post("/events").header("Content-Type", "application/x-ndjson");
        let head = head.header("Transfer-Encoding", "chunked").head();
        connection.write(&head).await.expect("the server reads");
        connection
    }

    /// Appends events, one after the other, until the server is gone. `mark` tells posters apart.
    pub async fn post_until_gone(self, mark: usize) -> Posted {
        let mut posted = Posted::default();
        for n in 0.. {
            let name = format!("{mark}/{n}");
            let event = json!({"type": "log", "data": {"message": name}});
            match self.post("/events").json(&event).try_send().await {
                Ok(answer) if answer.status() == 200 => {
                    posted.stored.insert(name, number(&answer.json()["seq"]));
                }
                Ok(answer) => {
                    answer.problem(503, "shutting_down");
                    assert!(answer.header("retry-after").is_some(), "a 503 says when to come back");
                    posted.refused.push(name);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(_) => break,
            }
        }
        posted
    }

    /// Runs a request that must leave no trace: log and state are what they were.
    pub async fn untouched<T>(&self, request: impl Future<Output = T>) -> T {
        let before = (self.state().await, self.log().await);
        let answer = within(PATIENCE, "an answer", request).await;
        assert_eq!((self.state().await, self.log().await), before, "a refusal left a trace");
        answer
    }
}

/// What a poster knows when its server has gone: its messages that were acknowledged, each with its seq, and those
/// that were refused in words. Of the last one it knows nothing.
#[derive(Default)]
pub struct Posted {
    pub stored: HashMap<String, u64>,
    pub refused: Vec<String>,
}

impl Stream {
    /// A stream that must have been opened.
    fn ok(self) -> Self {
        assert_eq!(self.head.status, 200, "{:?}", self.head.headers);
        self
    }
}

/// Seqs are 1…n without a hole.
#[track_caller]
fn assert_dense(log: &[Value]) {
    assert!(log.is_sorted_by(|a, b| text(&a["at"]) <= text(&b["at"])), "time runs backwards in {log:?}");
    for (index, event) in log.iter().enumerate() {
        assert_eq!(number(&event["seq"]), index as u64 + 1, "a hole or a duplicate in {log:?}");
    }
}

/// What section 9 says of every problem.
#[track_caller]
pub fn assert_problem(problem: &Value, status: u16, code: &str) {
    assert_eq!(problem["code"], code, "{problem}");
    assert_eq!(problem["status"], status, "{problem}");
    assert_eq!(problem["type"], format!("urn:milepost:error:{code}"), "{problem}");
    for field in ["title", "detail"] {
        assert!(problem[field].as_str().is_some_and(|text| !text.is_empty()), "{field} of {problem}");
    }
}

/// The moment that a text of the contract's form names, in milliseconds since 1970.
#[track_caller]
pub fn instant(value: &Value) -> i64 {
    let written = text(value);
    let format = &time::format_description::well_known::Rfc3339;
    let parsed = time::OffsetDateTime::parse(written, format).unwrap_or_else(|error| panic!("{error} in {value}"));
    assert!(written.ends_with('Z') && written.len() == 24, "{written} has no milliseconds or another zone");
    (parsed.unix_timestamp_nanos() / 1_000_000) as i64
}

/// `(type, data)` of each event, as a table reads.
pub fn pairs(log: &[Value]) -> Vec<(&str, &Value)> {
    log.iter().map(|event| (text(&event["type"]), &event["data"])).collect()
}

#[track_caller]
pub fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no whole number"))
}

#[track_caller]
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}
