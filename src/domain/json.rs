//! JSON as it comes in: read leniently where a failure must stay storable, compared as values, kept as text.

use std::ops::Deref;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use thiserror::Error;

/// A JSON value as its compact text, shared: written into the store, into frames and into pages as it stands.
#[derive(Clone, Debug)]
pub struct Json(Arc<RawValue>);

impl Json {
    /// From a value; serialising a [`Value`] cannot fail.
    pub fn from_value(value: &Value) -> Self {
        Self(serde_json::value::to_raw_value(value).expect("a Value has string keys only").into())
    }

    /// From a map, as an object.
    pub fn from_map(map: &Map<String, Value>) -> Self {
        Self(serde_json::value::to_raw_value(map).expect("a Map has string keys only").into())
    }

    /// From text that a store gives back. `None` if it is not JSON.
    pub fn from_text(text: String) -> Option<Self> {
        Some(Self(RawValue::from_string(text).ok()?.into()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// The object this text is; an empty one if it is something else.
    pub fn to_map(&self) -> Map<String, Value> {
        serde_json::from_str(self.as_str()).unwrap_or_default()
    }
}

impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.deref().serialize(serializer)
    }
}

/// Why bytes cannot be read.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ParseError {
    /// They are not JSON.
    #[error("{0}")]
    Syntax(String),
    /// They may be JSON, but nested so deeply that every function that walks it would be in danger.
    #[error("it is nested deeper than 127 levels")]
    TooDeep,
}

/// Reads a request body.
///
/// Lone surrogate escapes, which the usual reader refuses before any rule is reached, come out as U+0000, and so share
/// the rules for it: refused by name in what callers name, replaced by U+FFFD in what workers report.
pub fn parse_json(bytes: &[u8]) -> Result<Value, ParseError> {
    let replaced = replace_lone_surrogates(bytes);
    serde_json::from_slice(replaced.as_deref().unwrap_or(bytes)).map_err(|error| {
        let detail = error.to_string();
        match detail.starts_with("recursion limit exceeded") {
            true => ParseError::TooDeep,
            false => ParseError::Syntax(detail),
        }
    })
}

/// `\ud83d` without its other half becomes `\u0000`; `None` if there is nothing to replace.
fn replace_lone_surrogates(bytes: &[u8]) -> Option<Vec<u8>> {
    let unit = |at: usize| -> Option<u16> {
        let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let mut out: Option<Vec<u8>> = None;
    let mut at = 0;
    while let Some(found) = memchr::memchr(b'\\', &bytes[at..]) {
        at += found;
        at += match unit(at) {
            None => 2, // `\n`, `\\` …: the escaped byte must not be taken for the start of another escape.
            Some(0xD800..=0xDBFF) if matches!(unit(at + 6), Some(0xDC00..=0xDFFF)) => 12,
            Some(0xD800..=0xDFFF) => {
                out.get_or_insert_with(|| bytes.to_vec())[at..at + 6].copy_from_slice(b"\\u0000");
                6
            }
            Some(_) => 6,
        };
        if at >= bytes.len() {
            break;
        }
    }
    out
}

/// Replaces U+0000 by U+FFFD in every string and key, at any depth.
pub(super) fn replace_nuls(value: &mut Value) {
    match value {
        Value::String(text) if text.contains('\0') => *text = text.replace('\0', "\u{FFFD}"),
        Value::Array(items) => items.iter_mut().for_each(replace_nuls),
        Value::Object(map) => {
            map.values_mut().for_each(replace_nuls);
            if map.keys().any(|key| key.contains('\0')) {
                *map = std::mem::take(map)
                    .into_iter()
                    .map(|(key, value)| (key.replace('\0', "\u{FFFD}"), value))
                    .collect();
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The RFC 6901 pointer, below `at`, of the first string or key that holds U+0000.
pub(super) fn find_nul(value: &Value, at: &str) -> Option<String> {
    match value {
        Value::String(text) => text.contains('\0').then(|| at.to_owned()),
        Value::Array(items) => items.iter().enumerate().find_map(|(i, item)| find_nul(item, &format!("{at}/{i}"))),
        Value::Object(map) => map.iter().find_map(|(key, item)| {
            let below = format!("{at}/{}", escape_pointer(key));
            if key.contains('\0') { Some(below) } else { find_nul(item, &below) }
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

/// One token of an RFC 6901 pointer.
pub(super) fn escape_pointer(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// SHA-256 over a canonical form: two bodies have the same hash if they are equal as JSON values,
/// whatever their key order, white space, escapes and spelling of numbers (`1`, `1.0`, `1e0`).
pub fn body_hash(value: &Value) -> [u8; 32] {
    fn feed(hash: &mut Sha256, value: &Value) {
        match value {
            Value::Number(number) => hash.update(canonical_number(number).as_bytes()),
            Value::Array(items) => {
                hash.update(b"[");
                for item in items {
                    feed(hash, item);
                    hash.update(b",");
                }
                hash.update(b"]");
            }
            Value::Object(map) => {
                hash.update(b"{");
                let mut sorted: Vec<(&String, &Value)> = map.iter().collect();
                sorted.sort_unstable_by_key(|(key, _)| *key);
                for (key, item) in sorted {
                    feed(hash, &Value::String(key.clone()));
                    hash.update(b":");
                    feed(hash, item);
                    hash.update(b",");
                }
                hash.update(b"}");
            }
            Value::Null | Value::Bool(_) | Value::String(_) => hash.update(value.to_string().as_bytes()),
        }
    }
    let mut hash = Sha256::new();
    feed(&mut hash, value);
    hash.finalize().into()
}

/// Integers keep all their digits; everything else is compared as an IEEE double.
fn canonical_number(number: &serde_json::Number) -> String {
    let text = number.to_string();
    if text.bytes().all(|b| b.is_ascii_digit() || b == b'-') {
        return if text == "-0" { "0".to_owned() } else { text };
    }
    match text.parse::<f64>() {
        Ok(n) if n.fract() == 0.0 && n.abs() < 9e15 => (n as i64).to_string(),
        Ok(n) if n.is_finite() => n.to_string(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_lone_surrogate_reads_as_nul_and_a_pair_as_itself() {
        let read = |text: &str| parse_json(text.as_bytes());
        assert_eq!(read(r#""\ud83d\ude00""#), Ok(json!("😀")));
        assert_eq!(read(r#""a\ud83d""#), Ok(json!("a\0")));
        assert_eq!(read(r#""\ude00\ud83d!""#), Ok(json!("\0\0!")));
        assert_eq!(read(r#""\\ud83d""#), Ok(json!("\\ud83d")), "an escaped backslash starts no escape");
        assert_eq!(read(r#""\ud83d\ud83d\ude00""#), Ok(json!("\0😀")));
        assert!(read(r#""\ud83"#).is_err() && read("\"\\").is_err() && read("").is_err());
        assert!(parse_json(b"\"\xff\"").is_err(), "invalid UTF-8 is no JSON");
    }

    #[test]
    fn nuls_are_found_and_replaced_at_any_depth() {
        let mut value = json!({"a": [1, {"b/c": "x\0"}], "k\0": 1});
        assert_eq!(find_nul(&value, "/payload").as_deref(), Some("/payload/a/1/b~1c"));
        replace_nuls(&mut value);
        assert_eq!(value, json!({"a": [1, {"b/c": "x\u{FFFD}"}], "k\u{FFFD}": 1}));
        assert_eq!(find_nul(&value, ""), None);
    }

    #[test]
    fn bodies_equal_as_values_have_one_hash() {
        let hash = |text: &str| body_hash(&parse_json(text.as_bytes()).unwrap());
        assert_eq!(hash(r#"{"a":1,"b":[1.50,"é"]}"#), hash(r#" {"b" : [ 1.5, "\u00e9" ], "a" : 1.0e0 }"#));
        assert_ne!(hash(r#"{"a":1}"#), hash(r#"{"a":2}"#));
        assert_ne!(hash(r#"["1"]"#), hash("[1]"));
        assert_ne!(hash("[12345678901234567890]"), hash("[12345678901234567891]"));
    }
}
