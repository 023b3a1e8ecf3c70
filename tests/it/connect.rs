//! The gap between reading the log and going live: 500 connects at random moments of a busy job.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(connects_at_random_moments_see_no_hole_and_no_duplicate);

const CONNECTS: usize = 500;

/// About 500 events a second until told to stop; the seq of the last one.
async fn post_steadily(job: Job, until: Instant) -> u64 {
    let mut connection = Connection::open(job.server.address()).await.expect("the server accepts");
    let mut tick = tokio::time::interval(Duration::from_millis(4));
    let mut last = 2;
    for n in 0.. {
        tick.tick().await;
        let event = |half: u8| json!({"type": "log", "data": {"message": format!("{n}.{half}")}});
        let request = job.post("/events").json(&json!([event(0), event(1)]));
        let answer = request.send_over(&mut connection).await.expect("the server answers");
        last = number(&answer.expect(200)["seq"]);
        if Instant::now() > until {
            break;
        }
    }
    last
}

/// Connects once, stays for a while, and gives what it saw and the seq after which that began.
async fn visit(job: Job, mut random: Random) -> (u64, Vec<Frame>) {
    random.pause(4_000).await;
    let head = number(&job.state().await["seq"]);
    let fresh = random.below(3) == 0;
    let (mut stream, mut cursor) = match fresh {
        true => (job.stream().await, 0),
        false => {
            let cursor = random.below(head + 1);
            (job.resume(cursor).await, cursor)
        }
    };
    if fresh {
        let state = stream.expect("state").await;
        cursor = number(&state.json()["seq"]);
        assert!(cursor >= head, "the state is older than one that was read before");
    }
    // Long enough to go from the replay into what is live.
    let enough = head + 20 + random.below(200);
    let mut frames: Vec<Frame> = Vec::new();
    while frames.last().is_none_or(|frame| frame.seq() < enough) {
        let frame = stream.told().await;
        if frame.kind() == "end" {
            break;
        }
        frames.push(frame);
    }
    (cursor, frames)
}

async fn connects_at_random_moments_see_no_hole_and_no_duplicate(store: Store) {
    let server = store.serve(&[]).await;
    let job = server.tracked().await;
    let mut random = Random::new();
    let poster = tokio::spawn(post_steadily(job.clone(), Instant::now() + Duration::from_millis(4_500)));
    let visits: Vec<_> = (0..CONNECTS).map(|_| tokio::spawn(visit(job.clone(), random.fork()))).collect();
    let last = poster.await.expect("the poster ends");
    job.complete().await;
    let log: Vec<Value> = job.log().await;
    assert_eq!(log.len() as u64, last + 1);
    for visit in visits {
        let (cursor, frames) = visit.await.expect("a visitor ends");
        let seen = frames.last().map_or(cursor, Frame::seq) as usize;
        assert_covers(&frames, &log[..seen], cursor);
    }
}
