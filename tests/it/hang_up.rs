//! Clients that hang up at any moment take nothing from anybody else.

use std::time::Duration;

use serde_json::json;

use crate::harness::*;

on_both_stores!(acknowledged_writes_survive_beside_clients_that_hang_up);

async fn acknowledged_writes_survive_beside_clients_that_hang_up(store: Store) {
    let server = store.serve(&[]).await;
    let lane = Lane::on(&server);
    // From the first packet to the answer takes a few milliseconds: some hang up at every point of it.
    let clients = (0..900_u64).map(|count| {
        let (server, path) = (server.clone(), format!("/v1/queues/{}", lane.name));
        tokio::spawn(async move {
            let request = match count % 3 {
                0 => server.get("/readyz"),
                1 => server.request("PATCH", &path).json(&json!({"concurrency": 5})),
                _ => server.post(&format!("{path}/pause")).json(&json!({})),
            };
            let patience = Duration::from_micros(count % 100 * 100);
            let _most_hang_up = tokio::time::timeout(patience, request.try_send()).await;
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.expect("a client that hangs up");
    }
    let mut jobs = Vec::new();
    for _ in 0..40 {
        jobs.push(lane.job(json!({})).await);
    }
    server.kill9();
    server.restart().await;
    for job in jobs {
        assert_eq!(job.state().await["seq"], 1);
    }
}
