//! When something last happened on a connection, and whether it is owed something.
//!
//! Two clocks with different ends: the head of a request must arrive quickly once it has begun (slow loris), while a
//! connection that waits for its next request is kept for longer than proxies keep theirs: one that is closed under a
//! proxy's hand loses a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

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
    /// The connection has become a live stream, with time limits of its own.
    streams: AtomicBool,
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
        while !self.streams.load(Ordering::Relaxed) {
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
        std::future::pending().await
    }
}

/// A request that is being answered.
pub(super) struct Request(Arc<Activity>);

impl Request {
    /// The answer is a live stream.
    pub fn becomes_stream(&self) {
        self.0.streams.store(true, Ordering::Relaxed);
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}
