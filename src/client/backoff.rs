//! Waiting between tries: full jitter, so that a thousand clients of one gateway do not come back in one second.

use std::time::Duration;

const MAX_BASE: Duration = Duration::from_secs(300);

/// Growing, jittered delays: the n-th is uniform in `[0, min(cap, base × 2ⁿ)]`.
#[derive(Clone, Debug)]
pub struct Backoff {
    base: Duration,
    cap: Duration,
    failures: u32,
}

impl Backoff {
    /// Starts at `base` and never grows beyond `cap`.
    #[must_use]
    pub fn new(base: Duration, cap: Duration) -> Self {
        Self { base, cap, failures: 0 }
    }

    /// The delay before the next try, not shorter than `at_least` (a `Retry-After`).
    pub fn next_delay(&mut self, at_least: Option<Duration>) -> Duration {
        let ceiling = self.ceiling();
        self.failures = self.failures.saturating_add(1);
        let jittered = ceiling.mul_f64(rand::random::<f64>());
        match at_least {
            // Everybody was told the same number: spread beyond it, never before it.
            Some(floor) => floor + jittered,
            None => jittered,
        }
    }

    /// The longest the next delay can be without a `Retry-After`.
    #[must_use]
    pub fn ceiling(&self) -> Duration {
        // Whoever asks for a longer base than our cap means it.
        self.base.saturating_mul(1_u32 << self.failures.min(20)).min(self.cap.max(self.base))
    }

    /// Takes a new base, as a stream's `retry:` gives it; at most five minutes.
    pub fn set_base(&mut self, base: Duration) {
        self.base = base.min(MAX_BASE);
    }

    /// Forgets earlier failures.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_the_cap_and_start_again_after_a_reset() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        let ceilings: Vec<u128> = (0..6)
            .map(|_| {
                let ceiling = backoff.ceiling();
                assert!(backoff.next_delay(None) <= ceiling);
                ceiling.as_millis()
            })
            .collect();
        assert_eq!(ceilings, [100, 200, 400, 800, 1000, 1000]);
        backoff.reset();
        assert_eq!(backoff.ceiling(), Duration::from_millis(100));
    }

    #[test]
    fn a_retry_after_is_a_floor() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        let floor = Duration::from_secs(7);
        let delay = backoff.next_delay(Some(floor));
        assert!(delay >= floor && delay <= floor + Duration::from_millis(100));
    }

    #[test]
    fn any_number_of_failures_is_survived() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
        backoff.failures = u32::MAX;
        assert!(backoff.next_delay(None) <= Duration::from_secs(30));
    }
}
