//! The Outcome: the uniform result envelope of a completed job.

use serde_json::{Map, Value};

use super::event::{check_strings, cut_lifecycle_text};
use super::{Json, Limits, Refusal};

/// The fields of an Outcome.
const FIELDS: [&str; 7] = ["ok", "status", "items", "metrics", "note", "artifacts", "data"];

/// Whether `answer` can be nothing but an Outcome: an object of its fields alone, each what it must be.
pub fn is_outcome(answer: &Value) -> bool {
    let Value::Object(fields) = answer else { return false };
    let limits = Limits { result_bytes: usize::MAX, ..Limits::default() };
    !fields.is_empty()
        && fields.keys().all(|name| FIELDS.contains(&name.as_str()))
        && normalise(&mut fields.clone(), &limits).is_ok()
}

/// Checks a `completed` event's data in place, fills in `ok`, and takes its `data` out: it is stored apart and never
/// travels in events or state. `null` counts as no data.
pub(super) fn normalise(outcome: &mut Map<String, Value>, limits: &Limits) -> Result<Option<Json>, Refusal> {
    match outcome.get("ok") {
        None => drop(outcome.insert("ok".to_owned(), true.into())),
        Some(Value::Bool(_)) => {}
        Some(_) => return wrong("ok", "must be true or false"),
    }
    check_strings(outcome, &["status", "note"], &[])?;
    if outcome.get("items").is_some_and(|items| items.as_u64().is_none()) {
        return wrong("items", "must be an integer of 0 or more");
    }
    if outcome.get("metrics").is_some_and(|metrics| !metrics.is_object()) {
        return wrong("metrics", "must be a JSON object");
    }
    match outcome.get("artifacts") {
        None => {}
        Some(Value::Array(artifacts)) => {
            for (i, artifact) in artifacts.iter().enumerate() {
                check_artifact(artifact).map_err(|refusal| refusal.under(&format!("/data/artifacts/{i}")))?;
            }
        }
        Some(_) => return wrong("artifacts", "must be an array"),
    }
    for name in ["status", "note"] {
        cut_lifecycle_text(outcome, name, limits);
    }
    // The gateway says where the data is; a caller's word for it could point anywhere.
    outcome.remove("result_url");
    let Some(data) = outcome.remove("data").filter(|data| !data.is_null()) else {
        return Ok(None);
    };
    let data = Json::from_value(&data);
    let bytes = data.as_str().len();
    if bytes > limits.result_bytes {
        let detail = format!(
            "result data has {bytes} bytes; the limit is {}; store it elsewhere and give its URL",
            limits.result_bytes
        );
        return Err(Refusal::too_large("/data/data", detail));
    }
    Ok(Some(data))
}

fn check_artifact(artifact: &Value) -> Result<(), Refusal> {
    let Value::Object(artifact) = artifact else {
        return Err(Refusal::invalid("", "must be a JSON object"));
    };
    for name in ["type", "label", "url"] {
        if artifact.get(name).is_some_and(|value| !value.is_string()) {
            return Err(Refusal::invalid(format!("/{name}"), "must be a string"));
        }
    }
    // Pages turn these into links: `javascript:` and its kind must never get that far.
    let is_web = |url: &str| {
        let scheme = url.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
        matches!(scheme.as_deref(), Some("http" | "https")) && !url.chars().any(|c| c.is_control() || c == ' ')
    };
    match artifact.get("url").and_then(Value::as_str) {
        Some(url) if !is_web(url) => Err(Refusal::invalid("/url", "must be an http or https URL")),
        Some(_) | None => Ok(()),
    }
}

fn wrong<T>(name: &str, detail: &str) -> Result<T, Refusal> {
    Err(Refusal::invalid(format!("/data/{name}"), detail))
}
