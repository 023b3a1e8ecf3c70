//! Job ids.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use uuid::{Builder, Uuid};

use super::Timestamp;

/// A job's id: a UUIDv7 minted by the gateway, written in lower case with hyphens.
///
/// Ids sort by the millisecond in which they were minted, so "newest first" is a walk along the primary key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(Uuid);

impl JobId {
    /// Mints an id for `at`; the other 74 bits come from `random`.
    pub fn mint(at: Timestamp, random: [u8; 10]) -> Self {
        Self(Builder::from_unix_timestamp_millis(at.as_millis() as u64, &random).into_uuid())
    }

    /// The lowest id that could have been minted at `at`: a bound for range reads.
    pub fn lowest_at(at: Timestamp) -> Self {
        Self(Builder::from_unix_timestamp_millis(at.as_millis() as u64, &[0; 10]).into_uuid())
    }

    /// Reads what the gateway writes; any other spelling (upper case, braces, no hyphens) or kind of UUID is no id.
    pub fn parse(text: &str) -> Option<Self> {
        let id = Uuid::try_parse(text).ok()?;
        let mut buffer = Uuid::encode_buffer();
        let is_ours = id.get_version_num() == 7 && id.hyphenated().encode_lower(&mut buffer) == text;
        is_ours.then_some(Self(id))
    }

    /// From a store's column.
    pub fn from_uuid(id: Uuid) -> Self {
        Self(id)
    }

    /// For a store's column.
    pub fn as_uuid(self) -> Uuid {
        self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl<'de> Deserialize<'de> for JobId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| de::Error::custom("not a job id"))
    }
}

impl Serialize for JobId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_spelling_that_we_write_is_an_id() {
        let id = JobId::mint(Timestamp::from_millis(1_800_000_000_000), [7; 10]);
        let text = id.to_string();
        assert_eq!(JobId::parse(&text), Some(id));
        for wrong in
            [text.to_uppercase(), text.replace('-', ""), format!("{{{text}}}"), format!("{text} "), String::new()]
        {
            assert_eq!(JobId::parse(&wrong), None, "{wrong}");
        }
    }

    #[test]
    fn ids_sort_by_time() {
        let early = JobId::mint(Timestamp::from_millis(1_000), [255; 10]);
        let late = JobId::mint(Timestamp::from_millis(1_001), [0; 10]);
        assert!(early < late && JobId::lowest_at(Timestamp::from_millis(1_001)) <= late);
    }
}
