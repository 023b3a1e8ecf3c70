//! The Outcome: "finished" and "the work really succeeded" are two facts, and the result travels by itself.

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    outcome_is_shown_and_its_data_stays_apart,
    completed_can_be_not_ok,
    empty_outcome_is_ok,
    invalid_outcome_is_refused_by_name,
    result_over_its_limit_is_refused_and_the_job_runs_on,
    overlong_texts_are_cut_and_marked,
    failed_of_the_only_attempt_is_final,
);

async fn outcome_is_shown_and_its_data_stays_apart(store: Store) {
    let job = store.shared().await.tracked().await;
    let mut stream = job.resume(2).await;
    let outcome = json!({
        "ok": true, "status": "ok", "items": 1, "metrics": {"created": 1}, "note": "n",
        "artifacts": [{"type": "url", "label": "source", "url": "https://example.org/a"}],
    });
    let mut sent = outcome.clone();
    sent["data"] = json!({"secret": [1, 2, {"x": "ü"}]});
    job.append(json!({"type": "completed", "data": sent})).await;
    let state = job.state().await;
    let stored = job.log().await.pop().expect("stored")["data"].clone();
    for place in [&state["outcome"], &stored, &stream.told().await.json()["data"]] {
        assert_eq!(place["result_url"], job.path("/result"));
        assert_eq!(place.get("data"), None);
        for (field, value) in outcome.as_object().expect("an object") {
            assert_eq!(&place[field], value, "{field}");
        }
    }
    assert_eq!(job.get("/result").send().await.expect(200), json!({"secret": [1, 2, {"x": "ü"}]}));
}

async fn completed_can_be_not_ok(store: Store) {
    let job = store.shared().await.tracked().await;
    job.append(json!({"type": "completed", "data": {"ok": false, "note": "nothing found"}})).await;
    let state = job.state().await;
    assert_eq!(
        (&state["state"], &state["outcome"]["ok"], &state["error"]),
        (&json!("completed"), &json!(false), &Value::Null)
    );
}

async fn empty_outcome_is_ok(store: Store) {
    let server = store.shared().await;
    for event in [json!({"type": "completed"}), json!({"type": "completed", "data": {}})] {
        let job = server.tracked().await;
        job.append(event).await;
        let outcome = job.state().await["outcome"].clone();
        assert_eq!((&outcome["ok"], outcome.get("result_url")), (&json!(true), None));
    }
}

async fn invalid_outcome_is_refused_by_name(store: Store) {
    let job = store.shared().await.tracked().await;
    let artifact =
        |url: &str| json!([{"type": "url", "label": "ok", "url": "http://a.example"}, {"type": "url", "url": url}]);
    let table = [
        ("ok", json!(1), "ok"),
        ("status", json!(5), "status"),
        ("items", json!("many"), "items"),
        ("metrics", json!([]), "metrics"),
        ("note", json!({}), "note"),
        ("artifacts", json!({}), "artifacts"),
        ("artifacts", artifact("javascript:alert(1)"), "artifacts/1/url"),
        ("artifacts", artifact("data:text/html,x"), "artifacts/1/url"),
        ("artifacts", artifact(" https://a.example"), "artifacts/1/url"),
        ("artifacts", artifact("//a.example/x"), "artifacts/1/url"),
        ("artifacts", artifact("java\nscript:x"), "artifacts/1/url"),
    ];
    job.untouched(async {
        for (field, value, pointer) in table {
            let event = json!({"type": "completed", "data": {field: value}});
            job.try_append(&event).await.problem_at(422, "invalid_request", &format!("/data/{pointer}"));
        }
    })
    .await;
    job.complete().await;
}

async fn result_over_its_limit_is_refused_and_the_job_runs_on(store: Store) {
    let server = store.serve(&["--max-result", "1000"]).await;
    let job = server.tracked().await;
    let sized = |bytes: usize| json!({"type": "completed", "data": {"data": "x".repeat(bytes - 2)}});
    job.untouched(job.try_append(&sized(1001))).await.problem(413, "payload_too_large");
    job.note("still running").await;
    job.append(sized(1000)).await;
    assert_eq!(job.get("/result").send().await.expect(200), json!("x".repeat(998)));
    let large = store.shared().await.tracked().await;
    let result = json!("ü".repeat(500_000));
    large.append(json!({"type": "completed", "data": {"data": result}})).await;
    assert_eq!(large.get("/result").send().await.expect(200), result);
}

async fn overlong_texts_are_cut_and_marked(store: Store) {
    let server = store.shared().await;
    let job = server.tracked().await;
    let message = "ü".repeat(6_000);
    job.append(json!({"type": "failed", "data": {"code": "c", "message": message}})).await;
    let error = job.state().await["error"].clone();
    let cut = text(&error["message"]);
    assert!(cut.len() <= 8192 && cut.len() > 8000 && message.starts_with(cut), "{} bytes", cut.len());
    assert_eq!(error["truncated"], true);

    let whole = server.tracked().await;
    whole.append(json!({"type": "failed", "data": {"code": "c", "message": "x".repeat(8192)}})).await;
    let error = whole.state().await["error"].clone();
    assert_eq!((text(&error["message"]).len(), error.get("truncated")), (8192, None));

    let detailed = server.tracked().await;
    let details = json!({"trace": "x".repeat(200_000)});
    detailed.append(json!({"type": "failed", "data": {"code": "c", "message": "m", "details": details}})).await;
    let state = detailed.state().await;
    assert_eq!((&state["state"], &state["error"]["truncated"]), (&json!("failed"), &json!(true)));
    assert!(state.to_string().len() < 100_000, "an over-long detail is cut");

    let noted = server.tracked().await;
    noted.append(json!({"type": "completed", "data": {"note": "x".repeat(200_000)}})).await;
    let state = noted.state().await;
    assert_eq!((&state["state"], &state["outcome"]["truncated"]), (&json!("completed"), &json!(true)));
    assert!(state.to_string().len() < 100_000, "an over-long note is cut");
}

async fn failed_of_the_only_attempt_is_final(store: Store) {
    let server = store.shared().await;
    for data in [json!({"code": "c", "message": "m"}), json!({"retryable": true, "retry_after_ms": 5}), json!({})] {
        let job = server.tracked().await;
        job.append(json!({"type": "failed", "data": data})).await;
        let state = job.state().await;
        assert_eq!((&state["state"], &state["terminal"]), (&json!("failed"), &json!(true)));
        for (field, value) in data.as_object().expect("an object") {
            assert_eq!(&state["error"][field], value, "{field}");
        }
        assert_eq!(job.types().await, ["queued", "started", "failed"]);
    }
}
