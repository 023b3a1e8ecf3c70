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
