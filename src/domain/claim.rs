//! What a worker says when it asks for work.

use std::borrow::Borrow;

use serde_json::Value;

use super::fields::Fields;
use super::{QueueName, Refusal};

/// The longest that a claim is parked, in milliseconds.
const LONGEST_WAIT_MS: i64 = 55_000;

/// Queues and kinds that one claim may name.
const MAX_NAMES: usize = 100;

/// A checked claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRequest {
    /// Who asks.
    pub worker: WorkerName,
    /// Where to take work from, in this order.
    pub queues: Vec<QueueName>,
    /// Only jobs of these kinds; empty: of any.
    pub kinds: Vec<QueueName>,
    /// At most this many jobs: 1–100.
    pub max: usize,
    /// How long to wait for the first one, in milliseconds.
    pub wait_ms: u64,
    /// How long each job may stay without a sign of life, in milliseconds.
    pub lease_ms: u64,
}

/// A worker's name: `[A-Za-z0-9._:@-]{1,128}`. Processes may share one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerName(Box<str>);

impl WorkerName {
    /// Reads a name; `None` if it is not one.
    pub fn parse(text: &str) -> Option<Self> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b':' | b'@' | b'-');
        ((1..=128).contains(&text.len()) && text.bytes().all(allowed)).then(|| Self(text.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A map by name is asked with a name as the store has it.
impl Borrow<str> for WorkerName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl ClaimRequest {
    /// Checks a claim.
    pub fn parse(value: Value) -> Result<Self, Refusal> {
        let mut fields = Fields::of(value, "")?;
        let Some(worker) = fields.string("worker")? else {
            return fields.wrong("worker", "is required");
        };
        let Some(worker) = WorkerName::parse(&worker) else {
            return fields.wrong("worker", "must match [A-Za-z0-9._:@-]{1,128}");
        };
        let mut queues = names(&mut fields, "queues")?;
        if let Some(index) = queues.iter().position(QueueName::is_ours) {
            let pointer = format!("{}/{index}", fields.pointer("queues"));
            return Err(Refusal::invalid(pointer, "queues that begin with `milepost.` belong to the gateway"));
        }
        if queues.is_empty() {
            queues = vec![QueueName::default()];
        }
        let request = Self {
            worker,
            queues,
            kinds: names(&mut fields, "kinds")?,
            max: fields.integer("max", 1..=100)?.unwrap_or(1) as usize,
            wait_ms: fields.integer("wait_ms", 0..=i64::MAX)?.unwrap_or(0).min(LONGEST_WAIT_MS) as u64,
            lease_ms: fields.integer("lease_ms", 1_000..=3_600_000)?.unwrap_or(30_000) as u64,
        };
        fields.finish()?;
        Ok(request)
    }
}

/// A list of names without repetitions, in the caller's order.
fn names(fields: &mut Fields, name: &str) -> Result<Vec<QueueName>, Refusal> {
    let items = match fields.take(name) {
        None => return Ok(Vec::new()),
        Some(Value::Array(items)) if items.len() <= MAX_NAMES => items,
        Some(_) => return fields.wrong(name, format!("must be an array of at most {MAX_NAMES} names")),
    };
    let mut parsed = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        match item.as_str().and_then(QueueName::parse) {
            Some(name) if parsed.contains(&name) => {}
            Some(name) => parsed.push(name),
            None => {
                let pointer = format!("{}/{index}", fields.pointer(name));
                return Err(Refusal::invalid(pointer, "must match [A-Za-z0-9._-]{1,64}"));
            }
        }
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_claim_has_defaults_and_bounds() {
        let claim = ClaimRequest::parse(json!({"worker": "w-1"})).unwrap();
        assert_eq!((claim.max, claim.wait_ms, claim.lease_ms), (1, 0, 30_000));
        assert_eq!(claim.queues, [QueueName::default()]);
        let claim = ClaimRequest::parse(json!({"worker": "a:b@c", "queues": ["x", "y", "x"], "wait_ms": 1_000_000}));
        let claim = claim.unwrap();
        assert_eq!((claim.queues.len(), claim.wait_ms), (2, 55_000));
        for (wrong, at) in [
            (json!({}), "/worker"),
            (json!({"worker": "a b"}), "/worker"),
            (json!({"worker": "w", "max": 0}), "/max"),
            (json!({"worker": "w", "max": 101}), "/max"),
            (json!({"worker": "w", "wait_ms": -1}), "/wait_ms"),
            (json!({"worker": "w", "lease_ms": 999}), "/lease_ms"),
            (json!({"worker": "w", "queues": "x"}), "/queues"),
            (json!({"worker": "w", "queues": ["x", ""]}), "/queues/1"),
            (json!({"worker": "w", "kinds": [1]}), "/kinds/0"),
            (json!({"worker": "w", "queue": "x"}), "/queue"),
        ] {
            match ClaimRequest::parse(wrong.clone()) {
                Err(Refusal::Invalid { pointer, .. }) => assert_eq!(pointer, at, "{wrong}"),
                other => panic!("{wrong} gave {other:?}"),
            }
        }
    }
}
