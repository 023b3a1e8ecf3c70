//! Instants: milliseconds since the Unix epoch, written as RFC 3339 in UTC.

use std::fmt;

use serde::{Serialize, Serializer};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// An instant of the store's clock, in whole milliseconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

/// 9999-12-31T23:59:59.999Z, the last instant that RFC 3339 can write.
const LAST_MS: i64 = 253_402_300_799_999;

impl Timestamp {
    /// The instant `ms` milliseconds after the epoch, held within the years 1970 to 9999.
    pub fn from_millis(ms: i64) -> Self {
        Self(ms.clamp(0, LAST_MS))
    }

    /// Milliseconds since the epoch.
    pub fn as_millis(self) -> i64 {
        self.0
    }

    /// This instant, `ms` milliseconds later.
    pub fn plus_millis(self, ms: u64) -> Self {
        Self::from_millis(self.0.saturating_add(i64::try_from(ms).unwrap_or(i64::MAX)))
    }

    /// The instant `ms` milliseconds before this one.
    pub fn minus_millis(self, ms: u64) -> Self {
        Self::from_millis(self.0.saturating_sub(i64::try_from(ms).unwrap_or(i64::MAX)))
    }

    /// Reads RFC 3339 with any offset; digits below the millisecond are dropped. `None` if it is not a time.
    pub fn parse(text: &str) -> Option<Self> {
        let instant = OffsetDateTime::parse(text, &Rfc3339).ok()?;
        let ms = i64::try_from(instant.unix_timestamp_nanos().div_euclid(1_000_000)).ok()?;
        (0..=LAST_MS).contains(&ms).then_some(Self(ms))
    }

    /// The same instant as the `time` crate has it.
    pub fn to_datetime(self) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.0) * 1_000_000)
            .expect("a Timestamp lies within the years 1970 to 9999")
    }

    /// From the `time` crate; digits below the millisecond are dropped.
    pub fn from_datetime(instant: OffsetDateTime) -> Self {
        Self::from_millis((instant.unix_timestamp_nanos() / 1_000_000) as i64)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let t = self.to_datetime();
        write!(
            f,
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
            t.year(),
            u8::from(t.month()),
            t.day(),
            t.hour(),
            t.minute(),
            t.second(),
            t.millisecond()
        )
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_any_offset_and_writes_utc_with_milliseconds() {
        let read = |text| Timestamp::parse(text).map(|t| t.to_string());
        assert_eq!(read("2026-11-29T23:32:49Z").as_deref(), Some("2026-11-29T23:32:49.000Z"));
        assert_eq!(read("2026-11-30T01:32:49.1239+02:00").as_deref(), Some("2026-11-29T23:32:49.123Z"));
        for wrong in ["", "2026-11-29", "2026-11-29 23:32", "yesterday", "1969-12-31T23:59:59Z"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
