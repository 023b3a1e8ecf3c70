//! `Idempotency-Key` on a claim: an answer that was lost on its way is given again, with the same leases.

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    repeated_claim_gets_the_same_leases_while_they_live,
    repeated_claim_leaves_out_what_has_ended,
    other_body_is_a_mismatch,
    key_is_one_line_of_visible_ascii,
    concurrent_claims_of_one_key_take_once,
    parked_claims_of_one_key_take_once,
    lost_answer_is_given_again_over_kill_9,
);

/// What tells one hand-out from another.
fn marks(leases: &[Lease]) -> Vec<(String, u64, String)> {
    leases.iter().map(|lease| (lease.job.id.clone(), lease.run, lease.token.clone())).collect()
}

async fn keyed(lane: &Lane, key: &str, more: Value) -> Vec<Lease> {
    Lease::all(&lane.server, &lane.request(more).header("Idempotency-Key", key).send().await)
}

async fn repeated_claim_gets_the_same_leases_while_they_live(store: Store) {
    let lane = Lane::shared(store).await;
    let key = unique("key");
    lane.jobs((0..5).map(|n| json!({"payload": {"n": n}}))).await;
    let first = keyed(&lane, &key, json!({"max": 3})).await;
    assert_eq!(first.len(), 3);
    first[1].append(json!({"type": "own"})).await;
    let again = keyed(&lane, &key, json!({"max": 3})).await;
    assert_eq!(marks(&again), marks(&first));
    for (lease, before) in again.iter().zip(&first) {
        let payload = &before.document["payload"];
        assert_eq!(lease.document, merged(lease.job.state().await, json!({"payload": payload})), "the state of now");
        assert_eq!(lease.job.types().await[..2], ["queued", "started"]);
    }
    assert_eq!(again[1].document["seq"], 3);
    // Spelled in another way it is the same request.
    let body = format!("{{\"max\":3, \"worker\":\"w\", \"queues\":[\"{}\"]}}", lane.name);
    let request = lane.server.post("/v1/claims").header("Idempotency-Key", &key).body(body);
    assert_eq!(marks(&Lease::all(&lane.server, &request.send().await)), marks(&first));
    let other = keyed(&lane, &unique("key"), json!({"max": 3})).await;
    assert_eq!(other.len(), 2, "another key is another claim");
}

async fn repeated_claim_leaves_out_what_has_ended(store: Store) {
    let lane = Lane::shared(store).await;
    let key = unique("key");
    lane.jobs((0..4).map(|_| json!({"backoff": {"initial_ms": 3_600_000}}))).await;
    let first = keyed(&lane, &key, json!({"max": 4})).await;
    first[0].complete().await;
    first[1].release(json!({"delay_ms": 3_600_000})).await;
    first[2].fail(json!({"code": "c"})).await;
    let again = keyed(&lane, &key, json!({"max": 4})).await;
    assert_eq!(marks(&again), marks(&first[3..]));
    // A job that somebody else has by now is not given away through an old key.
    first[3].release(json!({})).await;
    let heir = lane.take(json!({"worker": "b"})).await;
    let again = keyed(&lane, &key, json!({"max": 4})).await;
    assert_eq!(marks(&again), [], "none of them lives");
    heir.complete().await;
}

async fn other_body_is_a_mismatch(store: Store) {
    let lane = Lane::shared(store).await;
    let key = unique("key");
    let job = lane.jobs([json!({}), json!({})]).await.pop().expect("two jobs");
    keyed(&lane, &key, json!({})).await;
    job.untouched(async {
        for more in [json!({"max": 2}), json!({"worker": "b"}), json!({"lease_ms": 60_000}), json!({"wait_ms": 10})] {
            let answer = lane.request(more).header("Idempotency-Key", &key).send().await;
            answer.problem(422, "idempotency_mismatch");
        }
    })
    .await;
}

async fn key_is_one_line_of_visible_ascii(store: Store) {
    let lane = Lane::shared(store).await;
    let job = lane.job(json!({})).await;
    job.untouched(async {
        let bad: [&[u8]; 5] = [b"", &[b'x'; 256], "schlüssel".as_bytes(), b"\xff", b"two words"];
        for key in bad {
            lane.request(json!({})).header("Idempotency-Key", key).send().await.problem(422, "invalid_request");
        }
        let twice = lane.request(json!({})).header("Idempotency-Key", "a").header("Idempotency-Key", "a");
        twice.send().await.problem(422, "invalid_request");
    })
    .await;
    assert_eq!(keyed(&lane, &format!("{:x<255}", unique("k")), json!({})).await.len(), 1);
}

/// The answers of many callers of one key: each has the same leases, or is told to come back.
async fn one_claim_of_many(lane: &Lane, answers: Vec<tokio::task::JoinHandle<Answer>>) -> Vec<Lease> {
    let mut known: Option<Vec<Lease>> = None;
    for answer in answers {
        let answer = answer.await.expect("answered");
        if answer.status() == 409 {
            answer.problem(409, "idempotency_in_flight");
            continue;
        }
        let leases = Lease::all(&lane.server, &answer);
        if let Some(known) = &known {
            assert_eq!(marks(&leases), marks(known), "one key, one set of leases");
        }
        known = Some(leases);
    }
    known.expect("somebody is answered")
}

async fn concurrent_claims_of_one_key_take_once(store: Store) {
    let lane = Lane::shared(store).await;
    lane.jobs((0..40).map(|_| json!({}))).await;
    let request = lane.request(json!({"max": 2})).header("Idempotency-Key", unique("key"));
    let callers = (0..20).map(|_| tokio::spawn(request.clone().send())).collect();
    assert_eq!(one_claim_of_many(&lane, callers).await.len(), 2);
    lane.take_all(38, json!({})).await;
}

async fn parked_claims_of_one_key_take_once(store: Store) {
    let lane = Lane::shared(store).await;
    let request = lane.request(json!({"max": 2, "wait_ms": 6_000})).header("Idempotency-Key", unique("key"));
    let callers = (0..5).map(|_| tokio::spawn(request.clone().send())).collect();
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    lane.jobs((0..6).map(|_| json!({}))).await;
    let taken = one_claim_of_many(&lane, callers).await.len();
    assert_eq!(taken, 2);
    lane.take_all(4, json!({})).await;
}

async fn lost_answer_is_given_again_over_kill_9(store: Store) {
    let server = store.serve(&[]).await;
    let lane = Lane::on(&server);
    lane.jobs([json!({}), json!({}), json!({})]).await;
    let first = keyed(&lane, "key", json!({"max": 2})).await;
    server.kill9();
    server.restart().await;
    let again = keyed(&lane, "key", json!({"max": 2})).await;
    assert_eq!(marks(&again), marks(&first));
    for lease in again {
        lease.complete().await;
    }
    lane.take_all(1, json!({})).await;
}
