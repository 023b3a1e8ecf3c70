//! A claim whose answer never left: its runs go back at once, and do not wait for a lease that nobody knows of.

use std::time::Duration;

use serde_json::json;

use crate::harness::*;

on_both_stores!(answer_that_could_not_be_written_gives_its_jobs_back,);

async fn answer_that_could_not_be_written_gives_its_jobs_back(store: Store) {
    let lane = Lane::on(&store.serve(&[]).await);
    // More than both ends of a socket hold.
    let payload = "x".repeat(250_000);
    let mut jobs = Vec::new();
    for _ in 0..60 {
        jobs.push(lane.job(json!({"max_attempts": 1, "payload": payload})).await);
    }
    let wish = lane.wish(json!({"max": 60, "lease_ms": 3_600_000}));
    let request = lane.server.post("/v1/claims").json(&wish);
    let mut connection = Connection::narrow(lane.server.address()).await.expect("the server accepts");
    connection.write(&[request.head(), wish.to_string().into_bytes()].concat()).await.expect("the server reads");
    let head = within(PATIENCE, "the head of the answer", connection.head_alone()).await.expect("a head");
    assert_eq!(head.status, 200);
    // The head is here, the rest cannot be.
    drop(connection);
    for job in &jobs {
        job.until("the way back", Duration::from_secs(5), |state| state["state"] == "queued").await;
        let log = assert_folds(job).await;
        assert_eq!(tries(&log), [("queued", 0), ("started", 1), ("released", 0)]);
        assert_eq!(log[2]["data"]["reason"], "undelivered");
    }
    for part in 0..3 {
        for lease in lane.take_all(20, json!({"max": 20})).await {
            assert_eq!((lease.run, &lease.document["attempt"]), (2, &json!(1)), "part {part}");
            lease.complete().await;
        }
    }
    lane.assert_none().await;
}
