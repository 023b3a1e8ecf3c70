//! `milepost forward`: an endpoint that is called once per job, whatever it answers, and whoever stops whom meanwhile.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::cli::{Running, messages, milepost, milepost_command, start};
use crate::harness::{
    Authority, Job, PATIENCE, Received, Script, Server, Store, Upstream, instant, number, on_both_stores, text,
};
use crate::signature::{OLD_SECRET, SECRET, assert_library_verifies, assert_signed};

on_both_stores!(
    a_json_answer_is_the_outcome,
    the_request_is_signed_and_says_everything,
    a_stream_is_relayed_line_by_line,
    a_completion_becomes_output,
    each_failure_ends_the_job_as_documented,
    retry_after_is_obeyed_and_429_holds_the_queue,
    output_is_there_while_the_answer_still_comes,
    a_cancel_closes_the_call_at_once,
    an_https_endpoint_is_called_if_its_certificate_is_trusted,
    a_lost_job_closes_the_call,
    sigterm_gives_a_job_back_after_the_grace,
    a_gateway_restart_doubles_nothing,
);

const NDJSON: &str = "application/x-ndjson";
const SSE: &str = "text/event-stream; charset=utf-8";

/// A queue of the test's own, and what its jobs are posted to.
struct Lane {
    server: Server,
    queue: String,
    upstream: Upstream,
}

impl Lane {
    async fn of(store: Store, script: impl Fn(&Received, usize) -> Script + Send + Sync + 'static) -> Self {
        let server = store.shared().await;
        Self { queue: server.own_queue(), server, upstream: Upstream::start(script).await }
    }

    fn forward(&self, flags: &[&str]) -> Running {
        let to = self.upstream.url("/internal/run");
        milepost(&self.server, &[&["forward", "--queue", &self.queue, "--to", &to], flags].concat())
    }

    /// Enqueues with these fields beside the usual ones; a retry comes at once.
    async fn job(&self, fields: Value) -> Job {
        let mut spec = json!({"queue": self.queue, "kind": "test", "backoff": {"initial_ms": 1}});
        let fields = fields.as_object().expect("fields are an object").clone();
        spec.as_object_mut().expect("a spec is an object").extend(fields);
        self.server.job(spec).await
    }
}

/// Ends a worker that has nothing to do.
async fn dismiss(worker: Running) {
    worker.signal(Signal::SIGTERM);
    assert_eq!(worker.ended().await.code, 0);
}

fn kind_of(request: &Received) -> String {
    text(&request.json()["job"]["kind"]).to_owned()
}

async fn result(job: &Job) -> Value {
    job.get("/result").send().await.expect(200)
}

async fn output(job: &Job) -> String {
    job.get("/output").send().await.text()
}

async fn a_json_answer_is_the_outcome(store: Store) {
    let lane = Lane::of(store, |request, _| match kind_of(request).as_str() {
        "outcome" => Script::json(&json!({"ok": false, "note": "nothing new", "items": 0, "data": [1]})),
        "plain" => Script::json(&json!({"items": ["a"], "status": "ok"})),
        "said" => Script::json(&json!({"ok": false, "error": "no_channel"})),
        "list" => Script::whole("200 OK", "Content-Type: application/json; charset=utf-8\r\n", "[1, 2.50, null]"),
        "none" => Script::status("204 No Content"),
        _ => Script::whole("200 OK", "Content-Type: application/json\r\n", " \n"),
    })
    .await;
    let worker = lane.forward(&["--concurrency", "3"]);
    let ended = async |kind: &str| {
        let job = lane.job(json!({"kind": kind})).await;
        let (state, _) = job.ended().await;
        assert_eq!(state["state"], "completed", "{kind}: {state}");
        (job, state["outcome"].clone())
    };
    let (job, outcome) = ended("outcome").await;
    assert_eq!((&outcome["ok"], &outcome["note"]), (&json!(false), &json!("nothing new")));
    assert_eq!(result(&job).await, json!([1]));
    let (job, outcome) = ended("plain").await;
    assert_eq!((&outcome["ok"], &outcome["items"]), (&json!(true), &Value::Null));
    assert_eq!(result(&job).await, json!({"items": ["a"], "status": "ok"}));
    let (job, outcome) = ended("said").await;
    assert_eq!(outcome["ok"], false, "what is no Outcome still says whether it went well");
    assert_eq!(result(&job).await["error"], "no_channel");
    assert_eq!(result(&ended("list").await.0).await.to_string(), "[1,2.50,null]");
    for kind in ["none", "empty"] {
        let (job, outcome) = ended(kind).await;
        assert_eq!(outcome, json!({"ok": true}), "{kind}");
        job.get("/result").send().await.problem(404, "no_result");
    }
    dismiss(worker).await;
}

async fn the_request_is_signed_and_says_everything(store: Store) {
    let lane = Lane::of(store, |_, number| match number {
        1 => Script::status("500 Internal Server Error"),
        _ => Script::status("204 No Content"),
    })
    .await;
    let payload = json!({"url": "https://example.com/ä", "n": [1, 2.50]});
    let worker = lane.forward(&["--webhook-secret", &format!("{SECRET},{OLD_SECRET}"), "--worker", "f-1"]);
    let job = lane.job(json!({"payload": payload, "subject": "article:42"})).await;
    assert_eq!(job.ended().await.0["state"], "completed");
    let requests = lane.upstream.requests(2).await;
    for (run, request) in (1..).zip(&requests) {
        assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/internal/run"));
        assert_eq!(request.header("content-type"), "application/json");
        let body = request.json();
        let names: Vec<&String> = body.as_object().expect("an object").keys().collect();
        assert_eq!(names, ["job", "run"]);
        assert_eq!((number(&body["run"]), number(&body["job"]["attempt"])), (run, run));
        assert_eq!((&body["job"]["payload"], &body["job"]["id"]), (&payload, &json!(job.id)));
        assert_eq!((&body["job"]["state"], &body["job"]["worker"]), (&json!("running"), &json!("f-1")));
        assert_signed(request, &[SECRET, OLD_SECRET]);
    }
    assert_library_verifies(&requests, &[SECRET, OLD_SECRET]).await;
    assert_ne!(requests[0].header("webhook-id"), requests[1].header("webhook-id"), "another run is another message");
    dismiss(worker).await;
    let worker = lane.forward(&[]);
    lane.job(json!({})).await.ended().await;
    assert_eq!(lane.upstream.requests(3).await[2].header("webhook-signature"), "", "nothing to sign with");
    dismiss(worker).await;
    let ended = lane.forward(&["--webhook-secret", "whsec_c2hvcnQ="]).ended().await;
    assert_eq!(ended.code, 2);
    let ended = milepost(&lane.server, &["forward", "--to", "ftp://example.com/"]).ended().await;
    assert!(ended.code == 2 && ended.stderr.contains("http"), "{ended:?}");
}

async fn a_stream_is_relayed_line_by_line(store: Store) {
    let lane = Lane::of(store, |request, _| match kind_of(request).as_str() {
        "lines" => Script::stream(
            NDJSON,
            "{\"type\":\"progress\",\"data\":{\"percent\":40}}\r\n\nplain words\n\
             {\"type\":\"output\",\"data\":{\"text\":\"ä\"}}\n{\"type\":\"progress\",\"data\":{\"percent\":400}}\n\
             {\"type\":\"completed\",\"data\":{\"items\":2,\"data\":\"x\"}}\n{\"type\":\"log\",\"data\":{\"message\":\"late\"}}\n",
        ),
        "open" => Script::stream(NDJSON, "{\"type\":\"output\",\"data\":{\"text\":\"a\"}}\n{\"type\":\"done.it\"}"),
        "events" => Script::stream(
            SSE,
            ": hello\n\nevent: x\ndata: {\"type\":\"output\",\"data\":{\"text\":\"b\"}}\n\n\
             data: {\"type\":\"custom.step\",\ndata: \"data\":{\"n\":1}}\n\n",
        ),
        _ => Script::stream(NDJSON, "{\"type\":\"failed\",\"data\":{\"code\":\"quota\",\"retryable\":false}}\n"),
    })
    .await;
    let worker = lane.forward(&[]);
    let job = lane.job(json!({"kind": "lines"})).await;
    let (state, _) = job.ended().await;
    assert_eq!((&state["state"], &state["outcome"]["items"]), (&json!("completed"), &json!(2)));
    assert_eq!(state["progress"]["percent"], 40);
    assert_eq!((result(&job).await, output(&job).await), (json!("x"), "ä".to_owned()));
    let log = job.log().await;
    let said = messages(&log);
    assert!(said.contains(&"plain words") && said.iter().any(|line| line.contains("refused")), "{said:?}");
    assert!(!said.contains(&"late"), "what stands behind the end is not read");
    for (kind, own) in [("open", "done.it"), ("events", "custom.step")] {
        let job = lane.job(json!({"kind": kind})).await;
        assert_eq!(job.ended().await.0["outcome"], json!({"ok": true}), "{kind}");
        assert!(job.types().await.contains(&own.to_owned()), "{kind}");
    }
    let job = lane.job(json!({"kind": "says"})).await;
    let (state, _) = job.ended().await;
    assert_eq!((&state["state"], &state["error"]["code"]), (&json!("failed"), &json!("quota")));
    dismiss(worker).await;
}

async fn a_completion_becomes_output(store: Store) {
    const CHUNKS: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}],\"model\":\"m\"}\n\n\
        data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hel\"},\"finish_reason\":null}]}\n\n\
        data: {\"type\":\"progress\",\"data\":{\"phase\":\"writing\"}}\n\n\
        data: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"other\"}}]}\n\n\
        data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"lo \\ud83d\\ude00\"}}]}\n\n";
    let lane = Lane::of(store, |request, _| match kind_of(request).as_str() {
        "stream" => Script::stream(
            SSE,
            &format!(
                "{CHUNKS}data: {{\"choices\":[{{\"delta\":{{}},\"finish_reason\":\"stop\"}}]}}\n\n\
                 data: {{\"choices\":[],\"usage\":{{\"total_tokens\":9}}}}\n\ndata: [DONE]\n\n"
            ),
        )
        .held(),
        "whole" => Script::json(&json!({
            "id": "c-1", "choices": [{"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"}],
            "usage": {"total_tokens": 3, "details": {}},
        })),
        "cut" => Script::stream(SSE, CHUNKS),
        "cut-at-other" => Script::stream(
            SSE,
            &format!("{CHUNKS}data: {{\"choices\":[{{\"index\":1,\"delta\":{{}},\"finish_reason\":\"stop\"}}]}}\n\n"),
        ),
        "whole-error" => Script::json(&json!({"error": {"message": "overloaded"}})),
        "error" => Script::stream(SSE, &format!("{CHUNKS}data: {{\"error\":{{\"message\":\"overloaded\"}}}}\n\n")),
        _ => Script::json(&json!({"note": "no completion"})),
    })
    .await;
    let worker = lane.forward(&["--openai"]);
    let job = lane.job(json!({"kind": "stream"})).await;
    let (state, _) = job.ended().await;
    assert_eq!((&state["state"], &state["progress"]["phase"]), (&json!("completed"), &json!("writing")));
    assert_eq!(state["outcome"]["metrics"], json!({"total_tokens": 9}));
    assert_eq!(output(&job).await, "Hello 😀");
    assert_eq!(result(&job).await, json!({"model": "m", "finish_reason": "stop", "usage": {"total_tokens": 9}}));
    let job = lane.job(json!({"kind": "whole"})).await;
    assert_eq!(job.ended().await.0["outcome"]["metrics"], json!({"total_tokens": 3}));
    assert_eq!((output(&job).await, &result(&job).await["id"]), ("Hello".to_owned(), &json!("c-1")));
    for (kind, code) in [
        ("cut", "upstream_unreachable"),
        ("cut-at-other", "upstream_unreachable"),
        ("error", "upstream_error"),
        ("whole-error", "upstream_error"),
    ] {
        let job = lane.job(json!({"kind": kind, "max_attempts": 2})).await;
        let (state, _) = job.ended().await;
        assert_eq!((&state["error"]["code"], number(&state["attempt"])), (&json!(code), 2), "{kind}: {state}");
    }
    let job = lane.job(json!({"kind": "other"})).await;
    assert_eq!(job.ended().await.0["outcome"]["note"], "no completion");
    dismiss(worker).await;
}

async fn each_failure_ends_the_job_as_documented(store: Store) {
    let lane = Lane::of(store, |request, _| match kind_of(request).as_str() {
        "error" => Script::whole("500 Internal Server Error", "", "\nboom\n"),
        "bad-request" => Script::whole("400 Bad Request", "", "no such chapter"),
        "redirect" => Script::whole("307 Temporary Redirect", "Location: /elsewhere\r\n", ""),
        "text" => Script::whole("200 OK", "Content-Type: text/html\r\n", "<p>hello</p>"),
        "large" => Script::json(&json!("x".repeat(3_000))),
        "half-line" => Script::stream(NDJSON, "{\"type\":\"log\",\"data\":{\"message\":\"a\"}}\n{\"type\":\"comple"),
        "half-event" => Script::stream(SSE, "data: {\"type\":\"completed\"}\n"),
        "broken" => Script::unfinished(NDJSON, &["{\"type\":\"log\",\"data\":{\"message\":\"a\"}}\n"]),
        "short" => Script::raw("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"ok\":"),
        "closed" => Script::raw(""),
        _ => Script::never(),
    })
    .await;
    let worker = lane.forward(&["--timeout-ms", "700", "--concurrency", "4", "--max-answer", "2000"]);
    for (kind, code, attempts) in [
        ("error", "http_500", 2),
        ("bad-request", "http_400", 1),
        ("redirect", "http_307", 1),
        ("text", "invalid_answer", 1),
        ("large", "answer_too_large", 1),
        ("half-line", "upstream_unreachable", 2),
        ("half-event", "upstream_unreachable", 2),
        ("broken", "upstream_unreachable", 2),
        ("short", "upstream_unreachable", 2),
        ("closed", "upstream_unreachable", 2),
        ("never", "timed_out", 2),
    ] {
        let job = lane.job(json!({"kind": kind, "max_attempts": 2})).await;
        let (state, _) = job.ended().await;
        assert_eq!((&state["state"], &state["error"]["code"]), (&json!("failed"), &json!(code)), "{kind}: {state}");
        assert_eq!(number(&state["attempt"]), attempts, "{kind}");
        let log = job.log().await;
        match kind {
            "error" => assert!(text(&state["error"]["message"]).ends_with("500: boom"), "{state}"),
            "half-line" | "broken" => assert_eq!(messages(&log), ["a", "a"], "what is whole arrives"),
            "half-event" => assert!(!job.types().await.contains(&"completed".to_owned())),
            _ => {}
        }
    }
    assert!(lane.upstream.received().iter().all(|request| request.path == "/internal/run"), "no redirect is followed");
    dismiss(worker).await;
    let to = format!("http://{}/", Upstream::free_address().await);
    let worker = milepost(&lane.server, &["forward", "--queue", &lane.queue, "--to", &to]);
    let job = lane.job(json!({"max_attempts": 1})).await;
    assert_eq!(job.ended().await.0["error"]["code"], "upstream_unreachable");
    dismiss(worker).await;
}

async fn retry_after_is_obeyed_and_429_holds_the_queue(store: Store) {
    let lane = Lane::of(store, |request, _| {
        let attempt = number(&request.json()["job"]["attempt"]);
        match kind_of(request).as_str() {
            "busy" if attempt == 1 => Script::whole("503 Service Unavailable", "Retry-After: 2\r\n", ""),
            "many" if attempt == 1 => {
                // An HTTP date in the future, whatever the time is: far enough not to have come.
                Script::whole("429 Too Many Requests", "Retry-After: Sat, 01 Jan 2095 00:00:00 GMT\r\n", "slow down")
            }
            _ => Script::status("204 No Content"),
        }
    })
    .await;
    let worker = lane.forward(&[]);
    let job = lane.job(json!({"kind": "busy"})).await;
    let (state, _) = job.ended().await;
    assert_eq!((&state["state"], number(&state["attempt"])), (&json!("completed"), 2));
    let log = job.log().await;
    let retrying = log.iter().find(|event| event["type"] == "retrying").expect("a retry");
    assert_eq!(instant(&retrying["data"]["run_at"]) - instant(&retrying["at"]), 2_000);
    assert_eq!(retrying["data"]["error"].get("scope"), None);
    let job = lane.job(json!({"kind": "many"})).await;
    let state = job.until("a retry", PATIENCE, |state| state["state"] == "retrying").await;
    let error = &state["error"];
    assert_eq!((&error["code"], &error["scope"]), (&json!("http_429"), &json!("queue")));
    assert_eq!(number(&error["retry_after_ms"]), 24 * 60 * 60 * 1_000, "at most a day");
    let queue = lane.server.get(&format!("/v1/queues/{}", lane.queue)).send().await.expect(200);
    assert!(queue["held_until"].is_string(), "{queue}");
    dismiss(worker).await;
}

async fn output_is_there_while_the_answer_still_comes(store: Store) {
    let lane = Lane::of(store, |_, _| {
        Script::unfinished(NDJSON, &["{\"type\":\"output\",\"data\":{\"te", "xt\":\"early\"}}\n{\"type\":"]).held()
    })
    .await;
    let worker = lane.forward(&[]);
    let job = lane.job(json!({})).await;
    job.until("its output", PATIENCE, |state| state["output"]["bytes"] == 5).await;
    assert_eq!(output(&job).await, "early");
    assert_eq!(job.state().await["state"], "running");
    worker.signal(Signal::SIGKILL);
    worker.ended().await;
}

/// From the answer to the cancel to the end of the call. One pause of a busy machine is no fault, so it is the median of
/// several.
async fn a_cancel_closes_the_call_at_once(store: Store) {
    const ROUNDS: usize = 9;
    let output = Script::unfinished(NDJSON, &["{\"type\":\"output\",\"data\":{\"text\":\"a\"}}\n"]).held();
    for (script, says_something) in [(Script::never(), false), (output, true)] {
        let lane = Lane::of(store, move |_, _| script.clone()).await;
        let worker = lane.forward(&[]);
        let mut took = Vec::new();
        for round in 1..=ROUNDS {
            let job = lane.job(json!({})).await;
            // In the first moment of the call, and while it is under way.
            lane.upstream.requests(round).await;
            if says_something {
                job.until("its output", PATIENCE, |state| state["output"]["bytes"] == 1).await;
            }
            let asked = Instant::now();
            let answer = job.cancel(json!({"reason": "nobody reads it"})).await;
            let answered = Instant::now();
            answer.expect(202);
            let closed = lane.upstream.nth_hung_up(round).await;
            assert!(closed > asked, "nobody hangs up before");
            took.push(closed.saturating_duration_since(answered));
            let (state, _) = job.ended().await;
            assert_eq!(state["state"], "cancelled");
            let log = job.log().await;
            assert_eq!(log.last().expect("a log")["data"]["reason"], "nobody reads it");
        }
        took.sort();
        println!("closed after the cancel was stored: {took:?}");
        assert!(took[ROUNDS / 2] < Duration::from_millis(50), "{took:?}");
        dismiss(worker).await;
    }
}

async fn an_https_endpoint_is_called_if_its_certificate_is_trusted(store: Store) {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (server, upstream) =
        (store.shared().await, Upstream::secure(&authority, |_, _| Script::json(&json!({"items": 7}))).await);
    for (trusted, state) in [(&authority, "completed"), (&stranger, "failed")] {
        let lane = server.own_queue();
        let arguments = ["forward", "--queue", &lane, "--to", &upstream.url("/run"), "--webhook-secret", SECRET];
        let mut command = milepost_command(&format!("http://{}", server.address()), &arguments);
        command.env("SSL_CERT_FILE", trusted.file()).env_remove("SSL_CERT_DIR");
        let worker = start(command);
        let job = server.job(json!({"queue": lane, "kind": "test", "max_attempts": 1})).await;
        let (end, _) = job.ended().await;
        assert_eq!(end["state"], state, "{end}");
        if state == "failed" {
            assert_eq!(end["error"]["code"], "upstream_unreachable");
            assert!(text(&end["error"]["message"]).contains("certificate"), "{end}");
        }
        dismiss(worker).await;
    }
    let requests = upstream.received();
    assert_eq!(requests.len(), 1, "who cannot be trusted is told nothing");
    assert_signed(&requests[0], &[SECRET]);
}

async fn a_lost_job_closes_the_call(store: Store) {
    let lane = Lane::of(store, |_, _| Script::never()).await;
    let worker = lane.forward(&[]);
    let unique = json!({"unique_key": "k", "unique_on_conflict": "replace"});
    lane.job(unique.clone()).await;
    lane.upstream.requests(1).await;
    let taker = lane.job(unique).await;
    lane.upstream.hung_up().await;
    taker.cancel(json!({})).await.expect(202);
    taker.ended().await;
    dismiss(worker).await;
}

async fn sigterm_gives_a_job_back_after_the_grace(store: Store) {
    let lane = Lane::of(store, |_, _| Script::never()).await;
    let worker = lane.forward(&["--grace-ms", "200"]);
    let job = lane.job(json!({})).await;
    lane.upstream.requests(1).await;
    dismiss(worker).await;
    lane.upstream.hung_up().await;
    let state = job.state().await;
    assert_eq!((&state["state"], number(&state["attempt"])), (&json!("queued"), 0));
}

async fn a_gateway_restart_doubles_nothing(store: Store) {
    let server = store.serve(&[]).await;
    let upstream = Upstream::start(|_, _| {
        Script::unfinished(NDJSON, &["{\"type\":\"output\",\"data\":{\"text\":\"once\"}}\n"]).held()
    })
    .await;
    let lane = Lane { queue: server.own_queue(), server, upstream };
    let worker = lane.forward(&[]);
    let job = lane.job(json!({})).await;
    job.until("its output", PATIENCE, |state| state["output"]["bytes"] == 4).await;
    lane.server.kill9();
    lane.server.restart().await;
    job.cancel(json!({})).await.expect(202);
    assert_eq!(job.ended().await.0["state"], "cancelled");
    assert_eq!(output(&job).await, "once");
    assert_eq!(lane.upstream.received().len(), 1);
    dismiss(worker).await;
}
