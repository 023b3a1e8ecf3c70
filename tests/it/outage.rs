//! A store that is away for a while: JSON requests hear when to come back, and no bare `EventSource` dies of it.

use std::time::Duration;

use serde_json::json;

use crate::harness::*;

#[test]
fn store_outage_is_passing_for_every_client() {
    run(async {
        let server = Store::Postgres.serve(&[]).await;
        let (job, unwatched) = (server.tracked().await, server.tracked().await);
        let mut established = job.resume(2).await;
        established.frame().await;
        let database = server.setup.database.as_ref().expect("a Postgres server has a database");
        database.away().await;

        let event = json!({"type": "log", "data": {"message": "while away"}});
        for request in [job.post("/events").json(&event), server.post("/v1/jobs").json(&json!({"kind": "k"}))] {
            let answer = request.send().await;
            answer.problem(503, "store_unavailable");
            assert!(answer.header("retry-after").is_some(), "a 503 says when to come back");
        }
        for request in [unwatched.get(""), unwatched.get("/events?wait=5"), server.get("/v1/jobs")] {
            let answer = request.send().await;
            answer.problem(503, "store_unavailable");
            assert!(answer.header("retry-after").is_some(), "a 503 says when to come back");
        }
        let mut fresh = unwatched.stream().await;
        let bye = fresh.frame().await;
        assert_eq!((bye.kind().as_str(), bye.json()), ("bye", json!({"reason": "store_unavailable"})));
        assert!((5_000..=15_000).contains(&bye.retry.expect("a bye says when to come back")), "{bye:?}");
        fresh.expect_end().await;
        eventually(PATIENCE, "not ready", async || (server.get("/readyz").send().await.status() == 503).then_some(()))
            .await;
        server.get("/livez").send().await.expect_ok();

        database.back().await;
        let limit = Duration::from_secs(30);
        let seq = eventually(limit, "an append", async || {
            let answer = job.try_append(&event).await;
            (answer.status() == 200).then(|| number(&answer.json()["seq"]))
        })
        .await;
        assert_eq!(seq, 3, "what was refused was not stored");
        assert_eq!(established.told().await.seq(), 3, "an open stream outlives the outage");
        eventually(limit, "ready", async || (server.get("/readyz").send().await.status() == 200).then_some(())).await;
    });
}
