//! What a queue says about the last minutes: exact at once on the node that did it, and kept across a restart.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(statistics_are_exact_at_once_and_survive_a_restart, defaults_bind_the_next_job_also_after_a_restart,);

async fn statistics_are_exact_at_once_and_survive_a_restart(store: Store) {
    let server = store.serve(&[]).await;
    let read = async || server.get("/v1/queues/q").send().await.expect(200).clone();
    server.request("PATCH", "/v1/queues/q").json(&json!({})).send().await.expect(200);
    let nothing = json!({"p50": null, "p95": null});
    let queue = read().await;
    assert_eq!((&queue["wait_ms"], &queue["run_ms"], number(&queue["finished_per_min"])), (&nothing, &nothing, 0));
    for (end, finished) in [("completed", 1), ("failed", 2), ("released", 2)] {
        server.job(json!({"kind": "k", "queue": "q", "max_attempts": 1})).await;
        let claim = json!({"worker": "w", "queues": ["q"]});
        let claimed = server.post("/v1/claims").json(&claim).send().await.expect(200).clone();
        let (job, lease) = (&claimed["jobs"][0]["job"], &claimed["jobs"][0]["lease"]);
        let events = server.post(&format!("/v1/jobs/{}/events", text(&job["id"])));
        events.header("Lease-Token", text(&lease["token"])).json(&json!({"type": end})).send().await.expect(200);
        assert_eq!(number(&read().await["finished_per_min"]), finished, "a release ends no job");
    }
    let before = read().await;
    assert!(before["wait_ms"]["p95"].is_u64() && before["run_ms"]["p50"].is_u64(), "{before}");
    server.sigterm();
    server.exit(Duration::from_secs(15)).await;
    server.restart().await;
    let after = read().await;
    for field in ["wait_ms", "run_ms", "finished_per_min", "counts"] {
        assert_eq!(after[field], before[field], "{field}");
    }
    let list = server.get("/v1/queues").send().await.expect(200)["queues"].clone();
    assert_eq!(list, Value::Array(vec![after]));
}

async fn defaults_bind_the_next_job_also_after_a_restart(store: Store) {
    let server = store.serve(&[]).await;
    let priority = async || {
        let answer = server.enqueue(&json!({"kind": "k", "queue": "q"})).await.expect(202).clone();
        answer["job"]["priority"].clone()
    };
    for priority_now in [7, -3] {
        let patch = json!({"defaults": {"priority": priority_now}});
        server.request("PATCH", "/v1/queues/q").json(&patch).send().await.expect(200);
        assert_eq!(priority().await, priority_now);
    }
    server.kill9();
    server.restart().await;
    assert_eq!(priority().await, -3);
}
