//! What a caller says with a cancel, and what the worker is told.

use serde::Serialize;
use serde_json::Value;

use super::fields::Fields;
use super::rules::DEFAULT_GRACE_MS;
use super::{JobId, Refusal, spec};

/// A run was asked to stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CancelSignal {
    /// The job.
    pub job: JobId,
    /// The run that is asked; a later one is not.
    pub run: u64,
    /// Why, if that was said.
    pub reason: Option<String>,
    /// How long it may still take to stop by itself, in milliseconds.
    pub grace_ms: u64,
}

/// `{"reason","grace_ms"}`, both optional.
#[derive(Clone, Debug)]
pub struct CancelRequest {
    /// Why, for people and for the worker; at most 8 KiB.
    pub reason: Option<String>,
    /// How long the runner may take to stop by itself, in milliseconds; 10,000 if left out.
    pub grace_ms: u64,
}

impl CancelRequest {
    /// Checks a request.
    pub fn parse(value: Value) -> Result<Self, Refusal> {
        let mut fields = Fields::of(value, "")?;
        let reason = fields.string("reason")?;
        if reason.as_ref().is_some_and(|reason| reason.len() > 8 * 1024) {
            return fields.wrong("reason", "must have at most 8192 bytes");
        }
        let grace_ms = fields.integer("grace_ms", 0..=spec::LONGEST_MS)?.map_or(DEFAULT_GRACE_MS, |ms| ms as u64);
        fields.finish()?;
        Ok(Self { reason, grace_ms })
    }
}
