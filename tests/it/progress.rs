//! Numbers of a progress event: which are taken, what is shown, what is refused by name.

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    number_out_of_range_is_refused_by_name,
    number_in_range_is_shown_as_it_is,
    percent_is_derived_from_the_pair,
    shown_percent_never_falls_within_a_run,
    field_left_out_keeps_its_value,
    texts_have_a_limit,
    hundred_percent_is_not_the_end,
);

async fn progress(job: &Job, data: &str) -> Answer {
    job.append_raw(format!(r#"{{"type":"progress","data":{data}}}"#)).await
}

async fn number_out_of_range_is_refused_by_name(store: Store) {
    let job = store.shared().await.tracked().await;
    let table = [
        (r#"{"percent":-1}"#, "percent"),
        (r#"{"percent":-1e-9}"#, "percent"),
        (r#"{"percent":100.0001}"#, "percent"),
        (r#"{"percent":101}"#, "percent"),
        (r#"{"percent":1e999}"#, "percent"),
        (r#"{"percent":-1e999}"#, "percent"),
        (r#"{"percent":"50"}"#, "percent"),
        (r#"{"percent":true}"#, "percent"),
        (r#"{"percent":[50]}"#, "percent"),
        (r#"{"current":-1}"#, "current"),
        (r#"{"current":"1"}"#, "current"),
        (r#"{"current":1e999,"total":5}"#, "current"),
        (r#"{"current":0,"total":0}"#, "total"),
        (r#"{"current":5,"total":0}"#, "total"),
        (r#"{"current":5,"total":-5}"#, "total"),
        (r#"{"current":5,"total":"10"}"#, "total"),
        (r#"{"current":6,"total":5}"#, "current"),
        (r#"{"percent":50,"current":6,"total":5}"#, "current"),
        (r#"{"message":5}"#, "message"),
        (r#"{"phase":{}}"#, "phase"),
        (r#"{"unit":[]}"#, "unit"),
    ];
    job.untouched(async {
        for (data, field) in table {
            progress(&job, data).await.problem_at(422, "invalid_request", &format!("/data/{field}"));
        }
        for data in [r#"{"percent":NaN}"#, r#"{"percent":Infinity}"#, r#"{"percent":.5}"#, r#"{"percent":05}"#] {
            progress(&job, data).await.problem(400, "invalid_json");
        }
    })
    .await;
    job.server.list("kind=test").await;
}

async fn number_in_range_is_shown_as_it_is(store: Store) {
    let server = store.shared().await;
    let table = [
        ("0", 0.0),
        ("-0", 0.0),
        ("-0.0", 0.0),
        ("1e-320", 1e-320),
        ("0.1", 0.1),
        ("41.5", 41.5),
        ("1e1", 10.0),
        ("33.333333333333336", 33.333333333333336),
        ("99.99999999999999", 99.99999999999999),
        ("100", 100.0),
        ("100.0", 100.0),
    ];
    for (text, value) in table {
        let job = server.tracked().await;
        progress(&job, &format!(r#"{{"percent":{text}}}"#)).await.expect(200);
        assert_eq!(job.state().await["progress"]["percent"].as_f64(), Some(value), "{text}");
        let stored = job.log().await.pop().expect("it was stored");
        assert_eq!(stored["data"]["percent"].as_f64(), Some(value), "{text} in the log");
    }
}

async fn percent_is_derived_from_the_pair(store: Store) {
    let server = store.shared().await;
    let table = [
        (r#"{"current":83,"total":200}"#, Some(41.5)),
        (r#"{"current":1,"total":3}"#, Some(100.0 / 3.0)),
        (r#"{"current":0,"total":7}"#, Some(0.0)),
        (r#"{"current":7,"total":7}"#, Some(100.0)),
        (r#"{"percent":3,"current":7,"total":7}"#, Some(3.0)),
        (r#"{"current":9223372036854775808}"#, None),
        (r#"{"message":"no number"}"#, None),
    ];
    for (data, percent) in table {
        let job = server.tracked().await;
        progress(&job, data).await.expect(200);
        let shown = job.state().await["progress"].clone();
        assert_eq!(shown["percent"].as_f64(), percent, "{data} gives {shown}");
        server.list("kind=test").await;
    }
}

async fn shown_percent_never_falls_within_a_run(store: Store) {
    let job = store.shared().await.tracked().await;
    progress(&job, r#"{"percent":90,"message":"nearly"}"#).await.expect(200);
    progress(&job, r#"{"percent":40,"message":"a step back"}"#).await.expect(200);
    let shown = job.state().await["progress"].clone();
    assert_eq!((shown["percent"].as_f64(), &shown["message"]), (Some(90.0), &json!("a step back")));
    let log = job.log().await;
    assert_eq!(log[3]["data"], json!({"percent": 40, "message": "a step back"}), "the log keeps what was said");
    progress(&job, r#"{"current":1,"total":2}"#).await.expect(200);
    assert_eq!(job.state().await["progress"]["percent"].as_f64(), Some(90.0));
    progress(&job, r#"{"percent":95}"#).await.expect(200);
    assert_eq!(job.state().await["progress"]["percent"].as_f64(), Some(95.0));
}

async fn field_left_out_keeps_its_value(store: Store) {
    let job = store.shared().await.tracked().await;
    progress(&job, r#"{"current":1,"total":4,"unit":"pages","phase":"draft","message":"m"}"#).await.expect(200);
    progress(&job, r#"{"phase":"print"}"#).await.expect(200);
    let shown = job.state().await["progress"].clone();
    let expected = json!({"current": 1, "total": 4, "unit": "pages", "phase": "print", "message": "m"});
    for (field, value) in expected.as_object().expect("an object") {
        assert_eq!(&shown[field], value, "{field}");
    }
    assert_eq!(shown["percent"].as_f64(), Some(25.0));
}

async fn texts_have_a_limit(store: Store) {
    let job = store.shared().await.tracked().await;
    for field in ["message", "phase", "unit"] {
        let event = |bytes: usize| json!({"type": "progress", "data": {field: "x".repeat(bytes)}});
        job.append(event(2048)).await;
        job.untouched(job.try_append(&event(2049))).await.problem_at(422, "invalid_request", &format!("/data/{field}"));
    }
}

async fn hundred_percent_is_not_the_end(store: Store) {
    let job = store.shared().await.tracked().await;
    progress(&job, r#"{"percent":100}"#).await.expect(200);
    let state = job.state().await;
    assert_eq!(
        (&state["state"], &state["terminal"], &state["outcome"]),
        (&json!("running"), &json!(false), &Value::Null)
    );
}
