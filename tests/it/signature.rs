//! Standard Webhooks 1.0 as a receiver computes it, from the standard's text and not from our code.

use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::harness::Received;

pub const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
pub const OLD_SECRET: &str = "whsec_c2VjcmV0IG9mIGxhc3QgeWVhciwgMzIgYnl0ZXM=";

/// The request carries one signature for each of the secrets, over what it says, and has just been made.
#[track_caller]
pub fn assert_signed(request: &Received, secrets: &[&str]) {
    let (id, timestamp) = (request.header("webhook-id"), request.header("webhook-timestamp"));
    let expected = secrets.iter().map(|secret| {
        let secret = STANDARD.decode(secret.strip_prefix("whsec_").expect("a secret")).expect("base64");
        let mut mac = Hmac::<Sha256>::new_from_slice(&secret).expect("any length");
        mac.update(format!("{id}.{timestamp}.{}", request.body).as_bytes());
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    });
    let signatures: Vec<&str> = request.header("webhook-signature").split(' ').collect();
    assert_eq!(signatures, expected.collect::<Vec<_>>());
    assert!(!id.is_empty() && !id.contains('.'), "a full stop divides what is signed: {id}");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
    assert!(now.abs_diff(timestamp.parse().expect("Unix seconds")) < 60);
}
