//! Invariant 9: whoever waits holds no database connection. Twenty times the pool wait, and nobody notices.

use std::time::{Duration, Instant};

use crate::harness::*;

on_both_stores!(idle_readers_hold_no_connection_and_slow_nobody_down);

const POOL: usize = 4;

/// The median time of an append.
async fn latency(job: &Job) -> Duration {
    let mut times = Vec::new();
    for n in 0..60 {
        let begun = Instant::now();
        job.note(&n.to_string()).await;
        times.push(begun.elapsed());
    }
    times.sort();
    times[times.len() / 2]
}

async fn idle_readers_hold_no_connection_and_slow_nobody_down(store: Store) {
    let server = store.serve(&["--pool", &POOL.to_string()]).await;
    let (busy, quiet) = (server.tracked().await, server.tracked().await);
    latency(&busy).await;
    let before = latency(&busy).await;
    let mut streams = Vec::new();
    for _ in 0..10 * POOL {
        let mut stream = quiet.stream().await;
        stream.expect("state").await;
        streams.push(stream);
    }
    let mut polls = Vec::new();
    for n in 0..10 * POOL {
        let path = ["?wait=50&after=2", "/events?wait=50&after=2"][n % 2];
        let request = quiet.get(path);
        let mut connection = Connection::open(server.address()).await.expect("the server accepts");
        connection.write(&request.head()).await.expect("the server reads");
        polls.push(connection);
    }
    let during = latency(&busy).await;
    assert!(
        during < before * 3 + Duration::from_millis(20),
        "an append took {before:?} alone and {during:?} beside waiting readers"
    );
    if let Some(database) = &server.setup.database {
        let open = database.connections().await;
        assert!(open <= POOL as i64, "{open} connections from a pool of {POOL}");
    }
    let seq = quiet.note("wake up").await;
    for mut stream in streams {
        assert_eq!(stream.told().await.seq(), seq);
    }
    for mut poll in polls {
        let answer = within(PATIENCE, "the answer to a poll", poll.answer("GET")).await.expect("an answer");
        answer.expect(200);
    }
}
