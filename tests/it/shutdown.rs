//! Case 18: open streams do not hold up the end, and nothing that was acknowledged is lost by it.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::*;

on_both_stores!(
    streams_polls_and_appends_end_in_good_order,
    idle_server_ends_at_once,
    open_line_request_is_answered_with_what_was_stored,
);

async fn streams_polls_and_appends_end_in_good_order(store: Store) {
    let server = store.serve(&["--drain-ms", "3000"]).await;
    let (busy, quiet) = (server.tracked().await, server.tracked().await);
    let mut streams = Vec::new();
    for _ in 0..100 {
        let mut stream = quiet.stream().await;
        stream.expect("state").await;
        streams.push(stream);
    }
    let polls: Vec<_> = (0..20)
        .map(|n| tokio::spawn(quiet.get(["?wait=50&after=2", "/events?wait=50&after=2"][n % 2]).send()))
        .collect();
    let posters: Vec<_> = (0..5).map(|mark| tokio::spawn(busy.clone().post_until_gone(mark))).collect();
    let mut follower = busy.resume(2).await;
    let following = tokio::spawn(async move { follower.rest().await });
    tokio::time::sleep(Duration::from_millis(300)).await;

    let begun = Instant::now();
    server.sigterm();
    let status = server.exit(Duration::from_secs(8)).await;
    assert_eq!(status.code(), Some(0), "{status}");
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?} for a drain of 3 s", begun.elapsed());
    for mut stream in streams {
        let bye = stream.told().await;
        assert_eq!((bye.kind().as_str(), bye.json()), ("bye", json!({"reason": "shutdown"})));
        assert!((5_000..=15_000).contains(&bye.retry.expect("a bye says when to come back")), "{bye:?}");
        stream.expect_end().await;
    }
    for poll in polls {
        let answer = poll.await.expect("a poll is answered");
        assert!([200, 304, 503].contains(&answer.status()), "{}", answer.text());
    }
    let mut followed = following.await.expect("the follower ends");
    assert_eq!(followed.pop().map(|frame| frame.kind()).as_deref(), Some("bye"));

    server.restart().await;
    let log = busy.log().await;
    let mut acknowledged = 0;
    for poster in posters {
        let Posted { stored, refused } = poster.await.expect("a poster ends");
        acknowledged += stored.len();
        for (name, seq) in stored {
            assert_eq!(log[seq as usize - 1]["data"]["message"], name);
        }
        let kept = |name: &String| log.iter().any(|event| event["data"]["message"] == *name);
        assert!(!refused.iter().any(kept), "what was refused was not stored");
    }
    assert!(acknowledged > 0, "the load was no load");
    let cursor = followed.last().expect("the follower saw something").seq();
    assert_covers(&followed, &log[..cursor as usize], 2);
    let last = busy.complete().await;
    followed.extend(busy.resume(cursor).await.until_seq(last).await);
    assert_covers(&followed, &busy.log().await, 2);
}

async fn idle_server_ends_at_once(store: Store) {
    let server = store.serve(&["--drain-ms", "20000"]).await;
    server.tracked().await;
    let kept = Connection::open(server.address()).await.expect("the server accepts");
    let begun = Instant::now();
    server.sigterm();
    assert_eq!(server.exit(PATIENCE).await.code(), Some(0));
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "nobody was there to be waited for, and it took {:?}",
        begun.elapsed()
    );
    drop(kept);
}

async fn open_line_request_is_answered_with_what_was_stored(store: Store) {
    let server = store.serve(&["--drain-ms", "5000"]).await;
    let job = server.tracked().await;
    let mut stream = job.resume(2).await;
    let mut lines = job.open_lines().await;
    let line = json!({"type": "log", "data": {"message": "one"}}).to_string() + "\n";
    lines.write_chunk(line.as_bytes()).await.expect("the server reads");
    stream.expect("log").await;
    lines.write_chunk(b"{\"type\":\"log\",").await.expect("the server reads");
    server.sigterm();
    let answer = within(PATIENCE, "the answer", lines.answer("POST")).await.expect("an answer");
    assert_eq!(answer.problem(503, "shutting_down")["stored"], 1);
    assert_eq!(server.exit(PATIENCE).await.code(), Some(0));
    server.restart().await;
    assert_eq!(job.types().await, ["queued", "started", "log"]);
}
