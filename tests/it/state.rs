//! Section 2.2 and invariant 6: the state document is the fold of the log, always.

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    server_folds_the_golden_logs,
    state_is_the_fold_of_the_log_after_every_event,
    life_of_a_waiting_job_folds_too,
    heartbeat_changes_nothing,
);

/// Logs and the documents they fold to, shared with the tests of the web client.
fn golden() -> Vec<Value> {
    serde_json::from_str(include_str!("../wire/fold.json")).expect("a list of cases")
}

fn log_of(case: &Value) -> &[Value] {
    case["events"].as_array().expect("events is a list")
}

#[test]
fn golden_logs_fold_to_their_documents() {
    for case in golden() {
        let mut state = fold(log_of(&case));
        state["id"] = case["id"].clone();
        assert_eq!(plain(&state), plain(&case["state"]), "{}", case["name"]);
    }
}

async fn server_folds_the_golden_logs(store: Store) {
    let server = store.shared().await;
    let mut replayed = 0;
    for case in golden().iter().filter(|case| case["state"]["tracked"] == true) {
        let job = server.tracked().await;
        for event in &log_of(case)[2..] {
            let mut data = event["data"].clone();
            data.as_object_mut().expect("data is an object").remove("offset");
            job.append(json!({"type": event["type"], "data": data})).await;
        }
        let state = job.folded().await;
        for field in ["state", "terminal", "seq", "attempt", "output", "error", "cancel_requested"] {
            assert_eq!(state[field], case["state"][field], "{field} of {}", case["name"]);
        }
        assert_eq!(plain(&state)["progress"], plain(&case["state"])["progress"], "{}", case["name"]);
        for (field, value) in case["state"]["outcome"].as_object().into_iter().flatten() {
            assert_eq!(&state["outcome"][field], value, "{field} of {}", case["name"]);
        }
        replayed += 1;
    }
    assert!(replayed >= 2, "the golden logs have lost their tracked jobs");
}

fn any_event(random: &mut Random) -> Value {
    let number = random.below(101);
    match random.below(8) {
        0 => json!({"type": "progress", "data": {"percent": number}}),
        1 => json!({"type": "progress", "data": {"current": number, "total": 100, "unit": "u"}}),
        2 => json!({"type": "progress", "data": {"message": format!("m{number}")}}),
        3 => json!({"type": "progress", "data": {"current": number, "phase": "p"}}),
        4 | 5 => json!({"type": "output", "data": {"text": "ü".repeat(number as usize)}}),
        6 => json!({"type": "log", "data": {"level": "debug", "message": "m"}}),
        _ => json!({"type": "own", "data": {"percent": 100}}),
    }
}

async fn state_is_the_fold_of_the_log_after_every_event(store: Store) {
    let server = store.shared().await;
    let mut random = Random::new();
    let ends = [
        json!({"type": "completed", "data": {"ok": false, "status": "s", "items": 1, "metrics": {"created": 1}}}),
        json!({"type": "completed"}),
        json!({"type": "failed", "data": {"code": "c", "message": "m", "details": {"x": [1]}}}),
        json!({"type": "cancelled", "data": {"reason": "r"}}),
    ];
    for end in ends {
        let job = server.job(json!({"kind": "k", "tracked": true, "subject": "s", "meta": {"m": 1}})).await;
        job.folded().await;
        let mut before = job.state().await;
        for step in 0..25 {
            let events: Vec<Value> = (0..random.below(4) + 1).map(|_| any_event(&mut random)).collect();
            job.append(Value::from(events)).await;
            if step == 12 {
                job.cancel(json!({"grace_ms": 60_000, "reason": "r"})).await.expect(202);
            }
            let state = job.folded().await;
            let percent = state["progress"]["percent"].as_f64();
            assert!(percent >= before["progress"]["percent"].as_f64(), "{percent:?} fell");
            before = state;
        }
        job.append(end).await;
        let state = job.folded().await;
        let opened = job.stream().await.frame().await.json();
        assert_eq!(opened, state, "the stream opens with the same document");
    }
}

async fn life_of_a_waiting_job_folds_too(store: Store) {
    let server = store.shared().await;
    for spec in [json!({"kind": "k", "priority": 3}), json!({"kind": "k", "delay_ms": 3_600_000})] {
        let job = server.job(spec).await;
        job.folded().await;
        for _ in 0..2 {
            job.cancel(json!({"reason": "r"})).await.expect(202);
            job.folded().await;
            job.post("/retry").send().await.expect(202);
            job.folded().await;
        }
        assert_eq!(job.types().await, ["queued", "cancelled", "requeued", "cancelled", "requeued"]);
    }
}

async fn heartbeat_changes_nothing(store: Store) {
    let job = store.shared().await.tracked().await;
    job.append(json!({"type": "progress", "data": {"percent": 3}})).await;
    let mut stream = job.resume(3).await;
    stream.frame().await;
    job.untouched(async {
        for _ in 0..5 {
            job.append(json!([])).await;
        }
    })
    .await;
    let seq = job.note("next").await;
    assert_eq!(stream.told().await.seq(), seq);
}
