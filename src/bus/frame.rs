//! SSE frames: encoded once per event, shared by all who read it.
//!
//! ```text
//! id: 8
//! event: progress
//! data: {"seq":8,"type":"progress",…}
//!
//! ```
//! JSON escapes CR and LF within strings, so one `data:` line always suffices and no text can forge a frame
//! (WHATWG HTML 9.2.6).

use std::fmt::Write;

use bytes::{BufMut, Bytes, BytesMut};
use serde::Serialize;
use serde_json::Value;

use crate::domain::Event;

/// One event, encoded.
#[derive(Debug)]
pub struct Frame {
    /// Its seq, which is the frame's id.
    pub seq: u64,
    /// The event itself, for pages.
    pub event: Event,
    bytes: Bytes,
    /// Where the `event:` line begins and ends: `?unnamed=1` leaves it out, without another encoding.
    name_line: std::ops::Range<usize>,
}

impl Frame {
    /// Encodes an event.
    pub fn of(event: &Event) -> Self {
        let mut bytes = BytesMut::with_capacity(160 + event.data.as_str().len());
        let name_line = write_log_frame(&mut bytes, event.seq, event.kind.as_str(), event);
        Self { seq: event.seq, event: event.clone(), bytes: bytes.freeze(), name_line }
    }

    /// Bytes that this frame keeps alive.
    pub(super) fn size(&self) -> usize {
        self.bytes.len() + self.event.data.as_str().len()
    }

    pub(super) fn write_to(&self, out: &mut BytesMut, unnamed: bool) {
        if unnamed {
            out.extend_from_slice(&self.bytes[..self.name_line.start]);
            out.extend_from_slice(&self.bytes[self.name_line.end..]);
        } else {
            out.extend_from_slice(&self.bytes);
        }
    }
}

/// Writes one frame with an id; returns where its `event:` line stands.
fn write_log_frame(out: &mut BytesMut, id: u64, name: &str, data: &impl Serialize) -> std::ops::Range<usize> {
    let write_id = writeln!(out, "id: {id}");
    write_id.expect("memory takes all");
    let start = out.len();
    writeln!(out, "event: {name}").expect("memory takes all");
    let name_line = start..out.len();
    out.extend_from_slice(b"data: ");
    serde_json::to_writer(out.writer(), data).expect("our types have string keys only");
    out.extend_from_slice(b"\n\n");
    name_line
}

/// Encodes a stretch of a log that was read from the store.
pub fn encode_replay(events: &[Event], unnamed: bool) -> Bytes {
    let mut out = BytesMut::new();
    for event in events {
        Frame::of(event).write_to(&mut out, unnamed);
    }
    out.freeze()
}

/// A control frame: not of the log, and without an id unless it says so.
pub struct Control<'a> {
    /// The event's name.
    pub name: &'a str,
    /// Its id line: a seq, or the cursor of a feed.
    pub id: Option<String>,
    /// Its `retry:` line, in milliseconds.
    pub retry_ms: Option<u64>,
}

impl<'a> Control<'a> {
    /// A frame without id and `retry:`.
    pub fn named(name: &'a str) -> Self {
        Self { name, id: None, retry_ms: None }
    }

    /// Encodes the frame. Unnamed, its data says what it is.
    pub fn encode(&self, data: &(impl Serialize + ?Sized), unnamed: bool) -> Bytes {
        let mut out = BytesMut::new();
        if let Some(ms) = self.retry_ms {
            writeln!(out, "retry: {ms}").expect("memory takes all");
        }
        if let Some(id) = &self.id {
            writeln!(out, "id: {id}").expect("memory takes all");
        }
        if unnamed {
            let mut data = serde_json::to_value(data).expect("our types have string keys only");
            if let Value::Object(map) = &mut data {
                map.entry("type").or_insert_with(|| self.name.into());
            }
            writeln!(out, "data: {data}\n").expect("memory takes all");
        } else {
            write!(out, "event: {}\ndata: ", self.name).expect("memory takes all");
            serde_json::to_writer((&mut out).writer(), data).expect("our types have string keys only");
            out.extend_from_slice(b"\n\n");
        }
        out.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{EventType, Json, Timestamp};
    use serde_json::json;

    fn output(seq: u64, offset: u64, text: &str) -> Event {
        let data = Json::from_value(&json!({"text": text, "offset": offset}));
        Event { seq, kind: EventType::Output, at: Timestamp::from_millis(seq as i64), attempt: 1, data }
    }

    #[test]
    fn text_cannot_forge_a_frame_and_unnamed_leaves_one_line_out() {
        let frame = Frame::of(&output(8, 0, "a\r\n\r\ndata: x\u{2028}\nid: 9\n"));
        let (mut named, mut unnamed) = (BytesMut::new(), BytesMut::new());
        frame.write_to(&mut named, false);
        frame.write_to(&mut unnamed, true);
        let named = String::from_utf8(named.to_vec()).unwrap();
        assert_eq!(named.lines().count(), 4);
        assert!(named.starts_with(
            "id: 8\nevent: output\ndata: {\"seq\":8,\"type\":\"output\",\"at\":\"1970-01-01T00:00:00.008Z\""
        ));
        assert_eq!(named.replace("event: output\n", "").as_bytes(), &unnamed[..]);
    }

    #[test]
    fn a_control_frame_has_only_the_lines_it_was_given() {
        let bye = Control { retry_ms: Some(7), ..Control::named("bye") };
        assert_eq!(
            &bye.encode(&json!({"reason": "rotate"}), false)[..],
            b"retry: 7\nevent: bye\ndata: {\"reason\":\"rotate\"}\n\n"
        );
        assert_eq!(
            &Control::named("ping").encode(&json!({"seq": 1}), true)[..],
            b"data: {\"seq\":1,\"type\":\"ping\"}\n\n"
        );
    }
}
