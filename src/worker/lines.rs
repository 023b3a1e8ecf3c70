//! Cuts a program's output into lines, with bounded memory whatever the program prints.
//!
//! A line that may be an event (its first character is `{`) is kept whole up to [`MAX_EVENT_LINE`]; any other line is
//! let go in fragments once it is longer than [`MAX_FRAGMENT`]. Bytes are never lost and never split inside a UTF-8
//! character.

/// The longest line that is still read as an event: a result of 1 MiB, escaped, in a request of 2 MiB.
pub const MAX_EVENT_LINE: usize = 2_000_000;
/// The longest piece of text; as an event's data it stays under the gateway's 64 KiB.
pub const MAX_FRAGMENT: usize = 48 << 10;

/// How the text is to be shown, which decides what ends a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// For log entries: LF, CR LF and a lone CR (a progress bar redrawing itself) end a line and are dropped.
    Lines,
    /// For output: only LF ends a line, and every byte is kept; text that cannot be an event goes out at once.
    Text,
}

/// A piece of what was printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A whole line: an event, perhaps. In [`Cut::Text`] with its line end.
    Line(Vec<u8>),
    /// A line that ended in a lone CR: the next one is drawn over it.
    Redraw(Vec<u8>),
    /// The line end after a [`Piece::Redraw`]: what was drawn last stays.
    Settled,
    /// A part of a line that is no event.
    Fragment(Vec<u8>),
}

/// The state of cutting one stream.
#[derive(Debug)]
pub struct Lines {
    cut: Cut,
    line: Vec<u8>,
    /// The beginning of the current line has been let go as fragments.
    inside: bool,
    after_cr: bool,
}

impl Lines {
    /// A cutter at the beginning of a stream.
    #[must_use]
    pub fn new(cut: Cut) -> Self {
        Self { cut, line: Vec::new(), inside: false, after_cr: false }
    }

    /// Takes what the program printed next.
    pub fn feed(&mut self, mut bytes: &[u8], pieces: &mut Vec<Piece>) {
        while !bytes.is_empty() {
            if std::mem::take(&mut self.after_cr) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                pieces.push(Piece::Settled);
                continue;
            }
            let end = match self.cut {
                Cut::Lines => memchr::memchr2(b'\n', b'\r', bytes),
                Cut::Text => memchr::memchr(b'\n', bytes),
            };
            let kept = match (end, self.cut) {
                (Some(end), Cut::Text) => end + 1,
                (Some(end), Cut::Lines) => end,
                (None, _) => bytes.len(),
            };
            self.take(&bytes[..kept], pieces);
            let Some(end) = end else { break };
            let redraw = bytes[end] == b'\r';
            let mut next = end + 1;
            if redraw && bytes.get(next) == Some(&b'\n') {
                next += 1;
                self.end_line(false, pieces);
            } else {
                self.after_cr = redraw && next == bytes.len();
                self.end_line(redraw, pieces);
            }
            bytes = &bytes[next..];
        }
        if self.cut == Cut::Text {
            self.let_text_go(pieces);
        }
    }

    /// The stream is at its end; a last line without a line end is a line.
    pub fn finish(&mut self, pieces: &mut Vec<Piece>) {
        if !self.line.is_empty() {
            self.end_line(false, pieces);
        }
        self.inside = false;
    }

    fn take(&mut self, mut bytes: &[u8], pieces: &mut Vec<Piece>) {
        while !bytes.is_empty() {
            let room = self.limit(bytes[0]).saturating_sub(self.line.len());
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.line.extend_from_slice(now);
            bytes = later;
            if !bytes.is_empty() {
                self.let_go(pieces);
            }
        }
    }

    /// How long the current line may get, given the byte that comes next.
    fn limit(&self, next: u8) -> usize {
        let first = first_visible(&self.line).unwrap_or(next);
        if !self.inside && first == b'{' { MAX_EVENT_LINE } else { MAX_FRAGMENT }
    }

    /// Lets go of the line so far, in pieces, except for the bytes of an unfinished character.
    fn let_go(&mut self, pieces: &mut Vec<Piece>) {
        self.inside = true;
        while !self.line.is_empty() {
            let whole = whole_characters(&self.line[..self.line.len().min(MAX_FRAGMENT)]);
            if whole == 0 {
                break;
            }
            let rest = self.line.split_off(whole);
            pieces.push(Piece::Fragment(std::mem::replace(&mut self.line, rest)));
        }
    }

    /// A token stream prints no line ends for a long time: what cannot become an event is not held back.
    fn let_text_go(&mut self, pieces: &mut Vec<Piece>) {
        let may_be_event = match first_visible(&self.line) {
            Some(first) => first == b'{',
            None => true,
        };
        if self.inside || !may_be_event {
            self.let_go(pieces);
        }
    }

    fn end_line(&mut self, redraw: bool, pieces: &mut Vec<Piece>) {
        let line = std::mem::take(&mut self.line);
        let inside = std::mem::take(&mut self.inside);
        match (inside, redraw) {
            (true, _) if line.is_empty() => {}
            (true, _) => pieces.push(Piece::Fragment(line)),
            (false, true) if line.is_empty() => {}
            (false, true) => pieces.push(Piece::Redraw(line)),
            (false, false) => pieces.push(Piece::Line(line)),
        }
    }
}

fn first_visible(line: &[u8]) -> Option<u8> {
    line.iter().copied().find(|byte| !byte.is_ascii_whitespace())
}

/// The length of `bytes` without the beginning of a character that has not arrived whole.
fn whole_characters(bytes: &[u8]) -> usize {
    let tail = bytes.len().saturating_sub(3);
    for at in (tail..bytes.len()).rev() {
        let length = match bytes[at] {
            0xC2..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF4 => 4,
            0x80..=0xBF => continue,
            _ => return bytes.len(),
        };
        return if at + length > bytes.len() { at } else { bytes.len() };
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(cut: Cut, parts: &[&[u8]]) -> Vec<Piece> {
        let mut lines = Lines::new(cut);
        let mut pieces = Vec::new();
        for part in parts {
            lines.feed(part, &mut pieces);
        }
        lines.finish(&mut pieces);
        pieces
    }

    fn line(text: &str) -> Piece {
        Piece::Line(text.as_bytes().to_vec())
    }

    fn bytes_of(pieces: &[Piece]) -> Vec<u8> {
        let mut all = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Line(bytes) | Piece::Redraw(bytes) | Piece::Fragment(bytes) => all.extend(bytes),
                Piece::Settled => {}
            }
        }
        all
    }

    #[test]
    fn lines_end_with_lf_or_crlf_and_the_last_needs_none() {
        assert_eq!(cut(Cut::Lines, &[b"a\r\n\nb\nc"]), [line("a"), line(""), line("b"), line("c")]);
        assert_eq!(cut(Cut::Lines, &[b""]), []);
        assert_eq!(cut(Cut::Lines, &[b"a\n"]), [line("a")]);
    }

    #[test]
    fn a_lone_cr_is_a_redraw_wherever_it_is_cut() {
        let redraw = |text: &str| Piece::Redraw(text.as_bytes().to_vec());
        let expected = [redraw("1%"), redraw("2%"), line("done")];
        assert_eq!(cut(Cut::Lines, &[b"\r1%\r2%\rdone\n"]), expected);
        assert_eq!(cut(Cut::Lines, &[b"\r1%", b"\r", b"2%\r", b"done\n"]), expected);
        assert_eq!(cut(Cut::Lines, &[b"a\r", b"\nb\n"]), [redraw("a"), Piece::Settled, line("b")]);
    }

    #[test]
    fn text_is_kept_to_the_byte_however_it_is_cut() {
        let text = "tok en\r\n\n  {\"type\":\"log\"}\nä€😀 end\r1%\r2%".as_bytes();
        for at in 0..=text.len() {
            let pieces = cut(Cut::Text, &[&text[..at], &text[at..]]);
            assert_eq!(bytes_of(&pieces), text, "cut at {at}");
            assert!(
                pieces.contains(&line("  {\"type\":\"log\"}\n")),
                "an event line stays whole, cut at {at}: {pieces:?}"
            );
            for piece in &pieces {
                let (Piece::Line(bytes) | Piece::Fragment(bytes)) = piece else {
                    panic!("text has no redraws");
                };
                assert!(std::str::from_utf8(bytes).is_ok(), "characters stay whole, cut at {at}");
            }
        }
    }

    #[test]
    fn text_without_a_line_end_is_not_held_back() {
        let mut lines = Lines::new(Cut::Text);
        let mut pieces = Vec::new();
        lines.feed(b"tok", &mut pieces);
        assert_eq!(pieces, [Piece::Fragment(b"tok".to_vec())]);
        lines.feed(b"{en}\n", &mut pieces);
        assert_eq!(pieces[1], Piece::Fragment(b"{en}\n".to_vec()), "inside a line nothing is an event");
        lines.feed(b"{\"type\"", &mut pieces);
        assert_eq!(pieces.len(), 2, "this may become an event");
    }

    #[test]
    fn an_endless_line_is_let_go_in_fragments() {
        let long: Vec<u8> = "ä".repeat(5 << 20).into_bytes();
        let mut lines = Lines::new(Cut::Lines);
        let mut pieces = Vec::new();
        for part in long.chunks(65_537) {
            lines.feed(part, &mut pieces);
            assert!(lines.line.len() <= MAX_FRAGMENT);
        }
        lines.feed(b"\nnext\n", &mut pieces);
        assert_eq!(pieces.pop(), Some(line("next")));
        assert_eq!(bytes_of(&pieces), long);
        for piece in pieces {
            let Piece::Fragment(bytes) = piece else {
                panic!("only fragments");
            };
            assert!(bytes.len() <= MAX_FRAGMENT && String::from_utf8(bytes).is_ok());
        }
    }

    #[test]
    fn a_large_event_line_stays_whole_and_a_too_large_one_becomes_text() {
        let event = format!("{{\"type\":\"completed\",\"data\":\"{}\"}}", "x".repeat(1_500_000));
        assert_eq!(cut(Cut::Lines, &[event.as_bytes(), b"\n"]), [line(&event)]);
        let monster = vec![b'{'; MAX_EVENT_LINE + 10];
        let pieces = cut(Cut::Lines, &[&monster, b"\nnext\n"]);
        assert_eq!(pieces.last(), Some(&line("next")));
        assert!(matches!(pieces[0], Piece::Fragment(_)));
        assert_eq!(bytes_of(&pieces).len(), monster.len() + 4);
    }

    #[test]
    fn bytes_that_are_no_utf8_pass_through() {
        let junk = b"a\xFF\xFE\xF0\x9F\nb\xC3\n\xF0\x9F\x98";
        assert_eq!(bytes_of(&cut(Cut::Lines, &[junk])), b"a\xFF\xFE\xF0\x9Fb\xC3\xF0\x9F\x98");
        assert_eq!(bytes_of(&cut(Cut::Text, &[junk])), junk);
    }
}
