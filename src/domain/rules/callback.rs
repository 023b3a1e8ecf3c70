//! What a job's end sets going: the job that tells its receiver.

use serde_json::json;
use url::Url;

use super::Record;
use crate::domain::{Backoff, Json, OnConflict, Policy, QueueName, Spec};

/// Tries in all; with [`BACKOFF`] about five hours.
const MAX_ATTEMPTS: u32 = 8;
/// A receiver that restarts is reached within seconds, one that is repaired within hours.
const BACKOFF: Backoff = Backoff { initial_ms: 1_000, factor: 5.0, max_ms: 6 * 60 * 60 * 1_000, jitter: 0.2 };

/// The job that tells `record`'s receiver of the end it has just come to; `None`: it has not ended, or nobody is to be
/// told. A job that is put back and ends again tells it again, as another message: the seq makes the difference.
pub fn callback(record: &Record) -> Option<Spec> {
    let url = record.policy.callback_url.as_deref().filter(|_| record.job.state.is_terminal())?;
    let job = &record.job;
    let payload = json!({"url": url, "webhook_id": format!("{}_{}", job.id, job.seq), "job": job});
    // One receiver that is slow does not keep the others waiting.
    let host = Url::parse(url).ok().and_then(|url| url.host_str().map(|host| host.chars().take(200).collect()));
    Some(Spec {
        queue: QueueName::callbacks(),
        kind: QueueName::parse("callback").expect("it is a name"),
        payload: Json::from_value(&payload),
        subject: None,
        priority: None,
        delay_ms: 0,
        run_at: None,
        max_attempts: Some(MAX_ATTEMPTS),
        backoff: Some(BACKOFF),
        tracked: false,
        on_conflict: OnConflict::Return,
        meta: Json::from_value(&json!({"job": job.id})),
        policy: Policy { concurrency_key: host, ..Policy::default() },
    })
}
