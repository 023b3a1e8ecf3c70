//! What the gateway accepts: sizes, and where news may be sent.

use super::Callbacks;

/// Limits on what callers and workers may store; each is a flag of `milepost serve`.
#[derive(Clone, Debug)]
pub struct Limits {
    /// A job's payload, in bytes of compact JSON.
    pub payload_bytes: usize,
    /// The `data` of a progress, output, log or user event, in bytes of compact JSON.
    pub event_bytes: usize,
    /// A job's `meta`, in bytes of compact JSON.
    pub meta_bytes: usize,
    /// The output of one run, in bytes of UTF-8.
    pub output_bytes: u64,
    /// Events in a job's log; lifecycle events are accepted beyond it.
    pub events_per_job: u64,
    /// `message`, `phase` and `unit` of progress, in bytes each.
    pub progress_text_bytes: usize,
    /// Free text of lifecycle events (`failed.message`, `details`, `note`, `reason`), in bytes; longer text is cut.
    pub lifecycle_text_bytes: usize,
    /// An Outcome's `data`, in bytes of compact JSON.
    pub result_bytes: usize,
    /// Which `callback_url`s are taken.
    pub callbacks: Callbacks,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            payload_bytes: 256 * 1024,
            event_bytes: 64 * 1024,
            meta_bytes: 8 * 1024,
            output_bytes: 8 * 1024 * 1024,
            events_per_job: 100_000,
            progress_text_bytes: 2 * 1024,
            lifecycle_text_bytes: 8 * 1024,
            result_bytes: 1024 * 1024,
            callbacks: Callbacks::Off,
        }
    }
}
