use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::domain::{Backoff, Limits, NewEvent, WorkerName};

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(1_800_000_000_000 + ms)
}

fn spec(value: Value) -> Spec {
    Spec::parse(value, &Limits::default()).expect("a right spec")
}

fn new_job(value: Value) -> Record {
    enqueue(JobId::mint(at(0), [1; 10]), &spec(value), &Defaults::default(), at(0)).record
}

/// A log and the state that its writer ended with; replaying the one must give the other.
fn replay(id: JobId, log: &[Event]) -> Job {
    let mut job = Job::from_queued(id, &log[0]).expect("a log begins with queued");
    for event in &log[1..] {
        job.apply(event).expect("a stored event applies");
    }
    job
}

/// One random wish: which rule, and a number to make it vary.
fn wish() -> impl Strategy<Value = (u8, u32)> {
    (0u8..16, 0u32..100_000)
}

fn carry_out(record: &Record, (which, n): (u8, u32), now: Timestamp) -> Option<Step> {
    let event = |value: Value| NewEvent::parse(value, &Limits::default()).expect("a right event");
    let appended = |value: Value| {
        let mut step = Step::from(record.clone());
        append(&mut step, &[event(value)], [0; 32], now, 0.5, &Limits::default()).ok()?;
        Some(step)
    };
    let percent = f64::from(n % 1001) / 10.0;
    match which {
        0 => appended(json!({"type": "progress", "data": {"percent": percent, "message": n.to_string()}})),
        1 => appended(json!({"type": "progress", "data": {"current": n % 77, "total": 77, "unit": "p\u{0}ages"}})),
        2 => appended(json!({"type": "output", "data": {"text": "é".repeat((n % 9) as usize)}})),
        3 => appended(json!({"type": "log", "data": {"message": "x"}})),
        4 => appended(json!({"type": "mine.own", "data": {"n": n}})),
        5 => appended(json!({"type": "completed", "data": {"ok": n % 2 == 0, "data": [n]}})),
        6 => appended(json!({"type": "failed", "data": {"code": "boom"}})),
        7 => appended(json!({"type": "cancelled"})),
        8 => match cancel(record, Some("because"), 5, "test", now).ok()? {
            Cancel::Done(step) => Some(*step),
            Cancel::Already | Cancel::Shorten => None,
        },
        9 => retry(record, "test", now).ok(),
        10 => overdue(
            record,
            &Clocks {
                expires_at: Some(now),
                cancel_at: (n % 2 == 0).then_some(now),
                unwatched_at: (n % 3 == 0).then_some(now),
                live: true,
                heard: n % 5 == 0,
            },
            now,
            f64::from(n % 100) / 100.0,
        ),
        11 => appended(json!({"type": "released", "data": {"delay_ms": n % 3}})),
        12 => give_back(record, "undelivered", now, 0.5).ok(),
        _ => start(record, &WorkerName::parse("w").expect("a name"), 1_000, now).ok(),
    }
}

/// Carries a wish out that the rules allow.
fn does(record: &Record, which: u8, now: Timestamp) -> Step {
    carry_out(record, (which, 0), now).expect("it is allowed")
}

const FAIL: u8 = 6;
const RELEASE: u8 = 11;
const START: u8 = 13;

fn silent(now: Timestamp, heard: bool) -> Clocks {
    Clocks { expires_at: Some(now), heard, ..Clocks::default() }
}

fn words(step: &Step) -> Vec<&str> {
    step.events.iter().map(|event| event.kind.as_str()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// Invariants 1, 5 and 6: dense seqs, one terminal event per life, state = fold(log).
    #[test]
    fn any_history_folds_to_its_state(
        tracked: bool, ttl in proptest::option::of(1u64..50), deadline in proptest::option::of(1u64..80),
        wishes in proptest::collection::vec(wish(), 0..60),
    ) {
        let ttl = ttl.filter(|_| !tracked);
        let first = enqueue(
            JobId::mint(at(0), [9; 10]),
            &spec(json!({"kind": "k", "tracked": tracked, "ttl_ms": ttl, "deadline_ms": deadline, "timeout_ms": 10})),
            &Defaults::default(),
            at(0),
        );
        let (mut record, mut log) = (first.record, first.events);
        for (i, wish) in wishes.into_iter().enumerate() {
            let before = record.clone();
            if let Some(step) = carry_out(&record, wish, at(i as i64)) {
                prop_assert!(step.record.job.attempt <= step.record.job.max_attempts, "never more tries than allowed");
                prop_assert!(step.record.job.run >= before.job.run, "runs are counted upwards");
                let reached_the_end = step.events.iter().any(|e| e.kind == EventType::Requeued);
                prop_assert!(!before.job.state.is_terminal() || reached_the_end, "nothing but a redrive follows the end");
                if let (Some(a), Some(b)) = (&before.job.progress, &step.record.job.progress)
                    && before.job.run == step.record.job.run && step.record.job.output_after_seq == before.job.output_after_seq {
                    prop_assert!(a.percent <= b.percent, "within a run the bar never falls");
                }
                log.extend(step.events);
                record = step.record;
            }
            prop_assert!(record.job.progress.as_ref().and_then(|p| p.percent).is_none_or(|p| (0.0..=100.0).contains(&p)));
        }
        prop_assert!(log.iter().enumerate().all(|(i, e)| e.seq == i as u64 + 1), "seqs are dense from 1");
        prop_assert_eq!(replay(record.job.id, &log), record.job);
    }

    /// `apply` neither panics nor half-applies, whatever the event.
    #[test]
    fn apply_survives_any_event(word in "[a-z_]{1,12}", data in "\\PC{0,40}", seq: u64, attempt: u32) {
        let mut job = new_job(json!({"kind": "k", "tracked": true})).job;
        let before = job.clone();
        let kind = EventType::parse(&word).unwrap_or(EventType::Progress);
        let data = Json::from_value(&json!({"text": data, "percent": data, "error": data, "run_at": data}));
        let refused = job.apply(&Event { seq, kind, at: at(1), attempt, data }).is_err();
        prop_assert!(!refused || job == before);
    }
}

#[test]
fn a_failure_after_a_cancel_request_ends_as_cancelled_and_keeps_the_error() {
    let record = new_job(json!({"kind": "k", "tracked": true}));
    let Ok(Cancel::Done(asked)) = cancel(&record, Some("changed my mind"), 10, "test", at(1)) else {
        panic!("a running job can be asked")
    };
    let step = carry_out(&asked.record, (6, 0), at(2)).expect("a failure is accepted");
    assert_eq!(step.record.job.state, State::Cancelled);
    let data = step.events[0].data.to_map();
    assert_eq!((&data["reason"], &data["error"]["code"]), (&json!("changed my mind"), &json!("boom")));
    let completed = carry_out(&asked.record, (5, 0), at(2)).expect("a completion still wins");
    assert_eq!(completed.record.job.state, State::Completed);
}

#[test]
fn ttl_binds_until_the_first_start_and_the_deadline_to_the_end() {
    let waiting = new_job(json!({"kind": "k", "ttl_ms": 100, "deadline_ms": 1_000}));
    let none = Clocks::default();
    assert_eq!(due_at(&waiting), Some(at(100)));
    assert!(overdue(&waiting, &none, at(99), 0.5).is_none());
    assert_eq!(overdue(&waiting, &none, at(100), 0.5).map(|s| s.record.job.state), Some(State::Expired));
    let started = does(&waiting, START, at(50)).record;
    assert_eq!(due_at(&started), Some(at(1_000)));
    let failed = overdue(&started, &none, at(1_000), 0.5).expect("the deadline passed");
    assert_eq!(
        (failed.record.job.state, failed.events[0].data.to_map()["code"].clone()),
        (State::Failed, json!("deadline"))
    );
    assert_eq!(due_at(&failed.record), None);
}

#[test]
fn caps_bind_what_a_run_produces_and_never_its_end() {
    let limits = Limits { events_per_job: 4, output_bytes: 3, ..Limits::default() };
    let mut step = Step::from(new_job(json!({"kind": "k", "tracked": true})));
    let event = |value: Value| NewEvent::parse(value, &limits).expect("a right event");
    let text = |text: &str| event(json!({"type": "output", "data": {"text": text}}));
    let refused = append(&mut step, &[text("ab"), text("cd")], [0; 32], at(1), 0.5, &limits);
    assert!(matches!(refused, Err((1, Refusal::TooLarge { .. }))));
    assert_eq!(
        (step.record.job.seq, step.record.job.output_bytes, step.events.len()),
        (3, 2, 1),
        "what came before stands"
    );
    append(&mut step, &[text("c")], [0; 32], at(1), 0.5, &limits).expect("the third byte fits");
    assert!(append(&mut step, &[text("")], [0; 32], at(1), 0.5, &limits).is_err(), "the log is full");
    append(&mut step, &[event(json!({"type": "failed"}))], [0; 32], at(1), 0.5, &limits)
        .expect("the end is always accepted");
}

#[test]
fn within_a_run_percent_wins_over_the_pair_and_never_falls() {
    let mut step = Step::from(new_job(json!({"kind": "k", "tracked": true})));
    let mut post = |data: Value| {
        let event =
            NewEvent::parse(json!({"type": "progress", "data": data}), &Limits::default()).expect("a right event");
        append(&mut step, &[event], [0; 32], at(1), 0.5, &Limits::default()).expect("a tracked job runs");
        let progress = step.record.job.progress.clone().expect("there is progress");
        (progress.percent, progress.message)
    };
    assert_eq!(post(json!({"current": 1, "total": 8})).0, Some(12.5));
    assert_eq!(post(json!({"percent": 90, "current": 1, "total": 8})).0, Some(90.0));
    assert_eq!(post(json!({"percent": 40, "message": "back"})), (Some(90.0), Some("back".to_owned())));
    assert_eq!(post(json!({"current": 1e308, "total": 1.5e308})).0, Some(90.0), "no overflow");
    assert_eq!(post(json!({"current": 3})).0, Some(90.0), "current alone derives nothing");
}

#[test]
fn a_failure_is_retried_with_growing_waits_until_the_attempts_are_used_up() {
    let backoff = json!({"initial_ms": 100, "factor": 3.0, "max_ms": 500, "jitter": 0.5});
    let mut record = new_job(json!({"kind": "k", "max_attempts": 4, "backoff": backoff}));
    for (n, wait_ms) in [(1, 100), (2, 300), (3, 500)] {
        record = does(&record, START, at(n)).record;
        let failed = does(&record, FAIL, at(n));
        assert_eq!((words(&failed), failed.record.job.attempt), (vec!["retrying"], n as u32));
        record = failed.record;
        assert_eq!(record.job.run_at, at(n + wait_ms));
        assert_eq!(record.job.error_code(), "boom");
    }
    record = does(&record, START, at(900)).record;
    assert_eq!(record.job.error, None);
    let last = does(&record, FAIL, at(901));
    assert_eq!((words(&last), last.record.job.attempt), (vec!["failed"], 4));
    let again = does(&does(&last.record, 9, at(902)).record, START, at(903)).record;
    assert_eq!((again.job.attempt, again.job.run), (1, 5), "attempts count anew, runs go on");

    let backoff = Backoff { initial_ms: 1_000, factor: 2.0, max_ms: 10_000, jitter: 0.2 };
    assert_eq!([0.0, 0.5, 1.0].map(|chance| backoff.wait_ms(2, chance)), [1_600, 2_000, 2_400]);
    assert_eq!(backoff.wait_ms(1_000, 0.5), 10_000);
}

#[test]
fn what_a_failure_says_decides_about_the_next_try() {
    let running = does(&new_job(json!({"kind": "k"})), START, at(0)).record;
    let fail = |data: Value| {
        let mut step = Step::from(running.clone());
        let event =
            NewEvent::parse(json!({"type": "failed", "data": data}), &Limits::default()).expect("a right event");
        append(&mut step, &[event], [0; 32], at(1), 0.5, &Limits::default()).expect("a running job can fail");
        step
    };
    assert_eq!(fail(json!({"retryable": false})).record.job.state, State::Failed);
    let later = fail(json!({"retry_after_ms": 77}));
    assert_eq!((later.record.job.state, later.record.job.run_at, later.hold_queue_ms), (State::Retrying, at(78), None));
    assert_eq!(fail(json!({"retry_after_ms": 77, "scope": "queue"})).hold_queue_ms, Some(77));
    assert_eq!(later.record.ending, Some(Ending { run: 1, body_hash: [0; 32] }));
}

#[test]
fn a_silent_worker_costs_an_attempt_but_not_a_run_nobody_heard_of() {
    let mut record = new_job(json!({"kind": "k", "max_attempts": 2}));
    for n in 1..=3 {
        record = does(&record, START, at(n)).record;
        let lost = overdue(&record, &silent(at(n), false), at(n), 0.5).expect("its lease has run out");
        assert_eq!((words(&lost), lost.record.job.attempt), (vec!["released"], 0));
        assert_eq!(lost.events[0].data.as_str(), r#"{"reason":"lease_expired"}"#);
        record = lost.record;
    }
    record = does(&record, START, at(4)).record;
    let fourth = overdue(&record, &silent(at(4), false), at(4), 0.5).expect("its lease has run out");
    assert_eq!((words(&fourth), fourth.record.job.error_code()), (vec!["retrying"], "lease_expired".to_owned()));
    record = does(&fourth.record, START, at(5)).record;
    let heard = overdue(&record, &silent(at(5), true), at(5), 0.5).expect("its lease has run out");
    assert_eq!((words(&heard), heard.record.handouts.unheard), (vec!["failed"], 0));
}

#[test]
fn the_clock_that_ran_out_first_is_named() {
    let record = does(&new_job(json!({"kind": "k", "timeout_ms": 100, "deadline_ms": 300})), START, at(0)).record;
    assert_eq!(run_ends_at(&record), Some(at(100)));
    let code = |expires_at: i64| {
        let clocks = Clocks { expires_at: Some(at(expires_at)), heard: true, ..Clocks::default() };
        overdue(&record, &clocks, at(200), 0.5).expect("something ran out").record.job.error_code()
    };
    assert_eq!((code(99), code(101)), ("lease_expired".to_owned(), "timed_out".to_owned()));
    let retrying = overdue(&record, &silent(at(50), true), at(50), 0.5).expect("its lease has run out").record;
    assert_eq!((retrying.job.state, run_ends_at(&retrying)), (State::Retrying, None));
    let failed = overdue(&retrying, &Clocks::default(), at(300), 0.5).expect("the deadline has passed");
    assert_eq!((words(&failed), failed.record.job.error_code()), (vec!["failed"], "deadline".to_owned()));
}

#[test]
fn releases_use_no_attempt_and_are_bounded() {
    let mut record = new_job(json!({"kind": "k"}));
    for n in 0..100 {
        let released = does(&does(&record, START, at(n)).record, RELEASE, at(n));
        assert_eq!((words(&released), released.record.job.attempt), (vec!["released"], 0));
        record = released.record;
    }
    let refused = does(&does(&record, START, at(200)).record, RELEASE, at(200));
    assert_eq!((words(&refused), refused.record.job.error_code()), (vec!["retrying"], "too_many_releases".to_owned()));
    let next = does(&does(&refused.record, START, at(300)).record, RELEASE, at(300));
    assert_eq!((words(&next), next.record.job.attempt), (vec!["released"], 1), "the next attempt has its own");
}

#[test]
fn a_run_asked_to_stop_that_gives_way_in_whatever_way_ends_as_cancelled() {
    let running = does(&new_job(json!({"kind": "k", "timeout_ms": 10})), START, at(0)).record;
    let asked = does(&running, 8, at(1)).record;
    for (step, code) in [
        (does(&asked, FAIL, at(2)), "boom"),
        (does(&asked, RELEASE, at(2)), "released"),
        (overdue(&asked, &silent(at(2), false), at(2), 0.5).expect("silent"), "lease_expired"),
        (overdue(&asked, &Clocks::default(), at(10), 0.5).expect("too long"), "timed_out"),
    ] {
        assert_eq!((words(&step), step.record.job.error_code().as_str()), (vec!["cancelled"], code));
        assert_eq!(step.events[0].data.to_map()["reason"], json!("because"));
    }
}

#[test]
fn a_queue_gives_its_defaults_to_those_who_leave_them_out() {
    let defaults: Defaults = serde_json::from_value(
        json!({"timeout_ms": 1, "ttl_ms": 2, "deadline_ms": 3, "max_attempts": 4, "priority": 5,
            "backoff": {"initial_ms": 6, "factor": 1.0, "max_ms": 7, "jitter": 0.0}}),
    )
    .expect("right defaults");
    let new = |value| enqueue(JobId::mint(at(0), [1; 10]), &spec(value), &defaults, at(0)).record;
    let given = new(json!({"kind": "k", "ttl_ms": null}));
    assert_eq!((given.job.max_attempts, given.job.priority, given.policy.ttl_ms), (4, 5, Some(2)));
    assert_eq!(
        (given.policy.timeout_ms, given.policy.deadline_ms, given.policy.backoff.initial_ms),
        (Some(1), Some(3), 6)
    );
    let own = new(json!({"kind": "k", "ttl_ms": 20, "priority": 0, "max_attempts": 1}));
    assert_eq!((own.job.max_attempts, own.job.priority, own.policy.ttl_ms), (1, 0, Some(20)));
    let tracked = new(json!({"kind": "k", "tracked": true}));
    assert_eq!((tracked.job.max_attempts, tracked.policy.ttl_ms, tracked.policy.timeout_ms), (1, None, None));
}
