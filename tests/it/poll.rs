//! Section 4: the same log and the same state for clients behind proxies that hold streams back.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    state_has_the_headers_of_a_private_version,
    etag_is_strong_and_new_for_every_change,
    etag_outlives_the_process,
    every_answer_of_the_log_route_varies_alike,
    preference_is_read_as_the_list_it_is,
    if_none_match_answers_304_in_every_form,
    wait_that_is_no_number_of_seconds_is_422,
    wait_answers_at_once_when_something_already_differs,
    wait_parks_until_the_next_change,
    wait_that_runs_out_is_304_or_the_unchanged_document,
    prefer_wait_is_answered_with_preference_applied,
    head_is_get_without_the_body,
    log_pages_share_the_streams_cursor,
    log_page_limits_are_capped_or_refused,
    unusable_cursor_of_a_page_is_a_reset,
    log_wait_parks_and_wakes,
    page_of_a_completed_job_is_immutable,
    page_of_a_live_job_is_not_cached,
    polls_always_wake,
    client_that_left_costs_nothing,
    deleted_job_is_404_to_every_poll,
);

const VARY: Option<&str> = Some("Accept, Authorization, Cookie");

async fn etag(job: &Job) -> String {
    job.get("").send().await.header("etag").expect("a state has an ETag").to_owned()
}

async fn state_has_the_headers_of_a_private_version(store: Store) {
    let job = store.shared().await.tracked().await;
    let answer = job.get("").header("Accept-Encoding", "gzip, br").send().await;
    answer.expect(200);
    let expected = [
        ("content-type", Some("application/json")),
        ("cache-control", Some("private, no-cache")),
        ("vary", VARY),
        ("retry-after", Some("2")),
        ("content-encoding", None),
        ("preference-applied", None),
    ];
    for (name, value) in expected {
        assert_eq!(answer.header(name), value, "{name}");
    }
    job.complete().await;
    assert_eq!(job.get("").send().await.header("retry-after"), None, "a finished job need not be asked again");
}

async fn etag_is_strong_and_new_for_every_change(store: Store) {
    let server = store.shared().await;
    let (job, other) = (server.tracked().await, server.tracked().await);
    let mut seen = vec![etag(&other).await];
    for percent in [10, 20, 10, 10] {
        seen.push(etag(&job).await);
        job.append(json!({"type": "progress", "data": {"percent": percent}})).await;
    }
    seen.push(etag(&job).await);
    let with_payload = job.get("?include=payload").send().await;
    with_payload.expect(200);
    seen.extend(with_payload.header("etag").map(str::to_owned));
    assert!(seen.iter().all(|tag| tag.starts_with('"') && tag.ends_with('"')), "{seen:?}");
    let count = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), count, "two documents share an ETag");
    let before = etag(&job).await;
    job.append(json!([])).await;
    assert_eq!(etag(&job).await, before, "a heartbeat changes nothing");
}

async fn etag_outlives_the_process(store: Store) {
    let server = store.serve(&[]).await;
    let job = server.tracked().await;
    let before = etag(&job).await;
    server.kill9();
    server.restart().await;
    assert_eq!(etag(&job).await, before, "the epoch belongs to the store");
    let other = store.serve(&[]).await;
    assert_ne!(etag(&other.tracked().await).await, before);
}

async fn every_answer_of_the_log_route_varies_alike(store: Store) {
    let job = store.shared().await.tracked().await;
    let answers = [
        (job.get("/events"), 200),
        (job.get("/events?nope=1"), 422),
        (job.server.request("HEAD", &job.path("/events")), 200),
        (job.server.get("/v1/jobs/nope/events"), 404),
    ];
    for (request, status) in answers {
        let answer = request.send().await;
        assert_eq!((answer.status(), answer.header("vary")), (status, VARY));
    }
}

async fn if_none_match_answers_304_in_every_form(store: Store) {
    let job = store.shared().await.tracked().await;
    let old = etag(&job).await;
    job.note("x").await;
    let new = etag(&job).await;
    let matching = [new.clone(), format!("W/{new}"), "*".into(), format!("\"a\", {new}"), format!("{old},W/{new}")];
    for value in matching {
        let answer = job.get("").header("If-None-Match", &value).send().await;
        answer.expect_empty(304);
        let expected = [("etag", Some(&*new)), ("cache-control", Some("private, no-cache")), ("vary", VARY)];
        for (name, value) in expected {
            assert_eq!(answer.header(name), value, "{name}");
        }
        assert_eq!(answer.header("retry-after"), Some("2"));
    }
    for value in [old.clone(), "\"a\"".into(), "\"a\", \"b\"".into(), new.trim_matches('"').to_owned()] {
        assert_eq!(job.get("").header("If-None-Match", &value).send().await.status(), 200, "{value}");
    }
    let two_lines = job.get("").header("If-None-Match", &old).header("If-None-Match", &new);
    two_lines.send().await.expect_empty(304);
}

async fn wait_that_is_no_number_of_seconds_is_422(store: Store) {
    let job = store.shared().await.tracked().await;
    for route in ["", "/events"] {
        for wait in ["-1", "1.5", "abc", "", "1s", "0x1", "%20"] {
            job.get(&format!("{route}?wait={wait}")).send().await.problem(422, "invalid_request");
        }
        job.get(&format!("{route}?wait=0")).send().await.expect(200);
    }
    job.complete().await;
    for wait in ["56", "1000000000", "99999999999999999999999999"] {
        job.get(&format!("?wait={wait}")).send().await.expect(200);
    }
}

async fn wait_answers_at_once_when_something_already_differs(store: Store) {
    let server = store.shared().await;
    let job = server.tracked().await;
    let old = etag(&job).await;
    job.append(json!({"type": "failed", "data": {"message": "before the first poll"}})).await;
    let begun = Instant::now();
    let state = job.get("?wait=20").header("If-None-Match", &old).send().await.expect(200);
    assert_eq!(state["state"], "failed");
    job.get("?wait=20").header("If-None-Match", etag(&job).await).send().await.expect_empty(304);
    job.get("?wait=20&after=2").send().await.expect(200);
    job.get("?wait=20&after=3").send().await.expect(200);
    job.get("?wait=20").send().await.expect(200);
    job.get("/events?wait=20&after=3").send().await.expect(200);
    assert!(begun.elapsed() < Duration::from_secs(10), "a finished job is not waited for");
    let live = server.tracked().await;
    let begun = Instant::now();
    live.get("?wait=20&after=1").send().await.expect(200);
    live.get("/events?wait=20&after=1").send().await.expect(200);
    assert!(begun.elapsed() < Duration::from_secs(10), "what differs already is told at once");
}

async fn wait_parks_until_the_next_change(store: Store) {
    let job = store.shared().await.tracked().await;
    let tag = etag(&job).await;
    let by_tag = tokio::spawn(job.get("?wait=15").header("If-None-Match", &tag).send());
    let by_seq = tokio::spawn(job.get("?wait=15&after=2").send());
    let by_nothing = tokio::spawn(job.get("?wait=15").send());
    tokio::time::sleep(Duration::from_millis(300)).await;
    job.append(json!([])).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let parked = [&by_tag, &by_seq, &by_nothing].map(|poll| !poll.is_finished());
    assert_eq!(parked, [true; 3], "a heartbeat is no change");
    let begun = Instant::now();
    let seq = job.note("x").await;
    for poll in [by_tag, by_seq, by_nothing] {
        let answer = poll.await.expect("the poll is answered");
        assert_eq!(answer.expect(200)["seq"], seq);
        assert_ne!(answer.header("etag"), Some(&*tag));
    }
    assert!(begun.elapsed() < Duration::from_secs(5));
}

async fn wait_that_runs_out_is_304_or_the_unchanged_document(store: Store) {
    let job = store.shared().await.tracked().await;
    let begun = Instant::now();
    let tag = etag(&job).await;
    let with_tag = tokio::spawn(job.get("?wait=1").header("If-None-Match", &tag).send());
    let with_seq = tokio::spawn(job.get("?wait=1&after=2").send());
    let bare = tokio::spawn(job.get("?wait=1").send());
    with_tag.await.expect("answered").expect_empty(304);
    for poll in [with_seq, bare] {
        assert_eq!(poll.await.expect("answered").expect(200)["seq"], 2);
    }
    assert!(begun.elapsed() >= Duration::from_millis(900), "it waited");
}

async fn prefer_wait_is_answered_with_preference_applied(store: Store) {
    let job = store.shared().await.tracked().await;
    for prefer in ["wait=1", "respond-async, wait=1"] {
        let begun = Instant::now();
        let answer = job.get("").header("Prefer", prefer).header("If-None-Match", etag(&job).await).send().await;
        answer.expect_empty(304);
        assert_eq!(answer.header("preference-applied"), Some("wait=1"));
        assert!(begun.elapsed() >= Duration::from_millis(900), "it waited");
    }
    for prefer in ["wait=abc", "wait=-1"] {
        job.get("").header("Prefer", prefer).send().await.problem(422, "invalid_request");
    }
}

async fn head_is_get_without_the_body(store: Store) {
    let job = store.shared().await.tracked().await;
    job.output("text").await;
    job.complete().await;
    for route in ["", "?include=payload", "/events", "/output"] {
        let get = job.get(route).send().await;
        let head = job.server.request("HEAD", &job.path(route)).send().await;
        assert_eq!((head.status(), head.body.len()), (get.status(), 0), "{route}");
        for name in ["content-type", "etag", "cache-control", "vary", "content-length"] {
            assert_eq!(head.header(name), get.header(name), "{name} of {route}");
        }
    }
}

async fn log_pages_share_the_streams_cursor(store: Store) {
    let job = store.shared().await.tracked().await;
    job.fill(40).await;
    let whole = job.log().await;
    for (after, limit) in [(0, 7), (5, 10), (17, 100), (41, 1), (42, 5)] {
        let page = job.get(&format!("/events?after={after}&limit={limit}")).send().await.expect(200);
        let end = (after + limit).min(42);
        assert_eq!(page["events"], Value::from(&whole[after..end]));
        assert_eq!(page["next"], end);
        assert_eq!(page["more"], end < 42, "{page}");
        assert_eq!((&page["state"], &page["terminal"]), (&json!("running"), &json!(false)));
        assert_eq!(page.get("reset"), None);
    }
    let ignored = job.get("/events").header("Last-Event-ID", "41").send().await.expect(200);
    assert_eq!((&ignored["next"], ignored["events"].as_array().map(Vec::len)), (&json!(42), Some(42)));
}

async fn log_page_limits_are_capped_or_refused(store: Store) {
    let job = store.shared().await.tracked().await;
    job.fill(1100).await;
    for (limit, expected) in [("", 500), ("&limit=1000", 1000), ("&limit=5000", 1000), ("&limit=1", 1)] {
        let page = job.get(&format!("/events?after=0{limit}")).send().await.expect(200);
        assert_eq!((page["events"].as_array().map(Vec::len), &page["more"]), (Some(expected), &json!(true)));
    }
    for limit in ["0", "-1", "abc", "1.5", ""] {
        job.get(&format!("/events?limit={limit}")).send().await.problem(422, "invalid_request");
    }
    job.get("/events?nope=1").send().await.problem(422, "invalid_request");
}

async fn unusable_cursor_of_a_page_is_a_reset(store: Store) {
    let job = store.shared().await.tracked().await;
    let table = [("3", "ahead"), ("999999", "ahead"), ("abc", "invalid"), ("-1", "invalid"), ("007", "invalid")];
    for (after, reason) in table {
        let page = job.get(&format!("/events?after={after}&wait=20")).send().await.expect(200);
        assert_eq!(page["reset"], reason, "{after}");
        assert_eq!((&page["job"], &page["events"], &page["next"]), (&job.state().await, &json!([]), &json!(2)));
    }
}

async fn log_wait_parks_and_wakes(store: Store) {
    let job = store.shared().await.tracked().await;
    let parked = tokio::spawn(job.get("/events?after=2&wait=15").send());
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!parked.is_finished());
    job.note("wake").await;
    let page = parked.await.expect("answered").expect(200);
    assert_eq!(page["events"], Value::from(&job.log().await[2..]));
    let empty = job.get("/events?after=3&wait=1").send().await.expect(200);
    assert_eq!((&empty["events"], &empty["next"], &empty["more"]), (&json!([]), &json!(3), &json!(false)));
}

async fn page_of_a_completed_job_is_immutable(store: Store) {
    let job = store.shared().await.tracked().await;
    job.fill(5).await;
    job.complete().await;
    for query in ["", "?after=3", "?after=0&limit=2", "?after=8"] {
        let answer = job.get(&format!("/events{query}")).send().await;
        assert_eq!(answer.expect(200)["terminal"], true);
        assert_eq!(answer.header("cache-control"), Some("private, max-age=31536000, immutable"), "{query}");
        assert_eq!(answer.header("vary"), VARY);
        let tag = answer.header("etag").expect("an immutable page has an ETag").to_owned();
        assert!(tag.starts_with('"'), "{tag}");
        job.get(&format!("/events{query}")).header("If-None-Match", &tag).send().await.expect_empty(304);
    }
    let reset = job.get("/events?after=99").send().await;
    assert!(!reset.header("cache-control").is_some_and(|value| value.contains("immutable")), "a reset is no page");
}

async fn page_of_a_live_job_is_not_cached(store: Store) {
    let job = store.shared().await.tracked().await;
    for end in [None, Some(json!({"type": "failed", "data": {}}))] {
        if let Some(event) = end {
            job.append(event).await;
        }
        let answer = job.get("/events").send().await;
        assert!(!answer.header("cache-control").is_some_and(|value| value.contains("immutable")));
        assert_eq!(answer.header("vary"), VARY);
    }
}

async fn polls_always_wake(store: Store) {
    let job = store.shared().await.tracked().await;
    let mut random = Random::new();
    let mut worst = Duration::ZERO;
    for _ in 0..250 {
        let after = number(&job.state().await["seq"]);
        let route = random.pick(&["?wait=20&after=", "/events?wait=20&after="]);
        let request = job.get(&format!("{route}{after}"));
        let (early, late) = (random.below(15), random.below(15));
        let poll = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(early)).await;
            (request.send().await.expect(200), Instant::now())
        });
        tokio::time::sleep(Duration::from_millis(late)).await;
        job.note("x").await;
        let posted = Instant::now();
        let (_, woken) = poll.await.expect("answered");
        worst = worst.max(woken.saturating_duration_since(posted));
    }
    assert!(worst < Duration::from_secs(3), "a poll slept for {worst:?} over an event");
}

async fn client_that_left_costs_nothing(store: Store) {
    let server = store.serve(&[]).await;
    let job = server.tracked().await;
    // What the server keeps open for itself (its pool) is open before anything is counted.
    let warm: Vec<_> = (0..40).map(|_| tokio::spawn(job.get("/events").send())).collect();
    for answer in warm {
        answer.await.expect("answered");
    }
    let before = server.descriptors();
    for _ in 0..200 {
        let mut connection = Connection::open(server.address()).await.expect("the server accepts");
        connection.write(&job.get("?wait=50&after=2").head()).await.expect("the server reads");
    }
    eventually(PATIENCE, "every socket is closed", async || (server.descriptors() <= before + 3).then_some(())).await;
}

async fn deleted_job_is_404_to_every_poll(store: Store) {
    let job = store.shared().await.tracked().await;
    job.complete().await;
    job.delete().await.expect_empty(204);
    for route in ["", "?wait=5", "/events", "/events?wait=5", "/output", "/result"] {
        job.get(route).send().await.problem(404, "job_not_found");
    }
}

async fn preference_is_read_as_the_list_it_is(store: Store) {
    let job = store.shared().await.tracked().await;
    let ask = async |prefer: &str| job.get("").header("Prefer", prefer).send().await;
    for wrong in ["wait", "wait=", "wait=x", "respond-async, wait=-1"] {
        ask(wrong).await.problem(422, "invalid_request");
    }
    assert_eq!(
        ask("foo=\"a, wait=3\"").await.header("preference-applied"),
        None,
        "a comma in quotes separates nothing"
    );
    assert_eq!(ask("respond-async, wait=\"0\"; x=1").await.header("preference-applied"), Some("wait=0"));
    let refusals = [job.server.request("PUT", &job.path("/events")), job.post("/events").header("Origin", "null")];
    for (refused, status) in refusals.into_iter().zip([405, 403]) {
        let answer = refused.send().await;
        assert_eq!((answer.status(), answer.header("vary")), (status, VARY));
    }
}
