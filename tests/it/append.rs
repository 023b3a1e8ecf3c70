//! Section 5, the appends: what is stored, what is refused without a trace, and what an answer says.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    one_event_an_array_and_lines_are_stored_alike,
    answer_says_seq_lease_and_whether_to_stop,
    refused_event_points_at_its_fault_and_leaves_no_trace,
    array_is_all_or_nothing,
    lines_of_a_runner_who_is_asked_to_stop_are_stored,
    lines_are_a_repetition_only_of_the_last_line_alone,
    what_the_gateway_says_about_output_nobody_else_may,
    run_ending_event_comes_last,
    reserved_types_are_refused_and_own_types_are_kept,
    unknown_keys_inside_data_are_kept,
    lines_are_appended_as_they_arrive,
    bad_line_ends_the_request_and_earlier_lines_stay,
    line_after_the_end_is_not_stored,
    cancel_answers_an_open_line_request,
    blank_line_is_a_heartbeat_and_any_line_end_will_do,
    line_that_never_ends_is_refused,
    lines_of_a_cut_connection_stay_whole,
    silent_line_request_does_not_keep_its_job_alive,
    offsets_within_an_array_go_on,
    terminal_append_repeated_is_200_and_a_different_one_409,
    job_without_a_lease_takes_no_append,
    waiting_job_takes_no_append,
    concurrent_appends_get_dense_seqs,
    offset_is_where_the_text_starts_in_bytes,
    event_over_its_limit_leaves_no_trace,
    what_the_gateway_adds_is_not_counted,
    caps_bind_progress_and_output_but_never_the_end,
    held_heartbeat_answers_early_on_cancel,
    hung_up_caller_does_not_half_do_anything,
);

fn log(message: &str) -> Value {
    json!({"type": "log", "data": {"message": message}})
}

async fn one_event_an_array_and_lines_are_stored_alike(store: Store) {
    let server = store.shared().await;
    let events = [
        json!({"type": "progress", "data": {"percent": 1.5, "phase": "a"}}),
        json!({"type": "output", "data": {"text": "t"}}),
        json!({"type": "log", "data": {"level": "warn", "message": "m", "fields": {"n": [1, null]}}}),
        json!({"type": "own.type-1_x", "data": {"k": "v"}}),
        json!({"type": "no_data"}),
        json!({"type": "completed", "data": {"ok": true}}),
    ];
    let (single, array, lines) = (server.tracked().await, server.tracked().await, server.tracked().await);
    for (index, event) in events.iter().enumerate() {
        assert_eq!(single.append(event.clone()).await, index as u64 + 3);
    }
    assert_eq!(array.append(Value::from(&events[..])).await, 8);
    let body: String = events.iter().map(|event| format!("{event}\n")).collect();
    assert_eq!(lines.post("/events").ndjson(body.trim_end()).send().await.expect(200)["seq"], 8);
    let expected = single.log().await;
    for job in [array, lines] {
        assert_eq!(pairs(&job.log().await)[1..], pairs(&expected)[1..]);
        assert!(job.log().await.iter().skip(1).all(|event| event["attempt"] == 1));
    }
}

async fn answer_says_seq_lease_and_whether_to_stop(store: Store) {
    let job = store.shared().await.tracked().await;
    let answer = |seq: u64, stop: bool| json!({"seq": seq, "lease": null, "cancel_requested": stop});
    assert_eq!(job.try_append(&log("a")).await.expect(200), answer(3, false));
    assert_eq!(job.try_append(&json!([])).await.expect(200), answer(3, false));
    job.cancel(json!({"grace_ms": 60_000})).await.expect(202);
    assert_eq!(job.try_append(&json!([])).await.expect(200), answer(4, true));
    assert_eq!(job.try_append(&log("b")).await.expect(200), answer(5, true));
    assert_eq!(job.types().await, ["queued", "started", "log", "cancel_requested", "log"]);
}

async fn refused_event_points_at_its_fault_and_leaves_no_trace(store: Store) {
    let job = store.shared().await.tracked().await;
    let table = [
        (json!({"data": {}}), "/type"),
        (json!({"type": 5}), "/type"),
        (json!({"type": ""}), "/type"),
        (json!({"type": "Upper"}), "/type"),
        (json!({"type": "1digit"}), "/type"),
        (json!({"type": "sp ace"}), "/type"),
        (json!({"type": "x\nevent: completed\ndata: {}"}), "/type"),
        (json!({"type": "a".repeat(65)}), "/type"),
        (json!({"type": "log", "data": {"message": "m"}, "nope": 1}), "/nope"),
        (json!({"type": "log", "data": {"message": "m"}, "seq": 9}), "/seq"),
        (json!({"type": "log", "data": "text"}), "/data"),
        (json!({"type": "log", "data": {"level": "fatal", "message": "m"}}), "/data/level"),
        (json!({"type": "log", "data": {"message": 5}}), "/data/message"),
        (json!({"type": "output", "data": {}}), "/data/text"),
        (json!({"type": "output", "data": {"text": 5}}), "/data/text"),
        (json!({"type": "output", "data": {"text": null}}), "/data/text"),
        (json!({"type": "progress", "data": {"percent": 101}}), "/data/percent"),
        (json!({"type": "failed", "data": {"retryable": "yes"}}), "/data/retryable"),
        (json!({"type": "failed", "data": {"scope": "world"}}), "/data/scope"),
        (json!({"type": "completed", "data": {"ok": "yes"}}), "/data/ok"),
        (json!({"type": "released", "data": {}}), "/type"),
    ];
    job.untouched(async {
        for (event, pointer) in &table {
            job.try_append(event).await.problem_at(422, "invalid_request", pointer);
            let second = json!([log("fine"), event]);
            job.try_append(&second).await.problem_at(422, "invalid_request", &format!("/1{pointer}"));
        }
        for body in ["5", "\"text\"", "null", "[5]", "[[]]"] {
            job.append_raw(body).await.problem(422, "invalid_request");
        }
        for body in ["", "{", "[{}", "{\"type\":\"log\"} x", "\u{feff}[]"] {
            job.append_raw(body).await.problem(400, "invalid_json");
        }
        job.append_raw(*b"{\"type\":\"log\",\"data\":{\"message\":\"\xff\"}}").await.problem(400, "invalid_json");
        let plain = job.post("/events").header("Content-Type", "text/plain").body(log("x").to_string());
        let refusal = plain.send().await;
        refusal.problem(415, "unsupported_media_type");
        assert!(refusal.header("accept").is_some_and(|types| types.contains("application/json")));
    })
    .await;
    job.post("/events").body(log("no content type is JSON").to_string()).send().await.expect(200);
}

async fn array_is_all_or_nothing(store: Store) {
    let job = store.shared().await.tracked().await;
    let bad = json!({"type": "progress", "data": {"percent": -1}});
    job.untouched(async {
        let three = json!([log("a"), log("b"), bad]);
        job.try_append(&three).await.problem_at(422, "invalid_request", "/2/data/percent");
        let many = Value::from(vec![log("x"); 1001]);
        job.try_append(&many).await.problem(422, "invalid_request");
    })
    .await;
    assert_eq!(job.append(Value::from(vec![log("x"); 1000])).await, 1002);
}

async fn run_ending_event_comes_last(store: Store) {
    let job = store.shared().await.tracked().await;
    job.untouched(async {
        for kind in ["completed", "failed", "cancelled"] {
            let body = json!([{"type": kind, "data": {}}, log("after")]);
            job.try_append(&body).await.problem(422, "invalid_request");
        }
    })
    .await;
    assert_eq!(job.append(json!([log("before"), {"type": "completed"}])).await, 4);
    assert_eq!(job.state().await["state"], "completed");
}

async fn reserved_types_are_refused_and_own_types_are_kept(store: Store) {
    let job = store.shared().await.tracked().await;
    let reserved = [
        "queued",
        "started",
        "retrying",
        "requeued",
        "cancel_requested",
        "expired",
        "state",
        "reset",
        "ping",
        "end",
        "bye",
        "gone",
        "cancel",
        "drain",
        "lease_lost",
        "open",
        "message",
        "error",
        "released",
    ];
    job.untouched(async {
        for kind in reserved {
            job.try_append(&json!({"type": kind, "data": {}})).await.problem_at(422, "invalid_request", "/type");
        }
    })
    .await;
    for kind in ["a", "errors", "my.own", "x-1_2.3", &"a".repeat(64)] {
        job.append(json!({"type": kind, "data": {"n": 1}})).await;
        let event = job.log().await.pop().expect("it was stored");
        assert_eq!((&event["type"], &event["data"]), (&json!(kind), &json!({"n": 1})));
    }
}

async fn unknown_keys_inside_data_are_kept(store: Store) {
    let job = store.shared().await.tracked().await;
    let extra = json!({"deep": [1, {"x": null}], "big": 123456789});
    let events = [
        json!({"type": "progress", "data": {"percent": 5, "extra": extra}}),
        json!({"type": "output", "data": {"text": "t", "extra": extra}}),
        json!({"type": "log", "data": {"message": "m", "extra": extra}}),
        json!({"type": "completed", "data": {"ok": true, "extra": extra}}),
    ];
    job.append(Value::from(&events[..])).await;
    for event in &job.log().await[2..] {
        assert_eq!(event["data"]["extra"], extra, "{event}");
    }
}

async fn answer(connection: &mut Connection) -> Answer {
    within(PATIENCE, "the answer to a line request", connection.answer("POST")).await.expect("an answer")
}

async fn lines_are_appended_as_they_arrive(store: Store) {
    let job = store.shared().await.tracked().await;
    let mut stream = job.resume(2).await;
    let mut lines = job.open_lines().await;
    for seq in 3..8 {
        // The line is cut in two chunks: a line, not a chunk, is what is appended.
        let line = format!("{}\n", log(&seq.to_string()));
        lines.write_chunk(&line.as_bytes()[..10]).await.expect("the server reads");
        lines.write_chunk(&line.as_bytes()[10..]).await.expect("the server reads");
        let frame = stream.told().await;
        assert_eq!((frame.seq(), &frame.json()["data"]["message"]), (seq, &json!(seq.to_string())));
    }
    lines.write(b"0\r\n\r\n").await.expect("the server reads");
    assert_eq!(answer(&mut lines).await.expect(200)["seq"], 7);
}

async fn bad_line_ends_the_request_and_earlier_lines_stay(store: Store) {
    let server = store.shared().await;
    let bad = json!({"type": "progress", "data": {"percent": 400}}).to_string();
    for (line, pointer) in
        [(&*bad, Some("/4/data/percent")), ("{no json", None), ("{\"type\":\"queued\"}", Some("/4/type"))]
    {
        let job = server.tracked().await;
        let good: String = (0..4).map(|n| format!("{}\n", log(&n.to_string()))).collect();
        let body = format!("{good}{line}\n{}\n", log("never"));
        let refusal = job.post("/events").ndjson(body).send().await;
        let problem = refusal.problem(422, "invalid_request");
        assert_eq!((&problem["stored"], &problem["seq"]), (&json!(4), &json!(6)), "{problem}");
        match pointer {
            Some(pointer) => assert_eq!(problem["pointer"], pointer),
            None => assert!(text(&problem["pointer"]).starts_with("/4"), "{problem}"),
        }
        assert_eq!(job.log().await.len(), 6);
        job.note("the job is usable").await;
    }
}

async fn line_after_the_end_is_not_stored(store: Store) {
    let job = store.shared().await.tracked().await;
    let body = format!("{}\n{}\n{}\n", log("a"), json!({"type": "completed"}), log("late"));
    let problem = job.post("/events").ndjson(body).send().await.problem(422, "invalid_request");
    assert_eq!((&problem["stored"], &problem["seq"]), (&json!(2), &json!(4)), "{problem}");
    assert_eq!(job.types().await, ["queued", "started", "log", "completed"]);
}

async fn cancel_answers_an_open_line_request(store: Store) {
    let job = store.shared().await.tracked().await;
    let mut lines = job.open_lines().await;
    let mut stream = job.resume(2).await;
    lines.write_chunk(format!("{}\n", log("one")).as_bytes()).await.expect("the server reads");
    stream.expect("log").await;
    job.cancel(json!({"reason": "enough", "grace_ms": 60_000})).await.expect(202);
    let told = answer(&mut lines).await.expect(200);
    assert_eq!((&told["cancel_requested"], &told["stored"]), (&json!(true), &json!(1)), "{told}");
}

async fn blank_line_is_a_heartbeat_and_any_line_end_will_do(store: Store) {
    let server = store.shared().await;
    let job = server.tracked().await;
    let body = format!("\n{}\r\n\r\n\n  {}  \n\n{}", log("a"), log("b"), log("no line end"));
    assert_eq!(job.post("/events").ndjson(body).send().await.expect(200)["seq"], 5);
    for nothing in ["", "\n", "\r\n\n"] {
        assert_eq!(job.post("/events").ndjson(nothing).send().await.expect(200)["seq"], 5);
    }
    let beating = server.job(json!({"kind": "k", "tracked": true, "timeout_ms": 2_000})).await;
    let mut lines = beating.open_lines().await;
    for _ in 0..16 {
        lines.write_chunk(b"\n").await.expect("the server reads");
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    assert_eq!(beating.state().await["state"], "running");
}

async fn line_that_never_ends_is_refused(store: Store) {
    let server = store.serve(&[]).await;
    let job = server.tracked().await;
    let mut lines = job.open_lines().await;
    lines.write_chunk(format!("{}\n", log("fine")).as_bytes()).await.expect("the server reads");
    let before = server.resident();
    let piece = vec![b'x'; 100_000];
    let pouring = async {
        for _ in 0..500 {
            if lines.write_chunk(&piece).await.is_err() {
                break;
            }
        }
    };
    within(PATIENCE, "the end of the pouring", pouring).await;
    let grown = server.resident().saturating_sub(before) / 1_000_000;
    assert!(grown < 30, "a line without an end cost {grown} MB");
    if let Ok(refusal) = within(PATIENCE, "an answer", lines.answer("POST")).await {
        assert_eq!(refusal.problem(413, "payload_too_large")["stored"], 1);
    }
    assert_eq!(job.types().await, ["queued", "started", "log"]);
}

async fn lines_of_a_cut_connection_stay_whole(store: Store) {
    let job = store.shared().await.tracked().await;
    let mut stream = job.resume(2).await;
    let mut lines = job.open_lines().await;
    lines.write_chunk(format!("{}\n", log("whole")).as_bytes()).await.expect("the server reads");
    stream.expect("log").await;
    let half = log("half").to_string();
    lines.write_chunk(&half.as_bytes()[..half.len() - 1]).await.expect("the server reads");
    drop(lines);
    let mut complete_but_cut = job.open_lines().await;
    complete_but_cut.write_chunk(log("no line end, and then a cut").to_string().as_bytes()).await.expect("read");
    drop(complete_but_cut);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(job.types().await, ["queued", "started", "log"], "a line that was cut is no line");
    job.note("usable").await;
}

async fn silent_line_request_does_not_keep_its_job_alive(store: Store) {
    let job = store.shared().await.job(json!({"kind": "k", "tracked": true, "timeout_ms": 700})).await;
    let mut lines = job.open_lines().await;
    lines.write_chunk(format!("{}\n", log("then silence")).as_bytes()).await.expect("the server reads");
    let problem = answer(&mut lines).await.problem(409, "job_terminal");
    assert_eq!(problem["stored"], 1);
    assert_eq!(job.state().await["error"]["code"], "timed_out");
}

async fn offsets_within_an_array_go_on(store: Store) {
    let job = store.shared().await.tracked().await;
    let texts = ["a", "ü", "", "😀", "z"];
    let events: Vec<Value> = texts.iter().map(|text| json!({"type": "output", "data": {"text": text}})).collect();
    job.append(Value::from(events)).await;
    let log = job.log().await;
    let offsets: Vec<u64> = log[2..].iter().map(|event| number(&event["data"]["offset"])).collect();
    assert_eq!(offsets, [0, 1, 3, 3, 7]);
}

async fn terminal_append_repeated_is_200_and_a_different_one_409(store: Store) {
    let server = store.shared().await;
    let ends = [
        json!({"type": "completed", "data": {"ok": true, "items": 3, "data": {"x": [1, 2]}}}),
        json!({"type": "failed", "data": {"code": "boom", "message": "m"}}),
        json!({"type": "cancelled", "data": {"reason": "r"}}),
    ];
    for end in &ends {
        let job = server.tracked().await;
        let first = job.try_append(end).await.expect(200);
        assert_eq!(first["lease"], Value::Null);
        job.untouched(async {
            let again = job.try_append(end).await.expect(200);
            assert_eq!(again["seq"], first["seq"]);
            for other in &ends {
                if other["type"] != end["type"] {
                    job.try_append(other).await.problem(409, "job_terminal");
                }
            }
            let mut changed = end.clone();
            changed["data"]["extra"] = 1.into();
            job.try_append(&changed).await.problem(409, "job_terminal");
            job.try_append(&log("late")).await.problem(409, "job_terminal");
            job.try_append(&json!({"type": "progress", "data": {"percent": 60}})).await.problem(409, "job_terminal");
        })
        .await;
    }
}

async fn job_without_a_lease_takes_no_append(store: Store) {
    let server = store.shared().await;
    let unknown = Job::new(&server, "0199a0b4-7c1e-7000-8000-000000000000");
    unknown.try_append(&log("x")).await.problem(404, "job_not_found");
    unknown.try_append(&json!([])).await.problem(404, "job_not_found");
    unknown.post("/events").ndjson(log("x").to_string()).send().await.problem(404, "job_not_found");
}

async fn waiting_job_takes_no_append(store: Store) {
    let job = store.shared().await.job(json!({"kind": "k"})).await;
    job.untouched(async {
        job.try_append(&log("x")).await.problem(409, "lease_lost");
        job.post("/events").header("Lease-Token", "forged").json(&log("x")).send().await.problem(409, "lease_lost");
        job.try_append(&json!([])).await.problem(409, "lease_lost");
    })
    .await;
}

async fn concurrent_appends_get_dense_seqs(store: Store) {
    let job = store.shared().await.tracked().await;
    let mut tasks = Vec::new();
    for task in 0..8 {
        let job = job.clone();
        tasks.push(tokio::spawn(async move {
            let mut mine = Vec::new();
            for n in 0..25 {
                let message = format!("{task}/{n}");
                mine.push((job.note(&message).await, message));
            }
            mine
        }));
    }
    let mut posted = Vec::new();
    for task in tasks {
        let mine = task.await.expect("a poster ends");
        assert!(mine.is_sorted_by(|a, b| a.0 < b.0), "one caller's events keep their order");
        posted.extend(mine);
    }
    posted.sort();
    let log = job.log().await;
    let stored: Vec<(u64, String)> =
        log[2..].iter().map(|e| (number(&e["seq"]), text(&e["data"]["message"]).to_owned())).collect();
    assert_eq!(stored, posted);
}

async fn offset_is_where_the_text_starts_in_bytes(store: Store) {
    let job = store.shared().await.tracked().await;
    let texts = ["", "a", "ü", "", "😀😀", "\n", "z"];
    let mut offset = 0;
    for text in texts {
        job.output(text).await;
        let event = job.log().await.pop().expect("it was stored");
        assert_eq!(event["data"], json!({"text": text, "offset": offset}));
        offset += text.len();
        assert_eq!(job.state().await["output"], json!({"bytes": offset}));
    }
}

async fn event_over_its_limit_leaves_no_trace(store: Store) {
    let server = store.serve(&["--max-event", "1000", "--max-body", "20000"]).await;
    let job = server.tracked().await;
    let sized = |bytes: usize| {
        let empty = json!({"level": "info", "message": ""}).to_string().len();
        json!({"type": "log", "data": {"level": "info", "message": "x".repeat(bytes - empty)}})
    };
    job.append(sized(1000)).await;
    job.untouched(async {
        job.try_append(&sized(1001)).await.problem(413, "payload_too_large");
        job.try_append(&json!([log("a"), sized(1001)])).await.problem(413, "payload_too_large");
        job.try_append(&Value::from(vec![sized(900); 30])).await.problem(413, "payload_too_large");
    })
    .await;
    let lines = vec![sized(900).to_string(); 60].join("\n");
    let stored = job.post("/events").ndjson(lines).send().await.expect(200);
    assert_eq!(stored["seq"], 63, "lines have no limit for the whole");
    let problem = job.post("/events").ndjson(format!("{}\n{}\n", log("a"), sized(1001))).send().await;
    assert_eq!(problem.problem(413, "payload_too_large")["stored"], 1);
    job.complete().await;
}

async fn what_the_gateway_adds_is_not_counted(store: Store) {
    let server = store.serve(&["--max-event", "1000"]).await;
    let job = server.tracked().await;
    for (kind, field) in [("own", "text"), ("log", "message"), ("output", "text"), ("progress", "message")] {
        let empty = json!({field: ""}).to_string().len();
        job.append(json!({"type": kind, "data": {field: "x".repeat(1000 - empty)}})).await;
    }
}

async fn caps_bind_progress_and_output_but_never_the_end(store: Store) {
    let server = store.serve(&["--max-events", "6", "--max-output", "10"]).await;
    let job = server.tracked().await;
    job.output("12345678").await;
    job.untouched(async {
        job.try_append(&json!({"type": "output", "data": {"text": "abc"}})).await.problem(413, "payload_too_large");
        job.try_append(&json!({"type": "output", "data": {"text": "ü€"}})).await.problem(413, "payload_too_large");
    })
    .await;
    job.output("ü").await;
    job.fill(2).await;
    job.untouched(async {
        for kind in ["log", "progress", "own"] {
            let event = json!({"type": kind, "data": {"message": "x"}});
            job.try_append(&event).await.problem(413, "payload_too_large");
        }
    })
    .await;
    job.append(json!([])).await;
    job.cancel(json!({"grace_ms": 60_000})).await.expect(202);
    job.append(json!({"type": "completed", "data": {"note": "the end always fits"}})).await;
    assert_eq!(job.state().await["seq"], 8);
}

async fn held_heartbeat_answers_early_on_cancel(store: Store) {
    let job = store.shared().await.tracked().await;
    let hold = |wait: &str| job.post(&format!("/events?wait_ms={wait}")).json(&json!([])).send();
    let begun = Instant::now();
    assert_eq!(hold("400").await.expect(200)["cancel_requested"], false);
    assert!(begun.elapsed() >= Duration::from_millis(350), "it was held");
    job.untouched(async {
        for wait in ["-1", "abc", "", "1.5"] {
            hold(wait).await.problem(422, "invalid_request");
        }
        job.post("/events?wait_ms=100").json(&log("x")).send().await.problem(422, "invalid_request");
    })
    .await;
    let held = tokio::spawn(hold("50000"));
    tokio::time::sleep(Duration::from_millis(200)).await;
    job.cancel(json!({"grace_ms": 60_000})).await.expect(202);
    assert_eq!(held.await.expect("answered").expect(200)["cancel_requested"], true);
}

async fn hung_up_caller_does_not_half_do_anything(store: Store) {
    let job = store.shared().await.tracked().await;
    let batch = Value::from(vec![log("one of five"); 5]);
    for _ in 0..40 {
        let mut connection = Connection::open(job.server.address()).await.expect("the server accepts");
        let request = job.post("/events").json(&batch);
        let bytes = [request.head(), batch.to_string().into_bytes()].concat();
        connection.write(&bytes).await.expect("the server reads");
    }
    let mut unfinished = Connection::open(job.server.address()).await.expect("the server accepts");
    let request = job.post("/events").json(&batch);
    let bytes = [request.head(), batch.to_string().into_bytes()].concat();
    unfinished.write(&bytes[..bytes.len() - 7]).await.expect("the server reads");
    drop(unfinished);
    let last = job.note("after").await;
    assert_eq!((last - 3) % 5, 0, "a batch was stored in part");
}

async fn lines_of_a_runner_who_is_asked_to_stop_are_stored(store: Store) {
    let server = store.shared().await;
    let last_words = "{\"type\":\"output\",\"data\":{\"text\":\"rest\"}}\n";
    for (end, state) in [("cancelled", "cancelled"), ("completed", "completed"), ("log", "running")] {
        let job = server.tracked().await;
        job.cancel(json!({"grace_ms": 60_000})).await.expect(202);
        let body = format!("{last_words}{{\"type\":\"{end}\"}}\n");
        let answer = job.post("/events").ndjson(body).send().await.expect(200);
        assert_eq!((&answer["stored"], &answer["cancel_requested"]), (&json!(2), &json!(true)), "{end}");
        assert_eq!(job.types().await[3..], ["output", end]);
        assert_eq!(job.state().await["state"], state);
    }
}

async fn lines_are_a_repetition_only_of_the_last_line_alone(store: Store) {
    let job = store.shared().await.tracked().await;
    job.append(json!({"type": "completed"})).await;
    let send = async |body: &str| job.post("/events").ndjson(body).send().await;
    let end = "{\"type\":\"completed\"}\n";
    let refused = job.untouched(send(&format!("{{\"type\":\"x\"}}\n{end}"))).await.problem(409, "job_terminal");
    assert_eq!(refused["stored"], 0);
    assert_eq!(job.untouched(send(end)).await.expect(200)["seq"], 3);
    job.untouched(send("{\"type\":\"failed\"}\n")).await.problem(409, "job_terminal");
}

async fn what_the_gateway_says_about_output_nobody_else_may(store: Store) {
    let job = store.shared().await.tracked().await;
    let data = json!({"text": "x", "offset": 9, "truncated": true, "from_seq": 1, "mine": 1});
    job.append(json!({"type": "output", "data": data})).await;
    assert_eq!(job.log().await[2]["data"], json!({"text": "x", "offset": 0, "mine": 1}));
}
