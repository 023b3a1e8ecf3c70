//! The signals that ask a process to stop.

use std::io;
use std::sync::{Arc, OnceLock};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// The first signal that asked us to stop.
pub type FirstSignal = Arc<OnceLock<SignalKind>>;

/// Turns the signals that ask a process to stop into items of a channel.
///
/// # Errors
/// The operating system's.
pub fn listen() -> io::Result<(mpsc::Receiver<()>, FirstSignal)> {
    let (interrupts, interrupted) = mpsc::channel(4);
    let first = FirstSignal::default();
    let mut kinds = vec![SignalKind::interrupt(), SignalKind::terminate()];
    // `nohup` has us ignore it; listening would undo that.
    if !is_ignored(SignalKind::hangup()) {
        kinds.push(SignalKind::hangup());
    }
    for kind in kinds {
        let mut signals = signal(kind)?;
        let interrupts = interrupts.clone();
        let first = Arc::clone(&first);
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                let _ = first.set(kind);
                // Full: somebody presses Ctrl-C faster than anybody could obey.
                let _ = interrupts.try_send(());
            }
        });
    }
    Ok((interrupted, first))
}

/// Reads the mask of ignored signals where the system shows it; elsewhere none is.
fn is_ignored(kind: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (kind.as_raw_value() - 1)) != 0)
}
