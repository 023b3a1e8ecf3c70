//! `GET /v1/workers/{worker}/signals`: cancel, lost leases and drain, told to the worker as they happen.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    stream_opens_with_the_state_at_once,
    cancel_is_signalled_while_it_happens,
    flags_already_set_are_repeated_on_connect,
    flags_outlive_the_process,
    every_lost_lease_is_signalled,
    end_by_the_worker_itself_is_no_loss,
    signals_reach_every_process_of_that_name_and_no_other,
    run_claimed_after_the_stream_opened_is_signalled_too,
    flag_of_a_run_that_is_over_is_not_repeated,
    drain_is_announced_before_the_end,
    silence_is_broken_by_pings,
    old_stream_rotates,
    unnamed_frames_carry_their_type_in_the_data,
    newcomer_over_the_cap_is_turned_away,
    head_never_opens_a_stream,
    bad_requests_are_refused,
);

/// How soon a signal has come.
const AT_ONCE: Duration = Duration::from_secs(1);
/// How soon the sweep has found what nobody told it.
const SWEPT: Duration = Duration::from_secs(4);

/// The next signal, which must come in time.
async fn signal(stream: &mut Stream, limit: Duration) -> Frame {
    within(limit, "a signal", stream.told()).await
}

fn nothing() -> Value {
    json!({"cancel": [], "drain": false})
}

async fn opened(worker: &Worker) -> Stream {
    let mut stream = worker.signals().await;
    assert_eq!(stream.expect("state").await.json(), nothing());
    stream
}

async fn stream_opens_with_the_state_at_once(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let worker = queue.worker();
    let begun = Instant::now();
    let mut stream = worker.signals_request("").header("Accept-Encoding", "gzip, br").stream().await;
    let state = stream.frame().await;
    assert!(begun.elapsed() < Duration::from_secs(5), "a worker that was never seen is told at once, too");
    assert_eq!((state.kind().as_str(), state.json()), ("state", nothing()));
    assert_eq!(state.fields, ["retry", "event", "data"], "signals have no cursor");
    assert!((1_000..=3_000).contains(&state.retry.expect("the first frame begins with retry")), "{state:?}");
    let headers = [
        ("content-type", Some("text/event-stream")),
        ("cache-control", Some("no-store, no-transform")),
        ("x-accel-buffering", Some("no")),
        ("content-encoding", None),
        ("content-length", None),
        ("etag", None),
    ];
    for (name, value) in headers {
        assert_eq!(stream.head.header(name), value, "{name}");
    }
}

async fn cancel_is_signalled_while_it_happens(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let worker = queue.worker();
    let job = queue.running_at(&worker, json!({})).await;
    let mut stream = opened(&worker).await;
    job.cancel(json!({"reason": "user left", "grace_ms": 60_000})).await.expect(202);
    let frame = signal(&mut stream, AT_ONCE).await;
    assert_eq!((frame.kind().as_str(), frame.id.clone(), frame.retry), ("cancel", None, None));
    let expected = json!({"job": job.id, "run": job.run(), "reason": "user left", "grace_ms": 60_000});
    assert_eq!(frame.json(), expected);
    let bare = queue.running_at(&worker, json!({})).await;
    bare.cancel(json!({})).await.expect(202);
    let expected = json!({"job": bare.id, "run": bare.run(), "reason": null, "grace_ms": 10_000});
    assert_eq!(signal(&mut stream, AT_ONCE).await.json(), expected);
}

async fn flags_already_set_are_repeated_on_connect(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let worker = queue.worker();
    let asked = queue.running_at(&worker, json!({})).await;
    queue.running_at(&worker, json!({})).await;
    asked.cancel(json!({"reason": "r", "grace_ms": 60_000})).await.expect(202);
    for _ in 0..2 {
        let state = worker.signals().await.expect("state").await.json();
        let [flag] = &state["cancel"].as_array().expect("a list")[..] else { panic!("one is asked to stop: {state}") };
        assert_eq!((&flag["job"], &flag["run"], &flag["reason"]), (&json!(asked.id), &json!(asked.run()), &json!("r")));
        let grace = number(&flag["grace_ms"]);
        assert!((30_000..=60_000).contains(&grace), "what was given, or what is left of it: {grace}");
        assert_eq!(state["drain"], false);
    }
}

async fn flags_outlive_the_process(store: Store) {
    let server = store.serve(&[]).await;
    let queue = Queue::own(&server);
    let worker = queue.worker();
    let job = queue.running_at(&worker, json!({})).await;
    job.cancel(json!({"reason": "r", "grace_ms": 60_000})).await.expect(202);
    server.kill9();
    server.restart().await;
    let state = worker.signals().await.expect("state").await.json();
    assert_eq!((&state["cancel"][0]["job"], &state["cancel"][0]["reason"]), (&json!(job.id), &json!("r")));
}

async fn every_lost_lease_is_signalled(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let worker = queue.worker();
    let short = worker.clone().with_lease(1_000);
    let mut stream = opened(&worker).await;
    let key = unique("key");

    let replaced = queue.running_at(&worker, json!({"unique_key": key})).await;
    let replacing = queue.spec(json!({"unique_key": key, "unique_on_conflict": "replace", "delay_ms": 3_600_000}));
    queue.server.enqueue(&replacing).await.expect(202);
    let frame = signal(&mut stream, AT_ONCE).await;
    let lost = |job: &Job| json!({"job": job.id, "run": job.run()});
    assert_eq!((frame.kind().as_str(), frame.json(), frame.id), ("lease_lost", lost(&replaced), None));

    let forced = queue.running_at(&worker, json!({})).await;
    forced.cancel(json!({"grace_ms": 300})).await.expect(202);
    assert_eq!(signal(&mut stream, AT_ONCE).await.kind(), "cancel");
    let frame = signal(&mut stream, SWEPT).await;
    assert_eq!((frame.kind().as_str(), frame.json()), ("lease_lost", lost(&forced)));

    let later = json!({"initial_ms": 3_600_000, "max_ms": 3_600_000});
    let slow = queue.running_at(&worker, json!({"timeout_ms": 400, "backoff": later})).await;
    let frame = signal(&mut stream, SWEPT).await;
    assert_eq!((frame.kind().as_str(), frame.json()), ("lease_lost", lost(&slow)));

    let late = queue.running_at(&worker, json!({"deadline_ms": 1_000})).await;
    let frame = signal(&mut stream, SWEPT).await;
    assert_eq!((frame.kind().as_str(), frame.json()), ("lease_lost", lost(&late)));

    let silent = queue.running_at(&short, json!({"backoff": later})).await;
    silent.note("then silence").await;
    let frame = signal(&mut stream, SWEPT).await;
    assert_eq!((frame.kind().as_str(), frame.json()), ("lease_lost", lost(&silent)));

    for (job, last) in
        [(replaced, "cancelled"), (forced, "cancelled"), (slow, "retrying"), (late, "failed"), (silent, "retrying")]
    {
        assert_eq!(job.types().await.last().map(String::as_str), Some(last));
        job.untouched(async {
            let late = job.try_append(&json!([])).await;
            assert_eq!(late.status(), 409, "{}", late.text());
        })
        .await;
    }
}

async fn end_by_the_worker_itself_is_no_loss(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let worker = queue.worker();
    let mut stream = opened(&worker).await;
    let ends = [
        json!({"type": "completed"}),
        json!({"type": "failed", "data": {"code": "c", "message": "m", "retryable": false}}),
        json!({"type": "failed", "data": {"code": "c", "message": "m", "retry_after_ms": 3_600_000}}),
        json!({"type": "cancelled"}),
        json!({"type": "released", "data": {"delay_ms": 3_600_000}}),
    ];
    for end in ends {
        queue.running_at(&worker, json!({})).await.append(end).await;
    }
    let last = queue.running_at(&worker, json!({})).await;
    last.cancel(json!({"grace_ms": 60_000})).await.expect(202);
    let frame = signal(&mut stream, AT_ONCE).await;
    assert_eq!((frame.kind().as_str(), &frame.json()["job"]), ("cancel", &json!(last.id)), "nothing came before it");
}

async fn signals_reach_every_process_of_that_name_and_no_other(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let (worker, other) = (queue.worker(), queue.worker());
    let (mut one, mut twin, mut foreign) = (opened(&worker).await, opened(&worker).await, opened(&other).await);
    let job = queue.running_at(&worker, json!({})).await;
    job.cancel(json!({"grace_ms": 60_000})).await.expect(202);
    for stream in [&mut one, &mut twin] {
        assert_eq!(signal(stream, AT_ONCE).await.json()["job"], *job.id);
    }
    let own = queue.running_at(&other, json!({})).await;
    own.cancel(json!({"grace_ms": 60_000})).await.expect(202);
    assert_eq!(signal(&mut foreign, AT_ONCE).await.json()["job"], *own.id, "the first it hears of");
    for stream in [&mut one, &mut twin] {
        stream.assert_silent(Duration::from_millis(300)).await;
    }
}

async fn run_claimed_after_the_stream_opened_is_signalled_too(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let worker = queue.worker();
    let mut stream = opened(&worker).await;
    for _ in 0..20 {
        let job = queue.running_at(&worker, json!({})).await;
        job.cancel(json!({"grace_ms": 60_000})).await.expect(202);
        let frame = signal(&mut stream, AT_ONCE).await;
        assert_eq!((&frame.json()["job"], &frame.json()["run"]), (&json!(job.id), &json!(1)));
        job.append(json!({"type": "cancelled"})).await;
    }
}

async fn flag_of_a_run_that_is_over_is_not_repeated(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let worker = queue.worker();
    for end in ["completed", "cancelled"] {
        let job = queue.running_at(&worker, json!({})).await;
        job.cancel(json!({"grace_ms": 60_000})).await.expect(202);
        assert_eq!(worker.signals().await.expect("state").await.json()["cancel"][0]["job"], *job.id);
        job.append(json!({ "type": end })).await;
        assert_eq!(worker.signals().await.expect("state").await.json(), nothing());
    }
}

async fn drain_is_announced_before_the_end(store: Store) {
    let server = store.serve(&["--drain-ms", "3000"]).await;
    let queue = Queue::own(&server);
    let worker = queue.worker();
    queue.running_at(&worker, json!({})).await;
    let mut stream = opened(&worker).await;
    server.sigterm();
    let drain = signal(&mut stream, AT_ONCE).await;
    assert_eq!((drain.kind().as_str(), drain.json(), drain.id), ("drain", json!({}), None));
    let bye = signal(&mut stream, Duration::from_secs(8)).await;
    assert_eq!((bye.kind().as_str(), bye.json(), bye.id), ("bye", json!({"reason": "shutdown"}), None));
    assert!((5_000..=15_000).contains(&bye.retry.expect("a bye says when to come back")));
    stream.expect_end().await;
    assert_eq!(server.exit(PATIENCE).await.code(), Some(0));
}

async fn silence_is_broken_by_pings(store: Store) {
    let server = store.serve(&["--ping-ms", "300"]).await;
    let mut stream = opened(&Queue::own(&server).worker()).await;
    for _ in 0..3 {
        let begun = Instant::now();
        let ping = stream.frame().await;
        assert_eq!((ping.kind().as_str(), ping.fields), ("ping", vec!["event".to_owned(), "data".to_owned()]));
        assert!(begun.elapsed() > Duration::from_millis(150), "a ping comes after silence only");
    }
}

async fn old_stream_rotates(store: Store) {
    let server = store.serve(&["--stream-max-age-ms", "800"]).await;
    let mut stream = opened(&Queue::own(&server).worker()).await;
    let bye = stream.told().await;
    assert_eq!((bye.kind().as_str(), bye.json(), bye.id), ("bye", json!({"reason": "rotate"}), None));
    assert!((1_000..=3_000).contains(&bye.retry.expect("a bye says when to come back")));
    stream.expect_end().await;
}

async fn unnamed_frames_carry_their_type_in_the_data(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let worker = queue.worker();
    let mut stream = worker.signals_request("?unnamed=1").stream().await;
    assert_eq!(stream.frame().await.json(), json!({"type": "state", "cancel": [], "drain": false}));
    let job = queue.running_at(&worker, json!({})).await;
    job.cancel(json!({"grace_ms": 60_000})).await.expect(202);
    let frame = signal(&mut stream, AT_ONCE).await.json();
    assert_eq!((&frame["type"], &frame["job"]), (&json!("cancel"), &json!(job.id)));
    assert!(!String::from_utf8_lossy(&stream.raw).contains("event:"));
}

async fn newcomer_over_the_cap_is_turned_away(store: Store) {
    let server = store.serve(&["--max-streams", "1"]).await;
    let queue = Queue::own(&server);
    let worker = queue.worker();
    let mut established = opened(&worker).await;
    let mut newcomer = queue.worker().signals().await;
    let bye = newcomer.frame().await;
    assert_eq!((bye.kind().as_str(), bye.json()), ("bye", json!({"reason": "overloaded"})));
    assert!((5_000..=15_000).contains(&bye.retry.expect("a bye says when to come back")), "{bye:?}");
    newcomer.expect_end().await;
    queue.running_at(&worker, json!({})).await.cancel(json!({"grace_ms": 60_000})).await.expect(202);
    assert_eq!(signal(&mut established, AT_ONCE).await.kind(), "cancel", "the established stay");
}

async fn head_never_opens_a_stream(store: Store) {
    let server = store.shared().await;
    let path = Queue::own(&server).worker().path("/signals");
    let answer = server.request("HEAD", &path).header("Accept", "text/event-stream").send().await;
    assert_eq!(answer.body, b"");
    assert_ne!(answer.header("content-type"), Some("text/event-stream"));
}

async fn bad_requests_are_refused(store: Store) {
    let server = store.shared().await;
    let ask = |path: &str| server.get(path).header("Accept", "text/event-stream").send();
    for name in ["a%20b", "%00", "a%2Fb", "%C3%BC", &"x".repeat(129), "a,b"] {
        ask(&format!("/v1/workers/{name}/signals")).await.problem(422, "invalid_request");
    }
    for query in ["?nope=1", "?after=3", "?unnamed=maybe"] {
        ask(&format!("/v1/workers/w/signals{query}")).await.problem(422, "invalid_request");
    }
    let right = format!("/v1/workers/{}/signals", "aZ09._:@-".repeat(14));
    assert_eq!(server.get(&right).stream().await.frame().await.kind(), "state");
    server.post("/v1/workers/w/signals").send().await.problem(405, "method_not_allowed");
}

#[test]
fn outage_of_the_store_is_passing_for_workers_and_operators() {
    run(async {
        let server = Store::Postgres.serve(&[]).await;
        let queue = Queue::own(&server);
        let worker = queue.worker().with_lease(60_000);
        let job = queue.running_at(&worker, json!({})).await;
        let mut established = opened(&worker).await;
        let database = server.setup.database.as_ref().expect("a Postgres server has a database");
        database.away().await;
        let requests = [
            queue.get(),
            server.get("/v1/queues"),
            server.get("/v1/workers"),
            server.request("PATCH", &queue.path("")).json(&json!({"concurrency": 1})),
            server.post(&queue.path("/pause")),
            server.post(&queue.path("/purge")),
            server.post(&queue.path("/redrive")),
            worker.claim(1, 0),
            job.get("?include=waiting"),
        ];
        for request in requests {
            let answer = request.send().await;
            answer.problem(503, "store_unavailable");
            assert!(answer.header("retry-after").is_some(), "a 503 says when to come back");
        }
        let bye = queue.worker().signals().await.frame().await;
        assert_eq!((bye.kind().as_str(), bye.json()), ("bye", json!({"reason": "store_unavailable"})));
        assert!((5_000..=15_000).contains(&bye.retry.expect("a bye says when to come back")), "{bye:?}");
        database.back().await;
        eventually(Duration::from_secs(30), "the store", async || {
            (job.cancel(json!({"grace_ms": 60_000})).await.status() == 202).then_some(())
        })
        .await;
        assert_eq!(signal(&mut established, SWEPT).await.json()["job"], *job.id, "an open stream outlives the outage");
        let read = queue.read().await;
        assert_eq!(
            (&read["paused"], &read["concurrency"]),
            (&Value::Null, &Value::Null),
            "what was refused was not done"
        );
    });
}
