//! One job's stream for as long as it takes: the state first, then every event once, in order, to the end.
//!
//! A connection may break at any byte, be rotated by the gateway (`bye`), or fall silent behind a dead proxy; the
//! follower comes back with `Last-Event-ID` after a jittered delay and goes on where it stood. It holds the log's
//! order itself: what it has seen is dropped, and a jump in `seq` is a fault of the stream, answered by asking again.
//! It ends with [`Update::Ended`] or with an error that waiting cannot mend (401, 403, 404 …).

use std::time::Duration;

use async_stream::try_stream;
use futures_util::Stream;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Response, StatusCode};
use serde_json::Value;
use tokio::time::Instant;

use super::sse::{SseEvent, SseParser};
use super::{Backoff, Client, ClientError, Problem};

const MAX_RETRY: Duration = Duration::from_secs(30);
/// A connection that lived this long was a good one: what comes after it is a new trouble, not more of the old.
const STABLE: Duration = Duration::from_secs(5);

/// What a follower has to tell.
#[derive(Clone, Debug, PartialEq)]
pub enum Update {
    /// A stream is open.
    Connected,
    /// No stream is open; the next try is `delay` away.
    Waiting {
        /// Until the next try.
        delay: Duration,
        /// What ended the last connection, for people.
        reason: String,
        /// The gateway announced this end; nothing is wrong.
        planned: bool,
    },
    /// The whole state document: whatever was known before is replaced by it.
    State(Value),
    /// An event of the log, or the opening `output` (which has no `seq`).
    Event(Value),
    /// The log could not be resumed where it was left; a [`Update::State`] follows.
    Reset {
        /// The gateway's reason.
        reason: String,
    },
    /// The job is over, in this state (`deleted` too), and everything of it has been told.
    Ended {
        /// The last state.
        state: String,
    },
}

/// Where to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// With the state as it is now.
    State,
    /// With the first event of the log (with the state if that is too far behind).
    Log,
}

/// The follower's clocks.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// How long a first stream is tried for. Later there is no limit.
    pub patience: Duration,
    /// The base of the delays until a stream says `retry:`.
    pub first_retry: Duration,
    /// The gateway pings after 15 ± 2 s of silence: two missed pings and the connection is dead.
    pub watchdog: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(10),
            first_retry: Duration::from_secs(1),
            watchdog: Duration::from_secs(35),
        }
    }
}

/// Follows `job` to its end. Until a first stream has opened, gives up after [`Pace::patience`]; later it never does.
///
/// # Errors
/// The stream's last item: [`ClientError::Refused`] for what will not pass, [`ClientError::GaveUp`].
pub fn follow(
    client: Client,
    job: String,
    begin: Begin,
    pace: Pace,
) -> impl Stream<Item = Result<Update, ClientError>> {
    try_stream! {
        let mut position = Position::at(begin);
        let mut backoff = Backoff::new(pace.first_retry, MAX_RETRY);
        let begun = Instant::now();
        let mut ever_connected = false;
        loop {
            let lost = match open(&client, &job, position.cursor.as_deref()).await {
                Ok(Opened::Nothing) => {
                    if let Some(state) = position.terminal.take() {
                        yield Update::Ended { state };
                        return;
                    }
                    // The end came in words that we have not seen.
                    match client.state(&job).await {
                        Ok(document) => {
                            let state = text(&document, "state");
                            yield Update::State(document);
                            yield Update::Ended { state };
                            return;
                        }
                        Err(error) => Lost::by(error)?,
                    }
                }
                Ok(Opened::Stream(mut response)) => {
                    ever_connected = true;
                    yield Update::Connected;
                    let since = Instant::now();
                    let mut parser = SseParser::resume(position.cursor.as_deref());
                    let mut events = Vec::new();
                    let lost = 'connection: loop {
                        if let Err(reason) = read_some(&mut response, &mut parser, &mut events, pace.watchdog).await {
                            break 'connection Lost::broken(reason);
                        }
                        if let Some(retry) = parser.take_retry() {
                            backoff.set_base(retry);
                        }
                        for (event, id) in events.drain(..) {
                            match position.take(event, id) {
                                Step::Tell(update) => yield update,
                                Step::Nothing => {}
                                Step::Lost(lost) => break 'connection lost,
                                Step::End(state) => {
                                    yield Update::Ended { state };
                                    return;
                                }
                            }
                        }
                    };
                    if since.elapsed() >= STABLE {
                        backoff.reset();
                    }
                    lost
                }
                Err(error) => Lost::by(error)?,
            };
            if !ever_connected && begun.elapsed() >= pace.patience {
                Err(ClientError::GaveUp { after: pace.patience, reason: lost.reason.clone() })?;
            }
            let mut delay = if lost.planned {
                // The gateway has drawn this number for us alone.
                backoff.reset();
                backoff.ceiling()
            } else {
                backoff.next_delay(lost.retry_after)
            };
            if !ever_connected {
                delay = delay.min(pace.patience.saturating_sub(begun.elapsed()));
            }
            yield Update::Waiting { delay, reason: lost.reason, planned: lost.planned };
            tokio::time::sleep(delay).await;
        }
    }
}

/// Why a connection is over.
struct Lost {
    reason: String,
    retry_after: Option<Duration>,
    planned: bool,
}

impl Lost {
    /// What passes ends a connection; anything else ends the following.
    fn by(error: ClientError) -> Result<Self, ClientError> {
        if !error.is_passing() {
            return Err(error);
        }
        Ok(Self { reason: error.to_string(), retry_after: error.retry_after(), planned: false })
    }

    fn broken(reason: String) -> Self {
        Self { reason, retry_after: None, planned: false }
    }
}

enum Opened {
    Stream(Response),
    /// 204: the job is over and the cursor is at its end.
    Nothing,
}

async fn open(client: &Client, job: &str, cursor: Option<&str>) -> Result<Opened, ClientError> {
    let response = client.open_stream(job, cursor).await?;
    match response.status() {
        StatusCode::NO_CONTENT => Ok(Opened::Nothing),
        StatusCode::OK => {
            let content_type = response.headers().get(CONTENT_TYPE);
            let content_type = content_type.and_then(|v| v.to_str().ok()).unwrap_or("");
            // Parameters are not ours, but a proxy may add them.
            let essence = content_type.split(';').next().unwrap_or("").trim();
            if essence.eq_ignore_ascii_case("text/event-stream") {
                return Ok(Opened::Stream(response));
            }
            Err(client.not_a_gateway(&format!("the stream has the type {content_type:?}")))
        }
        _ => {
            let problem = Problem::begin(&response);
            let body = tokio::time::timeout(Duration::from_secs(5), response.bytes()).await;
            let body = body.ok().and_then(Result::ok).unwrap_or_default();
            Err(ClientError::Refused(Box::new(problem.with_body(&body))))
        }
    }
}

/// Waits for bytes and parses them; `Err` is the end of the connection, in words.
async fn read_some(
    response: &mut Response,
    parser: &mut SseParser,
    events: &mut Vec<(SseEvent, Option<String>)>,
    watchdog: Duration,
) -> Result<(), String> {
    match tokio::time::timeout(watchdog, response.chunk()).await {
        Ok(Ok(Some(bytes))) => parser.feed(&bytes, events).map_err(|e| e.to_string()),
        // The end of a stream is not the end of the job: only `end` and 204 say that.
        Ok(Ok(None)) => Err("the connection was closed".to_owned()),
        Ok(Err(error)) => Err(super::error::chain(&error)),
        Err(_) => Err(format!("nothing heard for {} s", watchdog.as_secs())),
    }
}

/// Where the follower stands in the log.
#[derive(Debug, Default)]
struct Position {
    /// What to resume from, as the stream gave it.
    cursor: Option<String>,
    /// The newest seq that has been told.
    seq: Option<u64>,
    /// The state that the log has ended in, once it has.
    terminal: Option<String>,
}

enum Step {
    Tell(Update),
    Nothing,
    Lost(Lost),
    End(String),
}

impl Position {
    fn at(begin: Begin) -> Self {
        let log = begin == Begin::Log;
        Self { cursor: log.then(|| "0".to_owned()), seq: log.then_some(0), terminal: None }
    }

    fn take(&mut self, event: SseEvent, id: Option<String>) -> Step {
        let Ok(data) = serde_json::from_str::<Value>(&event.data) else {
            return Step::Lost(Lost::broken("the stream sent something unreadable".to_owned()));
        };
        let step = match event.event.as_str() {
            "ping" => Step::Nothing,
            "state" => {
                self.seq = data["seq"].as_u64();
                self.note_end(data["state"].as_str(), data["terminal"].as_bool() == Some(true));
                Step::Tell(Update::State(data))
            }
            "reset" => {
                self.seq = None;
                Step::Tell(Update::Reset { reason: text(&data, "reason") })
            }
            "end" => Step::End(text(&data, "state")),
            "bye" => {
                self.cursor = id;
                return Step::Lost(Lost { reason: text(&data, "reason"), retry_after: None, planned: true });
            }
            _ => self.take_logged(data),
        };
        // A jump must be asked for again from where we stand, not from behind it.
        if !matches!(step, Step::Lost(_)) {
            self.cursor = id;
        }
        step
    }

    fn take_logged(&mut self, data: Value) -> Step {
        let Some(seq) = data["seq"].as_u64() else {
            // The opening output is the state's, not the log's.
            return Step::Tell(Update::Event(data));
        };
        let first = data["from_seq"].as_u64().unwrap_or(seq);
        if let Some(seen) = self.seq {
            if seq <= seen {
                return Step::Nothing;
            }
            if first > seen + 1 {
                self.cursor = Some(seen.to_string());
                return Step::Lost(Lost::broken(format!("events {}–{} are missing", seen + 1, first - 1)));
            }
        }
        self.seq = Some(seq);
        match data["type"].as_str() {
            Some(state @ ("completed" | "failed" | "cancelled" | "expired")) => {
                self.note_end(Some(state), true);
            }
            Some("requeued") => self.terminal = None,
            _ => {}
        }
        Step::Tell(Update::Event(data))
    }

    fn note_end(&mut self, state: Option<&str>, terminal: bool) {
        self.terminal = state.filter(|_| terminal).map(str::to_owned);
    }
}

fn text(data: &Value, key: &str) -> String {
    data[key].as_str().unwrap_or("").to_owned()
}

#[cfg(test)]
mod tests;
