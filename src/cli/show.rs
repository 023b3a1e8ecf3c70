//! A job that is followed, for people: a bar on a terminal, plain lines elsewhere, JSON lines for programs.
//!
//! "Queued", "finished" and "really succeeded" are three facts and have three wordings; whatever a job says is
//! printed so that a terminal does not obey it.

mod screen;
mod view;

use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::time::Instant;

use self::screen::Screen;
use self::view::View;
use super::terminal::say;
use crate::client::follow::{Begin, Pace, Update, follow};
use crate::client::{Client, ClientError};
use crate::config::client::ShowArgs;

/// Exit code of everything that is not about how the job ended.
pub const OTHER: u8 = 1;
const WITHOUT_SUCCESS: u8 = 3;
const FAILED: u8 = 4;
const CANCELLED: u8 = 5;
const EXPIRED: u8 = 6;
const NO_SUCH_JOB: u8 = 7;
/// Nobody reads what we print: as if SIGPIPE had ended us.
const NO_READER: u8 = 141;
/// How often plain progress is printed at most.
const PLAIN_EVERY: Duration = Duration::from_secs(1);

/// Follows the job to its end and shows it; the answer is the exit code of `milepost watch`.
pub async fn to_end(client: Client, id: String, show: &ShowArgs) -> ExitCode {
    let mut screen = Screen::open(show);
    let shown = follow_and_show(client, id, show, &mut screen).await;
    screen.close();
    let code = match shown {
        Ok(view) => {
            screen.last(&view);
            code_of(&view)
        }
        Err(Unshown::Client(error)) => {
            say(&error.to_string());
            let missing = error.problem().is_some_and(|problem| problem.status == 404);
            if missing { NO_SUCH_JOB } else { OTHER }
        }
        Err(Unshown::Unread) => NO_READER,
    };
    ExitCode::from(code)
}

enum Unshown {
    Client(ClientError),
    Unread,
}

impl From<std::io::Error> for Unshown {
    fn from(_: std::io::Error) -> Self {
        Self::Unread
    }
}

async fn follow_and_show(client: Client, id: String, show: &ShowArgs, screen: &mut Screen) -> Result<View, Unshown> {
    // Who wants the log wants all of it; for a bar the state is enough.
    let begin = if show.json || show.logs { Begin::Log } else { Begin::State };
    let mut updates = pin!(follow(client, id, begin, Pace::default()));
    let mut view = View::default();
    let mut printed_at: Option<Instant> = None;
    let mut behind = false;
    loop {
        let due = printed_at.map(|at| at + PLAIN_EVERY);
        let update = tokio::select! {
            update = updates.next() => update,
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if behind => {
                behind = false;
                printed_at = Some(Instant::now());
                screen.progress(&view)?;
                continue;
            }
        };
        let update = match update {
            Some(Ok(update)) => update,
            Some(Err(error)) => return Err(Unshown::Client(error)),
            // A follower ends with an item that says so.
            None => return Ok(view),
        };
        if show.json {
            if let Some(line) = json_line(&update) {
                screen.json(&line)?;
            }
        } else if let Update::Event(event) = &update {
            tell(event, show, &mut view, screen)?;
        }
        let ended = matches!(update, Update::Ended { .. });
        // After an absence the old state is shown until there is news.
        let milestone = view.take(&update) || update == Update::Connected;
        match &update {
            Update::Waiting { reason, planned, .. } => screen.waiting(reason, *planned)?,
            Update::Connected => screen.connected()?,
            Update::State(_) | Update::Event(_) | Update::Reset { .. } | Update::Ended { .. } => {}
        }
        if ended {
            return Ok(view);
        }
        if milestone || due.is_none_or(|due| due <= Instant::now()) {
            behind = false;
            printed_at = Some(Instant::now());
            screen.progress(&view)?;
        } else {
            behind = true;
        }
    }
}

/// Prints what an event says beyond the state: output and log entries, when asked for.
fn tell(event: &Value, show: &ShowArgs, view: &mut View, screen: &mut Screen) -> std::io::Result<()> {
    match event["type"].as_str() {
        Some("output") if show.output => {
            let text = view.new_output(event);
            screen.output(text)
        }
        Some("log") if show.logs => screen.log(event),
        _ => Ok(()),
    }
}

fn json_line(update: &Update) -> Option<String> {
    let line = match update {
        Update::Event(event) => event.to_string(),
        Update::State(document) => json!({"type": "state", "data": document}).to_string(),
        Update::Reset { reason } => json!({"type": "reset", "data": {"reason": reason}}).to_string(),
        Update::Ended { state } => json!({"type": "end", "data": {"state": state}}).to_string(),
        Update::Connected | Update::Waiting { .. } => return None,
    };
    Some(line)
}

fn code_of(view: &View) -> u8 {
    match view.state.as_str() {
        "completed" if view.succeeded() => 0,
        "completed" => WITHOUT_SUCCESS,
        "failed" => FAILED,
        "cancelled" => CANCELLED,
        "expired" => EXPIRED,
        "deleted" => NO_SUCH_JOB,
        _ => OTHER,
    }
}
