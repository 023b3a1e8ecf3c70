//! Where a reader of a feed left off, as it is written on the wire: opaque to clients, ours to read.

use std::fmt;

use crate::domain::Timestamp;

/// A cursor that is older is of no use.
const OLDEST_MS: u64 = 60 * 60 * 1_000;

/// A cursor that is further in the future was not given out by us; clocks of nodes differ by less.
const NEWEST_MS: u64 = 60 * 1_000;

/// Where a reader left off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedCursor {
    /// In the middle of an opening: it begins anew.
    Beginning,
    /// It has everything up to here.
    At {
        /// By time.
        at: Timestamp,
        /// By position, in this life of a process.
        life: u32,
        /// How many changes that process had seen.
        position: u64,
    },
}

impl FeedCursor {
    /// The cursor as text: bound to the store by its `epoch`. At most 64 visible ASCII characters.
    pub fn to_text(self, epoch: &str) -> String {
        match self {
            Self::Beginning => format!("{epoch}.0"),
            Self::At { at, life, position } => format!("{epoch}.{:x}.{life:x}.{position:x}", at.as_millis()),
        }
    }

    /// Reads what [`Self::to_text`] wrote; `None` if it is nothing of that kind, of another store, or too old.
    pub(super) fn parse(text: &str, epoch: &str, now: Timestamp) -> Option<Self> {
        let mut parts = text.strip_prefix(epoch)?.strip_prefix('.')?.split('.');
        let at = hex(parts.next()?)?;
        let (life, position) = (parts.next(), parts.next());
        if parts.next().is_some() {
            return None;
        }
        let (Some(life), Some(position)) = (life, position) else {
            return (at == 0 && life.is_none()).then_some(Self::Beginning);
        };
        let (at, life) = (i64::try_from(at).ok()?, u32::try_from(hex(life)?).ok()?);
        let is_usable = at >= now.minus_millis(OLDEST_MS).as_millis() && at <= now.plus_millis(NEWEST_MS).as_millis();
        is_usable.then_some(Self::At { at: Timestamp::from_millis(at), life, position: hex(position)? })
    }

    /// The position, if it means anything in this life.
    pub(super) fn position_in(self, this_life: u32) -> Option<u64> {
        match self {
            Self::At { life, position, .. } if life == this_life => Some(position),
            Self::At { .. } | Self::Beginning => None,
        }
    }

    /// The time; of a beginning, the beginning of time.
    pub(super) fn at(self) -> Timestamp {
        match self {
            Self::At { at, .. } => at,
            Self::Beginning => Timestamp::from_millis(0),
        }
    }
}

fn hex(text: &str) -> Option<u64> {
    // `from_str_radix` would take a sign.
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')).then(|| u64::from_str_radix(text, 16).ok())?
}

impl fmt::Display for FeedCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_text(""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_back_and_what_is_none_does_not() {
        let now = Timestamp::from_millis(1_800_000_000_000);
        let cursor = FeedCursor::At { at: now, life: u32::MAX, position: u64::MAX };
        let text = cursor.to_text("0123456789ab");
        assert!(text.len() <= 64 && text.bytes().all(|byte| byte.is_ascii_graphic()), "{text}");
        assert_eq!(FeedCursor::parse(&text, "0123456789ab", now), Some(cursor));
        let beginning = FeedCursor::Beginning.to_text("e");
        assert_eq!(FeedCursor::parse(&beginning, "e", now), Some(FeedCursor::Beginning));
        for wrong in ["", "e", "e.", "e.1", "e.0.0", "e.x.0.0", "e.0.0.0.0", "f.0", "e.+1.0.0", "17", "e.1.100000000.0"]
        {
            assert_eq!(FeedCursor::parse(wrong, "e", Timestamp::from_millis(1)), None, "{wrong}");
        }
    }

    #[test]
    fn an_hour_old_and_of_the_future_is_of_no_use() {
        let now = Timestamp::from_millis(1_800_000_000_000);
        let usable = |at: Timestamp| {
            let text = FeedCursor::At { at, life: 1, position: 1 }.to_text("e");
            FeedCursor::parse(&text, "e", now).is_some()
        };
        assert!(usable(now) && usable(now.minus_millis(OLDEST_MS)) && usable(now.plus_millis(NEWEST_MS)));
        assert!(!usable(now.minus_millis(OLDEST_MS + 1)) && !usable(now.plus_millis(NEWEST_MS + 1)));
    }
}
