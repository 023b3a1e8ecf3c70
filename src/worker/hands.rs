//! How much a worker has in hand: slots for the jobs that are worked on, and, for workers that claim ahead, a few jobs
//! that wait for one.
//!
//! Jobs that take a millisecond are claimed, and their ends stored, by dozens or not at all fast: a claim is a
//! transaction. So as many jobs are claimed ahead as were begun within a tenth of a second; of jobs that take longer
//! that is none, and nobody else is kept from them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// How much work is claimed ahead, at the pace at which it has been done.
const AHEAD: Duration = Duration::from_millis(100);
/// At most so many jobs.
const MAX_AHEAD: usize = 500;
/// How long the pace is measured.
const WINDOW: Duration = Duration::from_millis(20);

/// The right to work on one job. Dropped, another job may take its place.
#[derive(Debug)]
pub struct Slot(Arc<Hands>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.pass_on();
    }
}

/// Slots, and what waits for them.
#[derive(Debug)]
pub(super) struct Hands {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    free: usize,
    /// In the order in which they were claimed; some have given up.
    queue: VecDeque<oneshot::Sender<Slot>>,
    /// Jobs that have been claimed and not begun.
    waiting: usize,
    /// Jobs that have been begun, ever.
    begun: usize,
}

impl Hands {
    pub fn new(slots: usize) -> Arc<Self> {
        let state = State { free: slots, queue: VecDeque::new(), waiting: 0, begun: 0 };
        Arc::new(Self { state: Mutex::new(state), changed: Notify::new() })
    }

    /// A job more that waits for a slot, from now on.
    pub fn wait(self: &Arc<Self>) -> Waiting {
        let (sender, slot) = oneshot::channel();
        let is_first = {
            let mut state = self.lock();
            state.waiting += 1;
            state.queue.push_back(sender);
            let is_free = state.free > 0;
            state.free -= usize::from(is_free);
            is_free
        };
        if is_first {
            self.pass_on();
        }
        Waiting { slot, hands: Arc::clone(self) }
    }

    /// How many jobs to claim, if `ahead` may wait. One that waits for nobody is worth a claim of its own, those ahead
    /// are claimed by many.
    pub fn room(&self, ahead: usize) -> usize {
        let state = self.lock();
        let room = (state.free + ahead).saturating_sub(state.waiting);
        if state.free > state.waiting || (ahead > 0 && room > ahead / 2) { room } else { 0 }
    }

    /// Completes when there may be more room than before.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Gives a slot that nobody has to the next who waits.
    fn pass_on(self: &Arc<Self>) {
        let next = {
            let mut state = self.lock();
            let next = std::iter::from_fn(|| state.queue.pop_front()).find(|next| !next.is_closed());
            state.free += usize::from(next.is_none());
            next
        };
        // Not under the lock: one who has given up in this moment drops it, and it is passed on again.
        if let Some(next) = next {
            let _ = next.send(Slot(Arc::clone(self)));
        }
        self.changed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }
}

/// A job that waits for a slot.
pub(super) struct Waiting {
    slot: oneshot::Receiver<Slot>,
    hands: Arc<Hands>,
}

impl Waiting {
    /// Its slot, in the order of waiting.
    pub async fn slot(mut self) -> Slot {
        let slot = (&mut self.slot).await.expect("who waits is in the queue until served");
        self.hands.lock().begun += 1;
        slot
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.hands.lock().waiting -= 1;
        self.hands.changed.notify_one();
    }
}

/// How fast jobs have been begun of late.
pub(super) struct Pace {
    since: Instant,
    begun: usize,
    ahead: usize,
}

impl Pace {
    pub fn new() -> Self {
        Self { since: Instant::now(), begun: 0, ahead: 0 }
    }

    /// How many jobs may wait for a slot.
    pub fn ahead(&mut self, hands: &Hands) -> usize {
        let (begun, time) = (hands.lock().begun, self.since.elapsed());
        if time >= WINDOW {
            self.ahead = ahead(begun - self.begun, time);
            (self.begun, self.since) = (begun, Instant::now());
        }
        self.ahead
    }
}

fn ahead(begun: usize, time: Duration) -> usize {
    ((begun as f64 * AHEAD.as_secs_f64() / time.as_secs_f64()) as usize).min(MAX_AHEAD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_short_jobs_are_claimed_ahead() {
        for (begun, ms, expected) in [(0, 20, 0), (8, 1_000, 0), (30, 1_000, 3), (60, 20, 300), (10_000, 20, 500)] {
            assert_eq!(ahead(begun, Duration::from_millis(ms)), expected, "{begun} in {ms} ms");
        }
    }

    #[tokio::test]
    async fn an_idle_slot_is_worth_a_claim_and_jobs_ahead_are_claimed_by_many() {
        let hands = Hands::new(2);
        assert_eq!((hands.room(0), hands.room(10)), (2, 12));
        let first = hands.wait().slot().await;
        assert_eq!(hands.room(0), 1);
        let second = hands.wait().slot().await;
        assert_eq!((hands.room(0), hands.room(10)), (0, 10));
        let waiting: Vec<Waiting> = (0..4).map(|_| hands.wait()).collect();
        assert_eq!((hands.room(0), hands.room(10)), (0, 6));
        let more = hands.wait();
        assert_eq!(hands.room(10), 0, "not yet");
        drop((waiting, more));
        assert_eq!((hands.room(0), hands.room(10)), (0, 10));
        drop((first, second));
        assert_eq!(hands.room(0), 2, "who has given up keeps no slot");
    }

    #[tokio::test]
    async fn slots_are_given_in_the_order_of_waiting() {
        let hands = Hands::new(1);
        let first = hands.wait().slot().await;
        let (second, third, fourth) = (hands.wait(), hands.wait(), hands.wait());
        drop(second);
        let order = std::sync::Mutex::new(Vec::new());
        let takes = async |name: &'static str, waiting: Waiting| {
            let _slot = waiting.slot().await;
            order.lock().expect("nobody panics").push(name);
        };
        drop(first);
        tokio::join!(takes("fourth", fourth), takes("third", third));
        assert_eq!(*order.lock().expect("nobody panics"), ["third", "fourth"]);
        assert_eq!(hands.room(0), 1);
    }
}
