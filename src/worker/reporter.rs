//! Brings what a program prints to its job: in order, once each, with bounded memory, over any absence of the gateway.
//!
//! Entries go through one queue. Its one consumer takes what has gathered, joins neighbouring output, and appends it
//! as one array under one `Idempotency-Key`, again and again until there is an answer: so idle means written at once,
//! and busy means large batches. A full queue makes the pumps wait, and with them the program ([`BUFFERED_BYTES`]).
//! Beside it a held heartbeat keeps the job alive and hears a cancel at once; what the supervisor must know comes out
//! as an [`Order`].

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::entry::Entry;
use super::report::{Appended, CancelRequest, Fault, Report, Trouble};
use crate::client::{self, Backoff};

/// How much may wait for the gateway before the program is made to wait.
pub const BUFFERED_BYTES: usize = 4 << 20;
const BUFFERED_ENTRIES: usize = 4_096;
/// The gateway takes 1,000 events and 2 MiB; smaller bodies are answered sooner.
const MAX_BATCH_ENTRIES: usize = 1_000;
const MAX_BATCH_BYTES: usize = 512 << 10;
/// After the program's end: how long the gateway may stay away before the rest is given up. A tracked job has timed
/// out by then.
const LAST_PATIENCE: Duration = Duration::from_secs(60);
/// How long an answer is still waited for when the user does not want to wait any more.
const LAST_MOMENT: Duration = Duration::from_secs(1);
const RETRY_BASE: Duration = Duration::from_millis(200);
/// When the heart of a leased job begins to beat.
const FIRST_BEAT: Duration = Duration::from_millis(50);
/// A refusal of something this small is no matter of its size: the job is full.
const SMALL_BYTES: usize = 32 << 10;

/// Tells people about trouble with the gateway; the program's own output goes elsewhere.
pub type Notice = Arc<dyn Fn(&str) + Send + Sync>;

/// When the heart beats.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Before the first beat. A job that is done by then costs none; its cancel is heard that much later.
    first: Duration,
    /// How long the gateway holds a beat: a third of the lease, under the 15 s that keep a tracked job alive, and under
    /// what proxies cut.
    held: Duration,
    /// How long an answer that is due may be late.
    late: Duration,
    /// Between two beats that were answered early.
    rest: Duration,
    /// Between two tries. Short, since a gateway that comes back waits for us: silence ends the run.
    retry_cap: Duration,
}

impl Pace {
    fn of(lease: Option<Duration>, first: Duration) -> Self {
        let usual = Self {
            first: Duration::ZERO,
            held: Duration::from_secs(10),
            late: Duration::from_secs(30),
            rest: Duration::from_secs(1),
            retry_cap: Duration::from_secs(3),
        };
        let Some(lease) = lease else { return usual };
        Self {
            first,
            held: usual.held.min(lease / 3),
            late: usual.late.min((lease / 3).max(Duration::from_secs(2))),
            rest: usual.rest.min(lease / 4),
            retry_cap: usual.retry_cap.min((lease / 4).max(RETRY_BASE)),
        }
    }

    fn backoff(self) -> Backoff {
        Backoff::new(RETRY_BASE, self.retry_cap)
    }
}

/// What the supervisor of the program must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Go on.
    Go,
    /// Stop within the grace time.
    Cancel(CancelRequest),
    /// Stop at once: the job is over, or somebody else's.
    Stop,
}

/// What became of the job's last event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// It is stored.
    Stored,
    /// The job had ended already, in this state.
    Ended(String),
    /// It could not be told.
    Undelivered(String),
}

/// The way in for what is printed. Clones share one queue.
#[derive(Clone)]
pub struct Entries {
    queue: mpsc::Sender<Queued>,
    budget: Arc<Semaphore>,
}

struct Queued {
    entry: Entry,
    _room: OwnedSemaphorePermit,
}

impl Entries {
    /// Queues an entry; waits while too much is queued already.
    pub async fn send(&self, entry: Entry) {
        let bytes = entry.bytes().min(BUFFERED_BYTES) as u32;
        let room = Arc::clone(&self.budget).acquire_many_owned(bytes).await;
        let room = room.expect("the budget is never closed");
        // The consumer lives until every sender is gone, unless the runtime ends: then nobody is left to be told.
        let _ = self.queue.send(Queued { entry, _room: room }).await;
    }
}

/// The running reporter of one job. Dropped unfinished, it falls silent: whoever ran the job is gone, and its lease must
/// be let run out.
pub struct Reporter {
    shared: Arc<Shared>,
    sender: Task<Sender>,
    _heartbeat: Task<()>,
}

/// A task that ends with its owner.
struct Task<T>(JoinHandle<T>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Reporter {
    /// Starts reporting. The reporter ends when every clone of the returned [`Entries`] is gone.
    #[must_use]
    pub fn start(report: Arc<dyn Report>, notice: Notice) -> (Self, Entries, watch::Receiver<Order>) {
        Self::start_listening(report, FIRST_BEAT, notice)
    }

    /// As [`Reporter::start`]; a cancel of a leased job is heard from `first_beat` on.
    #[must_use]
    pub fn start_listening(
        report: Arc<dyn Report>,
        first_beat: Duration,
        notice: Notice,
    ) -> (Self, Entries, watch::Receiver<Order>) {
        let (queue, queued) = mpsc::channel(BUFFERED_ENTRIES);
        let (orders, order) = watch::channel(Order::Go);
        let shared = Arc::new(Shared {
            pace: Pace::of(report.lease(), first_beat),
            report,
            notice,
            orders,
            ended_at: watch::Sender::new(None),
            abandoned: watch::Sender::new(false),
            cancel_heard: AtomicBool::new(false),
            finishing: AtomicBool::new(false),
            over: watch::Sender::new(None),
        });
        let sender = Sender { shared: Arc::clone(&shared), full: HashSet::new() };
        let reporter = Self {
            sender: Task(tokio::spawn(sender.run(queued))),
            _heartbeat: Task(tokio::spawn(Arc::clone(&shared).keep_alive())),
            shared,
        };
        let entries = Entries { queue, budget: Arc::new(Semaphore::new(BUFFERED_BYTES)) };
        (reporter, entries, order)
    }

    /// The program has ended: from now on an absent gateway is not waited for without end.
    pub fn program_ended(&self) {
        self.shared.ended_at.send_replace(Some(Instant::now()));
    }

    /// Calling it makes the reporter give up on a gateway that does not answer.
    pub fn abandon(&self) -> impl Fn() + Send + use<> {
        let shared = Arc::clone(&self.shared);
        move || {
            shared.abandoned.send_replace(true);
        }
    }

    /// Waits until everything queued is stored, then appends the job's last event. Every [`Entries`] must be gone.
    pub async fn finish(mut self, last: Entry) -> Delivery {
        match (&mut self.sender.0).await {
            Ok(mut sender) => sender.finish(last).await,
            Err(error) => Delivery::Undelivered(error.to_string()),
        }
    }
}

/// What sender and heartbeat share.
struct Shared {
    report: Arc<dyn Report>,
    pace: Pace,
    notice: Notice,
    orders: watch::Sender<Order>,
    ended_at: watch::Sender<Option<Instant>>,
    abandoned: watch::Sender<bool>,
    cancel_heard: AtomicBool,
    /// The job's last event is on its way.
    finishing: AtomicBool,
    /// Why nothing can be told any more.
    over: watch::Sender<Option<Delivery>>,
}

impl Shared {
    /// The heartbeat and the ear in one: returns only when the job is over for us.
    async fn keep_alive(self: Arc<Self>) {
        let pace = self.pace;
        let mut backoff = pace.backoff();
        tokio::time::sleep(pace.first).await;
        while self.over.borrow().is_none() {
            let cancelled = self.cancel_heard.load(Ordering::Relaxed);
            let wait = if cancelled { Duration::ZERO } else { pace.held };
            let begun = Instant::now();
            match self.beat(wait).await {
                Ok(answer) => {
                    backoff.reset();
                    self.hear(&answer).await;
                    // A job that is asked to stop, and a gateway that is about to, is answered at once: do not turn in
                    // circles.
                    if begun.elapsed() < pace.rest.min(pace.held) {
                        tokio::time::sleep(pace.rest.mul_f64(0.75 + rand::random::<f64>() / 2.0)).await;
                    }
                }
                Err(Trouble::Passing { retry_after, .. }) => {
                    tokio::time::sleep(backoff.next_delay(retry_after)).await;
                }
                // Held over the job's last event: that is no news.
                Err(_) if self.finishing.load(Ordering::Relaxed) => return,
                Err(error) => {
                    self.lose(&error).await;
                    return;
                }
            }
        }
    }

    async fn beat(&self, wait: Duration) -> Result<Appended, Trouble> {
        match tokio::time::timeout(wait + self.pace.late, self.report.heartbeat(wait)).await {
            Ok(answer) => answer,
            Err(_) => Err(Trouble::Passing { reason: "no answer in time".to_owned(), retry_after: None }),
        }
    }

    /// Every answer says whether to stop.
    async fn hear(&self, answer: &Appended) {
        if !answer.cancel_requested || self.cancel_heard.swap(true, Ordering::Relaxed) {
            return;
        }
        // The program is told at once; how long it may take is read from the log after that.
        self.order(Order::Cancel(CancelRequest::default()));
        let request = self.report.cancel_request(answer.seq);
        if let Ok(Ok(request)) = tokio::time::timeout(Duration::from_secs(5), request).await {
            self.order(Order::Cancel(request));
        }
    }

    fn order(&self, order: Order) {
        self.orders.send_if_modified(|current| {
            // Nothing is milder than Stop.
            let change = *current != Order::Stop && *current != order;
            if change {
                *current = order;
            }
            change
        });
    }

    /// A refusal that is about the job, not about what was sent.
    async fn lose(&self, trouble: &Trouble) -> Delivery {
        let is_leased = self.report.lease().is_some();
        if is_leased {
            self.order(Order::Stop);
        }
        let delivery = match trouble {
            Trouble::Ended { .. } => Delivery::Ended(self.report.state().await.unwrap_or_default()),
            Trouble::Passing { .. } | Trouble::Content(_) | Trouble::Refused { .. } => {
                Delivery::Undelivered(trouble.to_string())
            }
        };
        let ended_elsewhere = matches!(&delivery, Delivery::Ended(state) if state == "cancelled");
        if ended_elsewhere {
            self.order(Order::Stop);
        }
        let first = self.over.send_if_modified(|over| {
            let first = over.is_none();
            over.get_or_insert_with(|| delivery.clone());
            first
        });
        if first {
            match &delivery {
                Delivery::Ended(state) if state == "cancelled" => (self.notice)("the job was cancelled"),
                Delivery::Ended(state) => (self.notice)(&format!(
                    "the job has ended already ({}); nothing more is reported",
                    if state.is_empty() { "in a state unknown" } else { state }
                )),
                Delivery::Undelivered(reason) => {
                    (self.notice)(&format!("nothing more is reported: {reason}"));
                }
                Delivery::Stored => {}
            }
        }
        delivery
    }

    /// Whether a failing append may be given up: the program has ended, and the gateway has been away for long. A lease
    /// is given back the time that its gateway was away, so what was done under it is kept until it can be told.
    fn is_out_of_patience(&self, failing_since: Instant) -> bool {
        if self.report.lease().is_some() {
            return false;
        }
        let ended_at = *self.ended_at.borrow();
        ended_at.is_some_and(|at| at.max(failing_since).elapsed() >= LAST_PATIENCE)
    }
}

/// What one append came to, after all its repetitions.
enum Outcome {
    Stored,
    Refused(Fault),
    Over(Delivery),
}

/// The one consumer of the queue.
struct Sender {
    shared: Arc<Shared>,
    /// Event types of which the job takes no more.
    full: HashSet<String>,
}

impl Sender {
    async fn run(mut self, mut queued: mpsc::Receiver<Queued>) -> Self {
        while let Some(first) = queued.recv().await {
            let mut room = Vec::new();
            let mut gathered = VecDeque::new();
            let mut bytes = 0;
            let mut next = Some(first);
            while let Some(Queued { entry, _room }) = next.take() {
                bytes += entry.bytes();
                room.push(_room);
                push_joined(&mut gathered, entry);
                if bytes < MAX_BATCH_BYTES && gathered.len() < MAX_BATCH_ENTRIES {
                    next = queued.try_recv().ok();
                }
            }
            self.deliver(gathered).await;
            // Only what is stored makes room.
            drop(room);
        }
        self
    }

    /// Stores `waiting` in order. What is refused becomes a log entry in its place, or is dropped if even that is.
    async fn deliver(&mut self, mut waiting: VecDeque<Entry>) {
        let mut limit = MAX_BATCH_ENTRIES;
        waiting.retain(|entry| !self.full.contains(entry.event_type()));
        while self.shared.over.borrow().is_none() {
            if waiting.is_empty() {
                return;
            }
            let (body, count) = encode_batch(&waiting, limit);
            match self.append(body, false).await {
                Outcome::Stored => {
                    waiting.drain(..count);
                    limit = (limit * 4).clamp(16, MAX_BATCH_ENTRIES);
                }
                // All or nothing: the culprit is exchanged, and those up to it go first.
                Outcome::Refused(fault) => match culprit(&fault, count) {
                    Some(at) => {
                        self.exchange(&mut waiting, at, &fault);
                        limit = at + 1;
                    }
                    None => limit = (count / 2).max(1),
                },
                Outcome::Over(_) => return,
            }
        }
    }

    /// Puts a log entry in the place of a refused one, where that is of use.
    fn exchange(&mut self, waiting: &mut VecDeque<Entry>, at: usize, fault: &Fault) {
        let entry = waiting.remove(at).expect("the culprit is one of the batch");
        let event_type = entry.event_type();
        match &entry {
            Entry::Said { json, .. } if !fault.is_too_large || json.len() > SMALL_BYTES => {
                waiting.insert(at, Entry::refused(json, &fault.to_string()));
            }
            // No matter of its size: the job is full. What comes later must not fill a gap behind it.
            Entry::Said { .. } | Entry::Log { .. } | Entry::Output { .. } if fault.is_too_large => {
                (self.shared.notice)(&format!("the job takes no more events of type {event_type}: {fault}"));
                self.full.insert(event_type.to_owned());
                let later = waiting.split_off(at);
                waiting.extend(later.into_iter().filter(|entry| entry.event_type() != event_type));
                if event_type != "log" {
                    waiting.insert(
                        at,
                        Entry::Log { level: "warn", message: format!("no more {event_type} from here: {fault}") },
                    );
                }
            }
            // What we have written ourselves is refused only by a gateway that knows other rules.
            Entry::Said { .. } | Entry::Log { .. } | Entry::Output { .. } => {
                (self.shared.notice)(&format!("a line could not be reported: {fault}"));
            }
        }
    }

    /// The job's last event. If the gateway does not take the program's own words, the job still ends, as what it is:
    /// an end without the result that was announced.
    async fn finish(&mut self, last: Entry) -> Delivery {
        if let Some(over) = self.shared.over.borrow().clone() {
            return over;
        }
        self.shared.finishing.store(true, Ordering::Relaxed);
        let refusal = match self.append(encode_batch([&last], 1).0, true).await {
            Outcome::Stored => return Delivery::Stored,
            Outcome::Over(delivery) => return delivery,
            Outcome::Refused(fault) => fault,
        };
        self.deliver(VecDeque::from([Entry::refused(&last.encode(), &refusal.to_string())])).await;
        let stand_in = substitute(last.event_type(), &refusal);
        match self.append(encode_batch([&stand_in], 1).0, true).await {
            Outcome::Stored => Delivery::Stored,
            Outcome::Over(delivery) => delivery,
            Outcome::Refused(fault) => Delivery::Undelivered(fault.to_string()),
        }
    }

    /// One append, repeated under one key until there is an answer or no hope.
    async fn append(&mut self, body: String, ends_run: bool) -> Outcome {
        // The event that ends a lease's run is known again by itself.
        let key = (!ends_run || self.shared.report.lease().is_none()).then(client::idempotency_key);
        let mut backoff = self.shared.pace.backoff();
        let mut abandoned = self.shared.abandoned.subscribe();
        let mut failing_since = None;
        let mut noticed = false;
        loop {
            let answer = tokio::select! {
                answer = self.shared.report.append(body.clone(), key.as_deref()) => answer,
                () = impatient(&mut abandoned) => {
                    return Outcome::Over(self.give_up("interrupted while the gateway was away"));
                }
            };
            let error = match answer {
                Ok(answer) => {
                    if noticed {
                        (self.shared.notice)("the gateway is back");
                    }
                    self.shared.hear(&answer).await;
                    return Outcome::Stored;
                }
                Err(error) => error,
            };
            let retry_after = match error {
                Trouble::Passing { retry_after, .. } => retry_after,
                Trouble::Content(fault) => return Outcome::Refused(fault),
                Trouble::Ended { .. } | Trouble::Refused { .. } => {
                    return Outcome::Over(self.shared.lose(&error).await);
                }
            };
            let since = *failing_since.get_or_insert_with(Instant::now);
            if self.shared.is_out_of_patience(since) || *abandoned.borrow() {
                return Outcome::Over(self.give_up(&error.to_string()));
            }
            if !noticed && since.elapsed() >= Duration::from_secs(2) {
                noticed = true;
                (self.shared.notice)(&format!("{error}; trying again"));
            }
            tokio::select! {
                () = tokio::time::sleep(backoff.next_delay(retry_after)) => {}
                // One last try.
                _ = abandoned.wait_for(|abandoned| *abandoned) => {}
            }
        }
    }

    fn give_up(&self, reason: &str) -> Delivery {
        let delivery = Delivery::Undelivered(reason.to_owned());
        self.shared.over.send_replace(Some(delivery.clone()));
        delivery
    }
}

/// Ends a moment after somebody has given up: a gateway that is there has answered by then.
async fn impatient(abandoned: &mut watch::Receiver<bool>) {
    if abandoned.wait_for(|abandoned| *abandoned).await.is_err() {
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(LAST_MOMENT).await;
}

fn push_joined(gathered: &mut VecDeque<Entry>, entry: Entry) {
    let left_over = match gathered.back_mut() {
        Some(last) => last.join(entry).err(),
        None => Some(entry),
    };
    gathered.extend(left_over);
}

/// The first `limit` entries, or as many as fit into one body, and how many these are; at least one. What counts is
/// the encoded length: control characters take six times their room.
fn encode_batch<'a>(entries: impl IntoIterator<Item = &'a Entry>, limit: usize) -> (String, usize) {
    let mut body = String::from("[");
    let mut count = 0;
    for entry in entries.into_iter().take(limit) {
        let event = entry.encode();
        if count > 0 {
            if body.len() + event.len() > MAX_BATCH_BYTES {
                break;
            }
            body.push(',');
        }
        body.push_str(&event);
        count += 1;
    }
    body.push(']');
    (body, count)
}

/// Which entry of a batch was refused: its pointer begins with the index (RFC 6901).
fn culprit(fault: &Fault, count: usize) -> Option<usize> {
    if count == 1 {
        return Some(0);
    }
    let pointer = fault.pointer.as_deref()?;
    let index = pointer.strip_prefix('/')?.split('/').next()?;
    index.parse().ok().filter(|at| *at < count)
}

/// The end that is told when the program's own last word was not taken.
fn substitute(event_type: &str, refusal: &Fault) -> Entry {
    let why = format!("the program's {event_type} event was refused: {refusal}");
    let event = match event_type {
        // Never a success: what the program said about it is lost.
        "completed" => serde_json::json!({"type": "completed", "data": {
            "ok": false, "status": "outcome_refused", "note": why,
        }}),
        "cancelled" => serde_json::json!({"type": "cancelled", "data": {"reason": why}}),
        _ => {
            serde_json::json!({"type": "failed", "data": {"code": "last_event_refused", "message": why}})
        }
    };
    Entry::from_event(&event)
}
