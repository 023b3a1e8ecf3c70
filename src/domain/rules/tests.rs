use proptest::prelude::*;
use serde_json::json;

use super::*;

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(1_800_000_000_000 + ms)
}

fn spec(value: Value) -> Spec {
    Spec::parse(value, &Limits::default()).expect("a right spec")
}

fn new_job(value: Value) -> Record {
    enqueue(JobId::mint(at(0), [1; 10]), &spec(value), at(0)).record
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
    (0u8..12, 0u32..100_000)
}

fn carry_out(record: &Record, (which, n): (u8, u32), now: Timestamp) -> Option<Step> {
    let event = |value: Value| NewEvent::parse(value, &Limits::default()).expect("a right event");
    let appended = |value: Value| {
        let mut step = Step::from(record.clone());
        append(&mut step, &[event(value)], [0; 32], now, &Limits::default()).ok()?;
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
            },
            now,
        ),
        _ => {
            let mut step = Step::from(record.clone());
            let run = record.job.run + 1;
            step.push_data(EventType::Started, now, record.job.attempt + 1, json!({"worker": "w", "run": run})).ok()?;
            Some(step)
        }
    }
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
            at(0),
        );
        let (mut record, mut log) = (first.record, first.events);
        for (i, wish) in wishes.into_iter().enumerate() {
            let before = record.clone();
            if let Some(step) = carry_out(&record, wish, at(i as i64)) {
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
    assert!(overdue(&waiting, &none, at(99)).is_none());
    assert_eq!(overdue(&waiting, &none, at(100)).map(|s| s.record.job.state), Some(State::Expired));
    let started = carry_out(&waiting, (11, 0), at(50)).expect("a queued job starts").record;
    assert_eq!(due_at(&started), Some(at(1_000)));
    let failed = overdue(&started, &none, at(1_000)).expect("the deadline passed");
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
    let refused = append(&mut step, &[text("ab"), text("cd")], [0; 32], at(1), &limits);
    assert!(matches!(refused, Err((1, Refusal::TooLarge { .. }))));
    assert_eq!(
        (step.record.job.seq, step.record.job.output_bytes, step.events.len()),
        (3, 2, 1),
        "what came before stands"
    );
    append(&mut step, &[text("c")], [0; 32], at(1), &limits).expect("the third byte fits");
    assert!(append(&mut step, &[text("")], [0; 32], at(1), &limits).is_err(), "the log is full");
    append(&mut step, &[event(json!({"type": "failed"}))], [0; 32], at(1), &limits)
        .expect("the end is always accepted");
}

#[test]
fn within_a_run_percent_wins_over_the_pair_and_never_falls() {
    let mut step = Step::from(new_job(json!({"kind": "k", "tracked": true})));
    let mut post = |data: Value| {
        let event =
            NewEvent::parse(json!({"type": "progress", "data": data}), &Limits::default()).expect("a right event");
        append(&mut step, &[event], [0; 32], at(1), &Limits::default()).expect("a tracked job runs");
        let progress = step.record.job.progress.clone().expect("there is progress");
        (progress.percent, progress.message)
    };
    assert_eq!(post(json!({"current": 1, "total": 8})).0, Some(12.5));
    assert_eq!(post(json!({"percent": 90, "current": 1, "total": 8})).0, Some(90.0));
    assert_eq!(post(json!({"percent": 40, "message": "back"})), (Some(90.0), Some("back".to_owned())));
    assert_eq!(post(json!({"current": 1e308, "total": 1.5e308})).0, Some(90.0), "no overflow");
    assert_eq!(post(json!({"current": 3})).0, Some(90.0), "current alone derives nothing");
}
