//! Section 2.1: what a spec may say, what it means when it says nothing, and what a refusal names.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    least_spec_gets_the_defaults,
    answer_carries_the_urls,
    spec_comes_back_as_it_was_sent,
    explicit_null_counts_as_left_out,
    invalid_field_is_named_and_nothing_is_stored,
    edge_of_every_rule_is_accepted,
    text_that_no_store_can_hold_is_refused_in_specs,
    limits_refuse_and_leave_nothing,
    tracked_job_runs_from_the_start,
    tracked_job_refuses_what_only_a_queue_can_do,
    delayed_job_is_scheduled,
    run_at_is_shown_in_utc,
    id_that_was_returned_is_readable_at_once,
    payload_is_shown_only_on_request,
);

const STATE_FIELDS: [&str; 23] = [
    "attempt",
    "cancel_requested",
    "created_at",
    "error",
    "finished_at",
    "id",
    "kind",
    "max_attempts",
    "meta",
    "outcome",
    "output",
    "priority",
    "progress",
    "queue",
    "run_at",
    "seq",
    "started_at",
    "state",
    "subject",
    "terminal",
    "tracked",
    "updated_at",
    "worker",
];

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value.as_object().expect("an object").keys().map(String::as_str).collect();
    keys.sort();
    keys
}

/// RFC 3339, UTC, milliseconds.
#[track_caller]
fn assert_time(value: &Value) {
    let shape: String = text(value).chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    assert_eq!(shape, "0000-00-00T00:00:00.000Z", "{value}");
}

fn milliseconds(value: &Value) -> i128 {
    let format = &time::format_description::well_known::Rfc3339;
    let instant = time::OffsetDateTime::parse(text(value), format).expect("a time");
    instant.unix_timestamp_nanos() / 1_000_000
}

async fn least_spec_gets_the_defaults(store: Store) {
    let server = store.shared().await;
    let answer = server.enqueue(&json!({"kind": "k"})).await;
    let body = answer.expect(202);
    let state = &body["job"];
    let id = text(&state["id"]);
    assert_eq!(answer.header("location"), Some(&*format!("/v1/jobs/{id}")));
    assert_eq!(answer.header("retry-after"), Some("2"));
    assert_eq!(keys(state), STATE_FIELDS);
    let expected = json!({
        "queue": "default", "kind": "k", "subject": null, "state": "queued", "terminal": false, "seq": 1,
        "attempt": 0, "max_attempts": 3, "priority": 0, "tracked": false, "progress": null, "output": {"bytes": 0},
        "outcome": null, "error": null, "cancel_requested": false, "worker": null, "started_at": null,
        "finished_at": null, "meta": {},
    });
    for (field, value) in expected.as_object().expect("an object") {
        assert_eq!(&state[field], value, "{field}");
    }
    for field in ["created_at", "run_at", "updated_at"] {
        assert_time(&state[field]);
    }
    let uuid = uuid::Uuid::parse_str(id).expect("an id is a UUID");
    assert_eq!((uuid.get_version_num(), uuid.hyphenated().to_string().as_str()), (7, id));
    let job = Job::new(&server, id);
    assert_eq!(&job.state().await, state);
    let log = job.log().await;
    assert_eq!(pairs(&log)[0].0, "queued");
    assert_eq!(keys(&log[0]), ["at", "attempt", "data", "seq", "type"]);
    let fields = ["kind", "max_attempts", "meta", "priority", "queue", "run_at", "subject", "tracked"];
    assert_eq!(keys(&log[0]["data"]), fields);
}

async fn answer_carries_the_urls(store: Store) {
    let server = store.shared().await;
    let body = server.enqueue(&json!({"kind": "k"})).await.expect(202);
    let id = text(&body["job"]["id"]);
    let urls = json!({
        "job": format!("/v1/jobs/{id}"), "events": format!("/v1/jobs/{id}/events"), "page": format!("/jobs/{id}"),
    });
    assert_eq!(body["urls"], urls);
    assert_eq!(keys(&body), ["created", "job", "urls"]);
    assert_eq!(body["created"], true);
    let public = store.serve(&["--public-url", "https://progress.example.org", "--base-path", "/progress"]).await;
    let answer = public.post("/progress/v1/jobs").json(&json!({"kind": "k"})).send().await;
    let url = text(&answer.expect(202)["urls"]["job"]).to_owned();
    let path = url.strip_prefix("https://progress.example.org").expect("absolute below the public url");
    assert!(path.starts_with("/progress/v1/jobs/"), "{url}");
    public.get(path).send().await.expect(200);
    public.get("/v1/jobs").send().await.problem(404, "not_found");
}

async fn spec_comes_back_as_it_was_sent(store: Store) {
    let server = store.shared().await;
    let payload = r#"{"big":12345678901234567890.123456789,"e":1e400,"z":[null,true,"ü😀"]}"#;
    let body = format!(
        r#"{{"queue":"Q.a_b-1","kind":"K.a_b-1","subject":"article:42 ü","priority":-7,"max_attempts":9,
            "meta":{{"a":{{"b":[1,"x"]}}}},"unique_key":"{}","concurrency_key":"user:7","ttl_ms":600000,
            "deadline_ms":700000,"timeout_ms":5000,"cancel_if_unwatched_ms":60000,
            "backoff":{{"initial_ms":10,"factor":1.5,"max_ms":100,"jitter":0}},"payload":{payload}}}"#,
        unique("key")
    );
    let answer = server.post("/v1/jobs").header("Content-Type", "application/json").body(body).send().await;
    let state = answer.expect(202)["job"].clone();
    let expected = json!({
        "queue": "Q.a_b-1", "kind": "K.a_b-1", "subject": "article:42 ü", "priority": -7, "max_attempts": 9,
        "meta": {"a": {"b": [1, "x"]}},
    });
    for (field, value) in expected.as_object().expect("an object") {
        assert_eq!(&state[field], value, "{field}");
    }
    let job = Job::new(&server, text(&state["id"]));
    let with_payload = job.get("?include=payload").send().await;
    assert_eq!(with_payload.expect(200)["payload"], serde_json::from_str::<Value>(payload).expect("JSON"));
    assert!(with_payload.text().contains("12345678901234567890.123456789"), "digits are kept");
}

async fn explicit_null_counts_as_left_out(store: Store) {
    let server = store.shared().await;
    let nulls = json!({
        "kind": "k", "queue": null, "payload": null, "subject": null, "priority": null, "delay_ms": null,
        "run_at": null, "ttl_ms": null, "timeout_ms": null, "deadline_ms": null, "max_attempts": null,
        "backoff": null, "unique_key": null, "unique_on_conflict": null, "concurrency_key": null,
        "cancel_if_unwatched_ms": null, "tracked": null, "callback_url": null, "meta": null,
    });
    let state = server.enqueue(&nulls).await.expect(202)["job"].clone();
    let expected = [("queue", json!("default")), ("max_attempts", json!(3)), ("meta", json!({}))];
    for (field, value) in expected {
        assert_eq!(state[field], value, "{field}");
    }
    server.enqueue(&json!({"kind": null})).await.problem_at(422, "invalid_request", "/kind");
}

/// `(field, value)` that a spec must not have, each with the pointer of its fault if it is not the field itself.
fn faults() -> Vec<(&'static str, Value, Option<&'static str>)> {
    let long = |count: usize| Value::from("x".repeat(count));
    let mut faults = vec![
        ("backoff", json!({"initial_ms": -1}), Some("/backoff/initial_ms")),
        ("backoff", json!({"jitter": 2}), Some("/backoff/jitter")),
        ("backoff", json!({"factor": "2"}), Some("/backoff/factor")),
        ("backoff", json!({"nope": 1}), Some("/backoff/nope")),
        ("nope", json!(1), None),
        ("Kind", json!("k"), None),
        ("id", json!("x"), None),
        ("tracked", json!("yes"), None),
        ("unique_on_conflict", json!("steal"), None),
        ("callback_url", json!("https://example.org/hook"), None),
        ("run_at", json!("tomorrow"), None),
        ("run_at", json!("2030-01-01T00:00:00"), None),
        ("run_at", json!(5), None),
        ("max_attempts", json!(0), None),
        ("backoff", json!(5), None),
        ("queue", json!("milepost.callbacks"), None),
    ];
    for field in ["queue", "kind"] {
        faults
            .extend([json!(""), json!("a b"), json!("ü"), json!("a/b"), json!(5), long(65)].map(|v| (field, v, None)));
    }
    for field in ["subject", "unique_key", "concurrency_key"] {
        faults.extend([json!(""), json!("a\nb"), json!("\u{7f}"), json!(5), long(201)].map(|v| (field, v, None)));
    }
    for field in
        ["priority", "delay_ms", "ttl_ms", "timeout_ms", "deadline_ms", "max_attempts", "cancel_if_unwatched_ms"]
    {
        let numbers = [json!(-101), json!(1.5), json!("1"), json!(true), json!(1e300)];
        faults.extend(numbers.map(|v| (field, v, None)));
    }
    faults.push(("priority", json!(101), None));
    faults.extend([json!([]), json!("x"), json!(5)].map(|v| ("meta", v, None)));
    faults
}

async fn invalid_field_is_named_and_nothing_is_stored(store: Store) {
    let server = store.shared().await;
    let queue = server.own_queue();
    for (field, value, pointer) in faults() {
        let mut spec = json!({"kind": "k", "queue": queue});
        spec[field] = value;
        let own = format!("/{field}");
        let problem = server.enqueue(&spec).await.problem(422, "invalid_request");
        assert_eq!(problem["pointer"], pointer.unwrap_or(&own), "{spec} gives {problem}");
    }
    server.enqueue(&json!({"queue": queue})).await.problem_at(422, "invalid_request", "/kind");
    for body in ["[]", "5", "null", "\"x\""] {
        server.post("/v1/jobs").body(body).send().await.problem(422, "invalid_request");
    }
    for body in ["", "{", "{\"kind\":\"k\"}}", "{'kind':1}", "{\"kind\":\"k\",}"] {
        server.post("/v1/jobs").body(body).send().await.problem(400, "invalid_json");
    }
    let plain = server.post("/v1/jobs").header("Content-Type", "text/plain").body("{\"kind\":\"k\"}").send().await;
    plain.problem(415, "unsupported_media_type");
    assert_eq!(plain.header("accept"), Some("application/json"));
    assert_eq!(server.list(&format!("queue={queue}")).await, [] as [Value; 0]);
}

async fn edge_of_every_rule_is_accepted(store: Store) {
    let server = store.shared().await;
    let long = |count: usize| Value::from("ü".repeat(count));
    let edges = [
        ("kind", json!("a".repeat(64))),
        ("queue", json!("a".repeat(64))),
        ("subject", long(200)),
        ("concurrency_key", long(200)),
        ("priority", json!(100)),
        ("priority", json!(-100)),
        ("delay_ms", json!(0)),
        ("max_attempts", json!(1)),
        ("unique_on_conflict", json!("replace")),
        ("tracked", json!(false)),
        ("backoff", json!({})),
    ];
    for (field, value) in edges {
        let mut spec = json!({"kind": "k"});
        spec[field] = value.clone();
        server.enqueue(&spec).await.expect(202);
    }
    let charset = server.post("/v1/jobs").header("Content-Type", "application/json; charset=utf-8");
    charset.body("{\"kind\":\"k\"}").send().await.expect(202);
    server.post("/v1/jobs").body("{\"kind\":\"k\"}").send().await.expect(202);
}

async fn text_that_no_store_can_hold_is_refused_in_specs(store: Store) {
    let server = store.shared().await;
    let queue = server.own_queue();
    for bad in [r"\u0000", r"\ud800", r"\udc00"] {
        let table = [
            (format!(r#""payload":{{"a":{{"b":["x","y{bad}"]}}}}"#), "/payload/a/b/1"),
            (format!(r#""payload":"{bad}""#), "/payload"),
            (format!(r#""meta":{{"a/b":{{"c~d":"{bad}"}}}}"#), "/meta/a~1b/c~0d"),
            (format!(r#""subject":"{bad}""#), "/subject"),
            (format!(r#""unique_key":"{bad}""#), "/unique_key"),
            (format!(r#""concurrency_key":"{bad}""#), "/concurrency_key"),
        ];
        for (field, pointer) in table {
            let body = format!(r#"{{"kind":"k","queue":"{queue}",{field}}}"#);
            server.post("/v1/jobs").body(body).send().await.problem_at(422, "invalid_request", pointer);
        }
        for key in ["payload", "meta"] {
            let body = format!(r#"{{"kind":"k","queue":"{queue}","{key}":{{"{bad}":1}}}}"#);
            let problem = server.post("/v1/jobs").body(body).send().await.problem(422, "invalid_request");
            assert!(text(&problem["pointer"]).starts_with(&format!("/{key}")), "{problem}");
        }
    }
    let invalid = [b"{\"kind\":\"k\",\"payload\":\"".as_slice(), b"\xff\xfe", b"\"}"].concat();
    server.post("/v1/jobs").body(invalid).send().await.problem(400, "invalid_json");
    assert_eq!(server.list(&format!("queue={queue}")).await, [] as [Value; 0]);
}

async fn limits_refuse_and_leave_nothing(store: Store) {
    let server = store.serve(&["--max-payload", "1000", "--max-body", "30000"]).await;
    let sized = |field: &str, bytes: usize| {
        let mut spec = json!({"kind": "k"});
        let mut value = json!({"x": ""});
        value["x"] = "y".repeat(bytes - value.to_string().len()).into();
        spec[field] = value;
        spec
    };
    server.enqueue(&sized("payload", 1000)).await.expect(202);
    server.enqueue(&sized("meta", 8192)).await.expect(202);
    for spec in [sized("payload", 1001), sized("meta", 8193), sized("payload", 40_000)] {
        server.enqueue(&spec).await.problem(413, "payload_too_large");
    }
    assert_eq!(server.list("").await.len(), 2);
    let announced = server.post("/v1/jobs").header("Content-Length", "99999999999").send().await;
    announced.problem(413, "payload_too_large");
}

async fn tracked_job_runs_from_the_start(store: Store) {
    let job = store.shared().await.job(json!({"kind": "k", "tracked": true, "max_attempts": 1, "ttl_ms": null})).await;
    let state = job.state().await;
    let expected = json!({
        "state": "running", "seq": 2, "attempt": 1, "max_attempts": 1, "tracked": true, "output": {"bytes": 0},
    });
    for (field, value) in expected.as_object().expect("an object") {
        assert_eq!(&state[field], value, "{field}");
    }
    assert_time(&state["started_at"]);
    let log = job.log().await;
    assert_eq!(job.types().await, ["queued", "started"]);
    assert_eq!(log[1]["data"]["run"], 1);
    assert_eq!((&log[0]["attempt"], &log[1]["attempt"]), (&json!(0), &json!(1)));
    assert_eq!((&log[0]["data"]["tracked"], &log[0]["data"]["max_attempts"]), (&json!(true), &json!(1)));
    job.post("/retry").send().await.problem(409, "not_retryable");
    job.complete().await;
    job.post("/retry").send().await.problem(409, "not_retryable");
}

async fn tracked_job_refuses_what_only_a_queue_can_do(store: Store) {
    let server = store.shared().await;
    let queue = server.own_queue();
    let table = [
        ("delay_ms", json!(5)),
        ("run_at", json!("2030-01-01T00:00:00Z")),
        ("ttl_ms", json!(5)),
        ("max_attempts", json!(2)),
    ];
    for (field, value) in table {
        let mut spec = json!({"kind": "k", "tracked": true, "queue": queue});
        spec[field] = value;
        server.enqueue(&spec).await.problem_at(422, "invalid_request", &format!("/{field}"));
    }
    assert_eq!(server.list(&format!("queue={queue}")).await, [] as [Value; 0]);
}

async fn delayed_job_is_scheduled(store: Store) {
    let server = store.shared().await;
    let delayed = server.job(json!({"kind": "k", "delay_ms": 3_600_000})).await;
    let state = delayed.state().await;
    assert_eq!((&state["state"], &state["seq"]), (&json!("scheduled"), &json!(1)));
    assert_eq!(milliseconds(&state["run_at"]) - milliseconds(&state["created_at"]), 3_600_000);
    assert_eq!(delayed.log().await[0]["data"]["run_at"], state["run_at"]);
    let past = server.job(json!({"kind": "k", "run_at": "2020-01-01T00:00:00Z"})).await;
    assert_eq!(past.state().await["state"], "queued");
    let now = server.job(json!({"kind": "k"})).await.state().await;
    assert_eq!(now["run_at"], now["created_at"]);
}

async fn run_at_is_shown_in_utc(store: Store) {
    let server = store.shared().await;
    for (sent, shown) in [
        ("2031-01-01T02:00:00+02:00", "2031-01-01T00:00:00.000Z"),
        ("2031-06-30T23:59:59.5Z", "2031-06-30T23:59:59.500Z"),
        ("2031-01-01t00:00:00.123z", "2031-01-01T00:00:00.123Z"),
    ] {
        let state = server.job(json!({"kind": "k", "run_at": sent})).await.state().await;
        assert_eq!((&state["run_at"], &state["state"]), (&json!(shown), &json!("scheduled")));
    }
}

async fn id_that_was_returned_is_readable_at_once(store: Store) {
    let server = store.shared().await;
    for _ in 0..200 {
        let job = server.job(json!({"kind": "k"})).await;
        assert_eq!(job.state().await["seq"], 1);
    }
    let job = server.job(json!({"kind": "k"})).await;
    let mut stream = within(Duration::from_secs(10), "a stream", job.stream()).await;
    stream.expect("state").await;
}

async fn payload_is_shown_only_on_request(store: Store) {
    let server = store.shared().await;
    let job = server.job(json!({"kind": "k", "payload": {"secret": "s"}})).await;
    assert_eq!(job.state().await.get("payload"), None);
    assert!(!job.log().await.iter().any(|event| event.to_string().contains("secret")));
    assert!(!job.stream().await.frame().await.data.expect("data").contains("secret"));
    assert_eq!(job.get("?include=payload").send().await.expect(200)["payload"], json!({"secret": "s"}));
    for query in ["?include=nope", "?include=", "?nope=1"] {
        job.get(query).send().await.problem(422, "invalid_request");
    }
}
