//! What the client commands have in common before they do anything: a client, and a job that is enqueued once.

use std::time::Duration;

use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::client::{Address, Backoff, Client, ClientError, Enqueued};
use crate::config::client::ClientArgs;

/// A client for the gateway that the flags name.
///
/// # Errors
/// [`ClientError::Address`].
pub fn connect(args: &ClientArgs) -> Result<Client, ClientError> {
    Client::new(Address::parse(&args.url)?, args.key.clone())
}

/// Enqueues, and repeats under the same key while the gateway is away, for `patience` at most.
///
/// # Errors
/// The last trouble.
pub async fn enqueue(client: &Client, spec: &Value, key: &str, patience: Duration) -> Result<Enqueued, ClientError> {
    let begun = Instant::now();
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(1));
    loop {
        match client.enqueue(spec, Some(key)).await {
            Err(error) if error.is_passing() && begun.elapsed() < patience => {
                tokio::time::sleep(backoff.next_delay(error.retry_after()).min(patience)).await;
            }
            answer => return answer,
        }
    }
}

/// `KEY=VALUE` arguments as a spec's `meta`: a value that is JSON is taken as such, anything else as text.
///
/// # Errors
/// [`ClientError::Address`]-like words for the person who typed it.
pub fn meta(pairs: &[String]) -> Result<Map<String, Value>, ClientError> {
    pairs
        .iter()
        .map(|pair| match pair.split_once('=') {
            Some((key, value)) if !key.is_empty() => {
                let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
                Ok((key.to_owned(), value))
            }
            _ => Err(ClientError::Address(format!("--meta {pair:?} is not KEY=VALUE"))),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn meta_values_are_json_or_else_text() {
        let pairs = ["a=1", "b=text", "c=[1,2]", "d=x=y", "e=", "f=\"1\""].map(str::to_owned);
        let meta = meta(&pairs).map(Value::from).ok();
        assert_eq!(meta, Some(json!({"a": 1, "b": "text", "c": [1, 2], "d": "x=y", "e": "", "f": "1"})));
        assert!(super::meta(&["nothing".to_owned()]).is_err());
        assert!(super::meta(&["=x".to_owned()]).is_err());
    }
}
