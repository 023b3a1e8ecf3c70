//! Several nodes on one Postgres: any node takes any request, whichever handed the job out.

use serde_json::json;

use crate::harness::*;

/// The same run, written to through that node.
fn through(node: &Server, lease: &Lease) -> Lease {
    Lease { job: Job::new(node, &lease.job.id), ..lease.clone() }
}

#[test]
fn worker_may_append_through_the_node_that_took_the_job_in() {
    run(async {
        let node = Store::Postgres.serve(&[]).await;
        let (lane, far) = (Lane::on(&node), node.beside().await);
        let far_lane = Lane { server: far.clone(), ..lane.clone() };
        // The node remembers the job as it wrote it last: queued, given back, waiting for its next attempt.
        lane.job(json!({"backoff": {"initial_ms": 0}})).await;
        for end in [json!({"type": "released"}), json!({"type": "failed", "data": {"code": "x"}})] {
            let lease = through(&node, &far_lane.take(json!({})).await);
            lease.beat().await;
            assert_eq!(lease.try_append(&end).await.status(), 200);
        }
        let lease = through(&node, &far_lane.take(json!({})).await);
        lease.complete().await;
        assert_folds(&lease.job).await;
    });
}

#[test]
fn repeated_end_is_recognised_through_every_node() {
    run(async {
        let node = Store::Postgres.serve(&[]).await;
        let (lane, far) = (Lane::on(&node), node.beside().await);
        let far_lane = Lane { server: far.clone(), ..lane.clone() };
        for end in [json!({"type": "completed"}), json!({"type": "failed", "data": {"code": "x"}})] {
            // The node that took the job in knows nothing of the run.
            lane.job(json!({})).await;
            let lease = far_lane.take(json!({})).await;
            let seq = lease.try_append(&end).await.expect(200)["seq"].clone();
            assert_eq!(through(&node, &lease).try_append(&end).await.expect(200)["seq"], seq, "{end}");
        }
    });
}

#[test]
fn repeated_append_says_that_another_node_was_asked_to_stop_the_job() {
    run(async {
        let node = Store::Postgres.serve(&[]).await;
        let (lane, far) = (Lane::on(&node), node.beside().await);
        lane.job(json!({})).await;
        let lease = lane.take(json!({})).await;
        let append = || lease.post().header("Idempotency-Key", "once").json(&json!({"type": "step"}));
        append().send().await.expect(200);
        through(&far, &lease).job.cancel(json!({"grace_ms": 60_000})).await.expect(202);
        assert_eq!(append().send().await.expect(200)["cancel_requested"], true);
    });
}

/// Whoever watches through one node is told within a round what another one wrote.
#[test]
fn what_another_node_wrote_is_seen_soon() {
    run(async {
        let node = Store::Postgres.serve(&[]).await;
        let (lane, far) = (Lane::on(&node), node.beside().await);
        let far_lane = Lane { server: far.clone(), ..lane.clone() };
        let job = lane.job(json!({})).await;
        let deleted = node.tracked().await;
        let mut streams = [job.stream().await, deleted.stream().await];
        let feed = format!("/v1/events?queue={}", text(&job.state().await["queue"]));
        let mut feed = node.get(&feed).header("Accept", "text/event-stream").stream().await.of_feed();
        feed.expect("state").await;
        for stream in &mut streams {
            stream.expect("state").await;
        }
        let lease = far_lane.take(json!({})).await;
        assert_eq!(streams[0].expect("started").await.json()["seq"], 2);
        assert_eq!(feed.expect("state").await.json()["state"], "running");
        // A held heartbeat through the one hears of a cancel through the other.
        let held = tokio::spawn(
            through(&node, &lease)
                .job
                .post("/events?wait_ms=15000")
                .header("Lease-Token", &lease.token)
                .json(&json!([]))
                .send(),
        );
        Job::new(&far, &job.id).cancel(json!({"grace_ms": 60_000})).await.expect(202);
        let begun = std::time::Instant::now();
        assert_eq!(held.await.expect("answered").expect(200)["cancel_requested"], true);
        assert!(begun.elapsed() < std::time::Duration::from_secs(10), "not at the end of the wait");
        through(&far, &lease).try_append(&json!({"type": "cancelled"})).await.expect(200);
        let rest = streams[0].rest().await;
        assert_eq!(rest.last().expect("its end").json(), json!({"state": "cancelled"}));
        assert_eq!(job.state().await, Job::new(&far, &job.id).state().await, "and a plain GET is not older");
        let far_deleted = Job::new(&far, &deleted.id);
        far_deleted.complete().await;
        far_deleted.delete().await.expect_empty(204);
        let rest = streams[1].rest().await;
        assert_eq!(rest.last().expect("its end").kind(), "end");
        while feed.expect("state").await.json()["state"] != "cancelled" {}
    });
}
