//! Tells receivers of the end of jobs: works off the gateway's own queue `milepost.callbacks`.
//!
//! Each of its jobs holds one message: where to, under which id, and the state document. It is posted as it was written
//! with the job's last event, under the same id on every try; what may be tried again is, by the queue.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::answer::ERROR_PATIENCE;
use super::context::Context;
use super::forward::unix_seconds;
use super::handlers::Worker;
use super::name::default_name;
use super::outcome::{Failure, Outcome};
use crate::client::endpoint::{Courier, PostError, Reply};
use crate::domain::{QueueName, Signer};
use crate::service::Gateway;

/// Receivers that are called at a time.
const CONCURRENCY: usize = 16;
/// The longest that one call may take.
const TIMEOUT: Duration = Duration::from_secs(15);
/// After a crash of the gateway a message is sent again that much later.
const LEASE: Duration = Duration::from_secs(10);
/// How much of what a receiver says about a refusal is kept.
const MAX_ANSWER_BYTES: usize = 1_000;

/// What callbacks are sent with.
#[derive(Clone, Debug)]
pub struct Callbacks {
    /// What they are signed with.
    pub signer: Signer,
    /// The gateway's address, which receivers are told: the paths in a state document are relative to it.
    pub url: String,
    /// Also addresses that are not public.
    pub is_private_allowed: bool,
    /// How long calls may go on when the gateway drains.
    pub grace: Duration,
}

/// One message, as its job holds it.
#[derive(Deserialize)]
struct Message {
    url: String,
    webhook_id: String,
    job: Box<RawValue>,
}

/// Who sends them.
struct Sender {
    courier: Courier,
    signer: Signer,
    url: String,
}

impl Callbacks {
    /// A worker that sends them until the gateway drains.
    ///
    /// # Errors
    /// What is wrong with the TLS set-up of this machine.
    pub fn worker(self, gateway: Gateway) -> Result<Worker, String> {
        let courier = Courier::new(self.is_private_allowed)?;
        let sender = Arc::new(Sender { courier, signer: self.signer, url: self.url });
        let worker = Worker::new(gateway)
            // It stands in the list of workers beside those of people: what it is, and which node has it.
            .name(format!("{}@{}", QueueName::callbacks().as_str(), default_name()))
            .queue(QueueName::callbacks().as_str())
            .concurrency(CONCURRENCY)
            .lease(LEASE)
            .grace(self.grace);
        Ok(worker.handle_any(move |context, message: Message| send(Arc::clone(&sender), context, message)))
    }
}

async fn send(sender: Arc<Sender>, context: Context, message: Message) -> Result<Outcome, Failure> {
    tokio::select! {
        sent = sender.send(&message) => sent,
        () = tokio::time::sleep(TIMEOUT) => {
            Err(Failure::new("timed_out", format!("no answer within {} s", TIMEOUT.as_secs())))
        }
        () = context.cancelled() => Err(Failure::cancelled()),
    }
}

impl Sender {
    async fn send(&self, message: &Message) -> Result<Outcome, Failure> {
        let body = message.job.get();
        let mut headers = self.signer.headers(&message.webhook_id, unix_seconds(), body);
        headers.push(("milepost-url", self.url.clone()));
        match self.courier.post(&message.url, body.to_owned(), &headers).await {
            Ok(reply) if (200..=299).contains(&reply.status()) => Ok(Outcome::ok()),
            Ok(reply) => Err(refused(reply).await),
            Err(PostError::Refused(why)) => Err(Failure::new("address_refused", why).fatal()),
            Err(error @ (PostError::Broken(_) | PostError::TooLarge(_))) => {
                Err(Failure::new("receiver_unreachable", error.to_string()))
            }
        }
    }
}

async fn refused(reply: Reply) -> Failure {
    let (status, retry_after) = (reply.status(), reply.retry_after());
    let code = format!("http_{status}");
    let body = reply.beginning(MAX_ANSWER_BYTES, ERROR_PATIENCE).await;
    let failure = Failure::new(code, format!("the receiver answered {status}")).details(json!({"body": body}));
    match (status, retry_after) {
        // "Gone": it does not want to hear of this any more.
        (410, _) => failure.fatal(),
        (429 | 503, Some(delay)) => failure.retry_after(delay),
        _ => failure,
    }
}
