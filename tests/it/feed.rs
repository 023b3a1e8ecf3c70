//! `GET /v1/events`, the feed: whole states of many jobs, first as they are, then at each change.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    every_match_comes_first_and_then_each_change,
    jobs_named_by_id_come_whatever_their_state,
    filters_are_and_between_names_and_or_within_one,
    no_filter_shows_every_job,
    reconnect_gets_what_has_changed_since_and_nothing_else,
    reconnect_after_a_restart_misses_no_end,
    cut_in_the_middle_of_an_opening_opens_again,
    cursor_that_is_of_no_use_resets,
    slow_reader_gets_the_newest_state_and_no_backlog,
    opening_shows_a_thousand_and_says_that_there_are_more,
    deleted_job_is_gone,
    page_is_the_same_as_a_stream,
    parked_page_is_answered_by_the_next_change,
    watching_by_id_or_subject_keeps_a_job_from_being_cancelled,
    silence_is_broken_by_pings_without_a_cursor,
    unnamed_frames_carry_their_type_in_the_data,
    drain_says_goodbye_and_answers_pages,
    bad_requests_are_refused,
);

async fn open(server: &Server, query: &str) -> Stream {
    server.get(&format!("/v1/events?{query}")).header("Accept", "text/event-stream").stream().await.of_feed()
}

async fn reopen(server: &Server, query: &str, cursor: &str) -> Stream {
    let request = server.get(&format!("/v1/events?{query}")).header("Accept", "text/event-stream");
    request.header("Last-Event-ID", cursor).stream().await.of_feed()
}

async fn page(server: &Server, query: &str) -> Value {
    server.get(&format!("/v1/events?{query}")).send().await.expect(200)
}

/// Frames up to the first for which this holds.
async fn until(stream: &mut Stream, what: impl Fn(&Frame) -> bool) -> Vec<Frame> {
    let mut frames = Vec::new();
    loop {
        let frame = stream.told().await;
        let is_last = what(&frame);
        frames.push(frame);
        if is_last {
            return frames;
        }
    }
}

/// The states up to a job's end.
async fn until_ended(stream: &mut Stream, job: &Job) -> Vec<Frame> {
    until(stream, |frame| frame.json()["id"] == job.id && !frame.json()["finished_at"].is_null()).await
}

fn ids(frames: &[Frame]) -> Vec<String> {
    frames.iter().map(|frame| text(&frame.json()["id"]).to_owned()).collect()
}

fn cursor(frame: &Frame) -> &str {
    frame.id.as_deref().unwrap_or_else(|| panic!("no cursor on {frame:?}"))
}

async fn every_match_comes_first_and_then_each_change(store: Store) {
    let server = store.shared().await;
    let (queue, other) = (Queue::own(&server), Queue::own(&server));
    let jobs = queue.jobs(2, json!({"meta": {"user": "u1"}})).await;
    let stranger = other.job(json!({})).await;
    let mut feed = open(&server, &format!("queue={}", queue.name)).await;
    assert_eq!(feed.head.header("content-type"), Some("text/event-stream"));
    assert_eq!(feed.head.header("cache-control"), Some("no-store, no-transform"));
    assert_eq!(feed.head.header("vary"), Some("Accept, Authorization, Cookie"));
    let (first, second) = (feed.frame().await, feed.frame().await);
    assert_eq!(first.fields, ["retry", "id", "event", "data"]);
    assert!((1_000..=3_000).contains(&first.retry.expect("the first frame begins with retry")));
    assert_eq!(second.fields, ["id", "event", "data"]);
    assert_eq!((first.kind(), second.kind()), ("state".to_owned(), "state".to_owned()));
    assert_eq!([first.json(), second.json()], [jobs[1].state().await, jobs[0].state().await], "latest created first");

    let running = queue.worker().take().await;
    let started = feed.expect("state").await.json();
    assert_eq!((&started["id"], &started["state"]), (&json!(running.id), &json!("running")));
    running.append(json!({"type": "progress", "data": {"percent": 50}})).await;
    assert_eq!(feed.expect("state").await.json(), running.state().await);
    stranger.cancel(json!({})).await.expect(202);
    let joined = queue.job(json!({})).await;
    assert_eq!(feed.expect("state").await.json(), joined.state().await, "a job that begins to match joins by itself");
    running.complete().await;
    assert_eq!(feed.expect("state").await.json(), running.state().await);
}

async fn jobs_named_by_id_come_whatever_their_state(store: Store) {
    let server = store.shared().await;
    let (ended, live) = (server.tracked().await, server.tracked().await);
    ended.complete().await;
    let unknown = "01890000-0000-7000-8000-000000000000";
    let mut feed =
        open(&server, &format!("job={}&job=nonsense&job={unknown}&job={}&job={}", ended.id, live.id, live.id)).await;
    let frames = until(&mut feed, |frame| frame.json()["id"] == live.id).await;
    assert_eq!(ids(&frames), ["nonsense", &ended.id, unknown, &live.id]);
    assert_eq!(frames.iter().map(Frame::kind).collect::<Vec<_>>(), ["gone", "state", "gone", "state"]);
    assert_eq!(frames[2].json(), json!({"id": unknown}));
    assert_eq!(frames[1].json(), ended.state().await);
    server.tracked().await.complete().await;
    live.note("a change").await;
    assert_eq!(feed.expect("state").await.json(), live.state().await, "and nothing of others");
}

async fn filters_are_and_between_names_and_or_within_one(store: Store) {
    let server = store.shared().await;
    let queue = Queue::own(&server);
    let subject = unique("subject");
    let job = async |kind: &str, subject: &str| queue.job(json!({"kind": kind, "subject": subject})).await;
    let (a, b) = (job("a", &subject).await, job("b", &subject).await);
    let (_, c) = (job("c", &subject).await, job("a", "another").await);
    let shown = async |query: String| {
        let page = page(&server, &query).await;
        page["jobs"].as_array().expect("a list").iter().map(|job| text(&job["id"]).to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(shown(format!("subject={subject}&kind=a&kind=b")).await, [&*b.id, &a.id]);
    assert_eq!(shown(format!("queue={}&kind=a", queue.name)).await, [&*c.id, &a.id]);
    assert_eq!(shown(format!("subject={subject}&kind=a&queue=elsewhere")).await, [""; 0]);
    assert_eq!(shown(format!("job={}&job={}&kind=b", a.id, b.id)).await, [&*b.id]);
    let mut feed = open(&server, &format!("subject={subject}&kind=b&kind=d")).await;
    assert_eq!(feed.expect("state").await.json()["id"], b.id);
    job("a", &subject).await;
    job("d", "another").await;
    let joined = job("d", &subject).await;
    assert_eq!(feed.expect("state").await.json()["id"], joined.id);
}

async fn no_filter_shows_every_job(store: Store) {
    let server = store.serve(&[]).await;
    let mut feed = open(&server, "").await;
    let ping = feed.frame().await;
    assert_eq!((ping.kind().as_str(), ping.json()), ("ping", json!({})), "something leaves with the headers");
    let jobs = [server.tracked().await, Queue::own(&server).job(json!({})).await];
    for job in &jobs {
        assert_eq!(feed.expect("state").await.json(), job.state().await);
    }
}

async fn reconnect_gets_what_has_changed_since_and_nothing_else(store: Store) {
    let server = store.shared().await;
    let queue = Queue::own(&server);
    let query = format!("queue={}", queue.name);
    let jobs = queue.jobs(3, json!({})).await;
    let mut feed = open(&server, &query).await;
    let frames = until(&mut feed, |frame| frame.json()["id"] == jobs[0].id).await;
    let last = cursor(frames.last().expect("three")).to_owned();
    drop(feed);
    jobs[1].cancel(json!({})).await.expect(202);
    let new = queue.job(json!({})).await;
    for by_header in [true, false] {
        let mut feed = match by_header {
            true => reopen(&server, &query, &last).await,
            false => open(&server, &format!("{query}&after={last}")).await,
        };
        let first = feed.frame().await;
        assert!(first.retry.is_some());
        assert_eq!((first.kind().as_str(), first.json()), ("state", jobs[1].state().await), "its end is not missing");
        assert_eq!(feed.expect("state").await.json(), new.state().await);
        jobs[2].cancel(json!({})).await;
        if by_header {
            assert_eq!(feed.expect("state").await.json(), jobs[2].state().await, "and it goes on");
        }
    }
}

async fn reconnect_after_a_restart_misses_no_end(store: Store) {
    let server = store.serve(&[]).await;
    let queue = Queue::own(&server);
    let query = format!("queue={}", queue.name);
    let jobs = queue.jobs(30, json!({})).await;
    let mut feed = open(&server, &query).await;
    let frames = until(&mut feed, |frame| frame.json()["id"] == jobs[0].id).await;
    let last = cursor(frames.last().expect("thirty")).to_owned();
    drop(feed);
    for job in &jobs[..10] {
        job.cancel(json!({})).await.expect(202);
    }
    server.kill9();
    server.restart().await;
    jobs[10].cancel(json!({})).await.expect(202);
    let named = jobs.iter().map(|job| format!("job={}&", job.id)).collect::<String>();
    for query in [query, named] {
        let mut feed = reopen(&server, &query, &last).await;
        let mut missing: HashSet<&str> = jobs[..=10].iter().map(|job| job.id.as_str()).collect();
        while !missing.is_empty() {
            let frame = feed.expect("state").await;
            if frame.json()["state"] == "cancelled" {
                missing.remove(text(&frame.json()["id"]));
            }
        }
    }
}

async fn cut_in_the_middle_of_an_opening_opens_again(store: Store) {
    let server = store.shared().await;
    let queue = Queue::own(&server);
    let query = format!("queue={}", queue.name);
    let jobs = queue.jobs(4, json!({})).await;
    let mut feed = open(&server, &query).await;
    feed.frame().await;
    let middle = cursor(&feed.frame().await).to_owned();
    drop(feed);
    let mut feed = reopen(&server, &query, &middle).await;
    let frames = until(&mut feed, |frame| frame.json()["id"] == jobs[0].id).await;
    assert_eq!(frames.len(), 4, "whoever has got two of four is given all");
    assert!(frames.iter().all(|frame| frame.kind() == "state"), "and its cursor was not wrong");
    let (third, fourth) = (cursor(&frames[2]), cursor(&frames[3]));
    assert_ne!(third, fourth, "the last frame completes the opening");
    let mut feed = reopen(&server, &query, fourth).await;
    assert_eq!(feed.frame().await.kind(), "ping");
}

async fn cursor_that_is_of_no_use_resets(store: Store) {
    let server = store.shared().await;
    let job = server.tracked().await;
    let query = format!("job={}", job.id);
    let mut feed = open(&server, &query).await;
    let good = cursor(&feed.frame().await).to_owned();
    let (epoch, rest) = good.split_once('.').expect("a cursor of ours");
    let old = format!("{epoch}.1.0.0");
    for wrong in ["17", "\u{fc}", &format!("x{epoch}.{rest}"), &format!("{good}x"), &old] {
        let mut feed = reopen(&server, &format!("{query}&after={good}"), wrong).await;
        let reset = feed.frame().await;
        assert_eq!((reset.kind().as_str(), reset.json()), ("reset", json!({"reason": "invalid"})), "{wrong}");
        assert_eq!(reset.fields, ["retry", "event", "data"]);
        assert_eq!(feed.expect("state").await.json(), job.state().await, "{wrong}: as on a first connect");
    }
    let mut feed = reopen(&server, &query, "").await;
    assert_eq!(feed.frame().await.kind(), "state", "an empty cursor is none");
}

/// Changes, of 8 KB each.
const APPENDS: usize = 1_200;

async fn slow_reader_gets_the_newest_state_and_no_backlog(store: Store) {
    let server = store.serve(&[]).await;
    let busy = server.job(json!({"kind": "k", "tracked": true, "meta": {"text": "x".repeat(8_000)}})).await;
    let narrow = Connection::narrow(server.address()).await.expect("the server accepts");
    let request = server.get(&format!("/v1/events?job={}", busy.id)).header("Accept", "text/event-stream");
    let mut feed = request.stream_over(narrow).await.of_feed();
    feed.expect("state").await;
    for n in 1..=APPENDS {
        busy.append(json!({"type": "progress", "data": {"current": n, "total": APPENDS}})).await;
    }
    busy.complete().await;
    let frames = until_ended(&mut feed, &busy).await;
    let seqs: Vec<u64> = frames.iter().map(|frame| number(&frame.json()["seq"])).collect();
    // What sockets buffer of 10 MB is a few.
    assert!(seqs.is_sorted() && seqs.len() < APPENDS * 3 / 4, "{} states of {APPENDS} changes", seqs.len());
    assert_eq!(frames.last().expect("the end").json(), busy.state().await);
}

async fn opening_shows_a_thousand_and_says_that_there_are_more(store: Store) {
    let server = store.serve(&[]).await;
    let queue = Queue::own(&server);
    let jobs = queue.jobs(1_003, json!({})).await;
    let query = format!("queue={}", queue.name);
    let mut feed = open(&server, &query).await;
    let mut frames = Vec::new();
    let ping = loop {
        match feed.frame().await {
            frame if frame.kind() == "ping" => break frame,
            frame => frames.push(frame),
        }
    };
    assert_eq!(ping.json(), json!({"truncated": true}));
    let latest: Vec<String> = jobs[3..].iter().rev().map(|job| job.id.clone()).collect();
    assert_eq!(ids(&frames), latest);
    jobs[0].cancel(json!({})).await.expect(202);
    assert_eq!(feed.expect("state").await.json(), jobs[0].state().await, "later changes still join");
    let page = page(&server, &query).await;
    assert_eq!((page["jobs"].as_array().map(Vec::len), &page["truncated"]), (Some(1_000), &json!(true)));
}

async fn deleted_job_is_gone(store: Store) {
    let server = store.shared().await;
    let queue = Queue::own(&server);
    let (job, other) = (queue.job(json!({})).await, Queue::own(&server).job(json!({})).await);
    job.cancel(json!({})).await.expect(202);
    other.cancel(json!({})).await.expect(202);
    let (by_queue, by_id) =
        (format!("queue={}", queue.name), format!("job={}&job={}", job.id, queue.job(json!({})).await.id));
    let mut feeds = [open(&server, &by_queue).await, open(&server, &by_id).await];
    let mut cursors = Vec::new();
    for feed in &mut feeds {
        cursors.push(cursor(&until(feed, |frame| frame.json()["state"] != "").await[0]).to_owned());
        feed.frame().await;
    }
    other.delete().await.expect_empty(204);
    job.delete().await.expect_empty(204);
    let mut last = String::new();
    for feed in &mut feeds {
        let gone = feed.expect("gone").await;
        assert_eq!(
            (gone.json(), &*gone.fields),
            (json!({"id": job.id}), &["id", "event", "data"].map(str::to_owned)[..])
        );
        last = cursor(&gone).to_owned();
    }
    assert_eq!(reopen(&server, &by_id, &last).await.frame().await.kind(), "ping");
    let mut feed = reopen(&server, &by_id, &cursors[1]).await;
    let frames = until(&mut feed, |frame| frame.kind() == "gone").await;
    assert_eq!(frames.last().expect("gone").json(), json!({"id": job.id}), "also for whoever was away");
    assert_eq!(page(&server, &by_id).await["gone"], json!([job.id]));
}

async fn page_is_the_same_as_a_stream(store: Store) {
    let server = store.shared().await;
    let queue = Queue::own(&server);
    let query = format!("queue={}", queue.name);
    let empty = page(&server, &query).await;
    assert_eq!(keys(&empty), ["gone", "jobs", "next"]);
    let jobs = queue.jobs(2, json!({})).await;
    let answer = server.get(&format!("/v1/events?{query}")).send().await;
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    let first = answer.expect(200);
    assert_eq!(first["jobs"], json!([jobs[1].state().await, jobs[0].state().await]));
    let after = |page: &Value| format!("{query}&after={}", text(&page["next"]));
    assert_eq!(page(&server, &after(&first)).await["jobs"], json!([]), "nothing has changed since");
    jobs[0].cancel(json!({})).await.expect(202);
    let second = page(&server, &after(&first)).await;
    assert_eq!(second["jobs"], json!([jobs[0].state().await]));
    let mut feed = reopen(&server, &query, text(&first["next"])).await;
    assert_eq!(feed.frame().await.json(), jobs[0].state().await, "the same cursor as the stream's");
    let wrong = page(&server, &format!("{query}&after=17")).await;
    assert_eq!((&wrong["reset"], wrong["jobs"].as_array().map(Vec::len)), (&json!("invalid"), Some(2)));
}

async fn parked_page_is_answered_by_the_next_change(store: Store) {
    let server = store.shared().await;
    let queue = Queue::own(&server);
    let job = queue.job(json!({})).await;
    let query = format!("queue={}", queue.name);
    let first = page(&server, &query).await;
    let parked = format!("/v1/events?{query}&after={}", text(&first["next"]));
    let begun = Instant::now();
    let answer = server.get(&parked).header("Prefer", "wait=1").send().await;
    assert_eq!(answer.header("preference-applied"), Some("wait=1"));
    assert!(begun.elapsed() >= Duration::from_secs(1));
    let nothing = answer.expect(200);
    assert_eq!((&nothing["jobs"], &nothing["gone"]), (&json!([]), &json!([])));
    let waiting = tokio::spawn(server.get(&format!("{parked}&wait=30")).send());
    job.cancel(json!({})).await.expect(202);
    let page = within(Duration::from_secs(10), "the change", waiting).await.expect("answered").expect(200);
    assert_eq!(page["jobs"], json!([job.state().await]));
}

async fn watching_by_id_or_subject_keeps_a_job_from_being_cancelled(store: Store) {
    let server = store.shared().await;
    let queue = Queue::own(&server);
    let subject = unique("subject");
    let watched = async |more: Value| queue.job(merged(json!({"cancel_if_unwatched_ms": 500}), more)).await;
    let (by_id, by_subject) = (watched(json!({})).await, watched(json!({"subject": subject})).await);
    let (by_page, by_queue) = (watched(json!({})).await, watched(json!({})).await);
    let mut feeds = [
        open(&server, &format!("job={}", by_id.id)).await,
        open(&server, &format!("subject={subject}")).await,
        open(&server, &format!("queue={}", queue.name)).await,
    ];
    for feed in &mut feeds {
        feed.expect("state").await;
    }
    let first = page(&server, &format!("job={}", by_page.id)).await;
    let query = format!("/v1/events?job={}&after={}&wait=55", by_page.id, text(&first["next"]));
    let parked = tokio::spawn(server.get(&query).patient(Duration::from_secs(60)).send());
    let joined = watched(json!({"subject": subject})).await;
    // A glance counts as watching, and begins the time of those whom nobody watches else.
    for job in [&by_id, &by_subject, &by_page, &joined, &by_queue] {
        job.state().await;
    }
    let cancelled = async |job: &Job| {
        let what = format!("somebody or other still watches {}", job.id);
        eventually(Duration::from_secs(30), &what, async || {
            queue.ids("state=cancelled").await.contains(&job.id).then_some(())
        })
        .await;
    };
    cancelled(&by_queue).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    for job in [&by_id, &by_subject, &by_page, &joined] {
        assert_eq!(job.log().await.len(), 1, "somebody does");
    }
    let [by_id_feed, _subject, _queue] = feeds;
    drop(by_id_feed);
    cancelled(&by_id).await;
    by_page.cancel(json!({})).await.expect(202);
    parked.await.expect("answered").expect(200);
}

async fn silence_is_broken_by_pings_without_a_cursor(store: Store) {
    let server = store.serve(&["--ping-ms", "300"]).await;
    let mut feed = open(&server, "").await;
    for _ in 0..3 {
        let ping = feed.frame().await;
        assert_eq!((ping.kind().as_str(), ping.json(), ping.id), ("ping", json!({}), None));
    }
}

async fn unnamed_frames_carry_their_type_in_the_data(store: Store) {
    let server = store.shared().await;
    let job = server.tracked().await;
    let mut feed = open(&server, &format!("job={}&unnamed=1", job.id)).await;
    let state = feed.frame().await;
    assert_eq!(state.fields, ["retry", "id", "data"]);
    assert_eq!(state.json(), merged(job.state().await, json!({"type": "state"})));
}

async fn drain_says_goodbye_and_answers_pages(store: Store) {
    let server = store.serve(&[]).await;
    let mut feed = open(&server, "").await;
    feed.frame().await;
    let next = page(&server, "").await["next"].clone();
    let parked = tokio::spawn(server.get(&format!("/v1/events?after={}&wait=50", text(&next))).send());
    eventually(PATIENCE, "the page to be parked", async || (server.descriptors() > 0).then_some(())).await;
    server.sigterm();
    assert_eq!(feed.expect("bye").await.json(), json!({"reason": "shutdown"}));
    feed.expect_end().await;
    let _answered_or_never_accepted = within(PATIENCE, "the page", parked).await;
    assert_eq!(server.exit(PATIENCE).await.code(), Some(0));
}

async fn bad_requests_are_refused(store: Store) {
    let server = store.shared().await;
    let many = "job=x&".repeat(151);
    for query in [&*many, "state=queued", "after=a&after=b", "unnamed=2", "wait=soon", "queue=%00"] {
        for accept in ["text/event-stream", "application/json"] {
            let request = server.get(&format!("/v1/events?{query}")).header("Accept", accept);
            request.send().await.problem(422, "invalid_request");
        }
    }
    page(&server, &"job=x&".repeat(150)).await;
    let head = server.request("HEAD", "/v1/events").header("Accept", "text/event-stream").send().await;
    assert_eq!((head.status(), head.header("content-type")), (200, Some("application/json")));
}
