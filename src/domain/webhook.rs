//! Signatures after Standard Webhooks 1.0: how a receiver knows that a request came from us, and is not an old one.
//!
//! `v1,` + base64 of HMAC-SHA256 over `id.timestamp.body`, one for each secret, separated by spaces: while secrets are
//! being exchanged, receivers that know either of them can verify.

use std::fmt;

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

const PREFIX: &str = "whsec_";
/// Standard Webhooks 1.0, "signature scheme": 192 to 512 bits.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// People copy secrets with and without the padding.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A secret shared with a receiver. It is never shown.
#[derive(Clone)]
pub struct WebhookSecret(Box<[u8]>);

impl WebhookSecret {
    /// Reads `whsec_` and 24 to 64 bytes of base64; `None` if it is not that.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = LENIENT.decode(text.trim().strip_prefix(PREFIX)?).ok()?;
        SECRET_BYTES.contains(&bytes.len()).then(|| Self(bytes.into()))
    }
}

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookSecret(…)")
    }
}

/// Signs with every secret that is in use.
#[derive(Clone, Debug, Default)]
pub struct Signer(Vec<WebhookSecret>);

impl Signer {
    /// A signer with these secrets; with none of them nothing is signed.
    pub fn new(secrets: Vec<WebhookSecret>) -> Self {
        Self(secrets)
    }

    /// The headers that go with `body`, sent at `timestamp` (Unix seconds). The same message has the same `id` however
    /// often it is sent; an id has no full stop, which is what divides the signed text. None without a secret.
    pub fn headers(&self, id: &str, timestamp: u64, body: &str) -> Vec<(&'static str, String)> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let sign = |WebhookSecret(secret): &WebhookSecret| {
            let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("an HMAC takes a key of any length");
            mac.update(format!("{id}.{timestamp}.").as_bytes());
            mac.update(body.as_bytes());
            format!("v1,{}", general_purpose::STANDARD.encode(mac.finalize().into_bytes()))
        };
        let signatures: Vec<String> = self.0.iter().map(sign).collect();
        vec![
            ("webhook-id", id.to_owned()),
            ("webhook-timestamp", timestamp.to_string()),
            ("webhook-signature", signatures.join(" ")),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the Standard Webhooks libraries.
    #[test]
    fn the_known_message_has_the_known_signature() {
        let secret = WebhookSecret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("24 bytes");
        let signer = Signer::new(vec![secret]);
        let headers = signer.headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, "{\"test\": 2432232314}");
        assert_eq!(headers[2], ("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=".to_owned()));
    }

    #[test]
    fn what_is_no_secret_is_refused_and_a_secret_is_not_shown() {
        for text in [
            "",
            "whsec_",
            "whsec_c2hvcnQ=",
            "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "whsec_not base64 not base64 not base64",
        ] {
            assert!(WebhookSecret::parse(text).is_none(), "{text}");
        }
        let padded = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwAA==", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwAA"];
        let read = padded.map(|text| WebhookSecret::parse(text).expect("25 bytes"));
        assert_eq!(read[0].0, read[1].0);
        assert_eq!(format!("{read:?}"), "[WebhookSecret(…), WebhookSecret(…)]");
    }
}
