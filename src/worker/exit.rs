//! What the end of a program means for its job, and for the shell that waits for it.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// EX_TEMPFAIL of sysexits.h: "try again later".
pub const TEMPORARY_FAILURE: i32 = 75;
/// How much of the last words on stderr goes into the failure.
const MAX_LAST_WORDS: usize = 2_000;

/// How a program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By a signal.
    Signal(i32),
    /// It never began.
    NotStarted {
        /// Stable code of the failure.
        code: &'static str,
        /// For people.
        message: String,
    },
}

impl Exit {
    /// Reads what the operating system says.
    #[must_use]
    pub fn from_status(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Signal(signal),
            // wait() reports only ended children, and those have one of the two.
            (None, None) => Self::Code(1),
        }
    }

    /// Why `program` could not be started.
    #[must_use]
    pub fn not_started(program: &str, error: &io::Error) -> Self {
        let (code, why) = match error.kind() {
            io::ErrorKind::NotFound => ("command_not_found", "not found".to_owned()),
            io::ErrorKind::PermissionDenied => ("command_not_executable", "not executable".to_owned()),
            _ => ("command_not_started", error.to_string()),
        };
        Self::NotStarted { code, message: format!("cannot start {program}: {why}") }
    }

    /// The code a shell would give: 128 + n for a signal, 127 not found, 126 not executable.
    #[must_use]
    pub fn shell_code(&self) -> u8 {
        match self {
            Self::Code(code) => u8::try_from(code & 0xFF).unwrap_or(1),
            Self::Signal(signal) => u8::try_from(128 + (signal & 0x7F)).unwrap_or(255),
            Self::NotStarted { code: "command_not_found", .. } => 127,
            Self::NotStarted { .. } => 126,
        }
    }

    /// Whether the program says that all went well.
    #[must_use]
    pub fn is_success(&self) -> bool {
        *self == Self::Code(0)
    }

    /// The event that ends the job: `completed` for 0, `failed` for everything else. `last_words` is the end of
    /// stderr, which mostly says why.
    #[must_use]
    pub fn event(&self, last_words: &str) -> Value {
        let failed = |code: &str, message: String, retryable: bool, mut details: Value| {
            let mut message = message;
            if let Some(line) = last_words.lines().rev().find(|line| !line.trim().is_empty()) {
                message = format!("{message}: {}", cut(line.trim(), MAX_LAST_WORDS));
            }
            if !last_words.trim().is_empty() {
                details["stderr"] = cut_front(last_words, MAX_LAST_WORDS).into();
            }
            json!({"type": "failed", "data": {
                "code": code, "message": message, "retryable": retryable, "details": details,
            }})
        };
        match self {
            Self::Code(0) => json!({"type": "completed", "data": {}}),
            Self::Code(code) => failed(
                "exit_code",
                format!("exited with code {code}"),
                *code == TEMPORARY_FAILURE,
                json!({"exit_code": code}),
            ),
            Self::Signal(number) => {
                let name = Signal::try_from(*number).map_or("an unnamed signal", Signal::as_str);
                // Mostly the machine's doing (out of memory, shutdown), so another try is worth it.
                failed("signal", format!("killed by {name}"), true, json!({"signal": name, "signal_number": number}))
            }
            Self::NotStarted { code, message } => json!({"type": "failed", "data": {
                "code": code, "message": message, "retryable": true,
            }}),
        }
    }
}

fn cut(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn cut_front(text: &str, bytes: usize) -> &str {
    let mut start = text.len().saturating_sub(bytes);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_completes_and_everything_else_fails() {
        for (exit, event_type, code, retryable, shell) in [
            (Exit::Code(0), "completed", None, None, 0),
            (Exit::Code(1), "failed", Some("exit_code"), Some(false), 1),
            (Exit::Code(75), "failed", Some("exit_code"), Some(true), 75),
            (Exit::Code(255), "failed", Some("exit_code"), Some(false), 255),
            (Exit::Signal(9), "failed", Some("signal"), Some(true), 137),
            (Exit::Signal(15), "failed", Some("signal"), Some(true), 143),
            (Exit::Signal(64), "failed", Some("signal"), Some(true), 192),
        ] {
            let event = exit.event("");
            assert_eq!(event["type"], event_type, "{exit:?}");
            assert_eq!(event["data"]["code"].as_str(), code, "{exit:?}");
            assert_eq!(event["data"]["retryable"].as_bool(), retryable, "{exit:?}");
            assert_eq!(exit.shell_code(), shell, "{exit:?}");
        }
    }

    #[test]
    fn a_failure_names_code_and_signal_and_the_last_words() {
        let event = Exit::Code(3).event("Traceback …\nValueError: bad\n\n");
        assert_eq!(event["data"]["message"], "exited with code 3: ValueError: bad");
        assert_eq!(event["data"]["details"]["exit_code"], 3);
        assert_eq!(event["data"]["details"]["stderr"], "Traceback …\nValueError: bad\n\n");
        let event = Exit::Signal(11).event("");
        assert_eq!(event["data"]["message"], "killed by SIGSEGV");
        assert_eq!(event["data"]["details"], json!({"signal": "SIGSEGV", "signal_number": 11}));
    }

    #[test]
    fn a_command_that_cannot_start_says_which_and_why() {
        for (kind, code, shell) in [
            (io::ErrorKind::NotFound, "command_not_found", 127),
            (io::ErrorKind::PermissionDenied, "command_not_executable", 126),
            (io::ErrorKind::OutOfMemory, "command_not_started", 126),
        ] {
            let exit = Exit::not_started("./render", &io::Error::from(kind));
            assert_eq!(exit.event("")["data"]["code"], code);
            let message = exit.event("")["data"]["message"].clone();
            assert!(message.as_str().is_some_and(|m| m.starts_with("cannot start ./render: ")));
            assert_eq!(exit.shell_code(), shell);
        }
    }
}
