//! Invariant 3 by chance: posters, and readers that drop and come back over every transport with one cursor. Each
//! reader saw exactly the stored log.

use std::ops::ControlFlow;

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(every_reader_saw_exactly_the_stored_log, transport_may_change_at_any_event);

/// What one reader has put together, whatever it read it from.
#[derive(Default)]
struct Reader {
    frames: Vec<Frame>,
    cursor: u64,
}

impl Reader {
    /// Reads a few entries over one transport, then leaves. Breaks when the end of the job was seen.
    async fn visit(&mut self, job: &Job, random: &mut Random) -> ControlFlow<()> {
        match random.below(4) {
            0 => self.page(job, random, "").await,
            1 => self.page(job, random, "&wait=2").await,
            _ => self.stream(job, random).await,
        }
    }

    async fn stream(&mut self, job: &Job, random: &mut Random) -> ControlFlow<()> {
        let request = match random.below(2) {
            0 => job.get("/events").header("Last-Event-ID", self.cursor.to_string()),
            _ => job.get(&format!("/events?after={}", self.cursor)),
        };
        let mut stream = request.stream().await;
        if stream.head.status == 204 {
            return ControlFlow::Break(());
        }
        for _ in 0..random.below(60) {
            let frame = stream.told().await;
            match frame.kind().as_str() {
                "end" => return ControlFlow::Break(()),
                "state" | "reset" | "bye" => panic!("a good cursor {} got {frame:?}", self.cursor),
                _ => self.take(frame),
            }
        }
        ControlFlow::Continue(())
    }

    async fn page(&mut self, job: &Job, random: &mut Random, wait: &str) -> ControlFlow<()> {
        let limit = random.below(80) + 1;
        let path = format!("/events?after={}&limit={limit}{wait}", self.cursor);
        let page = job.get(&path).send().await.expect(200);
        for event in page["events"].as_array().expect("events is a list") {
            self.take(as_frame(event));
        }
        assert_eq!(number(&page["next"]), self.cursor, "next is the last seq of the page");
        let ended = page["terminal"] == true && page["more"] == false;
        if ended { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn take(&mut self, frame: Frame) {
        self.cursor = frame.seq();
        self.frames.push(frame);
    }
}

fn as_frame(event: &Value) -> Frame {
    Frame {
        event: text(&event["type"]).to_owned(),
        data: Some(event.to_string()),
        id: Some(event["seq"].to_string()),
        fields: vec!["event".to_owned()],
        ..Frame::default()
    }
}

async fn post_at_random(job: Job, mut random: Random, appends: usize) {
    for n in 0..appends {
        let one = |random: &mut Random| match random.below(4) {
            0 => json!({"type": "progress", "data": {"percent": random.below(100)}}),
            1 => json!({"type": "log", "data": {"message": format!("{n}\r\n\r\nid: 0")}}),
            2 => json!({"type": "own", "data": {"n": n}}),
            _ => {
                json!({"type": "output", "data": {"text": "ü\n".repeat(random.below(5) as usize)}})
            }
        };
        let events: Vec<Value> = (0..random.below(5) + 1).map(|_| one(&mut random)).collect();
        match random.below(3) {
            0 => {
                let lines: String = events.iter().map(|event| format!("{event}\n")).collect();
                job.post("/events").ndjson(lines).send().await.expect(200);
            }
            _ => {
                job.append(Value::from(events)).await;
            }
        }
        random.pause(4).await;
    }
}

async fn every_reader_saw_exactly_the_stored_log(store: Store) {
    let server = store.serve(&["--stream-max-age-ms", "60000", "--ping-ms", "100"]).await;
    let mut random = Random::new();
    for _ in 0..2 {
        let job = server.tracked().await;
        let posters: Vec<_> = (0..3).map(|_| tokio::spawn(post_at_random(job.clone(), random.fork(), 100))).collect();
        let readers: Vec<_> = (0..10)
            .map(|_| {
                let (job, mut random) = (job.clone(), random.fork());
                tokio::spawn(async move {
                    let mut reader = Reader::default();
                    while reader.visit(&job, &mut random).await.is_continue() {
                        random.pause(20).await;
                    }
                    reader
                })
            })
            .collect();
        for poster in posters {
            poster.await.expect("a poster ends");
        }
        job.complete().await;
        let log = job.log().await;
        for reader in readers {
            assert_covers(&reader.await.expect("a reader ends").frames, &log, 0);
        }
    }
}

async fn transport_may_change_at_any_event(store: Store) {
    let job = store.shared().await.tracked().await;
    for n in 0..12 {
        job.output(&n.to_string()).await;
        job.note(&n.to_string()).await;
    }
    job.complete().await;
    let log = job.log().await;
    for cursor in 0..log.len() as u64 {
        let page = job.get(&format!("/events?after={cursor}&limit=3")).send().await.expect(200);
        let next = number(&page["next"]);
        let mut frames: Vec<Frame> = page["events"].as_array().expect("a list").iter().map(as_frame).collect();
        if next < log.len() as u64 {
            frames.extend(job.resume(next).await.rest().await);
        }
        assert_covers(&frames, &log, cursor);
    }
}
