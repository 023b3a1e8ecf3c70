//! Where a followed job is shown: a bar on stderr, or plain lines; what was asked for goes to stdout.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::view::View;
use crate::cli::terminal::{one_line, printable, printable_json};
use crate::config::client::ShowArgs;

/// Bar positions per percent.
const STEPS: f64 = 10.0;

/// The two outputs of a watching command.
pub struct Screen {
    bar: Option<ProgressBar>,
    /// Whether status lines are printed when there is no bar, and where.
    status: Status,
    stdout_is_terminal: bool,
    /// The bar shows a percent.
    measured: bool,
    last_line: String,
    /// Output text of which the line has not ended, when lines are printed above a bar.
    open_line: String,
    lost: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Status {
    Stdout,
    Stderr,
    Nowhere,
}

impl Screen {
    pub fn open(show: &ShowArgs) -> Self {
        let bar = (!show.json && io::stderr().is_terminal()).then(new_bar);
        let status = match (show.json, show.output, bar.is_some()) {
            (true, _, _) => Status::Nowhere,
            (false, true, _) | (false, false, true) => Status::Stderr,
            (false, false, false) => Status::Stdout,
        };
        Self {
            bar,
            status,
            stdout_is_terminal: io::stdout().is_terminal(),
            measured: false,
            last_line: String::new(),
            open_line: String::new(),
            lost: false,
        }
    }

    /// Shows what is known now.
    pub fn progress(&mut self, view: &View) -> io::Result<()> {
        if view.state.is_empty() || self.lost {
            return Ok(());
        }
        let Some(bar) = &self.bar else {
            if matches!(view.state.as_str(), "completed" | "failed" | "cancelled" | "expired") {
                return Ok(());
            }
            let line = view.line();
            if line != self.last_line {
                self.status_line(&line)?;
                self.last_line = line;
            }
            return Ok(());
        };
        if let Some(percent) = view.percent()
            && view.state == "running"
        {
            if !std::mem::replace(&mut self.measured, true) {
                bar.set_style(style("{bar:30} {percent:>3}% {wide_msg} {elapsed}"));
            }
            bar.set_position((percent * STEPS) as u64);
            bar.set_message(format!("{} {}", view.headline(), view.details()));
        } else {
            if std::mem::take(&mut self.measured) {
                bar.set_style(style("{spinner} {wide_msg} {elapsed}"));
            }
            bar.set_message(format!("{} {}", view.headline(), view.details()));
        }
        if let Some(running_for) = view.started_at.as_deref().and_then(since) {
            bar.set_elapsed(running_for);
        }
        Ok(())
    }

    /// The connection is gone.
    pub fn waiting(&mut self, reason: &str, planned: bool) -> io::Result<()> {
        if planned || std::mem::replace(&mut self.lost, true) {
            return Ok(());
        }
        let line = format!("connection lost ({}), trying again", one_line(reason));
        match &self.bar {
            Some(bar) => bar.set_message(line),
            None => self.status_line(&line)?,
        }
        Ok(())
    }

    /// There is a connection.
    pub fn connected(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.lost) {
            self.last_line.clear();
            match &self.bar {
                Some(bar) => bar.set_message("connected again"),
                None => self.status_line("connected again")?,
            }
        }
        Ok(())
    }

    /// A piece of the job's output.
    pub fn output(&mut self, text: &str) -> io::Result<()> {
        if !self.stdout_is_terminal {
            // To the byte: it goes into a file or a program.
            let mut stdout = io::stdout();
            stdout.write_all(text.as_bytes())?;
            return stdout.flush();
        }
        if self.bar.is_none() {
            let mut stdout = io::stdout();
            stdout.write_all(printable(text).as_bytes())?;
            return stdout.flush();
        }
        self.open_line.push_str(text);
        let Some(end) = self.open_line.rfind('\n') else {
            return Ok(());
        };
        let rest = self.open_line.split_off(end + 1);
        let lines = std::mem::replace(&mut self.open_line, rest);
        self.above(&printable(lines.trim_end_matches('\n')))
    }

    /// A log entry.
    pub fn log(&mut self, event: &Value) -> io::Result<()> {
        let data = &event["data"];
        let part = |value: &Value| value.as_str().map(one_line).unwrap_or_default();
        let at = part(&event["at"]);
        let mut line =
            format!("{} {:5} {}", at.get(11..19).unwrap_or(&at), part(&data["level"]), part(&data["message"]));
        if data["fields"].as_object().is_some_and(|fields| !fields.is_empty()) {
            line.push_str(&format!(" {}", one_line(&data["fields"].to_string())));
        }
        self.above(&line)
    }

    /// A line for programs.
    pub fn json(&mut self, line: &str) -> io::Result<()> {
        writeln!(io::stdout(), "{}", printable_json(line))
    }

    /// Takes the bar away.
    pub fn close(&mut self) {
        if !self.open_line.is_empty() {
            let rest = std::mem::take(&mut self.open_line);
            let _ = self.above(&printable(&rest));
        }
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    /// How it ended.
    pub fn last(&mut self, view: &View) {
        let _ = self.status_line(&view.verdict());
    }

    fn status_line(&self, line: &str) -> io::Result<()> {
        match self.status {
            Status::Stdout => writeln!(io::stdout(), "{line}"),
            Status::Stderr => writeln!(io::stderr(), "{line}"),
            Status::Nowhere => Ok(()),
        }
    }

    fn above(&self, lines: &str) -> io::Result<()> {
        let print = || writeln!(io::stdout(), "{lines}");
        match &self.bar {
            Some(bar) if self.stdout_is_terminal => bar.suspend(print),
            Some(_) | None => print(),
        }
    }
}

fn new_bar() -> ProgressBar {
    let bar = ProgressBar::new((100.0 * STEPS) as u64);
    bar.set_style(style("{spinner} {wide_msg} {elapsed}"));
    bar.set_message("connecting");
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is ours")
}

/// How long ago that was by our clock; never negative.
fn since(at: &str) -> Option<Duration> {
    let at = OffsetDateTime::parse(at, &Rfc3339).ok()?;
    Some((OffsetDateTime::now_utc() - at).try_into().unwrap_or_default())
}
