//! A strict reader of event streams (WHATWG HTML 9.2.6), written for these tests alone: it shares no code and no
//! leniency with the client that ships.

use serde_json::Value;

/// One block of fields that a blank line has ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Frame {
    /// The event's name, `message` if the block names none.
    pub event: String,
    /// The data lines, joined by a newline; `None` if there was none, and then a browser dispatches nothing.
    pub data: Option<String>,
    /// The value of an `id:` line *of this block* (not the one that a browser remembers).
    pub id: Option<String>,
    /// The value of a `retry:` line of this block.
    pub retry: Option<u64>,
    /// The names of the fields in the order in which they came; a comment is `""`.
    pub fields: Vec<String>,
}

impl Frame {
    #[track_caller]
    pub fn json(&self) -> Value {
        let data = self.data.as_deref().expect("a frame has data");
        serde_json::from_str(data).unwrap_or_else(|error| panic!("{error} in {data:?}"))
    }

    /// The id as a seq.
    #[track_caller]
    pub fn seq(&self) -> u64 {
        self.id.as_deref().and_then(|id| id.parse().ok()).unwrap_or_else(|| panic!("no seq on {self:?}"))
    }

    /// Whether this is an entry of the log, not a word of the gateway's own.
    pub fn is_log(&self) -> bool {
        !matches!(self.kind().as_str(), "state" | "reset" | "ping" | "end" | "bye")
    }

    /// The type, wherever the stream carries it.
    pub fn kind(&self) -> String {
        match self.fields.iter().any(|field| field == "event") {
            true => self.event.clone(),
            false => self.json()["type"].as_str().unwrap_or("state").to_owned(),
        }
    }

    /// Section 3.1: optional `retry`, optional `id`, `event`, one line of data; nothing else.
    #[track_caller]
    pub fn assert_shape(&self) {
        let fields: Vec<&str> = self.fields.iter().map(String::as_str).collect();
        let mut rest = &fields[..];
        for optional in ["retry", "id", "event"] {
            rest = rest.strip_prefix(&[optional]).unwrap_or(rest);
        }
        assert_eq!(rest, ["data"], "fields of {self:?}");
        assert_ne!(self.id.as_deref(), Some(""), "an empty id clears the browser's cursor");
        let control_without_id = ["reset", "ping", "end", "bye"].contains(&self.kind().as_str());
        assert!(!(control_without_id && self.id.is_some()), "{} carries an id", self.event);
        self.json();
    }
}

/// Takes bytes in any cut and gives frames.
#[derive(Default)]
pub struct Parser {
    started: bool,
    after_cr: bool,
    line: Vec<u8>,
    frame: Frame,
    touched: bool,
}

impl Parser {
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<Frame> {
        let mut frames = Vec::new();
        for &byte in bytes {
            let line_feed_of_pair = std::mem::take(&mut self.after_cr) && byte == b'\n';
            match byte {
                b'\n' if line_feed_of_pair => {}
                b'\n' | b'\r' => {
                    self.after_cr = byte == b'\r';
                    let line = std::mem::take(&mut self.line);
                    frames.extend(self.end_line(&line));
                }
                other => self.line.push(other),
            }
        }
        frames
    }

    /// Whether a frame is under way: a stream that ends now ends in the middle of one.
    pub fn inside_frame(&self) -> bool {
        self.touched || !self.line.is_empty()
    }

    fn end_line(&mut self, line: &[u8]) -> Option<Frame> {
        let text = std::str::from_utf8(line).unwrap_or_else(|_| panic!("a line that is no UTF-8: {line:?}"));
        let text = match std::mem::replace(&mut self.started, true) {
            false => text.strip_prefix('\u{feff}').unwrap_or(text),
            true => text,
        };
        if text.is_empty() {
            let touched = std::mem::take(&mut self.touched);
            let mut frame = std::mem::take(&mut self.frame);
            if frame.event.is_empty() {
                frame.event = "message".to_owned();
            }
            return touched.then_some(frame);
        }
        self.touched = true;
        let (name, value) = text.split_once(':').unwrap_or((text, ""));
        self.field(name, value.strip_prefix(' ').unwrap_or(value));
        None
    }

    fn field(&mut self, name: &str, value: &str) {
        let frame = &mut self.frame;
        frame.fields.push(name.to_owned());
        match name {
            "event" => frame.event = value.to_owned(),
            "data" => match &mut frame.data {
                Some(data) => *data = format!("{data}\n{value}"),
                None => frame.data = Some(value.to_owned()),
            },
            "id" if !value.contains('\0') => frame.id = Some(value.to_owned()),
            "retry" if !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit()) => {
                frame.retry = value.parse().ok();
            }
            _ => {}
        }
    }
}

/// Cases of `tests/wire/frames.json`, which the web client's tests read too.
#[test]
fn golden_streams_parse_alike_in_every_cut_and_with_every_line_end() {
    let cases: Value = serde_json::from_str(include_str!("../../wire/frames.json")).expect("a list of cases");
    for case in cases.as_array().expect("a list of cases") {
        for line_end in ["\n", "\r", "\r\n"] {
            let raw = case["raw"].as_str().expect("raw is text").replace('\n', line_end).into_bytes();
            let mut parser = Parser::default();
            let whole = parser.feed(&raw);
            let mut parser = Parser::default();
            let single: Vec<Frame> = raw.iter().flat_map(|byte| parser.feed(&[*byte])).collect();
            assert_eq!(whole, single, "{}", case["name"]);
            assert_eq!(parser.inside_frame(), case["cut"] == true, "{}", case["name"]);
            let dispatched = whole.iter().filter(|frame| frame.data.is_some());
            let frames: Value = dispatched.map(plain).collect();
            assert_eq!(frames, case["frames"], "{}", case["name"]);
        }
    }
}

#[cfg(test)]
fn plain(frame: &Frame) -> Value {
    serde_json::json!({"event": frame.event, "data": frame.data, "id": frame.id, "retry": frame.retry})
}
