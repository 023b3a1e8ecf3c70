//! What an answer leaves unread of its request's body.
//!
//! A refusal often comes before the body was read. Were the connection closed then, a client that is still writing
//! would see it break instead of the answer. So a moderate rest is read and dropped before the answer goes out.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;

/// How much is read and dropped at most, and for how long.
const DROPPED_BYTES: u64 = 16 * 1024 * 1024;
const DROPPING: Duration = Duration::from_secs(2);

/// Where a body goes that nobody reads any further.
#[derive(Default)]
pub(super) struct Unread(Arc<Mutex<Option<Body>>>);

/// A body that comes back when it is dropped before its end.
struct Lent {
    body: Body,
    owner: Arc<Mutex<Option<Body>>>,
}

impl Unread {
    /// Lends a body to a handler.
    pub fn lend(&self, body: Body) -> Body {
        Body::new(Lent { body, owner: self.0.clone() })
    }

    /// Reads and drops the rest of what was lent, if the client would not see an answer of this status otherwise.
    pub async fn drop_rest(self, status: StatusCode) {
        let rest = self.0.lock().expect("no holder of this lock panics").take();
        let Some(mut body) = rest.filter(|_| status.is_client_error()) else { return };
        let announced = body.size_hint().exact();
        // Without an announced length only a body that was too large is known to be a finite upload.
        if announced.is_some_and(|bytes| bytes > DROPPED_BYTES)
            || (announced.is_none() && status != StatusCode::PAYLOAD_TOO_LARGE)
        {
            return;
        }
        let mut left = DROPPED_BYTES;
        let dropping = async {
            while let Some(Ok(frame)) = body.frame().await {
                left = left.saturating_sub(frame.data_ref().map_or(0, |data| data.len() as u64));
                if left == 0 {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(DROPPING, dropping).await;
    }
}

impl http_body::Body for Lent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if !self.body.is_end_stream()
            && let Ok(mut owner) = self.owner.lock()
        {
            *owner = Some(std::mem::take(&mut self.body));
        }
    }
}
