//! Reads an event stream as it arrives: WHATWG HTML 9.2.6, byte by byte, with nothing guessed.
//!
//! Bytes go in as the network cuts them, whole events come out. What the end of the stream leaves half-written is
//! never an event. Memory is bounded by [`MAX_EVENT_BYTES`].

use std::time::Duration;

/// More than one event may ever weigh: an opening `output` of 1 MiB, every character escaped, is 6 MiB.
pub const MAX_EVENT_BYTES: usize = 32 << 20;

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// One dispatched event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SseEvent {
    /// Its type; `message` when the stream named none.
    pub event: String,
    /// Its data lines, joined by LF.
    pub data: String,
}

/// The stream sent an event larger than [`MAX_EVENT_BYTES`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("an event of the stream is larger than {MAX_EVENT_BYTES} bytes")]
pub struct TooLarge;

/// The state of reading one stream.
#[derive(Debug, Default)]
pub struct SseParser {
    line: Vec<u8>,
    /// The last byte was a CR that ended a line: an LF right after it belongs to it.
    after_cr: bool,
    begun: bool,
    event: String,
    data: String,
    id: String,
    last_event_id: String,
    retry: Option<Duration>,
}

impl SseParser {
    /// A parser at the beginning of a stream, with the id that earlier streams left.
    #[must_use]
    pub fn resume(last_event_id: Option<&str>) -> Self {
        let id = last_event_id.unwrap_or("").to_owned();
        Self { last_event_id: id.clone(), id, ..Self::default() }
    }

    /// The id of the last event that was dispatched whole, if there is one to resume from.
    #[must_use]
    pub fn last_event_id(&self) -> Option<&str> {
        (!self.last_event_id.is_empty()).then_some(self.last_event_id.as_str())
    }

    /// The reconnection time, if a `retry:` line came since the last call.
    pub fn take_retry(&mut self) -> Option<Duration> {
        self.retry.take()
    }

    /// Whether the stream stands in the middle of an event: if it ends here, something is missing.
    #[must_use]
    pub fn is_inside_event(&self) -> bool {
        !self.line.is_empty() || !self.data.is_empty()
    }

    /// Takes the next bytes and adds the events that they complete to `events`, each with the id to resume from
    /// once it has been dealt with.
    ///
    /// # Errors
    /// [`TooLarge`]; the stream is of no use any more.
    pub fn feed(&mut self, mut bytes: &[u8], events: &mut Vec<(SseEvent, Option<String>)>) -> Result<(), TooLarge> {
        while !bytes.is_empty() {
            if std::mem::take(&mut self.after_cr) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let Some(end) = memchr::memchr2(b'\n', b'\r', bytes) else {
                self.line.extend_from_slice(bytes);
                return self.check_size();
            };
            self.line.extend_from_slice(&bytes[..end]);
            self.check_size()?;
            self.after_cr = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            if let Some(event) = self.end_line() {
                let id = self.last_event_id().map(str::to_owned);
                events.push((event, id));
            }
        }
        Ok(())
    }

    fn check_size(&self) -> Result<(), TooLarge> {
        if self.line.len() + self.data.len() > MAX_EVENT_BYTES {
            return Err(TooLarge);
        }
        Ok(())
    }

    fn end_line(&mut self) -> Option<SseEvent> {
        let mut line = std::mem::take(&mut self.line);
        if !std::mem::replace(&mut self.begun, true) && line.starts_with(BYTE_ORDER_MARK) {
            line.drain(..BYTE_ORDER_MARK.len());
        }
        if line.is_empty() {
            return self.dispatch();
        }
        // Line ends are ASCII, so decoding line by line equals decoding the whole stream.
        let text = String::from_utf8_lossy(&line);
        let (field, value) = match text.split_once(':') {
            Some((field, value)) => (field, value.strip_prefix(' ').unwrap_or(value)),
            None => (text.as_ref(), ""),
        };
        match field {
            "event" => self.event = value.to_owned(),
            "data" => {
                self.data.push_str(value);
                self.data.push('\n');
            }
            "id" if !value.contains('\0') => self.id = value.to_owned(),
            "retry" if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) => {
                self.retry = value.parse().ok().map(Duration::from_millis);
            }
            // Comments, an id with NUL, anything unknown.
            _ => {}
        }
        // Give the room back to the next line.
        line.clear();
        self.line = line;
        None
    }

    fn dispatch(&mut self) -> Option<SseEvent> {
        self.last_event_id.clone_from(&self.id);
        let mut data = std::mem::take(&mut self.data);
        let event = std::mem::take(&mut self.event);
        if data.is_empty() {
            return None;
        }
        data.pop();
        Some(SseEvent { event: if event.is_empty() { "message".to_owned() } else { event }, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Read = Vec<(String, String, Option<String>)>;

    fn read(pieces: &[&[u8]]) -> (Read, SseParser) {
        let mut parser = SseParser::default();
        let mut events = Vec::new();
        for piece in pieces {
            parser.feed(piece, &mut events).expect("small events");
        }
        let read = events.into_iter().map(|(event, id)| (event.event, event.data, id)).collect();
        (read, parser)
    }

    fn event(event: &str, data: &str, id: Option<&str>) -> (String, String, Option<String>) {
        (event.to_owned(), data.to_owned(), id.map(str::to_owned))
    }

    const HOSTILE: &[u8] = b"\xEF\xBB\xBFretry: 1500\r\nid: 7\r\nevent: progress\r\ndata: {\"a\":1}\r\n\r\n\
        : comment\n\ndata: a\rdata:b\r\rdata\n\nid\ndata:  two spaces\n\nid: 9\0\nid: 8\ndata: \xE2\x82\xAC\xFF\n\n\
        event: ignored\n\ndata: after\nretry: 1e3\nunknown: x\n\nid: 99\ndata: half";

    fn expected() -> Read {
        vec![
            event("progress", "{\"a\":1}", Some("7")),
            event("message", "a\nb", Some("7")),
            event("message", "", Some("7")),
            event("message", " two spaces", None),
            event("message", "€\u{FFFD}", Some("8")),
            event("message", "after", Some("8")),
        ]
    }

    #[test]
    fn the_whole_grammar_is_read() {
        let (events, mut parser) = read(&[HOSTILE]);
        assert_eq!(events, expected());
        assert_eq!(parser.take_retry(), Some(Duration::from_millis(1500)));
        assert_eq!(parser.last_event_id(), Some("8"), "a half-written event moves no cursor");
    }

    #[test]
    fn a_stream_cut_at_every_byte_reads_the_same() {
        for cut in 0..=HOSTILE.len() {
            let (events, _) = read(&[&HOSTILE[..cut], &HOSTILE[cut..]]);
            assert_eq!(events, expected(), "cut at byte {cut}");
        }
        let single: Vec<&[u8]> = HOSTILE.chunks(1).collect();
        assert_eq!(read(&single).0, expected(), "byte by byte");
    }

    #[test]
    fn an_id_counts_once_its_event_is_whole() {
        let (events, parser) = read(&[b"id: 5\ndata: x\n"]);
        assert_eq!(events, []);
        assert_eq!(parser.last_event_id(), None);
    }

    #[test]
    fn an_event_without_an_id_keeps_the_last_one() {
        let (events, _) = read(&[b"id: 5\ndata: x\n\nevent: ping\ndata: {}\n\n"]);
        assert_eq!(events[1], event("ping", "{}", Some("5")));
    }

    #[test]
    fn an_endless_event_is_refused() {
        let mut parser = SseParser::default();
        let mut events = Vec::new();
        let piece = vec![b'x'; 1 << 20];
        let fed = (0..40).try_for_each(|_| parser.feed(&piece, &mut events));
        assert_eq!(fed, Err(TooLarge));
    }
}
