//! Milepost's workers, over HTTP as anybody's would be.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::Deserialize;
use tokio::sync::{Mutex, Notify, mpsc};
use tokio::task::JoinSet;

use crate::http::Poster;

/// A job in hand.
#[derive(Deserialize)]
pub struct Handed {
    job: JobId,
    lease: Lease,
}

#[derive(Deserialize)]
struct JobId {
    id: String,
}

#[derive(Deserialize)]
struct Lease {
    token: String,
}

#[derive(Deserialize)]
struct Claims {
    jobs: Vec<Handed>,
}

/// One claim.
pub async fn claim(poster: &mut Poster, max: usize, wait_ms: u64) -> Vec<Handed> {
    let body = format!(r#"{{"worker":"bench","max":{max},"wait_ms":{wait_ms}}}"#);
    let (status, answer) = poster.request("/v1/claims", "", &body).await;
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(answer));
    serde_json::from_slice::<Claims>(answer).expect("a claim is answered with jobs").jobs
}

const COMPLETED: &str = r#"{"type":"completed"}"#;

fn progress(n: usize) -> String {
    format!(r#"{{"type":"progress","data":{{"percent":{}}}}}"#, n * 25)
}

impl Handed {
    async fn append(&self, poster: &mut Poster, body: &str) {
        let lease = format!("Lease-Token: {}\r\n", self.lease.token);
        let (status, answer) = poster.request(&format!("/v1/jobs/{}/events", self.job.id), &lease, body).await;
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(answer));
    }

    /// Does it: so many reports, each a request of its own, and the end.
    pub async fn finish(&self, poster: &mut Poster, reports: usize) {
        for n in 1..=reports {
            self.append(poster, &progress(n)).await;
        }
        self.append(poster, COMPLETED).await;
    }

    /// The same in one request.
    async fn finish_at_once(&self, poster: &mut Poster, reports: usize) {
        let reports: String = (1..=reports).map(|n| progress(n) + ",").collect();
        self.append(poster, &format!("[{reports}{COMPLETED}]")).await;
    }
}

/// How workers come by their jobs.
#[derive(Clone, Copy, PartialEq)]
pub enum Claiming {
    /// Each claims one when it is free.
    Singly,
    /// One claims hundreds ahead for all of them; what a job has to say goes in one request.
    Ahead,
}

/// Counts what is done, and tells when so many are.
#[derive(Default)]
struct Done {
    count: AtomicUsize,
    marks: [AtomicUsize; 2],
    reached: [Notify; 2],
}

impl Done {
    fn one_more(&self) {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        for (mark, reached) in self.marks.iter().zip(&self.reached) {
            if mark.load(Ordering::Relaxed) == count {
                reached.notify_one();
            }
        }
    }
}

/// What workers did between two moments.
pub struct Drained<T> {
    pub jobs: usize,
    pub time: Duration,
    pub began: T,
    pub ended: T,
}

/// Workers empty the queue. From the `warm`th job on it is measured, for `limit` or `jobs` jobs. `look` is called as it
/// begins and as it ends.
pub async fn drain<T>(
    address: SocketAddr,
    claiming: Claiming,
    concurrency: usize,
    reports: usize,
    [warm, jobs]: [usize; 2],
    limit: Duration,
    look: impl Fn() -> T,
) -> Drained<T> {
    let done = Arc::new(Done { marks: [warm.into(), (warm + jobs).into()], ..Done::default() });
    let mut workers = JoinSet::new();
    match claiming {
        Claiming::Singly => (0..concurrency).for_each(|_| {
            workers.spawn(work_singly(address, reports, done.clone()));
        }),
        Claiming::Ahead => {
            let (sender, receiver) = mpsc::channel(100);
            let receiver = Arc::new(Mutex::new(receiver));
            workers.spawn(claim_ahead(address, sender));
            (0..concurrency).for_each(|_| {
                workers.spawn(work_ahead(address, reports, receiver.clone(), done.clone()));
            });
        }
    }
    done.reached[0].notified().await;
    let (began, begun) = (look(), Instant::now());
    let _limit_comes_first = tokio::time::timeout(limit, done.reached[1].notified()).await;
    let (jobs, time, ended) = (done.count.load(Ordering::Relaxed) - warm, begun.elapsed(), look());
    workers.shutdown().await;
    Drained { jobs, time, began, ended }
}

async fn work_singly(address: SocketAddr, reports: usize, done: Arc<Done>) {
    let mut poster = Poster::connect(address).await;
    while let Some(handed) = claim(&mut poster, 1, 0).await.pop() {
        handed.finish(&mut poster, reports).await;
        done.one_more();
    }
}

async fn claim_ahead(address: SocketAddr, sender: mpsc::Sender<Handed>) {
    let mut poster = Poster::connect(address).await;
    loop {
        let handed = claim(&mut poster, 100, 0).await;
        if handed.is_empty() {
            return;
        }
        for one in handed {
            if sender.send(one).await.is_err() {
                return;
            }
        }
    }
}

async fn work_ahead(
    address: SocketAddr,
    reports: usize,
    receiver: Arc<Mutex<mpsc::Receiver<Handed>>>,
    done: Arc<Done>,
) {
    let mut poster = Poster::connect(address).await;
    loop {
        let handed = receiver.lock().await.recv().await;
        let Some(handed) = handed else { return };
        handed.finish_at_once(&mut poster, reports).await;
        done.one_more();
    }
}

/// Enqueues so many jobs one by one, `in_flight` at a time.
pub async fn enqueue_singly(address: SocketAddr, jobs: usize, in_flight: usize) -> usize {
    enqueue(address, jobs, in_flight, "/v1/jobs", SPEC, 202).await;
    jobs
}

/// Enqueues jobs by thousands, two requests at a time. Returns how many: at least as many as asked for.
pub async fn enqueue_by_thousands(address: SocketAddr, jobs: usize) -> usize {
    let body = format!(r#"{{"jobs":[{}]}}"#, vec![SPEC; 1_000].join(","));
    let requests = jobs.div_ceil(1_000);
    enqueue(address, requests, 2, "/v1/jobs/batch", &body, 200).await;
    requests * 1_000
}

const SPEC: &str = r#"{"kind":"noop","payload":{}}"#;

async fn enqueue(address: SocketAddr, requests: usize, in_flight: usize, path: &str, body: &str, expected: u16) {
    let (left, body, path): (_, Arc<str>, Arc<str>) = (Arc::new(AtomicUsize::new(requests)), body.into(), path.into());
    let mut callers = JoinSet::new();
    for _ in 0..in_flight {
        let (left, body, path) = (left.clone(), body.clone(), path.clone());
        callers.spawn(async move {
            let mut poster = Poster::connect(address).await;
            while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
                let (status, answer) = poster.request(&path, "", &body).await;
                assert_eq!(status, expected, "{}", String::from_utf8_lossy(answer));
            }
        });
    }
    callers.join_all().await;
}
