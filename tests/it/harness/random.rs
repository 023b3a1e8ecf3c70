//! Seeded chance. A test prints its seed when it fails; `MILEPOST_TEST_SEED` replays it.

use std::time::{SystemTime, UNIX_EPOCH};

/// SplitMix64: the same numbers for the same seed whatever version of a library is in use.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    /// A new seed, or the one that the environment asks for. The harness shows it when the test fails.
    pub fn new() -> Self {
        let seed = std::env::var("MILEPOST_TEST_SEED").ok().map_or_else(
            || {
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                now.expect("the clock is past 1970").as_nanos() as u64
            },
            |text| text.parse().expect("MILEPOST_TEST_SEED is a number"),
        );
        println!("MILEPOST_TEST_SEED={seed}");
        Self(seed)
    }

    /// An independent stream of numbers, so that tasks do not depend on each other's order.
    pub fn fork(&mut self) -> Self {
        Self(self.next())
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    /// A pause of at most `limit_ms`.
    pub async fn pause(&mut self, limit_ms: u64) {
        tokio::time::sleep(std::time::Duration::from_millis(self.below(limit_ms.max(1)))).await;
    }
}
