//! `callback_url`: whoever is named there is told of the job's end, whatever becomes of the gateway meanwhile, and
//! nobody can have the gateway call what it must not.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{
    Authority, Job, PATIENCE, Queue, Received, Script, Server, Store, Upstream, eventually, number, on_both_stores,
    text,
};
use crate::signature::{OLD_SECRET, SECRET, assert_library_verifies, assert_signed};

on_both_stores!(
    every_end_is_told_once,
    a_try_that_failed_is_made_again_with_the_same_id,
    gone_stops_for_good,
    a_receiver_is_called_by_https_if_its_certificate_is_trusted,
    who_sends_them_stands_among_the_workers,
    a_redirect_is_not_followed,
    a_private_address_is_refused_at_enqueue,
    a_name_that_leads_inside_is_refused_at_delivery,
    a_kill_before_the_delivery_loses_nothing,
    a_kill_during_the_delivery_loses_nothing,
    a_job_that_is_put_back_tells_its_next_end_too,
    the_gateways_queue_is_its_own,
);

const PUBLIC_URL: [&str; 2] = ["--public-url", "https://jobs.example/"];

/// A gateway that calls back, and may call loopback.
async fn calling(store: Store) -> Server {
    let secrets = format!("{SECRET},{OLD_SECRET}");
    store.serve(&[&PUBLIC_URL[..], &["--webhook-secret", &secrets, "--allow-private-callbacks"]].concat()).await
}

/// A gateway that calls back, but nothing inside.
async fn careful(store: Store) -> Server {
    store.serve(&[&PUBLIC_URL[..], &["--webhook-secret", SECRET]].concat()).await
}

async fn told(status: &'static str) -> Upstream {
    Upstream::start(move |_, _| Script::status(status)).await
}

/// A running job that this test appends to without a lease.
async fn tracked(server: &Server, url: &str) -> Job {
    server.job(json!({"kind": "test", "tracked": true, "callback_url": url})).await
}

/// The gateway's own jobs, oldest first.
async fn callbacks(server: &Server) -> Vec<Value> {
    let mut jobs = server.list("queue=milepost.callbacks").await;
    jobs.reverse();
    jobs
}

/// The gateway's only job, once it satisfies the test.
async fn callback(server: &Server, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    eventually(PATIENCE, what, async || callbacks(server).await.into_iter().find(|job| is(job))).await
}

async fn every_end_is_told_once(store: Store) {
    let (server, receiver) = (calling(store).await, told("204 No Content").await);
    let queue = Queue::own(&server);
    let url = receiver.url("/hook?key=k");
    let with_url = |mut spec: Value| {
        spec["callback_url"] = url.as_str().into();
        spec
    };
    let completed = tracked(&server, &url).await;
    completed.append(json!([{"type": "completed", "data": {"items": 3, "data": {"n": 1.50}}}])).await;
    assert_eq!(callbacks(&server).await.len(), 1, "what is answered as stored has its callback");
    let failed = queue.running(with_url(json!({"max_attempts": 1}))).await;
    failed.fail(json!({"code": "c"})).await;
    let cancelled = queue.job(with_url(json!({"delay_ms": 60_000}))).await;
    cancelled.cancel(json!({})).await.expect(202);
    let expired = queue.job(with_url(json!({"ttl_ms": 1}))).await;
    let replaced = queue.job(with_url(json!({"unique_key": "k", "delay_ms": 60_000}))).await;
    queue.job(json!({"unique_key": "k", "unique_on_conflict": "replace", "delay_ms": 60_000})).await;
    let silent = server.tracked().await;
    silent.complete().await;
    let requests = receiver.requests(5).await;
    for (job, state) in [
        (&completed, "completed"),
        (&failed, "failed"),
        (&cancelled, "cancelled"),
        (&expired, "expired"),
        (&replaced, "cancelled"),
    ] {
        let mine: Vec<&Received> = requests.iter().filter(|request| request.json()["id"] == job.id.as_str()).collect();
        assert_eq!(mine.len(), 1, "{state}");
        let document = job.state().await;
        assert_eq!((&mine[0].json(), &document["state"]), (&document, &json!(state)));
        assert_eq!(mine[0].header("webhook-id"), format!("{}_{}", job.id, number(&document["seq"])));
        assert_eq!((mine[0].method.as_str(), mine[0].path.as_str()), ("POST", "/hook?key=k"));
        assert_eq!(mine[0].header("content-type"), "application/json");
        assert_eq!(mine[0].header("milepost-url"), "https://jobs.example");
        assert_signed(mine[0], &[SECRET, OLD_SECRET]);
    }
    assert_library_verifies(&requests, &[SECRET, OLD_SECRET]).await;
    let all_done = async || {
        let jobs = callbacks(&server).await;
        jobs.iter().all(|job| job["state"] == "completed").then_some(jobs)
    };
    let jobs = eventually(PATIENCE, "the end of every callback", all_done).await;
    assert_eq!(jobs.len(), 5);
    assert!(jobs.iter().all(|job| number(&job["attempt"]) == 1 && job["subject"].is_null()));
    assert_eq!(receiver.received().len(), 5, "a callback has no callback");
}

async fn a_try_that_failed_is_made_again_with_the_same_id(store: Store) {
    let server = calling(store).await;
    let receiver = Upstream::start(|_, number| match number {
        1 => Script::status("500 Internal Server Error"),
        2 => Script::raw(""),
        _ => Script::status("200 OK"),
    })
    .await;
    let job = tracked(&server, &receiver.url("/")).await;
    job.complete().await;
    let requests = receiver.requests_within(3, Duration::from_secs(30)).await;
    let ids: HashSet<&str> = requests.iter().map(|request| request.header("webhook-id")).collect();
    assert_eq!(ids.len(), 1, "one message");
    let bodies: HashSet<&str> = requests.iter().map(|request| request.body.as_str()).collect();
    assert_eq!(bodies.len(), 1, "word by word");
    for request in &requests {
        assert_signed(request, &[SECRET, OLD_SECRET]);
    }
    let sent = callback(&server, "its end", |job| job["state"] == "completed").await;
    assert_eq!((number(&sent["attempt"]), number(&sent["max_attempts"])), (3, 8));
}

async fn gone_stops_for_good(store: Store) {
    let server = calling(store).await;
    // Also when the answer never becomes whole: its status has said what matters.
    let endless = || Script::raw("HTTP/1.1 410 Gone\r\nContent-Length: 100\r\n\r\ngone").held();
    for (receiver, said) in [(told("410 Gone").await, ""), (Upstream::start(move |_, _| endless()).await, "gone")] {
        let ended = tracked(&server, &receiver.url("/")).await;
        ended.complete().await;
        let is_of = |job: &Value| job["meta"]["job"] == ended.id.as_str() && job["terminal"] == true;
        let job = callback(&server, "its end", is_of).await;
        assert_eq!((&job["state"], &job["error"]["code"]), (&json!("failed"), &json!("http_410")));
        assert_eq!((number(&job["attempt"]), receiver.received().len()), (1, 1));
        assert_eq!(job["error"]["details"]["body"], said);
    }
}

async fn a_receiver_is_called_by_https_if_its_certificate_is_trusted(store: Store) {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let flags = [&PUBLIC_URL[..], &["--webhook-secret", SECRET, "--allow-private-callbacks"]].concat();
    let server = store.serve_in(&[("SSL_CERT_FILE", &authority.file())], &flags).await;
    let (receiver, other) = (
        Upstream::secure(&authority, |_, _| Script::status("200 OK")).await,
        Upstream::secure(&stranger, |_, _| Script::status("200 OK")).await,
    );
    let job = tracked(&server, &receiver.url("/hook")).await;
    job.complete().await;
    let requests = receiver.requests(1).await;
    assert_eq!(requests[0].json()["id"], job.id.as_str());
    assert_library_verifies(&requests, &[SECRET]).await;
    tracked(&server, &other.url("/hook")).await.complete().await;
    let failed = callback(&server, "a failed try", |job| !job["error"].is_null()).await;
    let error = &failed["error"];
    assert_eq!((&error["code"], &error["retryable"]), (&json!("receiver_unreachable"), &json!(true)));
    assert!(text(&error["message"]).contains("certificate"), "{error}");
    assert!(other.received().is_empty(), "who cannot be trusted is told nothing");
}

async fn who_sends_them_stands_among_the_workers(store: Store) {
    let (server, receiver) = (calling(store).await, Upstream::start(|_, _| Script::never()).await);
    let job = tracked(&server, &receiver.url("/")).await;
    job.complete().await;
    receiver.requests(1).await;
    let sending = callback(&server, "a try", |job| job["state"] == "running").await;
    let listed = server.get("/v1/workers").send().await.expect(200);
    let workers = listed["workers"].as_array().expect("a list");
    let ours: Vec<&Value> =
        workers.iter().filter(|worker| text(&worker["worker"]).starts_with("milepost.callbacks@")).collect();
    assert_eq!(ours.len(), 1, "{listed}");
    assert_eq!(ours[0]["worker"], sending["worker"]);
    assert!(text(&ours[0]["worker"]).ends_with(&format!(":{}", server.pid())), "of which process: {listed}");
    assert_eq!(ours[0]["jobs"][0]["id"], sending["id"]);
}

async fn a_redirect_is_not_followed(store: Store) {
    let server = calling(store).await;
    let target = told("200 OK").await;
    let location = target.url("/inside");
    let receiver =
        Upstream::start(move |_, _| Script::whole("307 Temporary Redirect", &format!("Location: {location}\r\n"), ""))
            .await;
    tracked(&server, &receiver.url("/")).await.complete().await;
    let job = callback(&server, "a failed try", |job| !job["error"].is_null()).await;
    assert_eq!((&job["error"]["code"], &job["error"]["retryable"]), (&json!("http_307"), &json!(true)));
    assert!(target.received().is_empty());
}

async fn a_private_address_is_refused_at_enqueue(store: Store) {
    let server = careful(store).await;
    let queue = server.own_queue();
    let spec = |url: Value| json!({"kind": "test", "queue": queue, "delay_ms": 60_000, "callback_url": url});
    for url in [
        "http://127.0.0.1/",
        "http://10.1.2.3/",
        "http://192.168.0.1:8080/x",
        "http://172.16.0.1/",
        "http://0.0.0.0/",
        "http://169.254.169.254/latest/meta-data",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[fe80::1]/",
        "http://[fd00:ec2::254]/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://0177.0.0.1/",
        "ftp://example.org/",
        "//example.org/",
        "hook",
        "",
    ] {
        let answer = server.enqueue(&spec(url.into())).await;
        answer.problem_at(422, "invalid_request", "/callback_url");
    }
    for url in [json!(5), json!(["https://example.org/"]), json!(format!("https://example.org/{}", "x".repeat(2_048)))]
    {
        server.enqueue(&spec(url)).await.problem_at(422, "invalid_request", "/callback_url");
    }
    assert!(server.list(&format!("queue={queue}")).await.is_empty(), "a refusal leaves no trace");
    for url in ["https://example.org/hook?a=b", "http://8.8.8.8:8080/", "http://[2606:4700::1111]/"] {
        let job = server.enqueue(&spec(url.into())).await.expect(202);
        assert_eq!(job["job"].get("callback_url"), None, "who is told is the caller's business");
    }
    let nowhere = store.serve(&["--webhook-secret", SECRET]).await;
    nowhere.enqueue(&spec("https://example.org/".into())).await.problem_at(422, "invalid_request", "/callback_url");
}

async fn a_name_that_leads_inside_is_refused_at_delivery(store: Store) {
    let (server, receiver) = (careful(store).await, told("200 OK").await);
    let url = format!("http://localhost:{}/hook", receiver.port());
    tracked(&server, &url).await.complete().await;
    let job = callback(&server, "its end", |job| job["terminal"] == true).await;
    assert_eq!((&job["state"], &job["error"]["code"]), (&json!("failed"), &json!("address_refused")));
    assert!(receiver.received().is_empty());
}

async fn a_kill_before_the_delivery_loses_nothing(store: Store) {
    let server = calling(store).await;
    let address = Upstream::free_address().await;
    let job = tracked(&server, &format!("http://{address}/hook")).await;
    job.complete().await;
    server.kill9();
    let receiver = Upstream::at(address, |_, _| Script::status("200 OK")).await;
    server.restart().await;
    let requests = receiver.requests_within(1, Duration::from_secs(40)).await;
    assert_eq!((&requests[0].json()["id"], &requests[0].json()["state"]), (&json!(job.id), &json!("completed")));
    callback(&server, "its end", |job| job["state"] == "completed").await;
}

async fn a_kill_during_the_delivery_loses_nothing(store: Store) {
    let server = calling(store).await;
    let receiver = Upstream::start(|_, number| match number {
        1 => Script::never(),
        _ => Script::status("200 OK"),
    })
    .await;
    tracked(&server, &receiver.url("/")).await.complete().await;
    receiver.requests(1).await;
    server.kill9();
    server.restart().await;
    let requests = receiver.requests_within(2, Duration::from_secs(40)).await;
    assert_eq!(requests[0].header("webhook-id"), requests[1].header("webhook-id"));
    assert_eq!(requests[0].body, requests[1].body);
    callback(&server, "its end", |job| job["state"] == "completed").await;
}

async fn a_job_that_is_put_back_tells_its_next_end_too(store: Store) {
    let (server, receiver) = (calling(store).await, told("200 OK").await);
    let queue = Queue::own(&server);
    let job = queue.running(json!({"callback_url": receiver.url("/")})).await;
    job.fail(json!({"retryable": false})).await;
    receiver.requests(1).await;
    job.retry().await.expect(202);
    job.cancel(json!({})).await.expect(202);
    let requests = receiver.requests(2).await;
    let told: Vec<Value> = requests.iter().map(|request| request.json()["state"].clone()).collect();
    assert_eq!(told, ["failed", "cancelled"]);
    assert_ne!(requests[0].header("webhook-id"), requests[1].header("webhook-id"));
    assert!(text(&requests[1].json()["id"]) == job.id);
}

async fn the_gateways_queue_is_its_own(store: Store) {
    let (server, receiver) = (calling(store).await, told("500 Internal Server Error").await);
    tracked(&server, &receiver.url("/")).await.complete().await;
    let queue = "/v1/queues/milepost.callbacks";
    assert_eq!(server.get(queue).send().await.expect(200)["name"], "milepost.callbacks");
    server.request("PATCH", queue).json(&json!({"concurrency": 1})).send().await.problem(422, "invalid_request");
    server.post(&format!("{queue}/pause")).json(&json!({})).send().await.problem(422, "invalid_request");
    let claim = json!({"worker": "thief", "queues": ["default", "milepost.callbacks"]});
    server.post("/v1/claims").json(&claim).send().await.problem_at(422, "invalid_request", "/queues/1");
    let spec = json!({"kind": "callback", "queue": "milepost.callbacks"});
    server.enqueue(&spec).await.problem_at(422, "invalid_request", "/queue");
}
