//! An open event stream: bytes as they come, frames as the strict reader sees them.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use super::http::{Connection, Framing, Head};
use super::{Frame, PATIENCE, Parser, within};

pub struct Stream {
    pub head: Head,
    /// The whole body so far, chunk framing removed.
    pub raw: Vec<u8>,
    connection: Connection,
    framing: Framing,
    parser: Parser,
    waiting: VecDeque<Frame>,
    last_id: Option<u64>,
    after_reset: bool,
    is_feed: bool,
}

impl Stream {
    pub(super) fn new(connection: Connection, head: Head, method: &str) -> Self {
        let framing = Framing::of(&head, method);
        let (raw, waiting, parser) = (Vec::new(), VecDeque::new(), Parser::default());
        Self { head, raw, connection, framing, parser, waiting, last_id: None, after_reset: false, is_feed: false }
    }

    /// A feed's ids are cursors that only the gateway reads.
    pub fn of_feed(self) -> Self {
        Self { is_feed: true, ..self }
    }

    /// The next frame; `None` when the answer has ended cleanly, which must be between two frames.
    /// Every frame is held against section 3.1 on the way, ids must rise.
    pub async fn try_next(&mut self) -> io::Result<Option<Frame>> {
        while self.waiting.is_empty() {
            let Some(piece) = self.connection.read_body(&mut self.framing).await? else {
                assert!(!self.parser.inside_frame(), "the stream ended inside a frame: {}", self.tail());
                return Ok(None);
            };
            assert!(!piece.contains(&b'\r'), "a carriage return on the wire: {}", self.tail());
            self.raw.extend(&piece);
            self.waiting.extend(self.parser.feed(&piece));
        }
        let frame = self.waiting.pop_front().expect("a frame waits");
        self.judge(&frame);
        Ok(Some(frame))
    }

    fn judge(&mut self, frame: &Frame) {
        frame.assert_shape();
        if let Some(id) = frame.id.as_ref().filter(|_| self.is_feed) {
            let is_opaque = id.len() <= 64 && id.bytes().all(|byte| byte.is_ascii_graphic());
            assert!(is_opaque && ["state", "gone"].contains(&frame.kind().as_str()), "{frame:?}");
        } else if let Some(id) = &frame.id {
            let seq = id.parse::<u64>().unwrap_or_else(|_| panic!("an id that is no seq: {id:?}"));
            let backwards_is_right = std::mem::take(&mut self.after_reset);
            assert!(backwards_is_right || self.last_id.is_none_or(|last| last < seq), "ids fall: {}", self.tail());
            self.last_id = Some(seq);
        }
        self.after_reset |= frame.kind() == "reset";
    }

    pub async fn next_within(&mut self, limit: Duration) -> Option<Frame> {
        let next = tokio::time::timeout(limit, self.try_next()).await;
        let next = next.unwrap_or_else(|_| panic!("no frame within {limit:?} after {}", self.tail()));
        next.unwrap_or_else(|error| panic!("{error} after {}", self.tail()))
    }

    /// The next frame, which must come.
    pub async fn frame(&mut self) -> Frame {
        match self.next_within(PATIENCE).await {
            Some(frame) => frame,
            None => panic!("the stream ended after {}", self.tail()),
        }
    }

    /// The next frame that is not a ping.
    pub async fn told(&mut self) -> Frame {
        loop {
            let frame = self.frame().await;
            if frame.kind() != "ping" {
                return frame;
            }
        }
    }

    /// The next frame, which must be of this kind.
    pub async fn expect(&mut self, kind: &str) -> Frame {
        let frame = self.told().await;
        assert_eq!(frame.kind(), kind, "{}", self.tail());
        frame
    }

    /// All frames but pings up to and with the log entry of this seq.
    pub async fn until_seq(&mut self, seq: u64) -> Vec<Frame> {
        let mut frames = Vec::new();
        loop {
            let frame = self.told().await;
            let last = frame.is_log() && frame.seq() >= seq;
            frames.push(frame);
            if last {
                return frames;
            }
        }
    }

    /// All frames but pings to the clean end of the answer.
    pub async fn rest(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.next_within(PATIENCE).await {
            frames.extend((frame.kind() != "ping").then_some(frame));
        }
        frames
    }

    /// Nothing more comes for so long. For promises of silence only.
    pub async fn assert_silent(&mut self, time: Duration) {
        if let Ok(next) = tokio::time::timeout(time, self.try_next()).await {
            panic!("silence was promised, and there came {next:?}");
        }
    }

    /// Like `within`, for a test that holds many streams.
    pub async fn expect_end(&mut self) {
        let next = within(PATIENCE, "the end of the stream", self.try_next()).await;
        assert!(matches!(next, Ok(None)), "{next:?}");
    }

    fn tail(&self) -> String {
        let from = self.raw.len().saturating_sub(600);
        String::from_utf8_lossy(&self.raw[from..]).into_owned()
    }
}
