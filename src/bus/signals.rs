//! Signals to workers: "stop this run", "this run is no longer yours". Per worker a channel, while somebody listens.
//!
//! Processes that share a name all hear everything. Who cannot keep up is told so, and reads the store again: a signal
//! is a hint that saves waiting, the flag in the store is what counts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use tokio::sync::broadcast::{self, error::RecvError, error::TryRecvError};

use super::CommittedJob;
use crate::domain::{CancelSignal, EventType, Job, JobId, State, WorkerName};

/// Signals that a listener may be behind. As many jobs as one claim gives may be cancelled in one go.
const BEHIND: usize = 128;

/// What a worker is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signal {
    /// It is asked to stop.
    Cancel(CancelSignal),
    /// Somebody else ended its run.
    LeaseLost {
        /// The job.
        job: JobId,
        /// The run that is over.
        run: u64,
    },
    /// All flags of its runs, read from the store.
    Flags {
        /// Not before this instant.
        read_at: Instant,
        /// The flags.
        cancels: Vec<CancelSignal>,
    },
}

/// A plain lock: held for a look-up, an insertion or a send (which waits for nobody), never across an await.
type Channels = Mutex<HashMap<WorkerName, broadcast::Sender<Arc<Signal>>>>;

/// All workers that listen to this process.
#[derive(Default)]
pub struct Signals(Arc<Channels>);

fn lock(channels: &Channels) -> MutexGuard<'_, HashMap<WorkerName, broadcast::Sender<Arc<Signal>>>> {
    channels.lock().expect("no holder of this lock panics")
}

impl Signals {
    /// Begins to listen: whatever is committed from now on reaches the listener.
    pub fn subscribe(&self, worker: WorkerName) -> Listener {
        let mut channels = lock(&self.0);
        let channel = channels.entry(worker.clone()).or_insert_with(|| broadcast::Sender::new(BEHIND));
        Listener {
            receiver: channel.subscribe(),
            has_missed: false,
            _place: Place { channels: self.0.clone(), worker },
        }
    }

    /// Who listens.
    pub fn workers(&self) -> Vec<WorkerName> {
        lock(&self.0).keys().cloned().collect()
    }

    /// Tells a worker all its flags, for those that never came this way.
    pub fn remind(&self, worker: &WorkerName, read_at: Instant, cancels: Vec<CancelSignal>) {
        self.send(worker.as_str(), Signal::Flags { read_at, cancels });
    }

    pub(super) fn note(&self, changed: &CommittedJob) {
        let job = &changed.job;
        if let Some(revoked) = &changed.revoked {
            self.send(&revoked.worker, Signal::LeaseLost { job: job.id, run: revoked.run });
        }
        if let Some((worker, cancel)) = job.worker.as_deref().zip(asked_to_stop(changed)) {
            self.send(worker, Signal::Cancel(cancel));
        }
    }

    fn send(&self, worker: &str, signal: Signal) {
        if let Some(channel) = lock(&self.0).get(worker) {
            // Nobody left to hear it is no trouble.
            let _ = channel.send(Arc::new(signal));
        }
    }
}

/// What the run's worker is told, if these events ask it to stop.
fn asked_to_stop(changed: &CommittedJob) -> Option<CancelSignal> {
    let is_asked = |job: &Job| job.state == State::Running && job.cancel_requested;
    let job = Some(&changed.job).filter(|job| is_asked(job))?;
    let event = changed.events.iter().find(|event| event.kind == EventType::CancelRequested)?;
    let grace_ms = event.data.to_map().get("grace_ms").and_then(serde_json::Value::as_u64).unwrap_or_default();
    Some(CancelSignal { job: job.id, run: job.run, reason: job.cancel_reason.clone(), grace_ms })
}

/// One who listens for a worker.
pub struct Listener {
    // Before the place: the last one out takes the channel along.
    receiver: broadcast::Receiver<Arc<Signal>>,
    has_missed: bool,
    _place: Place,
}

impl Listener {
    /// Waits for the next signal; `None`: some before those that came last were missed, and the store must be read.
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Arc<Signal>> {
        if !self.has_missed {
            match self.receiver.recv().await {
                Ok(signal) => return Some(signal),
                Err(RecvError::Lagged(_)) => self.has_missed = true,
                Err(RecvError::Closed) => return None,
            }
        }
        // What is left of them first: with the channel full, the next signal would be one too many again.
        loop {
            match self.receiver.try_recv() {
                Ok(signal) => return Some(signal),
                Err(TryRecvError::Lagged(_)) => {}
                Err(TryRecvError::Empty | TryRecvError::Closed) => {
                    self.has_missed = false;
                    return None;
                }
            }
        }
    }
}

struct Place {
    channels: Arc<Channels>,
    worker: WorkerName,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut channels = lock(&self.channels);
        if channels.get(&self.worker).is_some_and(|channel| channel.receiver_count() == 0) {
            channels.remove(&self.worker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Timestamp;

    fn name(text: &str) -> WorkerName {
        WorkerName::parse(text).expect("a name")
    }

    fn lost(run: u64) -> Signal {
        Signal::LeaseLost { job: JobId::mint(Timestamp::from_millis(0), [1; 10]), run }
    }

    #[tokio::test]
    async fn processes_of_one_name_hear_everything_and_others_nothing() {
        let signals = Signals::default();
        let (mut a, mut b, mut other) =
            (signals.subscribe(name("w")), signals.subscribe(name("w")), signals.subscribe(name("v")));
        signals.send("w", lost(1));
        signals.send("v", lost(2));
        signals.send("nobody", lost(3));
        assert_eq!(a.next().await.as_deref(), Some(&lost(1)));
        assert_eq!(b.next().await.as_deref(), Some(&lost(1)));
        assert_eq!(other.next().await.as_deref(), Some(&lost(2)));
    }

    #[tokio::test]
    async fn who_is_too_far_behind_gets_the_last_ones_and_is_told_so() {
        let signals = Signals::default();
        let mut listener = signals.subscribe(name("w"));
        for run in 0..=BEHIND as u64 {
            signals.send("w", lost(run));
        }
        for run in 1..=BEHIND as u64 {
            assert_eq!(listener.next().await.as_deref(), Some(&lost(run)));
        }
        assert_eq!(listener.next().await, None);
        signals.send("w", lost(1_000));
        assert_eq!(listener.next().await.as_deref(), Some(&lost(1_000)));
    }

    #[tokio::test]
    async fn a_channel_goes_with_its_last_listener() {
        let signals = Signals::default();
        let (a, b) = (signals.subscribe(name("w")), signals.subscribe(name("w")));
        drop(a);
        assert_eq!(signals.workers(), [name("w")]);
        drop(b);
        assert_eq!(signals.workers(), []);
    }
}
