//! Who works: this node remembers who asks for work here, and tells the store about it, so that every node knows.
//!
//! A parked claim counts as seen all along. What the store is told is a second or two old; an answer given here adds
//! what is remembered, so that a worker's first claim shows at once.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::{Gateway, ServiceError};
use crate::domain::waiting::WORKER_SEEN_MS;
use crate::domain::{ClaimRequest, QueueName, Timestamp, WorkerName};
use crate::store::{Sighting, Worker};

/// A worker without jobs is listed for so long after its last claim.
const LISTED: Duration = Duration::from_millis(WORKER_SEEN_MS);

/// The store is told again about somebody who is still here this often.
const RETELL: Duration = Duration::from_secs(2);

/// Workers that are remembered, and for each the different things it asks for; beyond that the oldest is forgotten.
const MAX_WORKERS: usize = 4_096;
const MAX_ASKS: usize = 16;

/// Who asks for work on this node.
#[derive(Clone, Default)]
pub(super) struct Presence(Arc<Mutex<HashMap<WorkerName, Present>>>);

/// One worker.
struct Present {
    /// What it asks for. Processes that share a name, or loops of one process, may ask for different things.
    asks: Vec<Ask>,
    /// What the store was told last: when, and about which seeing.
    told: Option<Told>,
    /// It asks for something that the store was not told.
    is_news: bool,
}

struct Told {
    at: Instant,
    seen: Instant,
}

struct Ask {
    queues: Vec<QueueName>,
    kinds: Vec<QueueName>,
    parked: usize,
    left: Instant,
}

impl Ask {
    fn seen(&self, now: Instant) -> Instant {
        if self.parked > 0 { now } else { self.left }
    }
}

impl Present {
    fn seen(&self, now: Instant) -> Instant {
        self.asks.iter().map(|ask| ask.seen(now)).max().unwrap_or(now)
    }

    fn ask(&mut self, request: &ClaimRequest) -> Option<&mut Ask> {
        self.asks.iter_mut().find(|ask| ask.queues == request.queues && ask.kinds == request.kinds)
    }

    /// Everything it asks for, together.
    fn sighting(&self, worker: &WorkerName, now: Instant) -> Sighting {
        let mut queues: Vec<QueueName> = self.asks.iter().flat_map(|ask| ask.queues.iter().cloned()).collect();
        let mut kinds: Vec<QueueName> = self.asks.iter().flat_map(|ask| ask.kinds.iter().cloned()).collect();
        for names in [&mut queues, &mut kinds] {
            names.sort_unstable();
            names.dedup();
        }
        if self.asks.iter().any(|ask| ask.kinds.is_empty()) {
            kinds.clear();
        }
        let ago_ms = now.duration_since(self.seen(now)).as_millis() as u64;
        Sighting { worker: worker.clone(), queues, kinds, ago_ms }
    }
}

/// A claim on its way: its worker is here.
pub(super) struct Here {
    presence: Presence,
    request: ClaimRequest,
}

impl Drop for Here {
    fn drop(&mut self) {
        let mut known = self.presence.lock();
        if let Some(ask) = known.get_mut(&self.request.worker).and_then(|present| present.ask(&self.request)) {
            ask.parked = ask.parked.saturating_sub(1);
            ask.left = Instant::now();
        }
    }
}

impl Presence {
    fn lock(&self) -> MutexGuard<'_, HashMap<WorkerName, Present>> {
        self.0.lock().expect("no holder of this lock panics")
    }

    /// Somebody asks; it is here as long as the guard lives.
    pub fn arrives(&self, request: &ClaimRequest) -> Here {
        let now = Instant::now();
        let mut known = self.lock();
        if known.len() >= MAX_WORKERS && !known.contains_key(&request.worker) {
            let oldest = known.iter().min_by_key(|(_, present)| present.seen(now)).map(|(name, _)| name.clone());
            oldest.map(|name| known.remove(&name));
        }
        let fresh = || Present { asks: Vec::new(), told: None, is_news: true };
        let present = known.entry(request.worker.clone()).or_insert_with(fresh);
        match present.ask(request) {
            Some(ask) => ask.parked += 1,
            None => {
                if present.asks.len() >= MAX_ASKS {
                    let oldest = (0..present.asks.len()).min_by_key(|index| present.asks[*index].seen(now));
                    oldest.map(|index| present.asks.swap_remove(index));
                }
                let (queues, kinds) = (request.queues.clone(), request.kinds.clone());
                present.asks.push(Ask { queues, kinds, parked: 1, left: now });
                present.is_news = true;
            }
        }
        Here { presence: self.clone(), request: request.clone() }
    }

    /// Whether somebody has asked here, of late, for work of this queue and kind. The store is told a little later.
    pub fn asks_for(&self, queue: &QueueName, kind: &QueueName) -> bool {
        let now = Instant::now();
        self.lock().values().flat_map(|present| &present.asks).any(|ask| {
            ask.queues.contains(queue)
                && (ask.kinds.is_empty() || ask.kinds.contains(kind))
                && now.duration_since(ask.seen(now)) < LISTED
        })
    }

    /// What the store is to be told. Forgets who has been away for long: the store remembers.
    pub fn news(&self, now: Instant) -> Vec<Sighting> {
        let mut known = self.lock();
        let mut news = Vec::new();
        for (worker, present) in known.iter_mut() {
            let seen = present.seen(now);
            let is_due = match &present.told {
                None => true,
                Some(told) => present.is_news || seen > told.seen && now.duration_since(told.at) >= RETELL,
            };
            if is_due {
                news.push(present.sighting(worker, now));
                present.told = Some(Told { at: now, seen });
                present.is_news = false;
            }
            let asks = present.asks.len();
            present.asks.retain(|ask| now.duration_since(ask.seen(now)) < LISTED);
            present.is_news |= !present.asks.is_empty() && present.asks.len() < asks;
        }
        known.retain(|_, present| !present.asks.is_empty());
        news
    }

    /// What was noted did not reach the store: it is told again.
    pub fn untold(&self, news: &[Sighting]) {
        let mut known = self.lock();
        for sighting in news {
            if let Some(present) = known.get_mut(&sighting.worker) {
                present.told = None;
            }
        }
    }

    /// Who was seen here lately, and how long ago.
    fn seen(&self, now: Instant) -> Vec<(WorkerName, Duration)> {
        let known = self.lock();
        let seen = known.iter().map(|(name, present)| (name.clone(), now.duration_since(present.seen(now))));
        seen.filter(|(_, ago)| *ago < LISTED).collect()
    }
}

impl Gateway {
    /// Who works, by name: those who hold jobs, and those who asked for some a moment ago.
    pub async fn workers(&self) -> Result<Vec<Worker>, ServiceError> {
        let stored = self.inner.store.workers(LISTED.as_millis() as u64).await?;
        let mut workers: BTreeMap<WorkerName, Worker> =
            stored.into_iter().map(|worker| (worker.name.clone(), worker)).collect();
        let now = self.now().as_millis();
        for (name, ago) in self.inner.presence.seen(Instant::now()) {
            let seen_at = Timestamp::from_millis(now - ago.as_millis() as i64);
            let fresh = || Worker { name: name.clone(), seen_at, jobs: Vec::new() };
            let worker = workers.entry(name.clone()).or_insert_with(fresh);
            worker.seen_at = worker.seen_at.max(seen_at);
        }
        Ok(workers.into_values().collect())
    }

    /// Tells the store who asks for work here.
    pub(super) async fn note_workers(&self) -> Result<(), ServiceError> {
        let news = self.inner.presence.news(Instant::now());
        if news.is_empty() {
            return Ok(());
        }
        let noted = self.inner.store.note_workers(&news).await;
        if noted.is_err() {
            self.inner.presence.untold(&news);
        }
        Ok(noted?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claim(worker: &str, queue: &str, kinds: &[&str]) -> ClaimRequest {
        ClaimRequest::parse(json!({"worker": worker, "queues": [queue], "kinds": kinds})).expect("a right claim")
    }

    fn names(names: &[QueueName]) -> Vec<&str> {
        names.iter().map(QueueName::as_str).collect()
    }

    #[test]
    fn who_is_parked_is_seen_all_along_and_told_every_two_seconds() {
        let presence = Presence::default();
        let here = presence.arrives(&claim("w", "q", &[]));
        let after = |seconds| Instant::now() + Duration::from_secs(seconds);
        assert_eq!(presence.news(after(0)).len(), 1);
        assert_eq!(presence.news(after(1)).len(), 0, "told a second ago");
        assert_eq!(presence.news(after(300))[0].ago_ms, 0, "still here");
        drop(here);
        assert_eq!(presence.news(after(400)).len(), 0, "nothing newer than what was told");
        assert!(presence.lock().is_empty(), "forgotten");
    }

    #[test]
    fn what_a_name_asks_for_is_told_together_and_at_once() {
        let presence = Presence::default();
        let _a = presence.arrives(&claim("w", "b", &["x"]));
        let now = Instant::now();
        presence.news(now);
        let b = presence.arrives(&claim("w", "a", &["y"]));
        let news = presence.news(now);
        assert_eq!((names(&news[0].queues), names(&news[0].kinds)), (vec!["a", "b"], vec!["x", "y"]));
        let c = presence.arrives(&claim("w", "a", &[]));
        assert!(presence.news(now)[0].kinds.is_empty(), "one of them takes any kind");
        drop((b, c));
        presence.news(now + Duration::from_secs(120));
        let news = presence.news(now + Duration::from_secs(121));
        assert_eq!((names(&news[0].queues), names(&news[0].kinds)), (vec!["b"], vec!["x"]));
        presence.untold(&news);
        assert_eq!(presence.news(now + Duration::from_secs(121)).len(), 1);
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_goes() {
        let presence = Presence::default();
        let parked = presence.arrives(&claim("parked", "q", &[]));
        for n in 0..MAX_WORKERS + 10 {
            drop(presence.arrives(&claim(&format!("w{n}"), "q", &[])));
            drop(presence.arrives(&claim("parked", &format!("q{n}"), &[])));
        }
        let known = presence.lock();
        assert_eq!(known.len(), MAX_WORKERS);
        assert_eq!(known[&parked.request.worker].asks.len(), MAX_ASKS);
        assert!(known[&parked.request.worker].asks.iter().any(|ask| ask.parked == 1));
    }
}
