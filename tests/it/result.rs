//! `GET /v1/jobs/{id}/result`: the Outcome's data, whatever JSON it is.

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(any_json_is_a_result, there_is_no_result_before_the_end_nor_without_data);

async fn any_json_is_a_result(store: Store) {
    let server = store.shared().await;
    for raw in [r#"{"a":[1,2.50,"ü"]}"#, "[]", "{}", "0", "false", "\"\"", "12345678901234567890.123456789"] {
        let job = server.tracked().await;
        job.append_raw(format!(r#"{{"type":"completed","data":{{"data":{raw}}}}}"#)).await.expect(200);
        let answer = job.get("/result").send().await;
        assert_eq!(answer.expect(200), serde_json::from_str::<Value>(raw).expect("JSON"), "{raw}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
    }
}

async fn there_is_no_result_before_the_end_nor_without_data(store: Store) {
    let server = store.shared().await;
    let job = server.tracked().await;
    job.get("/result").send().await.problem(409, "not_finished");
    server.job(json!({"kind": "k"})).await.get("/result").send().await.problem(409, "not_finished");
    job.complete().await;
    job.get("/result").send().await.problem(404, "no_result");
    let failed = server.tracked().await;
    failed.append(json!({"type": "failed", "data": {"code": "c"}})).await;
    failed.get("/result").send().await.problem(404, "no_result");
}
