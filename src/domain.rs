//! What Milepost knows, without I/O and without a clock: jobs, events, and every rule about them.
//!
//! A job's state document is a fold of its log, and [`Job::apply`] is the one place where a job changes.
//! The functions of [`rules`] turn a wish (append, cancel, retry, "time has passed") into events or into a
//! [`Refusal`]; they are given the time and touch nothing. Everything to the left of this layer (store, bus,
//! service, http) carries these types and adds no rule of its own.

mod callback;
mod cancel;
mod claim;
pub mod dispatch;
mod event;
mod fields;
mod id;
mod interest;
mod job;
mod json;
mod lease;
mod limits;
mod outcome;
mod queue;
mod refusal;
pub mod rules;
mod spec;
mod statistics;
mod time;
pub mod waiting;
mod webhook;

pub use callback::{Callbacks, host_is_public, is_public};
pub use cancel::{CancelRequest, CancelSignal};
pub use claim::{ClaimRequest, WorkerName};
pub use event::{Event, EventType, NewEvent, UserType};
pub use fields::check_no_fields;
pub use id::JobId;
pub use interest::{Identity, Interest};
pub use job::{Job, Progress, State};
pub use json::{Json, ParseError, body_hash, parse_json};
pub use lease::LeaseSecret;
pub use limits::Limits;
pub use outcome::is_outcome;
pub use queue::{
    Defaults, Pause, Queue, QueueChange, QueueCounts, QueueSettings, RateLimit, Selection, SettingsPatch, parse_pause,
};
pub use refusal::Refusal;
pub use rules::{Clocks, Ending, Handouts, Record};
pub use spec::{Backoff, OnConflict, Policy, QueueName, Spec};
pub use statistics::{Observation, Percentiles, QueueSlot, QueueStatistics, Tally, observe, oldest_slot, slot_of};
pub use time::Timestamp;
pub use webhook::{Signer, WebhookSecret};
