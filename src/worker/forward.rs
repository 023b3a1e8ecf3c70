//! An endpoint that each job is posted to (`milepost forward`): `{"job":{state + payload},"run":3}`, signed after
//! Standard Webhooks, and its answer relayed while it arrives ([`super::answer`]).
//!
//! A call is one try: what may be tried again is, by the queue. Calling off (a cancel, a lost lease, the worker's end) is
//! dropping the call, which closes its connection; so an endpoint that generates tokens stops generating.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::answer::{self, Reading};
use super::commands::released;
use super::entry::Entry;
use super::job::{Claimed, Document, JobInfo};
use super::pool::{Handler, Phase, Slot, reached};
use super::reporter::{Delivery, Entries, Notice, Order, Reporter};
use crate::client::endpoint::Endpoint;
use crate::domain::Signer;

/// How soon a cancel is heard. A call is closed within 50 ms of its cancel, be it the first moment of the call; an answer
/// that comes sooner costs no heartbeat.
const EAR_OPENS: Duration = Duration::from_millis(15);

/// Posts each job to an endpoint.
pub struct Forward {
    /// Where to.
    pub endpoint: Endpoint,
    /// What requests are signed with.
    pub signer: Signer,
    /// How answers are read.
    pub reading: Reading,
    /// The longest that one call may take, to the end of its answer.
    pub timeout: Duration,
    /// Who is told about trouble.
    pub notice: Notice,
    /// Who is told what begins and ends.
    pub progress: Notice,
}

#[async_trait]
impl Handler for Forward {
    async fn handle(&self, job: Claimed, _slot: Slot, mut phase: watch::Receiver<Phase>) {
        let Claimed { info, payload: _, whole, report } = job;
        let name = format!("{} {}", info.kind, info.id);
        (self.progress)(&format!("{name}: posted"));
        let notice: Notice = {
            let (notice, name) = (Arc::clone(&self.notice), name.clone());
            Arc::new(move |text| notice(&format!("{name}: {text}")))
        };
        let begun = Instant::now();
        let (reporter, entries, mut orders) = Reporter::start_listening(report, EAR_OPENS, notice);
        // Whichever comes first, the call is dropped here, and its connection with it.
        let last = tokio::select! {
            // An answer that is whole counts, whatever came in the same moment.
            biased;
            last = self.call(&info, &whole, entries) => last,
            () = called_off(&mut orders) => Entry::from_event(&json!({"type": "cancelled"})),
            () = reached(&mut phase, Phase::Releasing) => released(),
        };
        reporter.program_ended();
        let outcome = outcome(&last);
        let abandon = reporter.abandon();
        let mut finish = std::pin::pin!(reporter.finish(last));
        let delivery = tokio::select! {
            delivery = &mut finish => delivery,
            // A gateway that is away is waited for only as long as the worker has time.
            () = reached(&mut phase, Phase::Leaving) => {
                abandon();
                finish.await
            }
        };
        let outcome = match delivery {
            Delivery::Stored => outcome,
            Delivery::Ended(state) => format!("had ended already ({state})"),
            Delivery::Undelivered(reason) => format!("not told how it ended ({reason})"),
        };
        (self.progress)(&format!("{name}: {outcome} after {:.1} s", begun.elapsed().as_secs_f64()));
    }
}

impl Forward {
    /// One call, from the request to the job's last event.
    async fn call(&self, info: &JobInfo, whole: &Document, entries: Entries) -> Entry {
        let body = format!(r#"{{"job":{},"run":{}}}"#, whole.to_json(), info.run);
        // A run is one message, whatever the transport repeats of it; the next run is another one.
        let headers = self.signer.headers(&format!("{}_{}", info.id, info.run), unix_seconds(), &body);
        let exchange = async {
            match self.endpoint.post(body, answer::ACCEPT, &headers).await {
                Ok(reply) => answer::relay(reply, self.reading, &entries).await,
                Err(error) => answer::broken(&error),
            }
        };
        match tokio::time::timeout(self.timeout, exchange).await {
            Ok(last) => last,
            Err(_) => {
                let message = format!("the answer was not whole after {} ms", self.timeout.as_millis());
                answer::failed("timed_out", &message, json!({"retryable": true}))
            }
        }
    }
}

/// The time that goes with a signature.
pub(super) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Completes when the job is to stop, or is no longer ours.
async fn called_off(orders: &mut watch::Receiver<Order>) {
    if orders.wait_for(|order| *order != Order::Go).await.is_err() {
        std::future::pending().await
    }
}

fn outcome(last: &Entry) -> String {
    match last.event_type() {
        "failed" => {
            let event: Value = serde_json::from_str(&last.encode()).unwrap_or_default();
            format!("failed, {},", event["data"]["message"].as_str().unwrap_or("without a message"))
        }
        "released" => "given back".to_owned(),
        ended => ended.to_owned(),
    }
}
