//! One suite for both stores: what the layers above rely on, and the seams where two writers meet.

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

use super::*;
use crate::domain::rules::{self, Step};
use crate::domain::{
    ClaimRequest, Limits, NewEvent, Observation, Pause, QueueCounts, SettingsPatch, Spec, Tally, WorkerName, slot_of,
};

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

    /// Reads a column past the store.
    async fn texts(&self, sqlite: &str, postgres: &str) -> Vec<String> {
        match self {
            Self::Directory(path) => {
                let url = format!("sqlite:{}", path.join("test.db").display());
                let mut connection = sqlx::SqliteConnection::connect(&url).await.expect("the file opens");
                let query = sqlx::query_scalar(AssertSqlSafe(sqlite.to_owned()));
                query.fetch_all(&mut connection).await.expect("right SQL")
            }
            Self::Database { url } => {
                let mut connection = PgConnection::connect(url).await.expect("Postgres answers");
                let query = sqlx::query_scalar(AssertSqlSafe(postgres.to_owned()));
                query.fetch_all(&mut connection).await.expect("right SQL")
            }
        }
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
        let texts = |text: &str| text.split(' ').map(str::to_owned).collect();
        assert_eq!(list(JobFilter::default()).await, [5, 4, 3, 2]);
        assert_eq!(list(JobFilter { before: Some(records[2].job.id), ..JobFilter::default() }).await, [1, 0]);
        assert_eq!(
            list(JobFilter { of: Interest { kinds: texts("even"), ..Interest::default() }, ..JobFilter::default() })
                .await,
            [4, 2, 0]
        );
        assert_eq!(
            list(JobFilter {
                of: Interest { subjects: texts("s0"), ..Interest::default() },
                active: true,
                ..JobFilter::default()
            })
            .await,
            [3]
        );
        assert_eq!(
            list(JobFilter { active: true, before: Some(records[3].job.id), ..JobFilter::default() }).await,
            [2, 1]
        );
        assert_eq!(
            list(JobFilter { states: vec![State::Completed, State::Queued], ..JobFilter::default() }).await,
            [5, 0]
        );
        assert_eq!(
            list(JobFilter { of: Interest { queues: texts("other"), ..Interest::default() }, ..JobFilter::default() })
                .await,
            [0; 0]
        );
        let after = Some(records[3].job.created_at);
        assert_eq!(list(JobFilter { created_after: after, ..JobFilter::default() }).await, [5, 4]);
        assert_eq!(list(JobFilter { finished_after: after, ..JobFilter::default() }).await, [0]);
        let several = Interest { subjects: texts("s0 s1"), kinds: texts("even odd"), ..Interest::default() };
        assert_eq!(list(JobFilter { of: several.clone(), ..JobFilter::default() }).await, [4, 3, 1, 0]);
        let two = Interest { jobs: Some(vec![records[1].job.id, records[4].job.id]), ..Interest::default() };
        assert_eq!(list(JobFilter { of: two, ..JobFilter::default() }).await, [4, 1]);
        let ended =
            bench.store.list(&JobFilter { finished_after: after, ..JobFilter::default() }, 1).await.expect("works");
        let ended_at = ended[0].finished_at.expect("it has ended");
        let before_it = Timestamp::from_millis(ended_at.as_millis() - 1);
        for of in [Interest::default(), several] {
            let shown = async |since| {
                list(JobFilter { of: of.clone(), active_or_finished_after: Some(since), ..JobFilter::default() }).await
            };
            assert!(shown(before_it).await.len() == 4);
            assert!(!shown(ended_at).await.contains(&0));
        }
        let since = JobFilter { active_or_finished_after: Some(before_it), ..JobFilter::default() };
        assert_eq!(list(JobFilter { before: Some(records[2].job.id), ..since.clone() }).await, [1, 0]);
        assert_eq!(list(JobFilter { updated_after: Some(before_it), ..since }).await, [0]);

        let fails = |code: &str| json!({"type": "failed", "data": {"code": code, "message": "m"}});
        bench
            .commit(vec![
                bench.append(&records[1], fails("c")),
                bench.append(&records[2], fails("c")),
                bench.append(&records[3], fails("d")),
            ])
            .await;
        let failed = || JobFilter { states: vec![State::Failed], ..JobFilter::default() };
        let before = Some(records[3].job.id);
        assert_eq!(list(failed()).await, [3, 2, 1]);
        assert_eq!(
            list(JobFilter { of: Interest { queues: texts("q"), ..Interest::default() }, before, ..failed() }).await,
            [2, 1]
        );
        assert_eq!(
            list(JobFilter {
                of: Interest { kinds: texts("odd"), subjects: texts("s1"), ..Interest::default() },
                ..failed()
            })
            .await,
            [1]
        );
        assert_eq!(list(JobFilter { active: true, ..failed() }).await, [0; 0]);
        assert_eq!(list(JobFilter { created_after: Some(records[1].job.created_at), ..failed() }).await, [3, 2]);
        let with_code = |code| JobFilter { error_code: text(code), ..JobFilter::default() };
        assert_eq!(list(with_code("c")).await, [2, 1]);
        assert_eq!(
            list(JobFilter { of: Interest { queues: texts("q"), ..Interest::default() }, before, ..with_code("c") })
                .await,
            [2, 1]
        );
        assert_eq!(
            list(JobFilter { of: Interest { queues: texts("other"), ..Interest::default() }, ..with_code("c") }).await,
            [0; 0]
        );
        assert_eq!(list(JobFilter { states: vec![State::Completed], ..with_code("c") }).await, [0; 0]);
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
        assert_eq!(removed.removed().iter().map(|job| job.id).collect::<Vec<_>>(), [ended.job.id]);
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
fn workers_are_those_seen_lately_and_those_that_hold_jobs() {
    on_both(async |bench| {
        let name = |text: &str| WorkerName::parse(text).expect("a name");
        let queue = |text: &str| QueueName::parse(text).expect("a name");
        let sighting = |worker: &str, ago_ms| Sighting {
            worker: name(worker),
            queues: vec![queue("a"), queue("b")],
            kinds: Vec::new(),
            ago_ms,
        };
        bench.stored(tracked()).await;
        let job = bench.stored(json!({"kind": "k"})).await.job;
        assert_eq!(bench.claim(json!({"lease_ms": 5_000})).await.len(), 1);
        bench.store.note_workers(&[sighting("idle", 1_000), sighting("gone", 90_000)]).await.expect("it works");
        bench.store.note_workers(&[sighting("w", 30_000)]).await.expect("it works");
        let workers = async || bench.store.workers(60_000).await.expect("it works");
        let listed = workers().await;
        assert_eq!(listed.iter().map(|worker| worker.name.as_str()).collect::<Vec<_>>(), ["idle", "w"]);
        assert!(listed[0].jobs.is_empty());
        let [held] = &listed[1].jobs[..] else { panic!("one job, not {:?}", listed[1]) };
        assert_eq!((held.id, held.run, held.cancel_requested), (job.id, 1, false));
        let age = |worker: &Worker| bench.store.now().as_millis() - worker.seen_at.as_millis();
        assert!((1_000..10_000).contains(&age(&listed[0])), "{} ms", age(&listed[0]));
        assert!(
            (0..10_000).contains(&age(&listed[1])),
            "a lease's sign of life is newer than the claim that was noted"
        );
        assert!((0..=5_000).contains(&(held.expires_at.as_millis() - bench.store.now().as_millis())));
        // Told again: the newest counts.
        bench.store.note_workers(&[sighting("gone", 0)]).await.expect("it works");
        assert_eq!(workers().await[0].name.as_str(), "gone");
        bench.place.execute("update workers set seen_at = 1", "update milepost.workers set seen_at = 'epoch'").await;
        bench.store.tidy(u64::MAX).await.expect("it works");
        assert_eq!(workers().await.len(), 1);
    });
}

#[test]
fn cancels_are_the_flags_of_live_runs_with_what_is_left_of_their_grace() {
    on_both(async |bench| {
        for _ in 0..2 {
            bench.stored(json!({"kind": "k"})).await;
        }
        let cancels = async |worker: &str| {
            let workers = [WorkerName::parse("other").expect("a name"), WorkerName::parse(worker).expect("a name")];
            bench.store.cancels(&workers).await.expect("it works")
        };
        let records = bench.claim(json!({"max": 2})).await;
        assert_eq!(cancels("w").await, []);
        let Ok(rules::Cancel::Done(step)) = rules::cancel(&records[0], Some("r"), 60_000, "me", bench.store.now())
        else {
            panic!("a running job can be cancelled")
        };
        let record = step.record.clone();
        let lease = LeaseChange { cancel_ms: Some(60_000), ..LeaseChange::default() };
        let before = Some(records[0].job.clone());
        let commit = bench.commit(vec![Change { before, step: *step, lease, payload: None }]).await;
        assert_eq!(commit.committed.jobs()[0].revoked, None, "it was asked, not ended");
        let found = cancels("w").await;
        let [(worker, cancel)] = &found[..] else { panic!("one flag, not {found:?}") };
        assert_eq!((worker.as_str(), cancel.job, cancel.run), ("w", record.job.id, 1));
        assert_eq!(cancel.reason.as_deref(), Some("r"));
        assert!((50_000..=60_000).contains(&cancel.grace_ms), "{} ms", cancel.grace_ms);
        assert_eq!(cancels("v").await, []);
        let held = bench.store.workers(0).await.expect("it works").pop().expect("w holds jobs").jobs;
        let mut flags: Vec<bool> = held.iter().map(|job| job.cancel_requested).collect();
        flags.sort_unstable();
        assert_eq!(flags, [false, true]);
        let past = ("update leases set cancel_at = 1 where cancel_at > 0", "where cancel_at is not null");
        bench.place.execute(past.0, &format!("update milepost.leases set cancel_at = 'epoch' {}", past.1)).await;
        assert_eq!(cancels("w").await[0].1.grace_ms, 0);
        bench
            .place
            .execute(
                "update leases set cancel_at = 9000000000000",
                "update milepost.leases set cancel_at = now() + interval '1 day'",
            )
            .await;
        let end = bench.append(&record, json!({"type": "cancelled"}));
        bench.commit(vec![end]).await;
        let left = cancels("w").await;
        assert!(left.iter().all(|(_, cancel)| cancel.job != record.job.id), "it has ended: {left:?}");
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
fn a_queue_counts_its_jobs_where_they_are() {
    on_both(async |bench| {
        let own = QueueName::parse("own").expect("a right name");
        assert_eq!(bench.store.queues(Some(&own)).await.expect("the store works"), []);
        let first = bench.stored(json!({"kind": "a", "queue": "own"})).await;
        let due = bench.stored(json!({"kind": "b", "queue": "own", "delay_ms": 20})).await;
        bench.stored(json!({"kind": "b", "queue": "own", "delay_ms": 600_000})).await;
        bench.stored(json!({"kind": "k", "queue": "own", "tracked": true})).await;
        bench.stored(json!({"kind": "k", "queue": "other"})).await;
        for n in 0..3 {
            bench.stored(json!({"kind": format!("end-{n}"), "queue": "own"})).await;
        }
        for (n, data) in [json!({}), json!({"retryable": false}), json!({"retry_after_ms": 600_000})].iter().enumerate()
        {
            let record = bench.claim(json!({"queues": ["own"], "kinds": [format!("end-{n}")]})).await.remove(0);
            let kind = if n == 0 { "completed" } else { "failed" };
            bench.commit(vec![bench.append(&record, json!({"type": kind, "data": data}))]).await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        let read = async || bench.store.queues(Some(&own)).await.expect("the store works").remove(0);
        let counts = QueueCounts { scheduled: 1, queued: 2, running: 1, retrying: 1, failed: 1 };
        assert_eq!((read().await.counts, read().await.oldest_queued_at), (counts, Some(first.job.run_at)));
        assert_eq!(bench.claim(json!({"queues": ["own"], "kinds": ["a"]})).await.len(), 1);
        let counts = QueueCounts { queued: 1, running: 2, ..counts };
        assert_eq!((read().await.counts, read().await.oldest_queued_at), (counts, Some(due.job.run_at)));
        let all = bench.store.queues(None).await.expect("the store works");
        assert_eq!(all.iter().map(|queue| queue.name.as_str()).collect::<Vec<_>>(), ["other", "own"]);
        assert_eq!(all[1], read().await);
        assert_eq!(all[0].counts, QueueCounts { queued: 1, ..QueueCounts::default() });
    });
}

#[test]
fn changes_of_a_queue_are_kept_and_bind_the_next_claim() {
    on_both(async |bench| {
        let name = QueueName::default();
        let change =
            async |change: QueueChange| bench.store.change_queue(&name, &change).await.expect("the store works");
        let set = |patch| QueueChange::Set(SettingsPatch::parse(patch).expect("a right patch"));
        let pause = Pause { by: "ann".to_owned(), reason: Some("é".to_owned()), at: bench.store.now() };
        assert!(
            !change(QueueChange::Resume).await && bench.store.queues(None).await.expect("the store works").is_empty()
        );
        assert!(change(QueueChange::Pause(pause.clone())).await);
        assert!(change(set(json!({"concurrency": 5, "defaults": {"priority": 3}}))).await);
        assert!(change(set(json!({"rate_limit": {"limit": 1, "per_ms": 3_600_000}}))).await);
        let queue = bench.store.queues(Some(&name)).await.expect("the store works").remove(0);
        assert_eq!((queue.paused, queue.settings.concurrency), (Some(pause), Some(5)), "what was not named stays");
        let defaults = Defaults { priority: Some(3), ..Defaults::default() };
        assert_eq!(bench.store.queue_defaults().await.expect("the store works"), [(name.clone(), defaults)]);
        for _ in 0..3 {
            bench.stored(json!({"kind": "k", "concurrency_key": "k"})).await;
        }
        assert_eq!(bench.claim(json!({"max": 9})).await.len(), 0);
        assert!(change(QueueChange::Resume).await);
        assert_eq!(bench.store.queues(Some(&name)).await.expect("the store works")[0].paused, None);
        assert_eq!((bench.claim(json!({"max": 9})).await.len(), bench.claim(json!({"max": 9})).await.len()), (1, 0));
        for per_key in [true, false] {
            let rate = json!({"limit": 1, "per_ms": 3_600_000, "per_key": per_key});
            change(set(json!({"rate_limit": rate}))).await;
            assert_eq!(bench.claim(json!({"max": 9})).await.len(), 1, "a new rate begins anew");
            change(set(json!({"concurrency": 6}))).await;
            assert_eq!(bench.claim(json!({"max": 9})).await.len(), 0, "and no other setting gives it more room");
        }
    });
}

#[test]
fn statistics_are_those_of_other_nodes_and_earlier_lives() {
    on_both(async |bench| {
        let name = |name| QueueName::parse(name).expect("a right name");
        let slot = |queue, slot, runs: u64| {
            let mut tally = Tally::default();
            (0..runs).for_each(|ms| tally.add(&Observation { ran_ms: Some(ms), finished: true, waited_ms: None }));
            QueueSlot { queue: name(queue), slot, tally }
        };
        let now = slot_of(bench.store.now());
        bench.store.store_statistics(&[slot("a", now, 1), slot("b", now, 5)]).await.expect("the store works");
        bench.store.store_statistics(&[slot("a", now, 2), slot("a", now - 1, 3)]).await.expect("the store works");
        bench.store.store_statistics(&[slot("a", now - 90, 4)]).await.expect("the store works");
        let read = async |store: &dyn Store, queues: &[&QueueName], since| {
            let mut slots = store.statistics(queues, since).await.expect("the store works");
            slots.sort_by_key(|slot| slot.slot);
            slots
        };
        let (a, b, other) = (name("a"), name("b"), name("other"));
        assert_eq!(read(&*bench.store, &[&a, &b], 0).await, [], "its own are known to the node itself");
        drop(bench.store);
        let store = bench.place.open().await.expect("it opens again");
        let kept = [slot("a", now - 1, 3), slot("a", now, 2)];
        assert_eq!(read(&*store, &[&a, &other], now - 1).await, kept);
        assert_eq!(read(&*store, &[&b], now).await, [slot("b", now, 5)]);
        store.store_statistics(&[slot("a", now, 9)]).await.expect("the store works");
        assert_eq!(read(&*store, &[&a], now).await, kept[1..], "each life has its own");
        store.tidy(u64::MAX).await.expect("the store works");
        assert_eq!(read(&*store, &[&a], 0).await, kept, "what is too old is gone");
    });
}

#[test]
fn rates_and_workers_of_the_past_are_forgotten() {
    on_both(async |bench| {
        let rates = "rates (queue, lane, ahead_until) values ('q', 'past', 1), ('q', 'future', 9000000000000000)";
        let workers = |old: &str, new: &str| {
            let row = |worker: &str, at: &str| format!("('{worker}', 'n', '[]', '[]', {at})");
            let rows = format!("{}, {}", row("past", old), row("future", new));
            format!("workers (worker, node, queues, kinds, seen_at) values {rows}")
        };
        let pg_workers = workers("now() - interval '2 h'", "now()");
        bench.place.execute(&format!("insert into {rates}"), &format!("insert into milepost.{rates}")).await;
        bench
            .place
            .execute(
                &format!("insert into {}", workers("1", "9000000000000")),
                &format!("insert into milepost.{pg_workers}"),
            )
            .await;
        bench.store.tidy(u64::MAX).await.expect("the store works");
        for (name, table) in [("lane", "rates"), ("worker", "workers")] {
            let select = |schema: &str| format!("select {name} from {schema}{table}");
            assert_eq!(bench.place.texts(&select(""), &select("milepost.")).await, ["future"], "{table}");
        }
    });
}

#[test]
fn what_waits_for_its_instant_becomes_claimable_with_it() {
    on_both(async |bench| {
        bench.stored(json!({"kind": "k", "delay_ms": 600_000})).await;
        let claimed = bench.store.claim(&[wish(json!({}), None)]).await.expect("the store works");
        assert!(taken(&claimed.answers[0]).is_empty() && claimed.opens_at.is_some_and(|at| at > bench.store.now()));
        bench
            .place
            .execute("update later set run_at = 1", "update milepost.later set run_at = now() - interval '1 s'")
            .await;
        assert_eq!(bench.store.promote().await.expect("the store works"), [QueueName::default()]);
        assert_eq!(bench.store.promote().await.expect("the store works"), []);
        assert_eq!(bench.claim(json!({})).await.len(), 1);
    });
}

#[test]
fn a_backlog_is_read_oldest_first_up_to_where_it_ended() {
    on_both(async |bench| {
        let backlog = |queue: &str, part, code: Option<&str>| Backlog {
            queue: QueueName::parse(queue).expect("a right name"),
            part,
            error_code: code.map(str::to_owned),
        };
        let extent = async |backlog: &Backlog| bench.store.backlog_extent(backlog).await.expect("the store works");
        let waiting = backlog("q", BacklogPart::Waiting, None);
        assert_eq!(extent(&waiting).await, BacklogExtent::UnknownQueue);
        let mut ids = Vec::new();
        for (queue, delay_ms) in [("q", 0), ("q", 600_000), ("other", 0), ("q", 0), ("q", 600_000)] {
            let spec = json!({"kind": "k", "queue": queue, "delay_ms": delay_ms, "max_attempts": 1});
            ids.push(bench.stored(spec).await.job.id);
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        ids.remove(2);
        let upto = ids[3];
        assert_eq!(extent(&waiting).await, BacklogExtent::UpTo(upto));
        bench.stored(json!({"kind": "k", "queue": "q"})).await;
        let read = async |backlog: &Backlog, range: &BacklogRange| {
            let jobs = bench.store.backlog(backlog, range).await.expect("the store works");
            jobs.into_iter().map(|job| job.id).collect::<Vec<_>>()
        };
        let page = async |backlog: &Backlog, after, limit| read(backlog, &BacklogRange { after, upto, limit }).await;
        let begin = JobId::lowest_at(Timestamp::from_millis(0));
        assert_eq!(page(&waiting, begin, 3).await, ids[..3]);
        assert_eq!(page(&waiting, ids[2], 3).await, ids[3..], "what came later is not in it");
        assert_eq!(page(&backlog("q", BacklogPart::Waiting, Some("c")), begin, 9).await, []);

        assert_eq!(extent(&backlog("q", BacklogPart::Dead, None)).await, BacklogExtent::Empty);
        let fails =
            |code: &str, retryable: bool| json!({"type": "failed", "data": {"code": code, "retryable": retryable}});
        for code in ["c", "d"] {
            let run = bench.claim(json!({"queues": ["q"]})).await.remove(0);
            bench.commit(vec![bench.append(&run, fails(code, false))]).await;
        }
        let run = bench.stored(json!({"kind": "k", "queue": "q", "tracked": true})).await;
        bench.commit(vec![bench.append(&run, fails("c", false))]).await;
        let (dead, upto) = (backlog("q", BacklogPart::Dead, None), run.job.id);
        assert_eq!(extent(&dead).await, BacklogExtent::UpTo(upto));
        let range = BacklogRange { after: begin, upto, limit: 9 };
        let all = async |backlog| read(&backlog, &range).await;
        assert_eq!(all(dead).await, [ids[0], ids[2]], "tracked ones are nobody's to put back");
        assert_eq!(all(backlog("q", BacklogPart::Dead, Some("d"))).await, [ids[2]]);
        assert_eq!(all(backlog("other", BacklogPart::Dead, None)).await, []);

        bench.stored(json!({"kind": "k", "queue": "tries", "max_attempts": 2})).await;
        let run = bench.claim(json!({"queues": ["tries"]})).await.remove(0);
        bench.commit(vec![bench.append(&run, fails("c", true))]).await;
        let range = BacklogRange { upto: run.job.id, ..range };
        let tries = async |code| read(&backlog("tries", BacklogPart::Waiting, Some(code)), &range).await;
        assert_eq!((tries("c").await, tries("d").await), (vec![run.job.id], vec![]), "it waits for its next try");

        let keyed = json!({"kind": "k", "queue": "keys", "unique_key": "k"});
        bench.stored(keyed.clone()).await;
        let run = bench.claim(json!({"queues": ["keys"]})).await.remove(0);
        bench.commit(vec![bench.append(&run, fails("c", false))]).await;
        let dead = backlog("keys", BacklogPart::Dead, None);
        let range = BacklogRange { upto: run.job.id, ..range };
        let free = BacklogJob { id: run.job.id, unique_key: Some("k".to_owned()) };
        assert_eq!(bench.store.backlog(&dead, &range).await.expect("the store works"), [free]);
        bench.stored(keyed).await;
        assert_eq!(read(&dead, &range).await, [], "its key is held");
    });
}

#[test]
fn a_waiting_job_knows_what_it_waits_for() {
    on_both(async |bench| {
        let sql = async |sqlite: &str, postgres: &str| bench.place.execute(sqlite, postgres).await;
        let said = async |id| {
            let (job, waiting_for) =
                bench.store.waiting_for(id, false).await.expect("the store works").expect("it is there");
            assert_eq!(job.id, id);
            json!(waiting_for)
        };
        let mut ids = Vec::new();
        for (key, priority) in [("a", 0), ("a", 0), ("b", 0), ("a", 0), ("b", 0), ("b", 9), ("a", 0)] {
            let spec = json!({"queue": "q", "kind": "k", "concurrency_key": key, "priority": priority});
            ids.push(bench.stored(spec).await.job.id);
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        let none = json!({"reason": "no_worker"});
        let told = bench.store.waiting_for(ids[0], true).await.expect("the store works");
        assert_eq!(json!(told.and_then(|(_, waiting_for)| waiting_for)), json!({"reason": "ahead", "ahead": 1}));
        assert_eq!(said(ids[0]).await, none);
        for (worker, queues, kinds, seen) in [
            ("other-queue", r#"["p"]"#, "[]", 0),
            ("other-kind", r#"["q"]"#, r#"["l"]"#, 0),
            ("long-gone", r#"["q"]"#, "[]", 61_000),
        ] {
            let seen_at = bench.store.now().as_millis() - seen;
            let row = format!(
                "workers (worker, node, queues, kinds, seen_at) values ('{worker}', 'n', '{queues}', '{kinds}'"
            );
            sql(
                &format!("insert into {row}, {seen_at})"),
                &format!("insert into milepost.{row}, to_timestamp({seen_at} / 1000.0))"),
            )
            .await;
        }
        assert_eq!(said(ids[0]).await, none, "none of them would take it");
        sql(r#"update workers set kinds = '["j", "k"]'"#, r#"update milepost.workers set kinds = '["j", "k"]'"#).await;
        // The order of a claim: b9 · a0 b2 · a1 b4 · a3 · a6 (the lane after the one served last begins).
        for (index, ahead) in [(0, 1), (2, 2), (1, 3), (4, 4), (3, 5), (6, 6)] {
            assert_eq!(said(ids[index]).await, json!({"reason": "ahead", "ahead": ahead}), "{index}");
        }
        assert_eq!(said(ids[5]).await, none, "it is next");

        let run = bench.claim(json!({"queues": ["q"]})).await.remove(0);
        assert_eq!((run.job.id, said(run.job.id).await), (ids[5], Value::Null));
        let set =
            async |to: &str| sql(&format!("update queues set {to}"), &format!("update milepost.queues set {to}")).await;
        set(r#"settings = '{"concurrency_per_key":1}'"#).await;
        let expected = json!({"reason": "concurrency_key", "key": "b", "running": 1, "limit": 1, "jobs": [run.job.id]});
        assert_eq!(said(ids[4]).await, expected);
        assert_eq!(
            said(ids[1]).await,
            json!({"reason": "ahead", "ahead": 1}),
            "lanes without a free slot do not count"
        );
        set(r#"settings = '{"concurrency":1}'"#).await;
        let expected = json!({"reason": "concurrency", "running": 1, "limit": 1, "jobs": [run.job.id]});
        assert_eq!(said(ids[1]).await, expected);
        let until = bench.store.now().plus_millis(60_000);
        let us = until.as_millis() * 1_000;
        set(&format!(
            r#"settings = '{{"rate_limit":{{"limit":1,"per_ms":1000,"burst":1,"per_key":false}}}}', ahead_until = {us}"#
        ))
        .await;
        let expected = json!({"reason": "rate_limit", "limit": 1, "per_ms": 1_000, "burst": 1, "until": until});
        assert_eq!(said(ids[1]).await, expected);
        let ms = until.as_millis();
        sql(
            &format!("update queues set held_until = {ms}"),
            &format!("update milepost.queues set held_until = to_timestamp({ms} / 1000.0)"),
        )
        .await;
        assert_eq!(said(ids[1]).await, json!({"reason": "held", "until": until}));
        let paused = "paused_by = 'ops', paused_reason = 'r', paused_at =";
        sql(
            &format!("update queues set {paused} {ms}"),
            &format!("update milepost.queues set {paused} to_timestamp({ms} / 1000.0)"),
        )
        .await;
        let paused = json!({"by": "ops", "reason": "r", "at": until});
        assert_eq!(said(ids[1]).await, json!({"reason": "paused", "paused": paused}));
        let later = bench.stored(json!({"queue": "q", "kind": "k", "delay_ms": 600_000})).await;
        assert_eq!(said(later.job.id).await, json!({"reason": "run_at", "run_at": later.job.run_at}));
        assert_eq!(said(bench.stored(tracked()).await.job.id).await, Value::Null);
        let unknown = JobId::mint(bench.store.now(), [0; 10]);
        assert!(bench.store.waiting_for(unknown, false).await.expect("the store works").is_none());
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
