//! What a printed line becomes: an event that the program speaks itself, a log entry, or output.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;

/// How much of an event's data text may fill, encoded: the gateway takes 64 KiB, and the braces want room.
const MAX_ENCODED_TEXT: usize = 60_000;
/// How much of a refused line is told in the log entry that stands for it.
const MAX_REFUSED_TEXT: usize = 4_096;

/// One event on its way to the gateway, encoded as late as possible so that neighbouring output can be joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// An event in the program's own words.
    Said {
        /// Its type.
        event_type: String,
        /// The whole event, encoded.
        json: String,
    },
    /// A `log` event.
    Log {
        /// `info`, `warn` or `error`.
        level: &'static str,
        /// One line.
        message: String,
    },
    /// A piece of output.
    Output {
        /// The text.
        text: String,
        /// How long it is in JSON.
        encoded: usize,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    #[serde(rename = "type")]
    event_type: String,
    // Only skipped over: what is right in it is for the gateway to say, which reads more leniently than we could.
    #[serde(default, rename = "data")]
    _data: Option<IgnoredAny>,
}

impl Entry {
    /// The event that `line` is, if it is a JSON object with a string `type` and no key but `type` and `data`.
    #[must_use]
    pub fn said(line: &str) -> Option<Self> {
        let json = line.trim_matches([' ', '\t', '\r', '\n']);
        // serde reads a struct from an array, too.
        if !json.starts_with('{') {
            return None;
        }
        let said: Said = serde_json::from_str(json).ok()?;
        Some(Self::Said { event_type: said.event_type, json: json.to_owned() })
    }

    /// A piece of output.
    #[must_use]
    pub fn output(text: &str) -> Self {
        Self::Output { text: text.to_owned(), encoded: text.chars().map(encoded_char).sum() }
    }

    /// An event of our own.
    #[must_use]
    pub fn from_event(event: &serde_json::Value) -> Self {
        Self::Said { event_type: event["type"].as_str().unwrap_or_default().to_owned(), json: event.to_string() }
    }

    /// The log entry that stands for a refused event.
    #[must_use]
    pub fn refused(json: &str, why: &str) -> Self {
        let mut end = json.len().min(MAX_REFUSED_TEXT);
        while !json.is_char_boundary(end) {
            end -= 1;
        }
        let dots = if end < json.len() { "…" } else { "" };
        Self::Log { level: "warn", message: format!("event refused: {why}: {}{dots}", &json[..end]) }
    }

    /// The event's type.
    #[must_use]
    pub fn event_type(&self) -> &str {
        match self {
            Self::Said { event_type, .. } => event_type,
            Self::Log { .. } => "log",
            Self::Output { .. } => "output",
        }
    }

    /// Whether this ends the run: then it must wait for the program's exit.
    #[must_use]
    pub fn ends_run(&self) -> bool {
        matches!(self, Self::Said { event_type, .. }
            if matches!(event_type.as_str(), "completed" | "failed" | "cancelled" | "released"))
    }

    /// The event as the gateway takes it.
    #[must_use]
    pub fn encode(&self) -> String {
        match self {
            Self::Said { json, .. } => json.clone(),
            Self::Log { level, message } => {
                json!({"type": "log", "data": {"level": level, "message": message}}).to_string()
            }
            Self::Output { text, .. } => json!({"type": "output", "data": {"text": text}}).to_string(),
        }
    }

    /// About how much memory this holds.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let text = match self {
            Self::Said { json, .. } => json.len(),
            Self::Log { message, .. } => message.len(),
            Self::Output { text, .. } => text.len(),
        };
        text + 128
    }

    /// Takes `next` into this entry, if both are output and fit into one event.
    pub fn join(&mut self, next: Self) -> Result<(), Self> {
        match (self, next) {
            (Self::Output { text, encoded }, Self::Output { text: more, encoded: added })
                if *encoded + added <= MAX_ENCODED_TEXT =>
            {
                text.push_str(&more);
                *encoded += added;
                Ok(())
            }
            (_, next) => Err(next),
        }
    }
}

/// Cuts text so that each piece, encoded as JSON, fits into one event.
pub fn fitting(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    let mut first = true;
    std::iter::from_fn(move || {
        // Empty text is one empty piece: an empty line is a line.
        if rest.is_empty() && !std::mem::take(&mut first) {
            return None;
        }
        first = false;
        let mut used = 0;
        let end = rest
            .char_indices()
            .find(|(_, character)| {
                used += encoded_char(*character);
                used > MAX_ENCODED_TEXT
            })
            .map_or(rest.len(), |(at, _)| at);
        let (piece, later) = rest.split_at(end);
        rest = later;
        Some(piece)
    })
}

fn encoded_char(character: char) -> usize {
    match character {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..='\u{1f}' => 6,
        _ => character.len_utf8(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_with_type_and_data_alone_is_an_event() {
        for line in [
            r#"{"type":"progress","data":{"percent":4.50}}"#,
            r#"  {"data":null,"type":"x"}  "#,
            r#"{"type":"log"}"#,
            r#"{"type":"Not A Type","data":5}"#,
            r#"{"type":"log","data":{"message":"\ud800","n":1e999}}"#,
            "\t{\"type\":\"\"}\r\n",
        ] {
            let Some(Entry::Said { json, .. }) = Entry::said(line) else {
                panic!("{line} is an event");
            };
            assert_eq!(json, line.trim(), "it is passed on as it was printed");
        }
    }

    #[test]
    fn anything_else_is_text() {
        for line in [
            "",
            "hello",
            r#"{"type":"log","data":{},"level":"info"}"#,
            r#"{"type":5}"#,
            r#"{"type":null}"#,
            r#"{"data":{}}"#,
            "{}",
            r#"["log",{}]"#,
            r#"{"type":"log"} tail"#,
            r#"{"type":"log""#,
            r#"{"type":"log","type":"log"}"#,
            r#"{"type":"log","data":NaN}"#,
            r#""log""#,
        ] {
            assert_eq!(Entry::said(line), None, "{line}");
        }
    }

    #[test]
    fn text_is_cut_by_its_encoded_length() {
        for text in ["\u{1}".repeat(30_000), "x".repeat(130_000), "😀\"".repeat(20_000)] {
            let pieces: Vec<&str> = fitting(&text).collect();
            assert!(pieces.len() > 1);
            assert_eq!(pieces.concat(), text);
            for piece in pieces {
                let encoded = Entry::output(piece).encode();
                assert!(encoded.len() <= 60_100, "{}", encoded.len());
            }
        }
        assert_eq!(fitting("").collect::<Vec<_>>(), [""]);
        assert_eq!(fitting("short").collect::<Vec<_>>(), ["short"]);
    }

    #[test]
    fn output_is_joined_until_it_is_full() {
        let mut entry = Entry::output("a");
        assert_eq!(entry.join(Entry::output("b")), Ok(()));
        assert_eq!(entry, Entry::output("ab"));
        let full = Entry::output(&"x".repeat(60_000));
        assert_eq!(entry.join(full.clone()), Err(full));
        let log = Entry::Log { level: "info", message: String::new() };
        assert_eq!(entry.join(log.clone()), Err(log));
    }

    #[test]
    fn a_refused_line_is_told_but_not_in_full() {
        let Entry::Log { level, message } = Entry::refused(&"ä".repeat(5_000), "why") else {
            panic!("a log entry");
        };
        assert_eq!(level, "warn");
        assert!(message.starts_with("event refused: why: ää") && message.ends_with("ä…"));
        assert!(message.len() < 4_200);
    }
}
