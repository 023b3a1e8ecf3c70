//! One suite for both stores: what the layers above rely on, and the seams where two writers meet.

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

use super::*;
use crate::domain::rules::{self, Step};
use crate::domain::{ClaimRequest, Defaults, Limits, NewEvent, Spec};

/// A store under test, and what goes with it.
struct Bench {
    store: Box<dyn Store>,
    place: Place,
}

enum Place {
    Directory(std::path::PathBuf),
    Database { url: String },
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Self::Directory(path) = self {
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

impl Place {
    async fn open(&self) -> Result<Box<dyn Store>, StoreError> {
        Ok(match self {
            Self::Directory(path) => Box::new(SqliteStore::open(&path.join("test.db"), 2).await?),
            Self::Database { url } => Box::new(PostgresStore::connect(url, 4).await?),
        })
    }

    /// Runs SQL past the store.
    async fn execute(&self, sqlite: &str, postgres: &str) {
        match self {
            Self::Directory(path) => {
                let url = format!("sqlite:{}", path.join("test.db").display());
                let mut connection = sqlx::SqliteConnection::connect(&url).await.expect("the file opens");
                connection.execute(AssertSqlSafe(sqlite.to_owned())).await.expect("right SQL");
            }
            Self::Database { url } => {
                let mut connection = PgConnection::connect(url).await.expect("Postgres answers");
                connection.execute(AssertSqlSafe(postgres.to_owned())).await.expect("right SQL");
            }
        }
    }
}

/// Runs one test on each store.
fn on_both<F: Future<Output = ()>>(test: impl Fn(Bench) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let directory = std::env::temp_dir().join(format!("milepost-store-{:016x}", rand::random::<u64>()));
        std::fs::create_dir_all(&directory).expect("a directory can be made");
        let place = Place::Directory(directory);
        test(Bench { store: place.open().await.expect("the store opens"), place }).await;

        let maintenance = std::env::var("MILEPOST_TEST_POSTGRES")
            .expect("MILEPOST_TEST_POSTGRES names no cluster: run tests/run.sh, which starts one");
        let name = format!("store_{:016x}", rand::random::<u64>());
        let (cluster, _) = maintenance.rsplit_once('/').expect("the URL names a database");
        let url = format!("{cluster}/{name}");
        administer(&maintenance, &format!("create database {name}")).await;
        let place = Place::Database { url };
        test(Bench { store: place.open().await.expect("the store opens"), place }).await;
        administer(&maintenance, &format!("drop database {name} with (force)")).await;
    });
}

async fn administer(maintenance: &str, sql: &str) {
    let mut connection = PgConnection::connect(maintenance).await.expect("the cluster answers");
    // Two tests that copy the template at once get in each other's way.
    connection.execute("select pg_advisory_lock(1)").await.expect("a lock");
    connection.execute(AssertSqlSafe(sql.to_owned())).await.expect("right SQL");
}

impl Bench {
    /// A new job, not yet stored.
    fn new_job(&self, spec: Value) -> Change {
        let spec = Spec::parse(spec, &Limits::default()).expect("a right spec");
        let now = self.store.now();
        let step = rules::enqueue(JobId::mint(now, rand::random()), &spec, &Defaults::default(), now);
        let lease = LeaseChange { open: spec.tracked, ..LeaseChange::default() };
        Change { before: None, step, lease, payload: Some(spec.payload) }
    }

    async fn commit(&self, changes: Vec<Change>) -> Commit {
        self.store.commit(&Batch { changes, requests: Vec::new() }).await.expect("the store works")
    }

    async fn stored(&self, spec: Value) -> Record {
        let change = self.new_job(spec);
        let record = change.step.record.clone();
        assert!(!self.commit(vec![change]).await.rolled_back);
        record
    }

    /// An append to a job that runs, as it stands in `record`.
    fn append(&self, record: &Record, event: Value) -> Change {
        let mut step = Step::from(record.clone());
        let event = NewEvent::parse(event, &Limits::default()).expect("a right event");
        let now = self.store.now();
        rules::append(&mut step, &[event], [7; 32], now, 0.5, &Limits::default()).expect("a running job");
        let close = step.record.job.state != State::Running;
        step.record.lease_ms = step.record.lease_ms.filter(|_| !close);
        let guard = if record.job.tracked { LeaseGuard::None } else { LeaseGuard::HeldBy(record.job.run) };
        let lease = LeaseChange { close, renew: true, guard, ..LeaseChange::default() };
        Change { before: Some(record.job.clone()), step, lease, payload: None }
    }

    /// What one worker is given.
    async fn claim(&self, claim: Value) -> Vec<Record> {
        let claimed = self.store.claim(&[wish(claim, None)]).await.expect("the store works");
        let mut records = claimed.records;
        let order = taken(&claimed.answers[0]);
        records.sort_by_key(|record| order.iter().position(|id| *id == record.job.id));
        records
    }

    async fn read(&self, id: JobId) -> Option<(Record, Clocks)> {
        let lookup = Lookup { jobs: vec![id], ..Lookup::default() };
        self.store.resolve(&lookup).await.expect("the store works").jobs.pop()
    }

    async fn log(&self, id: JobId) -> Vec<Event> {
        let range = EventRange { after: 0, upto: u64::MAX, output_only: false, newest_first: false, limit: 1_000 };
        self.store.events(id, &range).await.expect("the store works")
    }
}

fn wish(claim: Value, key: Option<&str>) -> Wish {
    let mut claim = claim;
    claim["worker"] = json!("w");
    let body_hash = crate::domain::body_hash(&claim);
    let request = |key: &str| RequestKey { scope: "claims".to_owned(), key: key.to_owned() };
    let idempotency = key.map(|key| Idempotency { request: request(key), body_hash });
    Wish { request: ClaimRequest::parse(claim).expect("a right claim"), idempotency }
}

/// The jobs of an answer.
fn taken(answer: &WishAnswer) -> Vec<JobId> {
    match answer {
        WishAnswer::Jobs(taken) | WishAnswer::Again(taken) => taken.iter().map(|taken| taken.job.id).collect(),
        WishAnswer::Mismatch => panic!("another body"),
    }
}

fn tracked() -> Value {
    json!({"kind": "k", "tracked": true, "timeout_ms": 60_000})
}

#[test]
fn what_was_committed_reads_back_as_it_was_also_after_reopening() {
    on_both(async |bench| {
        let spec = json!({"queue": "q", "kind": "k", "tracked": true, "subject": "s:1", "priority": -5, "meta": {"z": 1, "a": "é😀"},
            "payload": {"n": 12345678901234567890u64, "deep": [null, 1e300]}, "deadline_ms": 99_000, "concurrency_key": "c"});
        let record = bench.stored(spec).await;
        let id = record.job.id;
        let progress =
            bench.append(&record, json!({"type": "progress", "data": {"current": 1, "total": 3, "message": "\"\\\n"}}));
        let progressed = progress.step.record.clone();
        assert_eq!(bench.commit(vec![progress]).await.committed.jobs().len(), 1);
        let end = bench.append(&progressed, json!({"type": "completed", "data": {"data": {"x": [1]}, "note": "n"}}));
        let (ended, events) = (end.step.record.clone(), end.step.events.clone());
        bench.commit(vec![end]).await;
        let epoch = bench.store.epoch().to_owned();
        drop(bench.store);
        let bench = Bench { store: bench.place.open().await.expect("it opens again"), place: bench.place };
        assert_eq!(bench.store.epoch(), epoch);
        assert_eq!(bench.read(id).await.map(|(record, _)| record), Some(ended));
        assert_eq!(bench.log(id).await.last(), events.last());
        let part = async |part| {
            bench.store.part(id, part).await.expect("the store works").map(|json| json.as_str().to_owned())
        };
        assert_eq!(part(Part::Result).await.as_deref(), Some(r#"{"x":[1]}"#));
        assert_eq!(part(Part::Payload).await.as_deref(), Some(r#"{"n":12345678901234567890,"deep":[null,1e+300]}"#));
    });
}

#[test]
fn a_change_folded_on_an_old_seq_is_not_stored_and_leaves_the_others_alone() {
    on_both(async |bench| {
        let (a, b) = (bench.stored(tracked()).await, bench.stored(tracked()).await);
        let log = |message: &str| json!({"type": "log", "data": {"message": message}});
        let (first, second) = (bench.append(&a, log("first")), bench.append(&a, log("second")));
        bench.commit(vec![first]).await;
        let commit = bench.commit(vec![second, bench.append(&b, log("other"))]).await;
        assert!(commit.rolled_back || commit.conflicts == [a.job.id], "the loser is named");
        assert_eq!(bench.log(a.job.id).await.len(), 3);
        let others = if commit.rolled_back { 2 } else { 3 };
        assert_eq!(bench.log(b.job.id).await.len(), others, "rolled back means: nothing at all");
        let heartbeat = Change { step: Step::from(a.clone()), ..bench.append(&a, log("unused")) };
        let commit = bench.commit(vec![heartbeat]).await;
        assert!(commit.rolled_back || commit.conflicts == [a.job.id], "a heartbeat has the guard, too");
    });
}

#[test]
fn an_ending_on_an_old_seq_stores_nothing_of_itself() {
    on_both(async |bench| {
        let record = bench.stored(json!({"kind": "k", "tracked": true, "unique_key": "u"})).await;
        let late = bench.append(&record, json!({"type": "completed", "data": {"data": 1}}));
        bench.commit(vec![bench.append(&record, json!({"type": "log"}))]).await;
        assert!(bench.commit(vec![late]).await.rolled_back);
        assert_eq!(bench.store.part(record.job.id, Part::Result).await.expect("the store works"), None);
        let unique = UniqueKey { queue: record.job.queue.clone(), key: "u".to_owned() };
        let resolved = bench.store.resolve(&Lookup { unique: vec![unique.clone()], ..Lookup::default() }).await;
        assert_eq!(resolved.expect("the store works").unique, [(unique, record.job.id)], "the key is still held");
    });
}

#[test]
fn keys_are_taken_once() {
    on_both(async |bench| {
        let spec = json!({"kind": "k", "tracked": true, "unique_key": "u"});
        let holder = bench.stored(spec.clone()).await;
        let second = bench.new_job(spec.clone());
        let id = second.step.record.job.id;
        assert!(bench.commit(vec![second]).await.rolled_back);
        assert!(bench.read(id).await.is_none(), "nothing of it is stored");
        bench.commit(vec![bench.append(&holder, json!({"type": "failed"}))]).await;
        assert!(!bench.commit(vec![bench.new_job(spec)]).await.rolled_back, "the key is free with the end");

        let request = RequestKey { scope: "s".to_owned(), key: "k".to_owned() };
        let remember = |n: u8| Batch {
            changes: vec![bench.new_job(tracked())],
            requests: vec![Remembered {
                request: request.clone(),
                body_hash: [n; 32],
                answer: Json::from_value(&json!([n])),
            }],
        };
        assert!(!bench.store.commit(&remember(1)).await.expect("the store works").rolled_back);
        let second = remember(2);
        assert!(bench.store.commit(&second).await.expect("the store works").rolled_back);
        assert!(bench.read(second.changes[0].step.record.job.id).await.is_none());
        let lookup = Lookup { requests: vec![request.clone()], ..Lookup::default() };
        let found = bench.store.resolve(&lookup).await.expect("the store works").requests;
        assert_eq!(found.iter().map(|r| (r.body_hash, r.answer.as_str())).collect::<Vec<_>>(), [([1; 32], "[1]")]);
        // A day later the key means nothing any more.
        let aged = "update idempotency set created_at = created_at";
        bench
            .place
            .execute(
                &format!("{aged} - 86400001"),
                &format!("{} - interval '86400001 ms'", aged.replace("idempotency", "milepost.idempotency")),
            )
            .await;
        assert!(bench.store.resolve(&lookup).await.expect("the store works").requests.is_empty());
        assert!(!bench.store.commit(&remember(3)).await.expect("the store works").rolled_back);
    });
}

#[test]
fn a_stretch_of_a_log_is_what_was_asked_for() {
    on_both(async |bench| {
        let mut record = bench.stored(tracked()).await;
        for n in 3..=12 {
            let kind = if n % 2 == 0 { "output" } else { "log" };
            let change = bench.append(&record, json!({"type": kind, "data": {"text": n.to_string()}}));
            record = change.step.record.clone();
            bench.commit(vec![change]).await;
        }
        for (after, upto, output_only, newest_first, limit, expected) in [
            (0, u64::MAX, false, false, 3, vec![1, 2, 3]),
            (4, 9, false, false, 100, vec![5, 6, 7, 8, 9]),
            (4, 9, true, false, 100, vec![6, 8]),
            (0, 10, true, true, 3, vec![10, 8, 6]),
            (12, u64::MAX, false, false, 5, vec![]),
        ] {
            let range = EventRange { after, upto, output_only, newest_first, limit };
            let events = bench.store.events(record.job.id, &range).await.expect("the store works");
            assert_eq!(events.iter().map(|event| event.seq).collect::<Vec<_>>(), expected, "{range:?}");
        }
    });
}

#[test]
fn lists_filter_and_page_newest_first() {
    on_both(async |bench| {
        let mut records = Vec::new();
        for n in 0..6 {
            let spec = json!({"kind": if n % 2 == 0 { "even" } else { "odd" }, "queue": "q", "tracked": n != 5, "subject": format!("s{}", n % 3)});
            records.push(bench.stored(spec).await);
            // Ids of one millisecond sort by chance here; the journal sees to more.
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        bench.commit(vec![bench.append(&records[0], json!({"type": "completed"}))]).await;
        let list = async |filter: JobFilter| {
            let jobs = bench.store.list(&filter, 4).await.expect("the store works");
            let place = |job: &Job| records.iter().position(|record| record.job.id == job.id).expect("a known job");
            jobs.iter().map(place).collect::<Vec<_>>()
        };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(list(JobFilter::default()).await, [5, 4, 3, 2]);
        assert_eq!(list(JobFilter { before: Some(records[2].job.id), ..JobFilter::default() }).await, [1, 0]);
        assert_eq!(list(JobFilter { kind: text("even"), ..JobFilter::default() }).await, [4, 2, 0]);
        assert_eq!(list(JobFilter { subject: text("s0"), active: true, ..JobFilter::default() }).await, [3]);
        assert_eq!(
            list(JobFilter { active: true, before: Some(records[3].job.id), ..JobFilter::default() }).await,
            [2, 1]
        );
        assert_eq!(
            list(JobFilter { states: vec![State::Completed, State::Queued], ..JobFilter::default() }).await,
            [5, 0]
        );
        assert_eq!(list(JobFilter { queue: text("other"), ..JobFilter::default() }).await, [0; 0]);
        let after = Some(records[3].job.created_at);
        assert_eq!(list(JobFilter { created_after: after, ..JobFilter::default() }).await, [5, 4]);
        assert_eq!(list(JobFilter { finished_after: after, ..JobFilter::default() }).await, [0]);
    });
}

#[test]
fn whatever_instant_passes_is_found_and_only_then() {
    on_both(async |bench| {
        let soon = [
            bench.stored(json!({"kind": "k", "ttl_ms": 1})).await,
            bench.stored(json!({"kind": "k", "deadline_ms": 1})).await,
            bench.stored(json!({"kind": "k", "tracked": true, "timeout_ms": 1})).await,
            bench.stored(tracked()).await,
            bench.stored(json!({"kind": "k", "cancel_if_unwatched_ms": 5})).await,
        ];
        let later = bench.stored(json!({"kind": "k", "ttl_ms": 600_000, "deadline_ms": 600_000})).await;
        bench.store.note_watched(&[(soon[4].job.id, 5), (later.job.id, 600_000)]).await.expect("the store works");
        let ask = |ms| Change {
            before: Some(soon[3].job.clone()),
            step: Step::from(soon[3].clone()),
            lease: LeaseChange { cancel_ms: Some(ms), ..LeaseChange::default() },
            payload: None,
        };
        bench.commit(vec![ask(60_000)]).await;
        let first =
            bench.read(soon[3].job.id).await.and_then(|(_, clocks)| clocks.cancel_at).expect("it was asked to stop");
        bench.commit(vec![ask(120_000)]).await;
        assert_eq!(
            bench.read(soon[3].job.id).await.and_then(|(_, clocks)| clocks.cancel_at),
            Some(first),
            "never later"
        );
        bench.commit(vec![ask(1)]).await;
        tokio::time::sleep(std::time::Duration::from_millis(30)).await;
        let mut due = bench.store.overdue(100).await.expect("the store works");
        due.sort();
        let mut expected: Vec<JobId> = soon.iter().map(|record| record.job.id).collect();
        expected.sort();
        assert_eq!(due, expected);
        assert_eq!(
            bench.store.overdue(1).await.expect("the store works").len().min(3),
            due.len().min(3),
            "bounded per kind"
        );
    });
}

#[test]
fn removal_takes_ended_jobs_at_their_seq_and_nothing_else() {
    on_both(async |bench| {
        let (live, ended) = (bench.stored(tracked()).await, bench.stored(tracked()).await);
        bench.commit(vec![bench.append(&ended, json!({"type": "completed", "data": {"data": 1}}))]).await;
        let removed = bench.store.remove(&[(live.job.id, 2), (ended.job.id, 2)]).await.expect("the store works");
        assert_eq!(removed.removed(), [], "one lives, the other has another seq");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        assert_eq!(bench.store.retired(600_000, 10).await.expect("the store works"), []);
        assert_eq!(bench.store.retired(0, 10).await.expect("the store works"), [(ended.job.id, 3)]);
        let removed = bench.store.remove(&[(live.job.id, 2), (ended.job.id, 3)]).await.expect("the store works");
        assert_eq!(removed.removed(), [ended.job.id]);
        assert_eq!(bench.log(ended.job.id).await, []);
        assert_eq!(bench.store.part(ended.job.id, Part::Payload).await.expect("the store works"), None);
        assert_eq!(bench.log(live.job.id).await.len(), 2);
    });
}

#[test]
fn waiting_jobs_are_handed_out_in_order_and_once() {
    on_both(async |bench| {
        let mut names = std::collections::HashMap::new();
        for (name, priority, key, kind) in [
            ("a1", 0, Some("a"), "x"),
            ("a2", 0, Some("a"), "y"),
            ("a3", 0, Some("a"), "x"),
            ("b1", 0, Some("b"), "x"),
            ("n1", 0, None, "x"),
            ("low", -1, None, "x"),
            ("high", 1, Some("z"), "x"),
        ] {
            let spec = json!({"kind": kind, "priority": priority, "concurrency_key": key});
            names.insert(bench.stored(spec).await.job.id, name);
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        bench.stored(json!({"kind": "x", "delay_ms": 600_000})).await;
        bench.stored(json!({"kind": "x", "queue": "other"})).await;
        let claim = async |claim| -> Vec<&str> {
            let records = bench.claim(claim).await;
            assert!(
                records.iter().all(|r| r.job.state == State::Running && r.job.run == 1 && r.lease_ms == Some(30_000))
            );
            records.iter().map(|record| names[&record.job.id]).collect()
        };
        assert_eq!(claim(json!({"kinds": ["y"]})).await, ["a2"]);
        assert_eq!(claim(json!({"max": 3})).await, ["high", "b1", "n1"], "lanes go on after the one served last");
        assert_eq!(claim(json!({"max": 100})).await, ["a1", "a3", "low"]);
        assert_eq!(claim(json!({"max": 100})).await, [""; 0]);
        assert_eq!(claim(json!({"queues": ["nobody", "default"], "kinds": ["x", "y"]})).await, [""; 0]);
    });
}

#[test]
fn wishes_for_the_same_work_share_it() {
    on_both(async |bench| {
        for _ in 0..5 {
            bench.stored(json!({"kind": "k"})).await;
        }
        let wishes = [wish(json!({"max": 10}), None), wish(json!({"max": 1}), None), wish(json!({"max": 10}), None)];
        let claimed = bench.store.claim(&wishes).await.expect("the store works");
        let counts: Vec<usize> = claimed.answers.iter().map(|answer| taken(answer).len()).collect();
        assert_eq!(counts, [2, 1, 2]);
        assert_eq!(claimed.committed.jobs().len(), 5);
    });
}

#[test]
fn the_same_claim_is_answered_alike_while_its_leases_live() {
    on_both(async |bench| {
        for _ in 0..4 {
            bench.stored(json!({"kind": "k"})).await;
        }
        let claim = async |max: u32| {
            let claimed = bench.store.claim(&[wish(json!({"max": max}), Some("key"))]).await.expect("the store works");
            claimed.answers.into_iter().next().expect("one answer per wish")
        };
        let first = taken(&claim(2).await);
        assert_eq!(first.len(), 2);
        assert!(matches!(claim(3).await, WishAnswer::Mismatch));
        let WishAnswer::Again(again) = claim(2).await else { panic!("the same claim") };
        assert_eq!(again.iter().map(|taken| taken.job.id).collect::<Vec<_>>(), first);
        for taken in again {
            let (record, _) = bench.read(taken.job.id).await.expect("it is there");
            let end = bench.append(&record, json!({"type": "completed"}));
            assert!(bench.commit(vec![end]).await.conflicts.is_empty());
        }
        let fresh = taken(&claim(2).await);
        assert!(fresh.len() == 2 && fresh.iter().all(|id| !first.contains(id)), "nobody holds them any more");
        let nothing = bench.store.claim(&[wish(json!({"queues": ["none"]}), Some("none"))]).await;
        assert!(taken(&nothing.expect("the store works").answers[0]).is_empty());
        let other = bench.store.claim(&[wish(json!({"queues": ["none"], "max": 2}), Some("none"))]).await;
        assert!(taken(&other.expect("the store works").answers[0]).is_empty(), "who got nothing may ask otherwise");
    });
}

#[test]
fn only_the_run_that_holds_the_lease_writes() {
    on_both(async |bench| {
        bench.stored(json!({"kind": "k", "timeout_ms": 600_000})).await;
        let record = bench.claim(json!({"lease_ms": 3_600_000})).await.remove(0);
        let log = || bench.append(&record, json!({"type": "log", "data": {"message": "m"}}));
        let heartbeat = || Change { step: Step::from(record.clone()), ..log() };
        let lost = async |change: Change| {
            let commit = bench.commit(vec![change]).await;
            commit.rolled_back || commit.conflicts == [record.job.id]
        };
        let other_run = |change: Change| Change {
            lease: LeaseChange { guard: LeaseGuard::HeldBy(record.job.run + 1), ..change.lease.clone() },
            ..change
        };
        assert!(lost(other_run(log())).await && lost(other_run(heartbeat())).await);
        assert!(!bench.read(record.job.id).await.expect("it is there").1.heard);
        assert!(!lost(heartbeat()).await);
        let (_, clocks) = bench.read(record.job.id).await.expect("it is there");
        assert!(clocks.live && clocks.heard);
        // A sweep that comes too early ends nothing.
        let mut early =
            Change { step: rules::give_back(&record, "r", bench.store.now(), 0.5).expect("it runs"), ..log() };
        early.lease = LeaseChange { close: true, guard: LeaseGuard::RunOut, ..LeaseChange::default() };
        assert!(lost(early.clone()).await);
        for instant in ["expires_at", "cancel_at", "timeout_at"] {
            let shift = |by: &str, cast: &str| format!("update {cast}leases set {instant} = {by}");
            bench.place.execute(&shift("1", ""), &shift("now() - interval '1 s'", "milepost.")).await;
            assert!(lost(log()).await && lost(heartbeat()).await, "{instant} has passed");
            assert!(!bench.read(record.job.id).await.expect("it is there").1.live);
            let far = ("9000000000000", "now() + interval '1 day'");
            bench.place.execute(&shift(far.0, ""), &shift(far.1, "milepost.")).await;
        }
        bench.place.execute("update leases set expires_at = 1", "update milepost.leases set expires_at = now()").await;
        assert!(!lost(early).await, "now it has run out");
        assert_eq!(bench.log(record.job.id).await.len(), 3);
        assert_eq!(bench.claim(json!({})).await.len(), 1, "and another run takes it");
    });
}

#[test]
fn limits_hold_within_a_claim() {
    on_both(async |bench| {
        for n in 0..6 {
            bench.stored(json!({"kind": "k", "concurrency_key": if n < 4 { "a" } else { "b" }})).await;
        }
        let settings = async |settings: &str| {
            bench
                .place
                .execute(
                    &format!("update queues set settings = '{settings}'"),
                    &format!("update milepost.queues set settings = '{settings}'"),
                )
                .await;
        };
        settings(r#"{"concurrency":3,"concurrency_per_key":2}"#).await;
        let claimed = bench.store.claim(&[wish(json!({"max": 10}), None)]).await.expect("the store works");
        let lanes: Vec<Option<String>> =
            claimed.records.iter().map(|record| record.policy.concurrency_key.clone()).collect();
        assert_eq!(lanes.len(), 3);
        assert_eq!(claimed.full, [claimed.records[0].job.queue.clone()]);
        assert_eq!(bench.claim(json!({})).await.len(), 0);
        let end = bench.append(&claimed.records[0], json!({"type": "completed"}));
        bench.commit(vec![end]).await;
        assert_eq!(bench.claim(json!({"max": 10})).await.len(), 1, "a slot is free with the end of its run");
        settings(r#"{"rate_limit":{"limit":1,"per_ms":600000,"burst":1,"per_key":true}}"#).await;
        let claimed = bench.store.claim(&[wish(json!({"max": 10}), None)]).await.expect("the store works");
        let mut keys: Vec<_> = claimed.records.iter().filter_map(|r| r.policy.concurrency_key.clone()).collect();
        keys.dedup();
        assert_eq!(keys.len(), claimed.records.len(), "one of each key");
        assert!(claimed.opens_at.is_some());
    });
}

#[test]
fn what_waits_for_its_instant_becomes_claimable_with_it() {
    on_both(async |bench| {
        let run_at = bench.stored(json!({"kind": "k", "delay_ms": 1_000})).await.job.run_at;
        let claimed = bench.store.claim(&[wish(json!({}), None)]).await.expect("the store works");
        assert_eq!((taken(&claimed.answers[0]), claimed.opens_at), (vec![], Some(run_at)));
        while bench.store.now() < run_at {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        assert_eq!(bench.store.promote().await.expect("the store works"), [QueueName::default()]);
        assert_eq!(bench.store.promote().await.expect("the store works"), []);
        assert_eq!(bench.claim(json!({})).await.len(), 1);
    });
}

#[test]
fn an_outage_extends_live_leases_once() {
    on_both(async |bench| {
        let record = bench.stored(tracked()).await;
        let expires_at =
            async || bench.read(record.job.id).await.and_then(|(_, clocks)| clocks.expires_at).expect("a lease");
        let before = expires_at().await;
        bench.store.probe().await.expect("the store works");
        assert_eq!(expires_at().await, before, "nobody was away");
        bench
            .place
            .execute(
                "update nodes set alive_at = alive_at - 10000",
                "update milepost.nodes set alive_at = alive_at - interval '10 s'",
            )
            .await;
        bench.store.probe().await.expect("the store works");
        let extended = expires_at().await.as_millis() - before.as_millis();
        assert!((10_000..12_000).contains(&extended), "{extended} ms");
        let after = expires_at().await;
        bench.store.probe().await.expect("the store works");
        assert_eq!(expires_at().await, after, "once");
        bench.store.tidy(0).await.expect("the store works");
    });
}

#[test]
fn a_newer_schema_is_refused() {
    on_both(async |bench| {
        drop(bench.store);
        let row = "(version, description, success, checksum, execution_time) values (9999, 'from the future'";
        bench
            .place
            .execute(
                &format!("insert into _sqlx_migrations {row}, 1, x'00', 0)"),
                &format!("insert into milepost._sqlx_migrations {row}, true, '\\x00', 0)"),
            )
            .await;
        let refused = bench.place.open().await.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(refused.contains("9999") && refused.contains("newer"), "{refused}");
    });
}
