//! Standard Webhooks 1.0 as a receiver sees it: computed from the standard's text and not from our code, and by the
//! library that the standard's authors publish.

use std::process::Stdio;
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

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

/// The library takes each request with each of the secrets, and takes none that says something else.
pub async fn assert_library_verifies(requests: &[Received], secrets: &[&str]) {
    let pairs: Vec<_> =
        requests.iter().flat_map(|request| secrets.iter().map(move |secret| (request, *secret))).collect();
    let forged = |name: &'static str, change: fn(&mut Received)| {
        pairs.iter().map(move |(request, secret)| {
            let mut request = (*request).clone();
            change(&mut request);
            (name, request, *secret)
        })
    };
    let as_sent = pairs.iter().map(|(request, secret)| ("as sent", (*request).clone(), *secret));
    let other_secret = "whsec_b3RoZXIgc2VjcmV0LCBhbHNvIG9mIDMyIGJ5dGVzISE=";
    let all: Vec<(&str, Received, &str)> = as_sent
        .chain(forged("another body", |request| request.body.push(' ')))
        .chain(forged("another id", |request| *request.header_mut("webhook-id") += "1"))
        .chain(pairs.iter().map(|(request, _)| ("another secret", (*request).clone(), other_secret)))
        .collect();
    let asked: Vec<Value> = all
        .iter()
        .map(|(_, request, secret)| json!({"secret": secret, "headers": request.header_map(), "body": request.body}))
        .collect();
    let verdicts = library_says(&json!(asked)).await;
    for ((what, _, _), verdict) in all.iter().zip(&verdicts) {
        assert_eq!(verdict.is_null(), *what == "as sent", "{what}: {verdict}");
    }
    assert_eq!(verdicts.len(), all.len());
}

async fn library_says(requests: &Value) -> Vec<Value> {
    let mut node = Command::new("node")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/webhooks/verify.mjs"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("node is installed by tests/run.sh");
    let mut stdin = node.stdin.take().expect("stdin is piped");
    stdin.write_all(requests.to_string().as_bytes()).await.expect("it reads");
    drop(stdin);
    let said = node.wait_with_output().await.expect("it ends");
    let words = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success(), "tests/run.sh installs what this needs: {words}");
    serde_json::from_slice(&said.stdout).expect("an array")
}
