//! What may go to a person's terminal: text of a job is somebody else's, and a terminal obeys what it is sent.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::Write as _;

/// Says something of our own on stderr, safely. Nobody need be listening.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "milepost: {}", printable(text));
}

/// `text` with everything that a terminal could act on, or that reorders what is read, written out (`\x1b`,
/// `\u{202e}`). Line feeds and tabs stay.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_hostile) {
        return Cow::Borrowed(text);
    }
    let mut printable = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            '\r' => printable.push_str("\\r"),
            _ if !is_hostile(character) => printable.push(character),
            '\0'..='\u{ff}' => {
                let _ = write!(printable, "\\x{:02x}", u32::from(character));
            }
            _ => {
                let _ = write!(printable, "\\u{{{:x}}}", u32::from(character));
            }
        }
    }
    Cow::Owned(printable)
}

/// [`printable`], and on one line.
#[must_use]
pub fn one_line(text: &str) -> String {
    printable(text.trim()).replace('\n', " ⏎ ").replace('\t', " ")
}

/// Encoded JSON with the same characters escaped: still the same JSON, since they stand only inside strings.
#[must_use]
pub fn printable_json(json: &str) -> Cow<'_, str> {
    if !json.chars().any(is_hostile) {
        return Cow::Borrowed(json);
    }
    let mut printable = String::with_capacity(json.len() + 16);
    for character in json.chars() {
        if is_hostile(character) {
            // All of them are below U+10000, where one escape is enough.
            let _ = write!(printable, "\\u{:04x}", u32::from(character));
        } else {
            printable.push(character);
        }
    }
    Cow::Owned(printable)
}

fn is_hostile(character: char) -> bool {
    match character {
        '\n' | '\t' => false,
        // Marks and overrides of direction, and the invisible line ends.
        '\u{200e}' | '\u{200f}' | '\u{61c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        '\u{2028}' | '\u{2029}' | '\u{feff}' => true,
        other => other.is_control(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_goes_through() {
        assert_eq!(printable("plain ä € 😀\n\ttext"), "plain ä € 😀\n\ttext");
        assert_eq!(printable("\x1b]0;owned\x07 a\rb \u{9b}2J"), "\\x1b]0;owned\\x07 a\\rb \\x9b2J");
        assert_eq!(printable("user\u{202e}txt.exe\0\u{7f}"), "user\\u{202e}txt.exe\\x00\\x7f");
        assert_eq!(one_line("a\nb\x1b[1m "), "a ⏎ b\\x1b[1m");
    }

    #[test]
    fn escaped_json_is_the_same_json() {
        let value = serde_json::json!({"a\u{202e}": "\u{9b}2J \u{7f} \u{2028} \x1b ä"});
        let json = value.to_string();
        let printed = printable_json(&json);
        assert!(!printed.chars().any(is_hostile));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&printed).ok(), Some(value));
    }
}
