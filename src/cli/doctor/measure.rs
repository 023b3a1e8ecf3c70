//! What is seen of two jobs from here: their streams, a long-poll, plain GETs.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::remedy::Intermediary;
use crate::client::probe::Probe;
use crate::client::sse::SseParser;
use crate::client::{Client, ClientError};

const EVERY: Duration = Duration::from_secs(1);
/// What is held back until the end is seen then.
const AFTERMATH: Duration = Duration::from_secs(3);
/// A stream has a first frame at once; this is how long the client module waits for it.
pub const FIRST_FRAME: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(10);
/// What a browser says that it can read.
const CODINGS: (&str, &str) = ("Accept-Encoding", "gzip, deflate, br, zstd");
const STREAM: (&str, &str) = ("Accept", "text/event-stream");
/// What a new tracked job's log holds: `queued`, `started`.
const FRESH_SEQ: u64 = 2;

/// Everything that was seen.
#[derive(Debug, Default)]
pub struct Measured {
    pub version: String,
    pub intermediary: Intermediary,
    pub busy: Stream,
    pub quiet: Stream,
    pub sent: Sent,
    pub cursor: Cursor,
    pub long_poll: LongPoll,
    pub poll: Poll,
    /// How long the streams were watched.
    pub time: Duration,
    /// Why an append with our own `Origin` was refused.
    pub page_refused: Option<String>,
}

/// What became of a stream. Instants are of the whole measurement.
#[derive(Debug, Default)]
pub struct Stream {
    pub opened: Option<Instant>,
    pub status: Option<u16>,
    pub media_type: String,
    pub coding: Option<String>,
    pub first_byte: Option<Instant>,
    pub chunks: Vec<Instant>,
    /// Seqs, and when each was seen.
    pub shown: Vec<(u64, Instant)>,
    /// When and how it ended; `None` while it was open to the last.
    pub end: Option<End>,
}

#[derive(Debug)]
pub struct End {
    pub after: Duration,
    pub how: String,
    /// The gateway said so.
    pub planned: bool,
}

/// What was appended.
#[derive(Debug, Default)]
pub struct Sent {
    /// Seqs, and when each was sent.
    pub events: Vec<(u64, Instant)>,
    pub failed: Option<String>,
    /// When the end of the busy job was sent.
    pub finished: Option<Instant>,
}

/// What a stream that resumes with `Last-Event-ID` began with.
#[derive(Debug, Default, PartialEq, Eq)]
pub enum Cursor {
    Honoured,
    /// With the state: the header did not arrive.
    Lost,
    #[default]
    Unknown,
}

#[derive(Debug, Default)]
pub struct LongPoll {
    pub asked: Duration,
    pub took: Duration,
    pub status: Option<u16>,
    /// Whether it was a page of the log.
    pub is_page: bool,
    pub reason: Option<String>,
}

#[derive(Debug, Default)]
pub struct Poll {
    pub status: Option<u16>,
    pub etag: Option<String>,
    pub vary: String,
    /// Whether the validator was answered with 304.
    pub revalidates: bool,
    /// What a GET after the last append said that the seq is, if it is older.
    pub stale_seq: Option<u64>,
}

/// Looks at everything at once, for `time`.
pub async fn all(client: &Client, busy: &str, quiet: &str, time: Duration) -> Measured {
    let mut measured = Measured { time, ..Measured::default() };
    let path = format!("v1/jobs/{quiet}");
    if let Ok(answer) = client.probe(&path, &[CODINGS], ANSWER).await {
        measured.version = answer.version();
        measured.intermediary = Intermediary::of(&answer);
        measured.poll = poll(client, &path, &answer).await;
    }
    let until = Instant::now() + time;
    // The busy stream is watched beyond the end of its job: whoever keeps it back lets it go then.
    let (busy_stream, sent, quiet_stream, long_poll, cursor) = tokio::join!(
        stream(client, busy, until + AFTERMATH),
        send(client, busy, until),
        stream(client, quiet, until),
        long_poll(client, quiet, time),
        cursor(client, quiet),
    );
    measured.poll.stale_seq = stale_seq(client, busy, &sent).await;
    // An empty append stores nothing.
    if let Err(ClientError::Refused(problem)) = client.append_as_page(quiet, "[]".to_owned()).await {
        measured.page_refused = Some(problem.to_string());
    }
    Measured { busy: busy_stream, quiet: quiet_stream, sent, long_poll, cursor, ..measured }
}

async fn poll(client: &Client, path: &str, answer: &Probe) -> Poll {
    let mut poll = Poll {
        status: Some(answer.status()),
        etag: answer.header("etag"),
        vary: answer.header("vary").unwrap_or_default().to_ascii_lowercase(),
        ..Poll::default()
    };
    if let Some(etag) = &poll.etag {
        let again = client.probe(path, &[CODINGS, ("If-None-Match", etag)], ANSWER).await;
        poll.revalidates = again.is_ok_and(|again| again.status() == 304);
    }
    poll
}

/// One event each second, then the end.
async fn send(client: &Client, job: &str, until: Instant) -> Sent {
    let mut sent = Sent::default();
    let mut due = Instant::now() + EVERY / 2;
    while due < until {
        sleep_until(due).await;
        due += EVERY;
        let at = Instant::now();
        // Text that any coding would like to gather more of.
        let event = json!({"type": "log", "data": {"message": format!("event {}", sent.events.len() + 1)}});
        match client.append(job, None, event.to_string(), None).await {
            Ok(appended) => sent.events.push((appended.seq, at)),
            Err(error) => sent.failed = Some(error.to_string()),
        }
    }
    sleep_until(until).await;
    sent.finished = Some(Instant::now());
    if let Err(error) = client.append(job, None, json!({"type": "completed"}).to_string(), None).await {
        sent.failed = Some(error.to_string());
    }
    sent
}

async fn stream(client: &Client, job: &str, until: Instant) -> Stream {
    let begun = Instant::now();
    let mut seen = Stream { opened: Some(begun), ..Stream::default() };
    let path = format!("v1/jobs/{job}/events?unnamed=1");
    let end = |how: String, planned| Some(End { after: begun.elapsed(), how, planned });
    let mut answer = match client.probe(&path, &[STREAM, CODINGS], until - begun).await {
        Ok(answer) => answer,
        Err(error) => {
            // With the time over nothing has ended: its head was kept back.
            seen.end = end(error.to_string(), false).filter(|_| Instant::now() < until);
            return seen;
        }
    };
    seen.status = Some(answer.status());
    seen.media_type = answer.header("content-type").unwrap_or_default();
    seen.coding = answer.header("content-encoding").filter(|coding| !coding.eq_ignore_ascii_case("identity"));
    let mut parser = SseParser::default();
    let mut events = Vec::new();
    let mut planned = false;
    loop {
        match timeout_at(until, answer.chunk()).await {
            Err(_) => return seen,
            Ok(Ok(Some(bytes))) => {
                let now = Instant::now();
                seen.first_byte.get_or_insert(now);
                seen.chunks.push(now);
                if seen.coding.is_some() || parser.feed(&bytes, &mut events).is_err() {
                    continue;
                }
                for (event, _) in events.drain(..) {
                    let frame: Value = serde_json::from_str(&event.data).unwrap_or_default();
                    planned |= matches!(frame["type"].as_str(), Some("bye" | "end"));
                    if let Some(seq) = frame["seq"].as_u64().filter(|_| frame["type"] != "ping") {
                        seen.shown.push((seq, now));
                    }
                }
            }
            Ok(Ok(None)) => {
                seen.end = end("it was closed".to_owned(), planned);
                return seen;
            }
            Ok(Err(reason)) => {
                seen.end = end(reason, planned);
                return seen;
            }
        }
    }
}

/// Resumes behind the first event of a log of two.
async fn cursor(client: &Client, job: &str) -> Cursor {
    let until = Instant::now() + FIRST_FRAME;
    let path = format!("v1/jobs/{job}/events?unnamed=1");
    let Ok(mut answer) = client.probe(&path, &[STREAM, ("Last-Event-ID", "1")], FIRST_FRAME).await else {
        return Cursor::Unknown;
    };
    let mut parser = SseParser::default();
    let mut events = Vec::new();
    while let Ok(Ok(Some(bytes))) = timeout_at(until, answer.chunk()).await {
        if parser.feed(&bytes, &mut events).is_err() {
            break;
        }
        for (event, _) in events.drain(..) {
            let frame: Value = serde_json::from_str(&event.data).unwrap_or_default();
            match (frame["type"].as_str(), frame["seq"].as_u64()) {
                (Some("state" | "reset"), _) => return Cursor::Lost,
                (Some("started"), Some(FRESH_SEQ)) => return Cursor::Honoured,
                _ => {}
            }
        }
    }
    Cursor::Unknown
}

async fn long_poll(client: &Client, job: &str, time: Duration) -> LongPoll {
    let asked = Duration::from_secs(time.as_secs().min(25));
    let path = format!("v1/jobs/{job}/events?after={FRESH_SEQ}&wait={}", asked.as_secs());
    let begun = Instant::now();
    let mut poll = LongPoll { asked, ..LongPoll::default() };
    match client.probe(&path, &[("Accept", "application/json")], asked + ANSWER).await {
        Ok(answer) => {
            poll.status = Some(answer.status());
            poll.is_page = answer.json().await.is_some_and(|page| page["events"].is_array());
        }
        Err(error) => poll.reason = Some(error.to_string()),
    }
    poll.took = begun.elapsed();
    poll
}

async fn stale_seq(client: &Client, job: &str, sent: &Sent) -> Option<u64> {
    let (last, _) = sent.events.last()?;
    let seq = client.state(job).await.ok()?["seq"].as_u64()?;
    (seq < *last).then_some(seq)
}
