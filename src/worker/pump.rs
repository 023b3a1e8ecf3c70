//! Moves one of a program's output streams: to our own terminal as it is, and to the job as entries.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::Instant;

use super::entry::{Entry, fitting};
use super::lines::{Cut, Lines, MAX_FRAGMENT, Piece};
use super::reporter::Entries;

const READ_BYTES: usize = 64 << 10;
/// After the program's exit: how long its stream may be silent before it counts as ended. A process that was left
/// behind with the stream open must not keep the job from ending.
const LINGER: Duration = Duration::from_secs(1);
/// After the program's exit: how much is still read. As much as any pipe holds, so all of the program's own is.
const LINGER_BYTES: usize = 1 << 20;
/// How much of the end of stderr is remembered.
const LAST_WORDS_BYTES: usize = 4_096;

/// Which stream it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Events and text.
    Stdout,
    /// Log entries of level `error`.
    Stderr,
}

/// What is remembered of a stream for the job's last event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Printed {
    /// The run-ending event that the program printed last.
    pub kept: Option<Entry>,
    /// The end of stderr.
    pub last_words: String,
}

/// The way of one stream.
pub struct Pump {
    source: Source,
    lines: Lines,
    cut: Cut,
    entries: Entries,
    /// True once the program has exited.
    ended: watch::Receiver<bool>,
    redraws: Redraws,
    /// Output that goes out as one piece, once nothing more of it is at hand.
    text: String,
    kept: Option<Entry>,
    last_words: Vec<u8>,
}

impl Pump {
    /// A pump for one stream of a program.
    #[must_use]
    pub fn new(source: Source, cut: Cut, entries: Entries, ended: watch::Receiver<bool>) -> Self {
        let cut = match source {
            Source::Stdout => cut,
            Source::Stderr => Cut::Lines,
        };
        Self {
            source,
            lines: Lines::new(cut),
            cut,
            entries,
            ended,
            redraws: Redraws::new(Instant::now()),
            text: String::new(),
            kept: None,
            last_words: Vec::new(),
        }
    }

    /// Runs until the stream ends, or nothing more of it is the program's.
    pub async fn run(
        mut self,
        mut stream: impl AsyncRead + Unpin,
        mut echo: Option<impl AsyncWrite + Unpin>,
    ) -> Printed {
        let mut buffer = vec![0; READ_BYTES];
        let mut pieces = Vec::new();
        let mut linger_bytes = LINGER_BYTES;
        while let Some(count) = self.read(&mut stream, &mut buffer).await {
            let bytes = &buffer[..count];
            if let Some(terminal) = &mut echo {
                let shown = async {
                    terminal.write_all(bytes).await?;
                    terminal.flush().await
                };
                match shown.await {
                    Ok(()) => {}
                    // Whoever read us has had enough: the program is to know it, as if it stood there itself.
                    Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => break,
                    // The terminal is gone; the job goes on.
                    Err(_) => echo = None,
                }
            }
            self.remember(bytes);
            self.lines.feed(bytes, &mut pieces);
            self.pass_on(&mut pieces).await;
            if *self.ended.borrow() {
                linger_bytes = linger_bytes.saturating_sub(count);
                if linger_bytes == 0 {
                    break;
                }
            }
        }
        self.lines.finish(&mut pieces);
        pieces.push(Piece::Settled);
        self.pass_on(&mut pieces).await;
        Printed { kept: self.kept, last_words: String::from_utf8_lossy(&self.last_words).into_owned() }
    }

    /// The next bytes; `None` at the end. Shows a held redraw when nothing comes.
    async fn read(&mut self, stream: &mut (impl AsyncRead + Unpin), buffer: &mut [u8]) -> Option<usize> {
        loop {
            let ended = *self.ended.borrow();
            let patience = match (ended, self.redraws.held.is_some()) {
                (true, _) => Some(LINGER),
                (false, true) => Some(Redraws::EVERY),
                (false, false) => None,
            };
            tokio::select! {
                biased;
                read = stream.read(buffer) => return read.ok().filter(|count| *count > 0),
                () = pause(patience) => {
                    if ended {
                        return None;
                    }
                    self.settle().await;
                }
                changed = self.ended.changed(), if !ended => {
                    if changed.is_err() {
                        return None;
                    }
                }
            }
        }
    }

    fn remember(&mut self, bytes: &[u8]) {
        if self.source == Source::Stderr {
            self.last_words.extend_from_slice(bytes);
            let excess = self.last_words.len().saturating_sub(LAST_WORDS_BYTES);
            self.last_words.drain(..excess);
        }
    }

    async fn pass_on(&mut self, pieces: &mut Vec<Piece>) {
        for piece in pieces.drain(..) {
            match piece {
                Piece::Line(bytes) => {
                    let text = String::from_utf8_lossy(&bytes).into_owned();
                    if !self.said(&text).await {
                        // It is drawn over whatever stood there.
                        if text.is_empty() {
                            self.settle().await;
                        }
                        self.redraws.held = None;
                        self.send_text(&text).await;
                    }
                }
                Piece::Redraw(bytes) => {
                    let text = String::from_utf8_lossy(&bytes).into_owned();
                    if !self.said(&text).await
                        && let Some(text) = self.redraws.draw(text, Instant::now())
                    {
                        self.send_text(&text).await;
                    }
                }
                Piece::Fragment(bytes) => {
                    self.settle().await;
                    self.send_text(&String::from_utf8_lossy(&bytes)).await;
                }
                Piece::Settled => self.settle().await,
            }
        }
        self.flush_text().await;
    }

    /// Sends the event that `text` is, if it is one; one that ends the run is kept for the end.
    async fn said(&mut self, text: &str) -> bool {
        if self.source == Source::Stderr {
            return false;
        }
        let Some(entry) = Entry::said(text) else {
            return false;
        };
        self.flush_text().await;
        if entry.ends_run() {
            self.kept = Some(entry);
        } else {
            self.entries.send(entry).await;
        }
        true
    }

    async fn settle(&mut self) {
        if let Some(text) = self.redraws.held.take() {
            self.send_text(&text).await;
        }
    }

    async fn send_text(&mut self, text: &str) {
        if self.cut == Cut::Text {
            self.text.push_str(text);
            if self.text.len() >= MAX_FRAGMENT {
                self.flush_text().await;
            }
            return;
        }
        let level = match self.source {
            Source::Stdout => "info",
            Source::Stderr => "error",
        };
        for piece in fitting(text) {
            self.entries.send(Entry::Log { level, message: piece.to_owned() }).await;
        }
    }

    async fn flush_text(&mut self) {
        let text = std::mem::take(&mut self.text);
        if !text.is_empty() {
            for piece in fitting(&text) {
                self.entries.send(Entry::output(piece)).await;
            }
        }
    }
}

async fn pause(patience: Option<Duration>) {
    match patience {
        Some(patience) => tokio::time::sleep(patience).await,
        None => std::future::pending().await,
    }
}

/// A progress bar that redraws itself ten times a second would fill a job's log within hours. A few redraws pass
/// freely, then one a second: the newest.
#[derive(Debug)]
struct Redraws {
    allowance: f64,
    at: Instant,
    /// The newest redraw that has not been passed on.
    held: Option<String>,
}

impl Redraws {
    const EVERY: Duration = Duration::from_secs(1);
    const BURST: f64 = 20.0;

    fn new(now: Instant) -> Self {
        Self { allowance: Self::BURST, at: now, held: None }
    }

    /// What to pass on now.
    fn draw(&mut self, text: String, now: Instant) -> Option<String> {
        let gained = (now - self.at).as_secs_f64() / Self::EVERY.as_secs_f64();
        self.at = now;
        self.allowance = (self.allowance + gained).min(Self::BURST);
        if self.allowance < 1.0 {
            self.held = Some(text);
            return None;
        }
        self.allowance -= 1.0;
        self.held = None;
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fast_progress_bar_is_thinned_and_its_newest_state_kept() {
        let begun = Instant::now();
        let mut redraws = Redraws::new(begun);
        let mut passed = Vec::new();
        for step in 0..1_000_u32 {
            let now = begun + Duration::from_millis(10) * step;
            passed.extend(redraws.draw(step.to_string(), now));
        }
        assert_eq!(passed[..20], (0..20).map(|n| n.to_string()).collect::<Vec<_>>());
        assert!((29..=30).contains(&passed.len()), "{}", passed.len());
        assert_eq!(redraws.held.as_deref(), Some("999"));
    }
}
