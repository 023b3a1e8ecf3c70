//! Lease tokens: the proof that a write comes from the run that holds the job.
//!
//! A token is an HMAC over job and run under a secret of the store, so that every node can judge it without a read,
//! and nobody can make one. Whether that run still holds the lease is the store's to say.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::JobId;

/// Bytes of the HMAC that a token carries: as many as cannot be guessed.
const MAC_BYTES: usize = 16;

/// The store's secret. It is never shown.
#[derive(Clone)]
pub struct LeaseSecret([u8; 32]);

impl LeaseSecret {
    /// A secret from its stored bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The token of one run of a job.
    pub fn token(&self, job: JobId, run: u64) -> String {
        let mac = self.mac(job, run).finalize().into_bytes();
        format!("{run}.{}", URL_SAFE_NO_PAD.encode(&mac[..MAC_BYTES]))
    }

    /// The run of this job that the token proves; `None` if it proves nothing. Compared in constant time.
    pub fn verify(&self, job: JobId, token: &str) -> Option<u64> {
        let (run, mac) = token.split_once('.')?;
        let mac = URL_SAFE_NO_PAD.decode(mac).ok().filter(|mac| mac.len() == MAC_BYTES)?;
        let number = run.parse().ok()?;
        self.mac(job, number).verify_truncated_left(&mac).ok()?;
        Some(number)
    }

    fn mac(&self, job: JobId, run: u64) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("an HMAC takes a key of any length");
        mac.update(job.as_uuid().as_bytes());
        mac.update(&run.to_be_bytes());
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Timestamp;

    #[test]
    fn a_token_proves_one_run_of_one_job() {
        let job = |n| JobId::mint(Timestamp::from_millis(1_800_000_000_000), [n; 10]);
        let (secret, other) = (LeaseSecret::new([1; 32]), LeaseSecret::new([2; 32]));
        let token = secret.token(job(1), 7);
        assert_eq!(secret.verify(job(1), &token), Some(7));
        assert_eq!(secret.verify(job(2), &token), None);
        assert_eq!(other.verify(job(1), &token), None);
        for forged in ["", ".", "7", "7.", &token[1..], &token.replacen('7', "8", 1), &format!("{token}A"), "7.AAAA"] {
            assert_eq!(secret.verify(job(1), forged), None, "{forged}");
        }
    }
}
