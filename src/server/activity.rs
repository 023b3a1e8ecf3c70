//! When something last happened on a connection, and whether it is owed something.
//!
//! Two clocks with different ends: the head of a request must arrive quickly once it has begun (slow loris), while a
//! connection that waits for its next request is kept for longer than proxies keep theirs: one that is closed under a
//! proxy's hand loses a request.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http_body::{Body, Frame, SizeHint};
use tokio::sync::Notify;

/// Nginx keeps idle connections for 60 s, load balancers in clouds as well.
const IDLE: Duration = Duration::from_secs(75);

/// Shared by a connection's socket, its requests and its watchdog.
pub(super) struct Activity {
    accepted: Instant,
    head_timeout: Duration,
    /// Milliseconds after `accepted`, plus 1, at which an unfinished head began; 0: none has.
    head_began: AtomicU64,
    /// Milliseconds after `accepted` of the last byte, either way.
    last_byte: AtomicU64,
    /// Requests whose answer has not begun.
    busy: AtomicUsize,
    /// A live stream is on, which has time limits of its own.
    streams: AtomicBool,
    stream_ended: Notify,
}

impl Activity {
    /// A connection that was just accepted: its first head counts from now.
    pub fn new(head_timeout: Duration) -> Arc<Self> {
        Arc::new(Self {
            accepted: Instant::now(),
            head_timeout,
            head_began: AtomicU64::new(1),
            last_byte: AtomicU64::new(0),
            busy: AtomicUsize::new(0),
            streams: AtomicBool::new(false),
            stream_ended: Notify::new(),
        })
    }

    fn now(&self) -> u64 {
        self.accepted.elapsed().as_millis() as u64
    }

    pub(super) fn bytes_read(&self) {
        let now = self.now();
        self.last_byte.store(now, Ordering::Relaxed);
        if self.busy.load(Ordering::Relaxed) == 0 {
            let _ = self.head_began.compare_exchange(0, now + 1, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    pub(super) fn bytes_written(&self) {
        self.last_byte.store(self.now(), Ordering::Relaxed);
    }

    /// A head is complete; the connection owes an answer as long as the guard lives.
    pub fn begin_request(self: &Arc<Self>) -> Request {
        self.busy.fetch_add(1, Ordering::Relaxed);
        self.head_began.store(0, Ordering::Relaxed);
        Request(self.clone())
    }

    /// Waits until the connection has kept us waiting for too long.
    pub async fn overdue(&self) {
        loop {
            if self.streams.load(Ordering::Relaxed) {
                self.stream_ended.notified().await;
                continue;
            }
            let now = self.accepted.elapsed();
            // A head that begins meanwhile is late no sooner than this.
            let mut next = now + self.head_timeout;
            match (self.head_began.load(Ordering::Relaxed), self.busy.load(Ordering::Relaxed)) {
                (0, 0) => next = next.min(Duration::from_millis(self.last_byte.load(Ordering::Relaxed)) + IDLE),
                (0, _) => {}
                (began, _) => next = Duration::from_millis(began - 1) + self.head_timeout,
            }
            if next <= now {
                return;
            }
            tokio::time::sleep_until((self.accepted + next).into()).await;
        }
    }
}

/// A request that is being answered.
pub(super) struct Request(Arc<Activity>);

impl Request {
    /// The answer is a live stream, until its body is dropped.
    pub fn becomes_stream(&self) -> LiveStream {
        self.0.streams.store(true, Ordering::Relaxed);
        LiveStream(self.0.clone())
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A live stream that is on.
pub(super) struct LiveStream(Arc<Activity>);

impl Drop for LiveStream {
    fn drop(&mut self) {
        self.0.bytes_written();
        self.0.streams.store(false, Ordering::Relaxed);
        self.0.stream_ended.notify_one();
    }
}

/// The body of an answer; of a live one it says when the stream is over.
pub(super) struct Watched<B> {
    body: B,
    /// Dropped with the body.
    _stream: Option<LiveStream>,
}

impl<B> Watched<B> {
    /// `stream`: if the answer is live.
    pub fn new(body: B, stream: Option<LiveStream>) -> Self {
        Self { body, _stream: stream }
    }
}

impl<B: Body + Unpin> Body for Watched<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stream_is_never_overdue_and_a_slow_head_after_it_is() {
        let activity = Activity::new(Duration::from_millis(20));
        let stream = activity.begin_request().becomes_stream();
        let pending = tokio::time::timeout(Duration::from_millis(200), activity.overdue()).await;
        assert!(pending.is_err(), "a stream may be silent");
        let waiting = tokio::spawn({
            let activity = activity.clone();
            async move { activity.overdue().await }
        });
        drop(stream);
        activity.bytes_read();
        tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("the head is late").expect("no panic");
    }
}
