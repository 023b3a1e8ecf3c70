//! What a worker is told while it works: which of its runs to stop, and which are no longer its own.
//!
//! Subscribe, read the flags, go live: nothing falls between. Who was too slow for the live part reads the flags again.
//! As on the log, what comes through another node costs at most the time of the [safety net](Gateway::remind_workers).

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use async_stream::try_stream;
use tokio_stream::Stream;

use super::{Gateway, ServiceError};
use crate::bus::Signal;
use crate::domain::{CancelSignal, JobId, WorkerName};

/// What a worker is told, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// Everything it has been asked so far. The first, and again whenever it could not keep up.
    State(Vec<CancelSignal>),
    /// Stop this run. Once for each.
    Cancel(CancelSignal),
    /// This run is over; whatever it still appends is refused.
    LeaseLost {
        /// The job.
        job: JobId,
        /// The run.
        run: u64,
    },
}

/// Which flags a stream has passed on, and when.
#[derive(Default)]
struct Known {
    runs: HashMap<(JobId, u64), Instant>,
    /// When the flags were last read.
    read_at: Option<Instant>,
}

impl Known {
    /// Whether it is new.
    fn learn(&mut self, cancel: &CancelSignal, at: Instant) -> bool {
        self.runs.insert((cancel.job, cancel.run), at).is_none()
    }

    /// Takes in all flags that there were at `read_at`; returns the new ones. What is not among them is over for good.
    fn learn_all(&mut self, cancels: &[CancelSignal], read_at: Instant) -> Vec<CancelSignal> {
        // A read that was overtaken by another one knows of runs that may be over by now.
        if self.read_at.is_some_and(|last| read_at < last) {
            return Vec::new();
        }
        self.read_at = Some(read_at);
        let new = cancels.iter().filter(|cancel| self.learn(cancel, read_at)).cloned().collect();
        let there: HashSet<(JobId, u64)> = cancels.iter().map(|cancel| (cancel.job, cancel.run)).collect();
        self.runs.retain(|run, learnt_at| *learnt_at >= read_at || there.contains(run));
        new
    }
}

impl Gateway {
    /// What a worker has been asked so far.
    pub async fn cancels(&self, worker: &WorkerName) -> Result<Vec<CancelSignal>, ServiceError> {
        let cancels = self.inner.store.cancels(std::slice::from_ref(worker)).await?;
        Ok(cancels.into_iter().map(|(_, cancel)| cancel).collect())
    }

    /// Follows what a worker is told, without end. The first item is ready as soon as the store has answered.
    pub fn signals(&self, worker: WorkerName) -> impl Stream<Item = Result<Told, ServiceError>> + Send + use<> {
        let gateway = self.clone();
        try_stream! {
            // Subscribe before reading the flags, or a cancel between the two is lost.
            let mut listener = gateway.inner.bus.signals().subscribe(worker.clone());
            let mut known = Known::default();
            let mut is_behind = true;
            loop {
                if is_behind {
                    let read_at = Instant::now();
                    let cancels = gateway.cancels(&worker).await?;
                    known.learn_all(&cancels, read_at);
                    yield Told::State(cancels);
                }
                let signal = listener.next().await;
                is_behind = signal.is_none();
                match signal.as_deref() {
                    None => {}
                    Some(Signal::LeaseLost { job, run }) => yield Told::LeaseLost { job: *job, run: *run },
                    Some(Signal::Cancel(cancel)) => {
                        let is_new = known.learn(cancel, Instant::now());
                        if is_new {
                            yield Told::Cancel(cancel.clone());
                        }
                    }
                    Some(Signal::Flags { read_at, cancels }) => {
                        for cancel in known.learn_all(cancels, *read_at) {
                            yield Told::Cancel(cancel);
                        }
                    }
                }
            }
        }
    }

    /// Reads the flags of all workers that listen here: those set through another node, or whose signal was lost.
    pub(super) async fn remind_workers(&self) -> Result<(), ServiceError> {
        let signals = self.inner.bus.signals();
        let workers = signals.workers();
        if workers.is_empty() {
            return Ok(());
        }
        let read_at = Instant::now();
        let mut cancels: HashMap<WorkerName, Vec<CancelSignal>> = HashMap::new();
        for (worker, cancel) in self.inner.store.cancels(&workers).await? {
            cancels.entry(worker).or_default().push(cancel);
        }
        for worker in workers {
            let cancels = cancels.remove(&worker).unwrap_or_default();
            signals.remind(&worker, read_at, cancels);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio_stream::StreamExt;

    use super::*;
    use crate::domain::{Limits, Timestamp};
    use crate::service::Settings;
    use crate::store::SqliteStore;

    fn cancel(run: u64) -> CancelSignal {
        let job = JobId::mint(Timestamp::from_millis(0), [1; 10]);
        CancelSignal { job, run, reason: None, grace_ms: 1_000 }
    }

    #[test]
    fn a_flag_is_passed_on_once_whichever_way_it_comes() {
        let (mut known, start) = (Known::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(known.learn_all(&[cancel(1)], at(0)), [cancel(1)]);
        assert!(!known.learn(&cancel(1), at(1)), "the read was faster than the signal");
        assert!(known.learn(&cancel(2), at(3)));
        assert_eq!(known.learn_all(&[cancel(1)], at(2)), [], "a read from before the signal ends nothing");
        assert_eq!(known.learn_all(&[cancel(1), cancel(2), cancel(3)], at(4)), [cancel(3)]);
    }

    #[tokio::test]
    async fn who_lags_is_given_the_state_again() {
        let directory = std::env::temp_dir().join(format!("milepost-signals-{:016x}", rand::random::<u64>()));
        std::fs::create_dir_all(&directory).expect("a directory can be made");
        let store = SqliteStore::open(&directory.join("test.db"), 1).await.expect("the store opens");
        let (gateway, _) = Gateway::start(Arc::new(store), Limits::default(), Settings::default());
        let worker = WorkerName::parse("w").expect("a name");
        let mut told = std::pin::pin!(gateway.signals(worker.clone()));
        let mut next = async || told.next().await.expect("it has no end").expect("the store works");
        assert_eq!(next().await, Told::State(Vec::new()));
        let signals = gateway.inner.bus.signals();
        signals.remind(&worker, Instant::now(), vec![cancel(1)]);
        assert_eq!(next().await, Told::Cancel(cancel(1)));
        for _ in 0..1_000 {
            signals.remind(&worker, Instant::now(), vec![cancel(1)]);
        }
        assert_eq!(next().await, Told::State(Vec::new()), "the store knows of no flag");
        signals.remind(&worker, Instant::now(), vec![cancel(2)]);
        assert_eq!(next().await, Told::Cancel(cancel(2)), "and it goes on");
        let _ = std::fs::remove_dir_all(directory);
    }

    #[test]
    fn what_is_no_longer_flagged_is_forgotten() {
        let (mut known, start) = (Known::default(), Instant::now());
        known.learn(&cancel(1), start);
        known.learn_all(&[cancel(2)], start + Duration::from_millis(1));
        assert_eq!(known.runs.len(), 1);
        known.learn_all(&[], start + Duration::from_millis(2));
        assert!(known.runs.is_empty());
        assert_eq!(known.learn_all(&[cancel(2)], start), [], "read long before");
    }
}
