//! Section 9: every refusal is a problem with a stable code, and leaves no trace.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    golden_problems,
    refusal_is_seen_by_a_client_that_is_still_writing,
    deep_nesting_is_refused_by_name,
    unknown_route_is_404,
    wrong_method_is_405_and_names_the_right_ones,
    id_that_is_none_is_404_on_every_route,
    unknown_query_parameter_is_422_on_every_route,
    wrong_media_type_is_415_and_names_the_right_ones,
    broken_http_is_refused_and_hurts_nobody,
    half_a_head_is_not_waited_for,
    idle_connection_is_kept_for_longer_than_a_head_may_take,
    deep_and_odd_json_hurts_nobody,
    operations_routes_answer,
);

/// Every route of the API on one job, with the methods that it takes.
fn job_routes() -> [(&'static str, &'static [&'static str]); 6] {
    [
        ("", &["GET", "HEAD", "DELETE"]),
        ("/events", &["GET", "HEAD", "POST"]),
        ("/output", &["GET", "HEAD"]),
        ("/result", &["GET", "HEAD"]),
        ("/cancel", &["POST"]),
        ("/retry", &["POST"]),
    ]
}

fn routes(job: &Job) -> Vec<(String, &'static [&'static str])> {
    let mut routes: Vec<(String, &'static [&'static str])> = vec![
        ("/v1/jobs".into(), &["GET", "HEAD", "POST"]),
        ("/v1/jobs/batch".into(), &["POST"]),
        ("/livez".into(), &["GET", "HEAD"]),
        ("/readyz".into(), &["GET", "HEAD"]),
        ("/openapi.json".into(), &["GET", "HEAD"]),
    ];
    routes.extend(job_routes().map(|(rest, methods)| (job.path(rest), methods)));
    routes
}

/// Problems of `tests/wire/problems.json`, which the web client's tests read too.
async fn golden_problems(store: Store) {
    let server = store.shared().await;
    let cases: Vec<Value> = serde_json::from_str(include_str!("../wire/problems.json")).expect("a list of cases");
    for case in cases {
        let (request, expected) = (&case["request"], &case["problem"]);
        let mut sent = server.request(text(&request["method"]), text(&request["path"]));
        for (name, value) in request["headers"].as_object().into_iter().flatten() {
            sent = sent.header(name, text(value));
        }
        if let Some(body) = request["body"].as_str() {
            sent = sent.body(body);
        }
        let (status, code) = (number(&expected["status"]) as u16, text(&expected["code"]));
        let problem = sent.send().await.problem(status, code);
        for (field, value) in expected.as_object().expect("an object") {
            assert_eq!(&problem[field], value, "{field} of {}", case["name"]);
        }
    }
}

async fn unknown_route_is_404(store: Store) {
    let job = store.shared().await.tracked().await;
    for path in ["/v1", "/v1/", "/v1/nope", "/nope", "/v2/jobs", "/V1/jobs", "/v1/jobs/batch/x", "/v1//jobs"] {
        job.server.get(path).send().await.problem(404, "not_found");
        job.server.post(path).json(&json!({"kind": "k"})).send().await.problem(404, "not_found");
    }
    for rest in ["/nope", "/events/1", "/output/"] {
        job.get(rest).send().await.problem(404, "not_found");
    }
}

async fn wrong_method_is_405_and_names_the_right_ones(store: Store) {
    let job = store.shared().await.tracked().await;
    let routes = routes(&job);
    job.untouched(async {
        for (path, methods) in &routes {
            for method in ["GET", "POST", "PUT", "PATCH", "DELETE"].iter().filter(|m| !methods.contains(m)) {
                if path == "/v1/jobs/batch" && ["GET", "DELETE"].contains(method) {
                    continue; // `batch` may as well be read as a job's id there.
                }
                let answer = job.server.request(method, path).send().await;
                answer.problem(405, "method_not_allowed");
                let allow = answer.header("allow").unwrap_or_else(|| panic!("{method} {path} without Allow"));
                let named: Vec<&str> = allow.split(',').map(str::trim).collect();
                assert!(
                    methods.iter().all(|m| named.contains(m)) && !named.contains(method),
                    "{method} {path}: {allow}"
                );
            }
        }
    })
    .await;
}

async fn id_that_is_none_is_404_on_every_route(store: Store) {
    let job = store.shared().await.tracked().await;
    let long = "a".repeat(10_000);
    let upper = job.id.to_uppercase();
    let plain = job.id.replace('-', "");
    let (padded, braced) = (format!("{}%20", job.id), format!("%7B{}%7D", job.id));
    let version_4 = "2f1b6c1e-5a0b-4c6d-9e8f-0123456789ab";
    let ids = [
        "abc",
        "0",
        "-1",
        "%00",
        "%0a",
        "%ff",
        "%2e%2e",
        "a%2Fb",
        "null",
        &long,
        &upper,
        &plain,
        &padded,
        &braced,
        version_4,
        "0199a0b4-7c1e-7000-8000-000000000000",
    ];
    for id in ids {
        for (rest, methods) in job_routes() {
            for method in methods.iter().filter(|method| **method != "HEAD") {
                let request = job.server.request(method, &format!("/v1/jobs/{id}{rest}"));
                let request = match (*method, rest) {
                    ("POST", "/events") => request.json(&json!([])),
                    ("POST", _) => request.json(&json!({})),
                    _ => request,
                };
                let answer = request.send().await;
                assert_eq!(answer.status(), 404, "{method} {id}{rest}: {}", answer.text());
                answer.problem(404, "job_not_found");
            }
        }
    }
}

async fn unknown_query_parameter_is_422_on_every_route(store: Store) {
    let job = store.shared().await.tracked().await;
    let routes = routes(&job);
    job.untouched(async {
        for (path, methods) in routes.iter().filter(|(path, _)| path.starts_with("/v1")) {
            for method in methods.iter().filter(|method| **method != "HEAD") {
                let request = job.server.request(method, &format!("{path}?nope=1"));
                let request = match (*method, path.ends_with("/events"), path.ends_with("/jobs")) {
                    ("POST", true, _) => request.json(&json!({"type": "log", "data": {"message": "m"}})),
                    ("POST", _, true) => request.json(&json!({"kind": "k"})),
                    ("POST", ..) => request.json(&json!({})),
                    _ => request,
                };
                let answer = request.send().await;
                assert_eq!(answer.status(), 422, "{method} {path}: {}", answer.text());
                answer.problem(422, "invalid_request");
            }
        }
        let stream = job.get("/events?nope=1").header("Accept", "text/event-stream").send().await;
        stream.problem(422, "invalid_request");
    })
    .await;
}

async fn wrong_media_type_is_415_and_names_the_right_ones(store: Store) {
    let job = store.shared().await.tracked().await;
    let body = json!({"kind": "k"}).to_string();
    job.untouched(async {
        for path in ["/v1/jobs".to_owned(), "/v1/jobs/batch".to_owned(), job.path("/cancel"), job.path("/events")] {
            for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonx"]
            {
                let answer = job.server.post(&path).header("Content-Type", kind).body(body.clone()).send().await;
                answer.problem(415, "unsupported_media_type");
                let accept = answer.header("accept").expect("a 415 says what it takes");
                assert!(accept.contains("application/json"), "{accept}");
                assert_eq!(accept.contains("application/x-ndjson"), path.ends_with("/events"), "{accept}");
            }
        }
        let lines = job.server.post("/v1/jobs").ndjson(body.clone()).send().await;
        lines.problem(415, "unsupported_media_type");
    })
    .await;
}

async fn broken_http_is_refused_and_hurts_nobody(store: Store) {
    let server = store.shared().await;
    let huge = format!("GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "y".repeat(2_000_000));
    let broken = [
        "GARBAGE\r\n\r\n",
        "GET\r\n\r\n",
        "\0\0\0\0\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        &huge,
        "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ];
    for bytes in broken {
        let mut connection = Connection::open(server.address()).await.expect("the server accepts");
        let _cut_while_we_write = connection.write(bytes.as_bytes()).await;
        if let Ok(answer) = within(PATIENCE, "an answer or an end", connection.answer("GET")).await {
            assert!((400..500).contains(&answer.status()), "{}", answer.status());
        }
    }
    server.get("/livez").send().await.expect_ok();
}

async fn deep_and_odd_json_hurts_nobody(store: Store) {
    let server = store.shared().await;
    let job = server.tracked().await;
    let deep = |open: &str, close: &str, depth: usize| format!("{}1{}", open.repeat(depth), close.repeat(depth));
    let mut odd: Vec<String> = [100, 127, 128, 129, 1_000, 100_000, 400_000]
        .iter()
        .flat_map(|depth| [deep("[", "]", *depth), "[".repeat(*depth), deep("{\"a\":", "}", (*depth).min(100_000))])
        .collect();
    odd.extend(
        ["1e99999999", "-0", "1E+2", "{\"a\":1,\"a\":2}", "\"\\u00\"", "\"\\ud800\\u\"", "\"\t\""].map(str::to_owned),
    );
    for value in odd {
        let bodies = [
            (job.path("/events"), value.clone()),
            (job.path("/events"), format!(r#"{{"type":"own","data":{{"x":{value}}}}}"#)),
            (job.path("/cancel"), format!(r#"{{"reason":{value},"nope":1}}"#)),
            ("/v1/jobs".to_owned(), format!(r#"{{"kind":"k","payload":{value},"meta":{{"m":{value}}}}}"#)),
            ("/v1/jobs/batch".to_owned(), format!(r#"{{"jobs":[{{"kind":"k","payload":{value}}}]}}"#)),
        ];
        for (path, body) in bodies {
            let answer = server.post(&path).header("Content-Type", "application/json").body(body).send().await;
            assert!([200, 202, 400, 413, 422].contains(&answer.status()), "{}: {}", path, answer.text());
        }
        let line = format!("{{\"type\":\"own\",\"data\":{{\"x\":{value}}}}}\n");
        let answer = job.post("/events").ndjson(line).send().await;
        assert!([200, 413, 422].contains(&answer.status()), "{}", answer.text());
    }
    let log = job.log().await;
    assert_covers(&job.resume(0).await.until_seq(log.len() as u64).await, &log, 0);
    server.list("kind=k").await;
}

async fn half_a_head_is_not_waited_for(store: Store) {
    let server = store.serve(&["--header-timeout-ms", "500"]).await;
    let mut connection = Connection::open(server.address()).await.expect("the server accepts");
    connection.write(b"GET /v1/jobs HTTP/1.1\r\nHost: local").await.expect("the server reads");
    let answer = within(Duration::from_secs(10), "the end of the connection", connection.answer("GET")).await;
    assert!(answer.is_err() || answer.is_ok_and(|answer| answer.status() == 408));
}

async fn idle_connection_is_kept_for_longer_than_a_head_may_take(store: Store) {
    let server = store.serve(&["--header-timeout-ms", "400"]).await;
    let mut connection = Connection::open(server.address()).await.expect("the server accepts");
    for _ in 0..2 {
        let answer = server.get("/livez").send_over(&mut connection).await;
        answer.expect("a proxy's next request finds its connection open").expect_ok();
        tokio::time::sleep(Duration::from_millis(1_500)).await;
    }
    connection.write(b"GET /livez HTTP/1.1\r\nHost: local").await.expect("the server reads");
    let answer = within(Duration::from_secs(10), "the end of the connection", connection.answer("GET")).await;
    assert!(answer.is_err(), "a later head must not be slow either");
}

async fn operations_routes_answer(store: Store) {
    let server = store.shared().await;
    for path in ["/livez", "/readyz"] {
        server.get(path).send().await.expect_ok();
        server.request("HEAD", path).send().await.expect_ok();
    }
}

async fn refusal_is_seen_by_a_client_that_is_still_writing(store: Store) {
    let server = store.shared().await;
    let large = vec![b' '; 3_000_000];
    for (path, header, status) in [
        ("/v1/jobs/nonsense/events", ("Content-Type", "application/json"), 404),
        ("/v1/jobs", ("Content-Type", "text/plain"), 415),
        ("/v1/jobs", ("Origin", "http://evil.test"), 403),
        ("/v1/jobs?x=1", ("Content-Type", "application/json"), 422),
        ("/v1/jobs", ("Content-Type", "application/json"), 413),
    ] {
        let answer = server.post(path).header(header.0, header.1).body(large.clone()).send().await;
        assert_eq!(answer.status(), status, "{path} {header:?}");
    }
}

async fn deep_nesting_is_refused_by_name(store: Store) {
    let server = store.shared().await;
    let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let spec = |levels| format!("{{\"kind\":\"k\",\"payload\":{}}}", deep(levels));
    let post =
        async |body: String| server.post("/v1/jobs").header("Content-Type", "application/json").body(body).send().await;
    post(spec(120)).await.expect(202);
    post(spec(100_000)).await.problem(422, "invalid_request");
    post(deep(1_000_000)).await.problem(422, "invalid_request");
}
