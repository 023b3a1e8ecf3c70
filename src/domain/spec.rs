//! What a caller asks for: the immutable part of a job.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

use super::fields::Fields;
use super::json::find_nul;
use super::{Defaults, Json, Limits, Refusal, Timestamp};

/// The longest duration that a field takes: ten years, in milliseconds.
pub(super) const LONGEST_MS: i64 = 315_576_000_000;

/// A queue's or kind's name: `[A-Za-z0-9._-]{1,64}`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueName(Box<str>);

impl QueueName {
    /// Reads a name; `None` if it is not one.
    pub fn parse(text: &str) -> Option<Self> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        ((1..=64).contains(&text.len()) && text.bytes().all(allowed)).then(|| Self(text.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The gateway's own queue of news to be sent.
    pub fn callbacks() -> Self {
        Self("milepost.callbacks".into())
    }

    /// Whether it belongs to the gateway: callers put nothing into it and change nothing about it.
    pub fn is_ours(&self) -> bool {
        self.0.starts_with("milepost.")
    }
}

impl Default for QueueName {
    /// The queue of whoever names none.
    fn default() -> Self {
        Self("default".into())
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for QueueName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// How long to wait before the next try: `initial_ms × factor^(n−1)`, at most `max_ms`, ± `jitter` of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Backoff {
    /// Before the second try, in milliseconds.
    pub initial_ms: u64,
    /// What each further wait is multiplied by.
    pub factor: f64,
    /// The longest wait, in milliseconds.
    pub max_ms: u64,
    /// The share of the wait that is drawn at random, 0 to 1.
    pub jitter: f64,
}

impl Backoff {
    /// The wait after the `attempt`-th try (from 1) failed, in milliseconds. `chance` (0 to 1) is the luck of the draw.
    pub fn wait_ms(&self, attempt: u32, chance: f64) -> u64 {
        let exponent = f64::from(attempt.saturating_sub(1));
        let even = (self.initial_ms as f64 * self.factor.powf(exponent)).min(self.max_ms as f64);
        (even * (1.0 + self.jitter * (2.0 * chance - 1.0))).round() as u64
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self { initial_ms: 1_000, factor: 2.0, max_ms: 300_000, jitter: 0.2 }
    }
}

/// The parts of a spec that the state document does not show.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// Must start within this, counted from `run_at`, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// The longest one run may take, or a tracked job may be silent, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// From creation (or redrive) to the end of everything, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// Waits between tries.
    #[serde(default)]
    pub backoff: Backoff,
    /// At most one live job per queue and key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique_key: Option<String>,
    /// Jobs of one key share a concurrency limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency_key: Option<String>,
    /// Cancel when nobody has watched for this long, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_if_unwatched_ms: Option<u64>,
    /// Who is told of the job's end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback_url: Option<String>,
}

/// What an enqueue does when a live job holds its unique key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnConflict {
    /// Answer with the live job.
    Return,
    /// End the live job and take its place.
    Replace,
}

/// A checked request for a job.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The lane.
    pub queue: QueueName,
    /// What kind of work it is.
    pub kind: QueueName,
    /// What the worker is given.
    pub payload: Json,
    /// What the job is about.
    pub subject: Option<String>,
    /// −100..100, higher first; 0 if neither the caller nor the queue says.
    pub priority: Option<i32>,
    /// Milliseconds from acceptance until it may run.
    pub delay_ms: u64,
    /// The instant from which it may run; excludes `delay_ms`.
    pub run_at: Option<Timestamp>,
    /// Tries in all; 3 if neither the caller nor the queue says, 1 for a tracked job.
    pub max_attempts: Option<u32>,
    /// Waits between tries.
    pub backoff: Option<Backoff>,
    /// Whether an outside runner runs it.
    pub tracked: bool,
    /// What to do about a live job of the same unique key.
    pub on_conflict: OnConflict,
    /// Whatever the caller wants shown to every watcher.
    pub meta: Json,
    /// The rest, as the caller gave it.
    pub policy: Policy,
}

impl Spec {
    /// Checks a spec. Pointers of refusals are relative to it.
    pub fn parse(value: Value, limits: &Limits) -> Result<Self, Refusal> {
        let mut fields = Fields::of(value, "")?;
        let queue = queue_name(&mut fields, "queue")?.unwrap_or_default();
        if queue.is_ours() {
            return fields.wrong("queue", "queues that begin with `milepost.` belong to the gateway");
        }
        let Some(kind) = queue_name(&mut fields, "kind")? else {
            return fields.wrong("kind", "is required");
        };
        let payload = sized_json(fields.take("payload").unwrap_or_default(), "/payload", limits.payload_bytes)?;
        let meta = fields.take("meta").unwrap_or_else(|| Map::new().into());
        if !meta.is_object() {
            return fields.wrong("meta", "must be a JSON object");
        }
        let meta = sized_json(meta, "/meta", limits.meta_bytes)?;
        let tracked = fields.boolean("tracked")?.unwrap_or(false);
        let delay_ms = fields.integer("delay_ms", 0..=LONGEST_MS)?.unwrap_or(0) as u64;
        let run_at = fields.instant("run_at")?;
        if run_at.is_some() && delay_ms > 0 {
            return fields.wrong("run_at", "excludes delay_ms");
        }
        let max_attempts = max_attempts(&mut fields)?;
        let ttl_ms = duration(&mut fields, "ttl_ms")?;
        if tracked {
            let waits = [("delay_ms", delay_ms > 0), ("run_at", run_at.is_some()), ("ttl_ms", ttl_ms.is_some())];
            for (name, given) in waits {
                if given {
                    return fields.wrong(name, "a tracked job is running from the start: it cannot wait");
                }
            }
            if max_attempts.is_some_and(|n| n > 1) {
                return fields.wrong("max_attempts", "a tracked job has one attempt");
            }
        }
        let callback_url = fields.string("callback_url")?;
        if let Some(Err(wrong)) = callback_url.as_deref().map(|url| limits.callbacks.check(url)) {
            return fields.wrong("callback_url", wrong);
        }
        let on_conflict = match fields.string("unique_on_conflict")?.as_deref() {
            None | Some("return") => OnConflict::Return,
            Some("replace") => OnConflict::Replace,
            Some(_) => return fields.wrong("unique_on_conflict", "must be return or replace"),
        };
        let spec = Self {
            queue,
            kind,
            payload,
            subject: fields.name("subject")?,
            priority: priority(&mut fields)?,
            delay_ms,
            run_at,
            max_attempts,
            backoff: backoff(&mut fields, "/backoff")?,
            tracked,
            on_conflict,
            meta,
            policy: Policy {
                ttl_ms,
                timeout_ms: duration(&mut fields, "timeout_ms")?,
                deadline_ms: duration(&mut fields, "deadline_ms")?,
                backoff: Backoff::default(),
                unique_key: fields.name("unique_key")?,
                concurrency_key: fields.name("concurrency_key")?,
                cancel_if_unwatched_ms: duration(&mut fields, "cancel_if_unwatched_ms")?,
                callback_url,
            },
        };
        fields.finish()?;
        Ok(spec)
    }

    /// The policy, with the queue's defaults for what the caller left out. A tracked job waits for no claim, and
    /// `timeout_ms` means something else to it: the silence of its runner.
    pub(super) fn policy(&self, defaults: &Defaults) -> Policy {
        let mut policy = self.policy.clone();
        policy.deadline_ms = policy.deadline_ms.or(defaults.deadline_ms);
        policy.backoff = self.backoff.as_ref().or(defaults.backoff.as_ref()).cloned().unwrap_or_default();
        if !self.tracked {
            policy.ttl_ms = policy.ttl_ms.or(defaults.ttl_ms);
            policy.timeout_ms = policy.timeout_ms.or(defaults.timeout_ms);
        }
        policy
    }

    /// Tries in all, with the queue's default.
    pub(super) fn attempts(&self, defaults: &Defaults) -> u32 {
        match self.tracked {
            true => 1,
            false => self.max_attempts.or(defaults.max_attempts).unwrap_or(3),
        }
    }
}

pub(super) fn duration(fields: &mut Fields, name: &str) -> Result<Option<u64>, Refusal> {
    Ok(fields.integer(name, 1..=LONGEST_MS)?.map(|ms| ms as u64))
}

pub(super) fn max_attempts(fields: &mut Fields) -> Result<Option<u32>, Refusal> {
    Ok(fields.integer("max_attempts", 1..=1_000)?.map(|n| n as u32))
}

pub(super) fn priority(fields: &mut Fields) -> Result<Option<i32>, Refusal> {
    Ok(fields.integer("priority", -100..=100)?.map(|n| n as i32))
}

fn queue_name(fields: &mut Fields, name: &str) -> Result<Option<QueueName>, Refusal> {
    match fields.string(name)? {
        None => Ok(None),
        Some(text) => match QueueName::parse(&text) {
            Some(parsed) => Ok(Some(parsed)),
            None => fields.wrong(name, "must match [A-Za-z0-9._-]{1,64}"),
        },
    }
}

/// `at`: the place of the field in the body.
pub(super) fn backoff(fields: &mut Fields, at: &str) -> Result<Option<Backoff>, Refusal> {
    let defaults = Backoff::default();
    let Some(value) = fields.take("backoff") else {
        return Ok(None);
    };
    let mut fields = Fields::of(value, at)?;
    let backoff = Backoff {
        initial_ms: fields.integer("initial_ms", 0..=LONGEST_MS)?.map_or(defaults.initial_ms, |ms| ms as u64),
        factor: fields.number("factor", 1.0..=100.0)?.unwrap_or(defaults.factor),
        max_ms: fields.integer("max_ms", 0..=LONGEST_MS)?.map_or(defaults.max_ms, |ms| ms as u64),
        jitter: fields.number("jitter", 0.0..=1.0)?.unwrap_or(defaults.jitter),
    };
    fields.finish()?;
    Ok(Some(backoff))
}

fn sized_json(value: Value, at: &str, limit: usize) -> Result<Json, Refusal> {
    if let Some(pointer) = find_nul(&value, at) {
        return Err(Refusal::invalid(pointer, "must not contain U+0000 or a lone surrogate"));
    }
    let json = Json::from_value(&value);
    match json.as_str().len() {
        bytes if bytes > limit => Err(Refusal::too_large(at, format!("has {bytes} bytes; the limit is {limit}"))),
        _ => Ok(json),
    }
}
