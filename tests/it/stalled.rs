//! Invariant 8: a reader that stands still costs bounded memory and nobody else's time, and is complete when it wakes.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(stalled_reader_slows_nobody_and_is_complete_when_it_wakes);

const EVENTS: usize = 9_000;
const STALL: Duration = Duration::from_secs(20);
const MEGABYTE: u64 = 1024 * 1024;

/// Appends one event and waits until the stream shows it: how long that takes.
async fn delay(job: &Job, stream: &mut Stream) -> Duration {
    let begun = Instant::now();
    let seq = job.note("how long").await;
    while stream.told().await.seq() < seq {}
    begun.elapsed()
}

async fn median_delay(job: &Job, stream: &mut Stream) -> Duration {
    let mut delays = Vec::new();
    for _ in 0..31 {
        delays.push(delay(job, stream).await);
    }
    delays.sort();
    delays[delays.len() / 2]
}

async fn narrow_reader(job: &Job, cursor: u64) -> Stream {
    let socket = Connection::narrow(job.server.address()).await.expect("the server accepts");
    job.get("/events").header("Last-Event-ID", cursor.to_string()).stream_over(socket).await
}

async fn stalled_reader_slows_nobody_and_is_complete_when_it_wakes(store: Store) {
    let server = store.serve(&[]).await;
    let job = server.tracked().await;
    let mut awake = job.resume(2).await;
    awake.frame().await;
    let before = median_delay(&job, &mut awake).await;

    // Some stand still while live, some in the middle of a replay.
    let head = number(&job.state().await["seq"]);
    let mut stalled = Vec::new();
    for _ in 0..3 {
        let mut reader = narrow_reader(&job, head).await;
        reader.frame().await;
        stalled.push(reader);
    }
    let begun = Instant::now();
    let resident = server.resident();
    let bulk = vec![json!({"type": "log", "data": {"message": "x".repeat(1_000)}}); 100];
    for _ in 0..EVENTS / 100 {
        let last = job.append(Value::from(&bulk[..])).await;
        while awake.told().await.seq() < last {}
    }
    for _ in 0..3 {
        stalled.push(narrow_reader(&job, head).await);
    }
    let during = median_delay(&job, &mut awake).await;
    assert!(
        during < before * 3 + Duration::from_millis(100),
        "an event took {before:?} before and {during:?} beside stalled readers"
    );
    while begun.elapsed() < STALL {
        let now = delay(&job, &mut awake).await;
        assert!(now < Duration::from_secs(3), "an event took {now:?} beside stalled readers");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let grown = server.resident().saturating_sub(resident) / MEGABYTE;
    assert!(grown < 64, "six stalled readers of a log of 10 MB cost {grown} MB");

    // All wake at once: a reader that stood still for longer than the write deadline of 30 s would rightly be gone.
    let last = job.complete().await;
    let waking: Vec<_> = stalled
        .into_iter()
        .map(|mut reader| {
            tokio::spawn(async move {
                let frames = reader.until_seq(last).await;
                reader.expect("end").await;
                frames
            })
        })
        .collect();
    let log = job.log().await;
    for reader in waking {
        let frames = within(Duration::from_secs(100), "the whole log", reader).await.expect("a reader ends");
        assert_covers(&frames, &log, head);
    }
}
