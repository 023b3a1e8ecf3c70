//! Takes a JSON object apart, field by field, and names the field that is wrong.

use serde_json::{Map, Value};

use super::json::escape_pointer;
use super::{Refusal, Timestamp};

/// The fields of an object not yet taken. `null` counts as left out, except where a method says otherwise.
pub(super) struct Fields<'a> {
    map: Map<String, Value>,
    at: &'a str,
}

impl<'a> Fields<'a> {
    /// The fields of `value`, whose place in the body is the pointer `at`.
    pub fn of(value: Value, at: &'a str) -> Result<Self, Refusal> {
        match value {
            Value::Object(map) => Ok(Self { map, at }),
            _ => Err(Refusal::invalid(at, "must be a JSON object")),
        }
    }

    pub fn pointer(&self, name: &str) -> String {
        format!("{}/{}", self.at, escape_pointer(name))
    }

    pub fn wrong<T>(&self, name: &str, detail: impl Into<String>) -> Result<T, Refusal> {
        Err(Refusal::invalid(self.pointer(name), detail))
    }

    /// The field as it is; `None` if absent or `null`.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name).filter(|value| !value.is_null())
    }

    pub fn string(&mut self, name: &str) -> Result<Option<String>, Refusal> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) if text.contains('\0') => {
                self.wrong(name, "must not contain U+0000 or a lone surrogate")
            }
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => self.wrong(name, "must be a string"),
        }
    }

    /// A name of 1–200 characters without control characters.
    pub fn name(&mut self, name: &str) -> Result<Option<String>, Refusal> {
        match self.string(name)? {
            Some(text) if text.is_empty() || text.chars().count() > 200 => {
                self.wrong(name, "must have 1 to 200 characters")
            }
            Some(text) if text.chars().any(char::is_control) => self.wrong(name, "must not contain control characters"),
            other => Ok(other),
        }
    }

    pub fn boolean(&mut self, name: &str) -> Result<Option<bool>, Refusal> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(_) => self.wrong(name, "must be true or false"),
        }
    }

    pub fn integer(&mut self, name: &str, range: std::ops::RangeInclusive<i64>) -> Result<Option<i64>, Refusal> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => match value.as_i64().filter(|n| range.contains(n)) {
                Some(n) => Ok(Some(n)),
                None => self.wrong(name, format!("must be an integer from {} to {}", range.start(), range.end())),
            },
        }
    }

    pub fn number(&mut self, name: &str, range: std::ops::RangeInclusive<f64>) -> Result<Option<f64>, Refusal> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => match finite(&value).filter(|n| range.contains(n)) {
                Some(n) => Ok(Some(n)),
                None => self.wrong(name, format!("must be a number from {} to {}", range.start(), range.end())),
            },
        }
    }

    pub fn instant(&mut self, name: &str) -> Result<Option<Timestamp>, Refusal> {
        match self.string(name)? {
            None => Ok(None),
            Some(text) => match Timestamp::parse(&text) {
                Some(instant) => Ok(Some(instant)),
                None => self.wrong(name, "must be a time after RFC 3339, such as 2030-01-31T12:00:00Z"),
            },
        }
    }

    /// Refuses what nobody took: a misspelt option must not be ignored.
    pub fn finish(self) -> Result<(), Refusal> {
        match self.map.keys().next() {
            None => Ok(()),
            Some(name) => Err(Refusal::invalid(self.pointer(name), "is not a known field")),
        }
    }
}

/// Checks the body of a request that says everything by its path: an object without fields.
pub fn check_no_fields(value: Value) -> Result<(), Refusal> {
    Fields::of(value, "")?.finish()
}

/// The number a JSON value is, if it is one and fits a finite double (`1e999` does not). −0 becomes 0.
pub(super) fn finite(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.to_string().parse::<f64>().ok().filter(|n| n.is_finite()).map(|n| n + 0.0),
        _ => None,
    }
}
