//! Section 3.1–3.3: what a stream says first, where it goes on, how it ends; to the byte.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    headers_are_exact_and_leave_with_the_first_frame,
    fresh_stream_opens_with_the_state_then_goes_live,
    opening_with_output_carries_its_id_on_the_output_frame,
    opening_of_long_output_is_its_tail,
    cursor_at_the_head_gets_a_ping_first,
    every_cursor_gets_exactly_what_came_after_it,
    every_cursor_of_a_long_log_gets_the_next_event,
    header_wins_over_query_and_an_empty_header_is_absent,
    unusable_cursor_gets_reset_then_state_then_live_events,
    cursor_too_far_behind_gets_reset,
    quiet_reconnects_never_move_the_cursor,
    finished_job_is_told_from_any_cursor_and_then_ends,
    live_end_closes_every_kind_of_job,
    unnamed_frames_carry_their_type_in_the_data,
    silence_is_broken_by_pings_that_name_the_last_seq,
    busy_stream_gets_no_ping,
    old_stream_rotates_on_a_frame_boundary_and_loses_nothing,
    newcomer_over_the_cap_is_turned_away_and_the_established_stay,
    head_never_opens_a_stream,
    unknown_job_is_404_before_any_stream,
    only_a_request_for_event_stream_gets_one,
    what_was_streamed_can_be_read,
    vanished_readers_leave_nothing_behind,
);

const SOON: RangeInclusive<u64> = 1000..=3000;
const LATER: RangeInclusive<u64> = 5000..=15000;

/// The first frame of a stream, which tells the browser when to come back.
async fn opening(stream: &mut Stream, kind: &str) -> Frame {
    let frame = stream.frame().await;
    assert_eq!(frame.kind(), kind, "{frame:?}");
    assert!(SOON.contains(&frame.retry.expect("the first frame begins with retry")), "{frame:?}");
    assert_eq!(frame.fields[0], "retry");
    frame
}

/// A job with outputs that replay may join, with logs between them.
async fn mixed(server: &Server) -> Job {
    let job = server.tracked().await;
    for round in 0..4 {
        for text in ["ab", "ab", "\n\n", " ", "ü😀"] {
            job.output(text).await;
        }
        job.append(json!({"type": "progress", "data": {"percent": round * 10}})).await;
        job.append(json!([{"type": "note.own", "data": {"n": round}}, {"type": "log", "data": {"message": "x"}}]))
            .await;
    }
    job
}

async fn headers_are_exact_and_leave_with_the_first_frame(store: Store) {
    let job = store.shared().await.tracked().await;
    let begun = Instant::now();
    let mut stream = job.get("/events").header("Accept-Encoding", "gzip, br, zstd, deflate").stream().await;
    opening(&mut stream, "state").await;
    assert!(begun.elapsed() < Duration::from_secs(5), "a silent job speaks at once");
    let headers = [
        ("content-type", Some("text/event-stream")),
        ("cache-control", Some("no-store, no-transform")),
        ("x-accel-buffering", Some("no")),
        ("vary", Some("Accept, Authorization, Cookie")),
        ("content-encoding", None),
        ("content-length", None),
        ("etag", None),
    ];
    for (name, value) in headers {
        assert_eq!(stream.head.header(name), value, "{name}");
    }
}

async fn fresh_stream_opens_with_the_state_then_goes_live(store: Store) {
    let job = store.shared().await.tracked().await;
    job.append(json!({"type": "progress", "data": {"percent": 10}})).await;
    let mut stream = job.stream().await;
    let state = opening(&mut stream, "state").await;
    assert_eq!((state.seq(), state.json()), (3, job.state().await));
    assert_eq!(state.fields, ["retry", "id", "event", "data"]);
    let seq = job.note("live").await;
    let live = stream.told().await;
    assert_eq!((live.kind().as_str(), live.seq(), live.retry), ("log", seq, None));
    assert_eq!(Some(&live.json()), job.log().await.last());
    let keys: Vec<String> = live.json().as_object().expect("an event is an object").keys().cloned().collect();
    assert_eq!(keys, ["seq", "type", "at", "attempt", "data"]);
}

async fn opening_with_output_carries_its_id_on_the_output_frame(store: Store) {
    let job = store.shared().await.tracked().await;
    job.output("zwei ").await;
    job.output("Wörter").await;
    job.note("after").await;
    let mut stream = job.stream().await;
    let state = opening(&mut stream, "state").await;
    assert_eq!(state.id, None, "a cut between the two must give a fresh opening");
    let output = stream.frame().await;
    assert_eq!((output.kind().as_str(), output.seq()), ("output", 5));
    assert_eq!(output.json(), json!({"type": "output", "data": {"offset": 0, "text": "zwei Wörter"}}));
    assert_eq!(state.json()["output"]["bytes"], "zwei Wörter".len());
    let seq = job.output("!").await;
    let live = stream.told().await;
    assert_eq!((live.seq(), &live.json()["data"]), (seq, &json!({"text": "!", "offset": 12})));
}

async fn opening_of_long_output_is_its_tail(store: Store) {
    let job = store.shared().await.tracked().await;
    let mut whole = String::new();
    for n in 0..30 {
        let text = format!("{n:03}{}", "äöü€".repeat(5_000));
        job.output(&text).await;
        whole += &text;
    }
    let mut stream = job.stream().await;
    let state = opening(&mut stream, "state").await.json();
    let frame = stream.frame().await;
    let opened = frame.json();
    let (offset, tail) = (number(&opened["data"]["offset"]) as usize, text(&opened["data"]["text"]));
    assert_eq!(opened["data"]["truncated"], true);
    assert!(!tail.is_empty() && offset > 0);
    assert_eq!(&whole[offset..], tail);
    assert_eq!(state["output"]["bytes"], whole.len());
    assert_eq!(frame.seq(), number(&state["seq"]));
}

async fn cursor_at_the_head_gets_a_ping_first(store: Store) {
    let job = store.shared().await.tracked().await;
    let mut stream = job.resume(2).await;
    let ping = opening(&mut stream, "ping").await;
    assert_eq!((ping.json(), ping.id.clone()), (json!({"seq": 2}), None));
    let seq = job.note("x").await;
    assert_eq!(stream.expect("log").await.seq(), seq);
}

async fn every_cursor_gets_exactly_what_came_after_it(store: Store) {
    let job = mixed(&store.shared().await).await;
    let head = number(&job.state().await["seq"]);
    let mut streams = Vec::new();
    for cursor in 0..head {
        let mut stream = job.resume(cursor).await;
        let mut frames = stream.until_seq(head).await;
        assert!(SOON.contains(&frames[0].retry.expect("the first frame begins with retry")));
        assert_covers(&frames, &job.log().await, cursor);
        frames.clear();
        streams.push((cursor, stream, frames));
    }
    job.output("live").await;
    let last = job.complete().await;
    let log = job.log().await;
    for (_, stream, frames) in &mut streams {
        frames.extend(stream.until_seq(last).await);
        assert_covers(frames, &log, head);
        assert_eq!(frames.len(), 2, "live events are never joined");
        assert_eq!(stream.expect("end").await.json(), json!({"state": "completed"}));
        stream.expect_end().await;
    }
}

/// Whatever of a log is kept near and whatever is read from the store: there is no seam between the two.
async fn every_cursor_of_a_long_log_gets_the_next_event(store: Store) {
    const EVENTS: u64 = 3_000;
    let job = store.shared().await.tracked().await;
    let mut watching = job.resume(2).await;
    job.fill(EVENTS as usize - 2).await;
    watching.until_seq(EVENTS).await;
    let mut connection = Connection::open(job.server.address()).await.expect("the server accepts");
    for cursor in 0..EVENTS {
        let frame = job.resume(cursor).await.frame().await;
        assert_eq!(frame.seq(), cursor + 1, "a stream that resumes after {cursor}");
        let page = job.get(&format!("/events?after={cursor}&limit=1")).send_over(&mut connection).await;
        let page = page.expect("an answer").expect(200);
        assert_eq!(number(&page["events"][0]["seq"]), cursor + 1, "a page after {cursor}");
    }
}

async fn header_wins_over_query_and_an_empty_header_is_absent(store: Store) {
    let job = store.shared().await.tracked().await;
    job.fill(8).await;
    let table: [(&str, Option<&str>, &str); 6] = [
        ("?after=7", None, "8"),
        ("?after=7", Some("9"), "10"),
        ("?after=7", Some(""), "8"),
        ("?after=7", Some("garbage"), "reset"),
        ("?after=abc", None, "reset"),
        ("?after=", None, "state"),
    ];
    for (query, header, expected) in table {
        let request = job.get(&format!("/events{query}"));
        let request = header.map_or(request.clone(), |value| request.header("Last-Event-ID", value));
        let frame = request.stream().await.frame().await;
        let got = if frame.is_log() { frame.seq().to_string() } else { frame.kind() };
        assert_eq!(got, expected, "{query} {header:?}");
    }
}

async fn unusable_cursor_gets_reset_then_state_then_live_events(store: Store) {
    let job = store.shared().await.tracked().await;
    let long = "9".repeat(5_000);
    let mut table: Vec<(Vec<Vec<u8>>, &str)> =
        ["4", "999999999", "9007199254740991"].map(|ahead| (vec![ahead.into()], "ahead")).into();
    let garbage = ["abc", "-1", "+1", "1.5", "007", "00", "1e1", "0x1", "1 2", "18446744073709551616", &long];
    table.extend(garbage.map(|text| (vec![text.into()], "invalid")));
    table.extend([
        (vec!["9007199254740992".into()], "invalid"),
        (vec![vec![b'1', 0xff]], "invalid"),
        (vec!["٣".into()], "invalid"),
        (vec!["1".into(), "2".into()], "invalid"),
        (vec!["1".into(), "1".into()], "invalid"),
        (vec![job.id.clone().into()], "invalid"),
    ]);
    let mut streams = Vec::new();
    for (lines, reason) in table {
        let request = lines.iter().fold(job.get("/events"), |request, line| request.header("Last-Event-ID", line));
        let mut stream = request.stream().await;
        assert_eq!(stream.head.status, 200, "{lines:?}");
        let reset = opening(&mut stream, "reset").await;
        assert_eq!((reset.json(), reset.id.clone()), (json!({"reason": reason}), None), "{lines:?}");
        let state = stream.frame().await;
        assert_eq!((state.kind().as_str(), state.seq(), state.retry), ("state", 2, None));
        streams.push(stream);
    }
    let seq = job.note("live").await;
    for mut stream in streams {
        assert_eq!(stream.expect("log").await.seq(), seq);
    }
}

async fn cursor_too_far_behind_gets_reset(store: Store) {
    let server = store.serve(&["--replay-limit", "50"]).await;
    let job = server.tracked().await;
    job.fill(98).await;
    assert_eq!(job.resume(50).await.frame().await.seq(), 51);
    for cursor in [0, 49] {
        let mut stream = job.resume(cursor).await;
        assert_eq!(opening(&mut stream, "reset").await.json(), json!({"reason": "too_far_behind"}));
        assert_eq!(stream.frame().await.seq(), 100);
    }
}

async fn quiet_reconnects_never_move_the_cursor(store: Store) {
    let server = store.serve(&["--ping-ms", "100"]).await;
    let job = server.tracked().await;
    job.fill(20).await;
    let mut cursor = "22".to_owned();
    for _ in 0..3 {
        let mut stream = job.resume(&cursor).await;
        for _ in 0..3 {
            let frame = stream.frame().await;
            assert_eq!(frame.kind(), "ping", "nothing is replayed");
            cursor = frame.id.clone().unwrap_or(cursor);
        }
    }
    assert_eq!(cursor, "22");
}

async fn finished_job_is_told_from_any_cursor_and_then_ends(store: Store) {
    let job = mixed(&store.shared().await).await;
    let last = job.complete().await;
    let end = json!({"state": "completed"});

    let mut fresh = job.stream().await;
    opening(&mut fresh, "state").await;
    assert_eq!(fresh.frame().await.kind(), "output");
    assert_eq!(fresh.frame().await.json(), end);
    fresh.expect_end().await;

    for cursor in [0, 5, last - 1] {
        let mut stream = job.resume(cursor).await;
        let frames = stream.until_seq(last).await;
        assert_covers(&frames, &job.log().await, cursor);
        assert_eq!(stream.frame().await.json(), end);
        stream.expect_end().await;
    }
    for request in
        [job.get("/events").header("Last-Event-ID", last.to_string()), job.get(&format!("/events?after={last}"))]
    {
        let answer = request.header("Accept", "text/event-stream").send().await;
        answer.expect_empty(204);
        assert_eq!(answer.header("vary"), Some("Accept, Authorization, Cookie"));
    }
    let mut ahead = job.resume(last + 1).await;
    let kinds: Vec<String> = ahead.rest().await.iter().map(Frame::kind).collect();
    assert_eq!(kinds, ["reset", "state", "output", "end"]);
}

async fn live_end_closes_every_kind_of_job(store: Store) {
    let server = store.shared().await;
    let ends = [
        (json!({"type": "completed", "data": {"ok": false}}), "completed"),
        (json!({"type": "failed", "data": {"code": "x", "message": "y"}}), "failed"),
        (json!({"type": "cancelled", "data": {"reason": "r"}}), "cancelled"),
    ];
    for (event, state) in ends {
        let job = server.tracked().await;
        let mut stream = job.stream().await;
        stream.expect("state").await;
        let seq = job.append(event).await;
        assert_eq!(stream.expect(state).await.seq(), seq);
        let end = stream.expect("end").await;
        assert_eq!((end.json(), end.id), (json!({"state": state}), None));
        stream.expect_end().await;
    }
}

async fn unnamed_frames_carry_their_type_in_the_data(store: Store) {
    let job = store.shared().await.tracked().await;
    job.output("text").await;
    let mut fresh = job.get("/events?unnamed=1").stream().await;
    let mut resumed = job.get("/events?unnamed=1&after=3").stream().await;
    let mut reset = job.get("/events?unnamed=1&after=x").stream().await;
    assert_eq!(opening(&mut resumed, "ping").await.json(), json!({"type": "ping", "seq": 3}));
    assert_eq!(opening(&mut reset, "reset").await.json(), json!({"type": "reset", "reason": "invalid"}));
    let mut state = job.state().await;
    state["type"] = "state".into();
    assert_eq!(opening(&mut fresh, "state").await.json(), state);
    assert_eq!(fresh.frame().await.json(), json!({"type": "output", "data": {"offset": 0, "text": "text"}}));
    let last = job.complete().await;
    for stream in [&mut fresh, &mut resumed, &mut reset] {
        let frames = stream.rest().await;
        let tail: Vec<Value> = frames.iter().rev().take(2).map(Frame::json).collect();
        assert_eq!(tail[0], json!({"type": "end", "state": "completed"}));
        assert_eq!((&tail[1]["type"], &tail[1]["seq"]), (&json!("completed"), &json!(last)));
        assert!(!String::from_utf8_lossy(&stream.raw).contains("\nevent:"));
    }
}

async fn silence_is_broken_by_pings_that_name_the_last_seq(store: Store) {
    let server = store.serve(&["--ping-ms", "300"]).await;
    let job = server.tracked().await;
    let mut stream = job.stream().await;
    stream.frame().await;
    for seq in [2, 3] {
        for _ in 0..2 {
            let begun = Instant::now();
            let ping = stream.frame().await;
            assert_eq!((ping.kind().as_str(), ping.json()), ("ping", json!({"seq": seq})));
            assert_eq!(ping.fields, ["event", "data"]);
            assert!(begun.elapsed() > Duration::from_millis(150), "a ping comes after silence only");
        }
        job.note("x").await;
        assert_eq!(stream.told().await.seq(), seq + 1);
    }
}

async fn busy_stream_gets_no_ping(store: Store) {
    let server = store.serve(&["--ping-ms", "3000"]).await;
    let job = server.tracked().await;
    let mut stream = job.stream().await;
    stream.frame().await;
    for seq in 3..60 {
        job.note("x").await;
        let frame = stream.frame().await;
        assert_eq!((frame.kind().as_str(), frame.seq()), ("log", seq));
        tokio::time::sleep(Duration::from_millis(80)).await;
    }
}

async fn old_stream_rotates_on_a_frame_boundary_and_loses_nothing(store: Store) {
    let server = store.serve(&["--stream-max-age-ms", "800"]).await;
    let job = server.tracked().await;
    let poster = job.clone();
    let posting = tokio::spawn(async move {
        for n in 0..150 {
            poster.note(&n.to_string()).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        poster.complete().await
    });
    let (mut frames, mut cursor, mut rotations) = (Vec::new(), 0, 0);
    loop {
        let opened = Instant::now();
        let mut stream = job.get("/events").header("Last-Event-ID", cursor.to_string()).stream().await;
        if stream.head.status == 204 {
            break;
        }
        let part = stream.rest().await;
        let Some((last, before)) = part.split_last() else { panic!("a stream says why it ends") };
        frames.extend(before.iter().cloned());
        cursor = frames.iter().rev().find(|frame| frame.is_log()).map_or(cursor, Frame::seq);
        match last.kind().as_str() {
            "end" => break,
            "bye" => {
                assert_eq!((last.json(), last.id.clone()), (json!({"reason": "rotate"}), None));
                assert!(SOON.contains(&last.retry.expect("a bye says when to come back")));
                assert!(opened.elapsed() >= Duration::from_millis(590), "not younger than three quarters");
                rotations += 1;
            }
            other => panic!("{other} at the end of a stream"),
        }
    }
    assert_eq!(posting.await.expect("the poster ends"), cursor);
    assert!(rotations >= 2, "{rotations} rotations in three seconds");
    assert_covers(&frames, &job.log().await, 0);
}

async fn newcomer_over_the_cap_is_turned_away_and_the_established_stay(store: Store) {
    let server = store.serve(&["--max-streams", "2"]).await;
    let job = server.tracked().await;
    let (mut first, mut second) = (job.stream().await, job.stream().await);
    first.expect("state").await;
    second.expect("state").await;
    let mut third = job.stream().await;
    let bye = third.frame().await;
    assert_eq!((bye.kind().as_str(), bye.json()), ("bye", json!({"reason": "overloaded"})));
    assert!(LATER.contains(&bye.retry.expect("a bye says when to come back")), "{bye:?}");
    assert_eq!(third.head.header("content-length"), None, "it is a stream, too");
    third.expect_end().await;
    let unknown = "/v1/jobs/01a22a0a-6c45-7000-be08-73273f8c57e9/events";
    let unknown = server.get(unknown).header("Accept", "text/event-stream").send().await;
    unknown.problem(404, "job_not_found");
    let ended = server.tracked().await;
    ended.complete().await;
    let finished = ended.get("/events").header("Accept", "text/event-stream").header("Last-Event-ID", "3").send().await;
    finished.expect_empty(204);
    assert_eq!(finished.header("cache-control"), Some("no-store"));
    let seq = job.note("x").await;
    assert_eq!((first.told().await.seq(), second.told().await.seq()), (seq, seq));
    drop(second);
    eventually(PATIENCE, "a free place", async || (job.stream().await.frame().await.kind() == "state").then_some(()))
        .await;
}

async fn head_never_opens_a_stream(store: Store) {
    let job = store.shared().await.tracked().await;
    let head = job.server.request("HEAD", &job.path("/events")).header("Accept", "text/event-stream");
    let answer = head.send().await;
    assert_eq!(answer.body, b"");
    assert_ne!(answer.header("content-type"), Some("text/event-stream"));
    assert_eq!(answer.header("vary"), Some("Accept, Authorization, Cookie"));
}

async fn unknown_job_is_404_before_any_stream(store: Store) {
    let server = store.shared().await;
    let unknown = "/v1/jobs/0199a0b4-7c1e-7000-8000-000000000000/events";
    for request in [server.get(unknown), server.get(unknown).header("Last-Event-ID", "5")] {
        let answer = request.header("Accept", "text/event-stream").send().await;
        answer.problem(404, "job_not_found");
        assert_eq!(answer.header("vary"), Some("Accept, Authorization, Cookie"));
    }
}

async fn only_a_request_for_event_stream_gets_one(store: Store) {
    let job = store.shared().await.tracked().await;
    for accept in ["*/*", "application/json", "text/html", "text/*"] {
        let answer = job.get("/events").header("Accept", accept).send().await;
        assert_eq!((answer.status(), answer.header("content-type")), (200, Some("application/json")), "{accept}");
    }
    for accept in ["text/event-stream", "Text/Event-Stream", "text/event-stream, */*;q=0.1", "text/event-stream;q=0.9"]
    {
        let stream = job.get("/events").header("Accept", accept).stream().await;
        assert_eq!(stream.head.header("content-type"), Some("text/event-stream"), "{accept}");
    }
}

async fn what_was_streamed_can_be_read(store: Store) {
    let job = store.shared().await.tracked().await;
    let mut stream = job.resume(2).await;
    let poster = job.clone();
    let posting = tokio::spawn(async move {
        for n in 0..200 {
            poster.note(&n.to_string()).await;
        }
    });
    for _ in 0..200 {
        let seen = stream.told().await.seq();
        let read = number(&job.state().await["seq"]);
        assert!(read >= seen, "streamed {seen}, but the state is still at {read}");
    }
    posting.await.expect("the poster ends");
}

async fn vanished_readers_leave_nothing_behind(store: Store) {
    let server = store.serve(&[]).await;
    let job = server.tracked().await;
    let warm: Vec<_> = (0..40).map(|_| tokio::spawn(job.get("/events").send())).collect();
    for answer in warm {
        answer.await.expect("answered");
    }
    let before = server.descriptors();
    for round in 0..300 {
        let mut stream = job.stream().await;
        if round % 2 == 0 {
            stream.frame().await;
        }
    }
    for _ in 0..3 {
        job.note("so that a write meets whoever is still thought to be there").await;
    }
    eventually(PATIENCE, "every socket is closed", async || (server.descriptors() <= before + 3).then_some(())).await;
}
