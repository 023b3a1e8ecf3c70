//! What is known about a followed job, and its wording.

use serde_json::Value;

use crate::cli::terminal::one_line;
use crate::client::follow::Update;

/// The part of a job's state that is shown. Numbers of progress are kept as they are; nothing is printed here.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The job's state, `deleted`, or empty while nothing is known.
    pub state: String,
    /// When the latest run began.
    pub started_at: Option<String>,
    attempt: u64,
    max_attempts: u64,
    percent: Option<f64>,
    current: Option<f64>,
    total: Option<f64>,
    unit: Option<String>,
    phase: Option<String>,
    message: Option<String>,
    run_at: Option<String>,
    cancel_requested: bool,
    outcome: Value,
    error: Value,
    reason: Option<String>,
    /// Up to which byte the run's output has been shown.
    shown_output: u64,
}

impl View {
    /// Takes an update in; says whether it is one that people want to see at once.
    pub fn take(&mut self, update: &Update) -> bool {
        match update {
            Update::State(document) => {
                self.take_state(document);
                true
            }
            Update::Event(event) => self.take_event(event),
            Update::Ended { state } => {
                if !state.is_empty() {
                    self.state.clone_from(state);
                }
                true
            }
            Update::Reset { .. } | Update::Connected | Update::Waiting { .. } => false,
        }
    }

    /// The part of an output event that has not been shown yet. A resumed stream may tell some of it again; offsets
    /// are bytes of the run's output.
    pub fn new_output<'a>(&mut self, event: &'a Value) -> &'a str {
        let text = event["data"]["text"].as_str().unwrap_or("");
        let offset = event["data"]["offset"].as_u64().unwrap_or(self.shown_output);
        let known = self.shown_output.saturating_sub(offset);
        let known = usize::try_from(known).unwrap_or(usize::MAX);
        self.shown_output = self.shown_output.max(offset + text.len() as u64);
        text.get(known.min(text.len())..).unwrap_or(text)
    }

    /// "It ran" is not "it did what it should": an Outcome may say so.
    pub fn succeeded(&self) -> bool {
        self.state == "completed" && self.outcome["ok"].as_bool() != Some(false)
    }

    /// The shown percent, once there is one.
    pub fn percent(&self) -> Option<f64> {
        self.percent
    }

    fn take_state(&mut self, document: &Value) {
        let progress = &document["progress"];
        let shown_output = self.shown_output;
        // A state of another run tells of another output.
        let same_run = self.started_at == text(document, "started_at");
        *self = Self {
            state: text(document, "state").unwrap_or_default(),
            started_at: text(document, "started_at"),
            attempt: document["attempt"].as_u64().unwrap_or(0),
            max_attempts: document["max_attempts"].as_u64().unwrap_or(0),
            percent: number(progress, "percent"),
            current: number(progress, "current"),
            total: number(progress, "total"),
            unit: text(progress, "unit"),
            phase: text(progress, "phase"),
            message: text(progress, "message"),
            run_at: text(document, "run_at"),
            cancel_requested: document["cancel_requested"].as_bool() == Some(true),
            outcome: document["outcome"].clone(),
            error: document["error"].clone(),
            reason: None,
            shown_output: if same_run { shown_output } else { 0 },
        };
    }

    fn take_event(&mut self, event: &Value) -> bool {
        let data = &event["data"];
        if let Some(attempt) = event["attempt"].as_u64() {
            self.attempt = attempt;
        }
        let state = |name: &str| Some(name.to_owned());
        let state = match event["type"].as_str().unwrap_or("") {
            "queued" => {
                self.max_attempts = data["max_attempts"].as_u64().unwrap_or(0);
                self.run_at = text(data, "run_at");
                state("queued")
            }
            "started" => {
                *self = Self {
                    attempt: self.attempt,
                    max_attempts: self.max_attempts,
                    started_at: text(event, "at"),
                    ..Self::default()
                };
                state("running")
            }
            "progress" => return self.take_progress(data),
            "retrying" => {
                self.error = data["error"].clone();
                self.run_at = text(data, "run_at");
                state("retrying")
            }
            "released" => {
                let delayed = data["delay_ms"].as_u64().unwrap_or(0) > 0;
                state(if delayed { "scheduled" } else { "queued" })
            }
            "requeued" => {
                *self = Self { max_attempts: self.max_attempts, ..Self::default() };
                state("queued")
            }
            "cancel_requested" => {
                self.cancel_requested = true;
                return true;
            }
            "completed" => {
                self.outcome = data.clone();
                state("completed")
            }
            "failed" => {
                self.error = data.clone();
                state("failed")
            }
            "cancelled" => {
                self.error = data["error"].clone();
                self.reason = text(data, "reason");
                state("cancelled")
            }
            "expired" => {
                self.reason = text(data, "reason");
                state("expired")
            }
            _ => None,
        };
        let Some(state) = state else {
            return false;
        };
        self.state = state;
        true
    }

    /// What is left out keeps its value; the shown percent never falls within a run.
    fn take_progress(&mut self, data: &Value) -> bool {
        self.current = number(data, "current").or(self.current);
        self.total = number(data, "total").or(self.total);
        self.unit = text(data, "unit").or(self.unit.take());
        let phase = text(data, "phase");
        let new_phase = phase.is_some() && phase != self.phase;
        self.phase = phase.or(self.phase.take());
        self.message = text(data, "message").or(self.message.take());
        let derived = match (number(data, "current"), number(data, "total")) {
            (Some(current), Some(total)) if total > 0.0 => Some(100.0 * current / total),
            _ => None,
        };
        if let Some(percent) = number(data, "percent").or(derived) {
            self.percent = Some(self.percent.map_or(percent, |shown| shown.max(percent)));
        }
        new_phase
    }

    /// The state in words, without progress.
    pub fn headline(&self) -> String {
        match self.state.as_str() {
            "queued" => "queued, waiting for a worker".to_owned(),
            "scheduled" => match &self.run_at {
                Some(run_at) => format!("scheduled for {}", one_line(run_at)),
                None => "scheduled".to_owned(),
            },
            "retrying" => format!("will be tried again: {}", self.failure()),
            "running" => {
                let mut line = if self.cancel_requested { "running, cancel requested" } else { "running" }.to_owned();
                if self.attempt > 1 {
                    line.push_str(&format!(", attempt {} of {}", self.attempt, self.max_attempts.max(self.attempt)));
                }
                line
            }
            other => one_line(other),
        }
    }

    /// Phase, message and count, as far as they are known.
    pub fn details(&self) -> String {
        let mut parts = Vec::new();
        parts.extend(self.phase.as_deref().map(one_line));
        parts.extend(self.message.as_deref().map(one_line));
        if let Some(current) = self.current {
            let mut count = current.to_string();
            if let Some(total) = self.total {
                count = format!("{count}/{total}");
            }
            if let Some(unit) = &self.unit {
                count = format!("{count} {}", one_line(unit));
            }
            parts.push(count);
        }
        parts.retain(|part| !part.is_empty());
        parts.join(" · ")
    }

    /// One line that says everything that is known now.
    pub fn line(&self) -> String {
        let mut line = self.headline();
        if let Some(percent) = self.percent {
            line = format!("{line}  {percent:.1} %");
        }
        let details = self.details();
        if !details.is_empty() {
            line = format!("{line}  {details}");
        }
        line
    }

    /// How it ended.
    pub fn verdict(&self) -> String {
        let outcome = |key: &str| {
            let text = self.outcome[key].as_str().map(one_line);
            text.filter(|text| !text.is_empty())
        };
        match self.state.as_str() {
            "completed" if self.succeeded() => {
                let mut verdict = "✔ completed and succeeded".to_owned();
                if let Some(items) = self.outcome["items"].as_number() {
                    verdict.push_str(&format!(", {items} items"));
                }
                if let Some(note) = outcome("note") {
                    verdict.push_str(&format!(": {note}"));
                }
                verdict
            }
            "completed" => {
                let status = outcome("status").map(|status| format!(" ({status})")).unwrap_or_default();
                let note = outcome("note").map(|note| format!(": {note}")).unwrap_or_default();
                format!("⚠ warning: completed, but without success{status}{note}")
            }
            "failed" => format!("✘ failed: {}", self.failure()),
            "cancelled" | "expired" => {
                let reason = self.reason.as_deref().map(|reason| format!(": {}", one_line(reason)));
                let verdict = format!("✘ {}{}", self.state, reason.unwrap_or_default());
                if self.error.is_object() { format!("{verdict} ({})", self.failure()) } else { verdict }
            }
            "deleted" => "the job was deleted".to_owned(),
            other => one_line(other),
        }
    }

    fn failure(&self) -> String {
        let part = |key: &str| self.error[key].as_str().map(one_line).filter(|text| !text.is_empty());
        match (part("code"), part("message")) {
            (Some(code), Some(message)) => format!("{message} ({code})"),
            (Some(only), None) | (None, Some(only)) => only,
            (None, None) => "no reason given".to_owned(),
        }
    }
}

fn text(value: &Value, key: &str) -> Option<String> {
    value[key].as_str().map(str::to_owned)
}

fn number(value: &Value, key: &str) -> Option<f64> {
    value[key].as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn after(events: &[Value]) -> View {
        let mut view = View::default();
        for event in events {
            view.take(&Update::Event(event.clone()));
        }
        view
    }

    #[test]
    fn queued_finished_and_succeeded_are_three_facts() {
        let queued = after(&[json!({"type": "queued", "data": {}})]);
        assert_eq!(queued.line(), "queued, waiting for a worker");
        let full = after(&[json!({"type": "progress", "data": {"percent": 100}})]);
        assert!(!full.succeeded(), "100 % is not completed");
        let succeeded = after(&[json!({"type": "completed", "data": {"ok": true, "note": "41 pages"}})]);
        assert_eq!(succeeded.verdict(), "✔ completed and succeeded: 41 pages");
        let empty =
            after(&[json!({"type": "completed", "data": {"ok": false, "status": "empty", "note": "no pages"}})]);
        assert!(!empty.succeeded());
        assert_eq!(empty.verdict(), "⚠ warning: completed, but without success (empty): no pages");
    }

    #[test]
    fn the_shown_percent_never_falls_within_a_run() {
        let mut view = after(&[
            json!({"type": "started", "at": "2026-01-01T00:00:00.000Z", "attempt": 1, "data": {}}),
            json!({"type": "progress", "data": {"current": 83, "total": 200, "unit": "pages", "phase": "drafting"}}),
            json!({"type": "progress", "data": {"percent": 10, "message": "page 83"}}),
        ]);
        assert_eq!(view.line(), "running  41.5 %  drafting · page 83 · 83/200 pages");
        view.take(&Update::Event(json!({"type": "started", "attempt": 2, "data": {}})));
        assert_eq!(view.line(), "running, attempt 2 of 2", "progress belongs to the run");
    }

    #[test]
    fn output_told_again_is_shown_once() {
        let mut view = View::default();
        let output = |offset: u64, text: &str| json!({"type": "output", "data": {"offset": offset, "text": text}});
        assert_eq!(view.new_output(&output(0, "ab")), "ab");
        assert_eq!(view.new_output(&output(0, "ab€")), "€");
        assert_eq!(view.new_output(&output(5, "c")), "c");
        assert_eq!(view.new_output(&output(5, "c")), "");
        view.take(&Update::Event(json!({"type": "started", "data": {}})));
        assert_eq!(view.new_output(&output(0, "new")), "new");
    }

    #[test]
    fn what_a_job_says_cannot_reach_the_terminal() {
        let view = after(&[
            json!({"type": "progress", "data": {"message": "\x1b[2J\nfake", "phase": "p\u{202e}"}}),
            json!({"type": "failed", "data": {"code": "c", "message": "\x07bell"}}),
        ]);
        assert_eq!(view.details(), "p\\u{202e} · \\x1b[2J ⏎ fake");
        assert_eq!(view.verdict(), "✘ failed: \\x07bell (c)");
    }
}
