//! Invariant 2: what was acknowledged survives `kill -9`, once, and streams go on where they were.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    acknowledged_events_survive_kill_9_once,
    stream_resumes_across_kill_9,
    acknowledged_jobs_survive_kill_9,
);

async fn acknowledged_events_survive_kill_9_once(store: Store) {
    let server = store.serve(&[]).await;
    for _ in 0..3 {
        let jobs = [server.tracked().await, server.tracked().await];
        let posters: Vec<_> = (0..8).map(|mark| tokio::spawn(jobs[mark % 2].clone().post_until_gone(mark))).collect();
        tokio::time::sleep(Duration::from_millis(400)).await;
        server.kill9();
        let mut acknowledged = Vec::new();
        for poster in posters {
            let posted = poster.await.expect("a poster ends");
            assert_eq!(posted.refused, [] as [String; 0], "load is no reason to refuse");
            acknowledged.push(posted.stored);
        }
        server.restart().await;
        let logs = [jobs[0].log().await, jobs[1].log().await];
        for (mark, mine) in acknowledged.iter().enumerate() {
            assert!(!mine.is_empty(), "the load was no load");
            let log = &logs[mark % 2];
            for (name, seq) in mine {
                let stored = log.iter().filter(|event| event["data"]["message"] == *name);
                let seqs: Vec<u64> = stored.map(|event| number(&event["seq"])).collect();
                assert_eq!(seqs, [*seq], "{name} was acknowledged as {seq}");
            }
        }
        for (job, log) in jobs.iter().zip(&logs) {
            let mut expected = fold(log);
            expected["id"] = job.id.clone().into();
            assert_eq!(plain(&job.state().await), plain(&expected), "state and log agree after the crash");
            assert_eq!(job.note("usable").await, log.len() as u64 + 1);
        }
    }
}

/// Follows a job over SSE through whatever happens to the server, to the end of the job.
async fn follow(job: Job) -> Vec<Frame> {
    let (mut frames, mut cursor) = (Vec::new(), 0);
    loop {
        let request = job.get("/events").header("Last-Event-ID", cursor.to_string());
        if let Ok(mut stream) = request.try_stream().await {
            if stream.head.status == 204 {
                return frames;
            }
            while let Ok(Some(frame)) = stream.try_next().await {
                match frame.kind().as_str() {
                    "end" => return frames,
                    "ping" | "bye" => {}
                    kind => {
                        assert!(frame.is_log(), "a good cursor {cursor} got {kind}");
                        cursor = frame.seq();
                        frames.push(frame);
                    }
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
}

async fn stream_resumes_across_kill_9(store: Store) {
    let server = store.serve(&[]).await;
    let job = server.tracked().await;
    let readers: Vec<_> = (0..10).map(|_| tokio::spawn(follow(job.clone()))).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let (poster, stopped) = (job.clone(), stop.clone());
    let posting = tokio::spawn(async move {
        let mut n = 0;
        while !stopped.load(Ordering::Relaxed) {
            let events = json!([
                {"type": "output", "data": {"text": format!("{n} ")}}, {"type": "log", "data": {"message": "x"}},
            ]);
            n += u64::from(poster.post("/events").json(&events).try_send().await.is_ok());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        n
    });
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(400)).await;
        server.kill9();
        server.restart().await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    stop.store(true, Ordering::Relaxed);
    assert!(posting.await.expect("the poster ends") > 10);
    job.complete().await;
    let log = job.log().await;
    for reader in readers {
        let frames = within(PATIENCE, "the end of the job", reader).await.expect("a reader ends");
        assert_covers(&frames, &log, 0);
    }
}

async fn acknowledged_jobs_survive_kill_9(store: Store) {
    let server = store.serve(&[]).await;
    let callers: Vec<_> = (0..6)
        .map(|_| {
            let server = server.clone();
            tokio::spawn(async move {
                let mut born: Vec<Value> = Vec::new();
                let request = server.post("/v1/jobs").json(&json!({"kind": "k", "payload": {"p": 1}}));
                while let Ok(answer) = request.try_send().await {
                    born.push(answer.expect(202)["job"].clone());
                }
                born
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.kill9();
    let mut born = Vec::new();
    for caller in callers {
        born.extend(caller.await.expect("a caller ends"));
    }
    server.restart().await;
    assert!(born.len() > 6, "the load was no load");
    for state in born {
        let job = Job::new(&server, text(&state["id"]));
        assert_eq!(job.state().await, state);
        assert_eq!(job.get("?include=payload").send().await.expect(200)["payload"], json!({"p": 1}));
    }
}
