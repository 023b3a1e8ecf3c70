//! A queue: its settings (what its jobs get that leave it out, and how fast they are handed out), and how it stands.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::fields::Fields;
use super::spec::{self, Backoff};
use super::{QueueName, Refusal, Timestamp};

/// Everything that an operator sets. Each part is absent until somebody sets it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueSettings {
    /// Runs at a time.
    pub concurrency: Option<u32>,
    /// Runs at a time of each concurrency key.
    pub concurrency_per_key: Option<u32>,
    /// Hand-outs over time.
    pub rate_limit: Option<RateLimit>,
    /// For specs that leave these fields out.
    pub defaults: Defaults,
}

/// Who stopped a queue, when and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pause {
    /// Who.
    pub by: String,
    /// Why, if that was said.
    pub reason: Option<String>,
    /// When.
    pub at: Timestamp,
}

/// A queue as an operator sees it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Queue {
    /// Its name.
    pub name: QueueName,
    /// Nothing is handed out while it is paused.
    pub paused: Option<Pause>,
    /// What the operator set.
    #[serde(flatten)]
    pub settings: QueueSettings,
    /// Nothing is handed out until then: a worker said so. Only if that is still to come.
    pub held_until: Option<Timestamp>,
    /// Its jobs.
    pub counts: QueueCounts,
    /// Since when the job has been claimable that has waited longest.
    pub oldest_queued_at: Option<Timestamp>,
}

/// How many of a queue's jobs are where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueueCounts {
    /// Wait for their `run_at`.
    pub scheduled: u64,
    /// Claimable now, after whatever wait.
    pub queued: u64,
    /// A run is on; those of outside runners, too.
    pub running: u64,
    /// Wait for their back-off to pass.
    pub retrying: u64,
    /// The dead letters.
    pub failed: u64,
}

/// What an operator does to a queue.
#[derive(Clone, Debug)]
pub enum QueueChange {
    /// Other settings.
    Set(SettingsPatch),
    /// Hand nothing out. A queue that is paused already is paused anew: the last word counts.
    Pause(Pause),
    /// Hand out again: whoever paused it, and also if a worker holds it back.
    Resume,
}

impl QueueChange {
    /// Whether a queue that is not there comes into being by it.
    pub fn creates(&self) -> bool {
        match self {
            Self::Set(_) | Self::Pause(_) => true,
            Self::Resume => false,
        }
    }

    /// Settings and pause after the change.
    pub fn apply(&self, settings: &QueueSettings, paused: Option<Pause>) -> (QueueSettings, Option<Pause>) {
        match self {
            Self::Set(patch) => (patch.apply(settings).expect("a patch was checked when it was read"), paused),
            Self::Pause(pause) => (settings.clone(), Some(pause.clone())),
            Self::Resume => (settings.clone(), None),
        }
    }
}

/// Fields of a spec, for those that leave them out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Defaults {
    /// See [`super::Policy::timeout_ms`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// See [`super::Policy::ttl_ms`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// See [`super::Policy::deadline_ms`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// Tries in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// Waits between tries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,
    /// −100..100, higher first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
}

impl Defaults {
    fn parse(value: Value) -> Result<Self, Refusal> {
        let mut fields = Fields::of(value, "/defaults")?;
        let defaults = Self {
            timeout_ms: spec::duration(&mut fields, "timeout_ms")?,
            ttl_ms: spec::duration(&mut fields, "ttl_ms")?,
            deadline_ms: spec::duration(&mut fields, "deadline_ms")?,
            max_attempts: spec::max_attempts(&mut fields)?,
            backoff: spec::backoff(&mut fields, "/defaults/backoff")?,
            priority: spec::priority(&mut fields)?,
        };
        fields.finish()?;
        Ok(defaults)
    }
}

/// A rate after GCRA (the generic cell rate algorithm): one instant per queue or key says how far ahead of the even
/// rate it is. `limit` hand-outs per `per_ms` in the long run, at most `burst` at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateLimit {
    /// Hand-outs per `per_ms`.
    pub limit: u32,
    /// The length of a period, in milliseconds.
    pub per_ms: u64,
    /// Hand-outs that may come at once.
    pub burst: u32,
    /// Whether each concurrency key has a rate of its own.
    pub per_key: bool,
}

impl RateLimit {
    /// Microseconds between two hand-outs at the even rate.
    fn interval_us(&self) -> i64 {
        ((self.per_ms as i64) * 1_000 / i64::from(self.limit)).max(1)
    }

    /// How many hand-outs are allowed at `now_us`, given the instant (microseconds since the epoch) that the ones before
    /// left behind.
    pub fn room(&self, ahead_until_us: Option<i64>, now_us: i64) -> u64 {
        let ahead = ahead_until_us.unwrap_or(now_us).max(now_us) - now_us;
        let tolerance = self.interval_us().saturating_mul(i64::from(self.burst));
        ((tolerance - ahead).max(0) / self.interval_us()) as u64
    }

    /// The instant that one more hand-out leaves behind.
    pub fn take(&self, ahead_until_us: Option<i64>, now_us: i64) -> i64 {
        ahead_until_us.unwrap_or(now_us).max(now_us) + self.interval_us()
    }

    /// From when on [`RateLimit::room`] is at least one.
    pub fn next_us(&self, ahead_until_us: i64) -> i64 {
        ahead_until_us - self.interval_us().saturating_mul(i64::from(self.burst) - 1)
    }

    fn parse(value: Value) -> Result<Self, Refusal> {
        let mut fields = Fields::of(value, "/rate_limit")?;
        let Some(limit) = fields.integer("limit", 1..=1_000_000)? else {
            return fields.wrong("limit", "is required");
        };
        let Some(per_ms) = fields.integer("per_ms", 1..=spec::LONGEST_MS / 1_000)? else {
            return fields.wrong("per_ms", "is required");
        };
        let rate = Self {
            limit: limit as u32,
            per_ms: per_ms as u64,
            burst: fields.integer("burst", 1..=1_000_000)?.unwrap_or(1) as u32,
            per_key: fields.boolean("per_key")?.unwrap_or(false),
        };
        fields.finish()?;
        Ok(rate)
    }
}

/// A change of settings: what is named is set, or cleared by `null`; the rest stays.
#[derive(Clone, Debug)]
pub struct SettingsPatch(Map<String, Value>);

impl SettingsPatch {
    /// Checks a patch.
    pub fn parse(value: Value) -> Result<Self, Refusal> {
        let Value::Object(map) = value else {
            return Err(Refusal::invalid("", "must be a JSON object"));
        };
        let patch = Self(map);
        patch.apply(&QueueSettings::default())?;
        Ok(patch)
    }

    /// The settings after the change.
    pub fn apply(&self, settings: &QueueSettings) -> Result<QueueSettings, Refusal> {
        let mut settings = settings.clone();
        let mut fields = Fields::of(Value::Object(self.0.clone()), "")?;
        let count = |n: Option<i64>| n.map(|n| n as u32);
        if self.0.contains_key("concurrency") {
            settings.concurrency = count(fields.integer("concurrency", 1..=1_000_000)?);
        }
        if self.0.contains_key("concurrency_per_key") {
            settings.concurrency_per_key = count(fields.integer("concurrency_per_key", 1..=1_000_000)?);
        }
        if self.0.contains_key("rate_limit") {
            settings.rate_limit = fields.take("rate_limit").map(RateLimit::parse).transpose()?;
        }
        if self.0.contains_key("defaults") {
            settings.defaults = fields.take("defaults").map(Defaults::parse).transpose()?.unwrap_or_default();
        }
        // `null` of a known name has been taken with its field; of an unknown one it is still there.
        fields.finish()?;
        Ok(settings)
    }
}

/// What a caller says with a pause.
pub fn parse_pause(value: Value) -> Result<Option<String>, Refusal> {
    let mut fields = Fields::of(value, "")?;
    let reason = fields.string("reason")?;
    if reason.as_ref().is_some_and(|reason| reason.len() > 8 * 1024) {
        return fields.wrong("reason", "must have at most 8192 bytes");
    }
    fields.finish()?;
    Ok(reason)
}

/// Which of a queue's jobs a purge or a redrive takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// At most this many.
    pub limit: Option<u64>,
    /// Only those whose last error has this code.
    pub error_code: Option<String>,
    /// Only count them.
    pub dry_run: bool,
}

impl Selection {
    /// Checks `{"limit","error_code","dry_run"}`.
    pub fn parse(value: Value) -> Result<Self, Refusal> {
        let mut fields = Fields::of(value, "")?;
        let selection = Self {
            limit: fields.integer("limit", 1..=i64::MAX)?.map(|n| n as u64),
            error_code: fields.string("error_code")?,
            dry_run: fields.boolean("dry_run")?.unwrap_or(false),
        };
        fields.finish()?;
        Ok(selection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn gcra_allows_a_burst_and_then_the_even_rate() {
        let rate = RateLimit { limit: 10, per_ms: 1_000, burst: 3, per_key: false };
        let (mut ahead, mut now, mut handed_out) = (None, 0, Vec::new());
        while now < 1_000_000 {
            if rate.room(ahead, now) > 0 {
                ahead = Some(rate.take(ahead, now));
                handed_out.push(now);
            }
            now += 10_000;
        }
        assert_eq!(handed_out[..4], [0, 10_000, 20_000, 100_000]);
        // limit + burst − 1 in one period.
        assert_eq!(handed_out.len(), 12);
        assert_eq!(rate.room(None, 5), 3);
        let ahead = rate.take(Some(rate.take(Some(rate.take(None, 0)), 0)), 0);
        assert_eq!((rate.room(Some(ahead), 99_999), rate.next_us(ahead)), (0, 100_000));
        assert_eq!(rate.room(Some(ahead), 100_000), 1);
    }

    #[test]
    fn a_patch_sets_what_it_names_and_clears_by_null() {
        let apply =
            |settings: &QueueSettings, patch: Value| SettingsPatch::parse(patch).unwrap().apply(settings).unwrap();
        let set = apply(
            &QueueSettings::default(),
            json!({"concurrency": 5, "rate_limit": {"limit": 3, "per_ms": 1000}, "defaults": {"ttl_ms": 7, "priority": -2}}),
        );
        assert_eq!((set.concurrency, set.rate_limit.unwrap().burst, set.defaults.ttl_ms), (Some(5), 1, Some(7)));
        let cleared = apply(&set, json!({"concurrency": null, "defaults": {"max_attempts": 9}}));
        assert_eq!((cleared.concurrency, cleared.rate_limit), (None, set.rate_limit));
        assert_eq!(cleared.defaults, Defaults { max_attempts: Some(9), ..Defaults::default() });
        for (wrong, at) in [
            (json!([]), ""),
            (json!({"paused": null}), "/paused"),
            (json!({"concurrency": 0}), "/concurrency"),
            (json!({"rate_limit": {"limit": 1}}), "/rate_limit/per_ms"),
            (json!({"rate_limit": {"limit": 0, "per_ms": 1}}), "/rate_limit/limit"),
            (json!({"defaults": {"delay_ms": 5}}), "/defaults/delay_ms"),
            (json!({"defaults": {"backoff": {"factor": 0.5}}}), "/defaults/backoff/factor"),
        ] {
            match SettingsPatch::parse(wrong.clone()) {
                Err(Refusal::Invalid { pointer, .. }) => assert_eq!(pointer, at, "{wrong}"),
                other => panic!("{wrong} gave {other:?}"),
            }
        }
    }
}
