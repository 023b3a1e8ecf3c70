//! The contract's fold (section 2.2), written a second time, and the judge of what a reader saw.

use serde_json::{Value, json};

use super::Frame;
use super::job::{number, text};

/// The state document of a log, without `id`: an event does not carry it.
pub fn fold(log: &[Value]) -> Value {
    let mut state = json!({
        "progress": null, "output": {"bytes": 0}, "outcome": null, "error": null, "cancel_requested": false,
        "worker": null, "started_at": null, "finished_at": null,
    });
    for event in log {
        apply(&mut state, event);
    }
    state["terminal"] = is_terminal(&state["state"]).into();
    state
}

fn is_terminal(state: &Value) -> bool {
    ["completed", "failed", "cancelled", "expired"].contains(&text(state))
}

fn apply(state: &mut Value, event: &Value) {
    let (data, at) = (&event["data"], &event["at"]);
    let kind = text(&event["type"]);
    match kind {
        "queued" => {
            for field in ["queue", "kind", "subject", "priority", "max_attempts", "tracked", "run_at", "meta"] {
                state[field] = data[field].clone();
            }
            state["created_at"] = at.clone();
            // RFC 3339 in UTC at one precision sorts as text.
            let waits = text(&data["run_at"]) > text(at);
            state["state"] = if waits { "scheduled" } else { "queued" }.into();
        }
        "started" => {
            set(state, json!({"state": "running", "progress": null, "output": {"bytes": 0}, "error": null}));
            state["worker"] = data["worker"].clone();
            state["started_at"] = at.clone();
        }
        "progress" => apply_progress(state, data),
        "output" => {
            assert_eq!(data["offset"], state["output"]["bytes"], "the offset is where the run's output ended");
            let bytes = number(&state["output"]["bytes"]) + text(&data["text"]).len() as u64;
            state["output"] = json!({"bytes": bytes});
        }
        "retrying" => {
            set(state, json!({"state": "retrying", "worker": null, "error": data["error"], "run_at": data["run_at"]}));
        }
        "released" => {
            let delay = data["delay_ms"].as_i64().unwrap_or(0);
            state["state"] = if delay > 0 { "scheduled" } else { "queued" }.into();
            state["run_at"] = later(text(at), delay).into();
            state["worker"] = Value::Null;
        }
        "cancel_requested" => state["cancel_requested"] = true.into(),
        "completed" | "failed" | "cancelled" | "expired" => {
            state["state"] = kind.into();
            state["finished_at"] = at.clone();
            match kind {
                "completed" => state["outcome"] = data.clone(),
                "failed" => state["error"] = data.clone(),
                "cancelled" if data.get("error").is_some() => state["error"] = data["error"].clone(),
                _ => {}
            }
        }
        "requeued" => {
            let cleared = ["error", "outcome", "started_at", "finished_at", "worker", "progress"];
            cleared.iter().for_each(|field| state[field] = Value::Null);
            set(state, json!({"state": "queued", "cancel_requested": false, "output": {"bytes": 0}, "run_at": at}));
        }
        _ => {}
    }
    set(state, json!({"seq": event["seq"], "attempt": event["attempt"], "updated_at": at}));
}

/// So many milliseconds after an instant, written as the gateway writes it.
fn later(at: &str, delay_ms: i64) -> String {
    let format = &time::format_description::well_known::Rfc3339;
    let instant = time::OffsetDateTime::parse(at, format).expect("`at` is RFC 3339");
    let then = instant + time::Duration::milliseconds(delay_ms);
    let (date, clock) = (then.date(), then.time());
    let (hour, minute, second, millisecond) = clock.as_hms_milli();
    format!("{date}T{hour:02}:{minute:02}:{second:02}.{millisecond:03}Z")
}

/// A field left out keeps its value within the run; the shown percent never falls.
fn apply_progress(state: &mut Value, data: &Value) {
    let shown = state["progress"]["percent"].as_f64();
    if state["progress"].is_null() {
        state["progress"] = json!({});
    }
    for field in ["current", "total", "unit", "phase", "message"] {
        if let Some(value) = data.get(field) {
            state["progress"][field] = value.clone();
        }
    }
    let pair = data["current"].as_f64().zip(data["total"].as_f64());
    let said = data["percent"].as_f64().or(pair.map(|(current, total)| 100.0 * current / total));
    if let Some(percent) = said.into_iter().chain(shown).reduce(f64::max) {
        state["progress"]["percent"] = percent.into();
    }
}

/// The document with what the contract leaves open taken out: how a number is spelled, and whether a field of
/// `progress` that was never said is missing or null.
pub fn plain(value: &Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(items) => items.iter().map(plain).collect(),
        Value::Object(fields) => {
            let mut fields: serde_json::Map<_, _> = fields.iter().map(|(k, v)| (k.clone(), plain(v))).collect();
            if let Some(Value::Object(progress)) = fields.get_mut("progress") {
                progress.retain(|_, value| !value.is_null());
            }
            Value::Object(fields)
        }
        other => other.clone(),
    }
}

fn set(state: &mut Value, fields: Value) {
    for (name, value) in fields.as_object().expect("fields are an object") {
        state[name] = value.clone();
    }
}

/// The first seq that a log frame covers: replay may join neighbouring output.
fn from_seq(event: &Value) -> u64 {
    event.get("from_seq").map_or_else(|| number(&event["seq"]), number)
}

/// The frames cover exactly `log[after..]`: each entry once, in order, the text as it was stored.
#[track_caller]
pub fn assert_covers(frames: &[Frame], log: &[Value], after: u64) {
    let mut next = after + 1;
    for frame in frames.iter().filter(|frame| frame.is_log()) {
        let seen = frame.json();
        let (from, to) = (from_seq(&seen), number(&seen["seq"]));
        assert_eq!((from, to), (next, frame.seq()), "a hole, a duplicate or a wrong id at {seen}");
        let stored = &log[from as usize - 1..to as usize];
        match stored {
            [one] => assert_eq!(&seen, one),
            many => assert_eq!(seen, joined(many)),
        }
        assert_eq!(frame.kind(), text(&seen["type"]));
        next = to + 1;
    }
    assert_eq!(next, log.len() as u64 + 1, "the reader did not see the end of the log");
}

/// What section 3.2 makes of neighbouring output events.
fn joined(events: &[Value]) -> Value {
    let (first, last) = (&events[0], &events[events.len() - 1]);
    assert!(events.iter().all(|e| e["type"] == "output" && e["attempt"] == last["attempt"]), "joined: {events:?}");
    let mut whole = last.clone();
    let texts = events.iter().map(|event| text(&event["data"]["text"]));
    whole["data"]["text"] = texts.collect::<String>().into();
    whole["data"]["offset"] = first["data"]["offset"].clone();
    whole["from_seq"] = first["seq"].clone();
    whole
}
