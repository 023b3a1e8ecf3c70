//! Who comes first: queues in the order given; within one priority, then each concurrency key in its turn, then
//! `run_at`, then id. A flood of one tenant does not starve the next.

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    queues_are_served_in_the_order_given,
    higher_priority_comes_first,
    equals_come_in_the_order_of_their_ids,
    earlier_run_at_comes_first,
    job_that_comes_back_keeps_no_place_of_its_own,
    one_claim_takes_the_keys_in_turn,
    claim_is_filled_though_most_keys_have_little,
    claims_one_by_one_take_the_keys_in_turn,
    priority_goes_before_fairness,
    flood_of_one_key_does_not_starve_the_next,
    flood_of_one_key_does_not_starve_those_without,
);

/// What was handed out, by the `subject` that the test gave each job.
fn subjects(leases: &[Lease]) -> Vec<String> {
    leases.iter().map(|lease| text(&lease.document["subject"]).to_owned()).collect()
}

fn named(subject: impl ToString, more: Value) -> Value {
    merged(json!({"subject": subject.to_string()}), more)
}

/// Claims of one, so many of them, each job completed or kept.
async fn one_by_one(lane: &Lane, count: usize, complete: bool) -> Vec<String> {
    let mut order = Vec::new();
    for _ in 0..count {
        let lease = lane.take(json!({"wait_ms": 0})).await;
        if complete {
            lease.complete().await;
        }
        order.extend(subjects(&[lease]));
    }
    order
}

async fn queues_are_served_in_the_order_given(store: Store) {
    let server = store.shared().await;
    let (first, second, third) = (Lane::on(&server), Lane::on(&server), Lane::on(&server));
    third.jobs((0..3).map(|n| named(format!("third-{n}"), json!({"priority": 100})))).await;
    second.jobs((0..2).map(|n| named(format!("second-{n}"), json!({"priority": 50})))).await;
    first.jobs((0..2).map(|n| named(format!("first-{n}"), json!({"priority": -100})))).await;
    let queues = json!([first.name, second.name, third.name]);
    let got = first.claim(json!({"queues": queues, "max": 1})).await;
    assert_eq!(subjects(&got), ["first-0"]);
    let got = first.claim(json!({"queues": queues, "max": 4})).await;
    assert_eq!(subjects(&got), ["first-1", "second-0", "second-1", "third-0"]);
    // The order is each claim's own, not one of names or ages.
    first.jobs([named("first-2", json!({}))]).await;
    let backwards = json!([third.name, second.name, first.name]);
    let got = first.claim(json!({"queues": backwards, "max": 3})).await;
    assert_eq!(subjects(&got), ["third-1", "third-2", "first-2"]);
}

async fn higher_priority_comes_first(store: Store) {
    let lane = Lane::shared(store).await;
    let priorities = [0, -100, 7, 100, 0, -1, 7, 1];
    lane.jobs(priorities.iter().enumerate().map(|(n, p)| named(format!("{p}/{n}"), json!({"priority": p})))).await;
    let got = lane.take_all(5, json!({"max": 5})).await;
    assert_eq!(subjects(&got), ["100/3", "7/2", "7/6", "1/7", "0/0"]);
    lane.jobs([named("late", json!({"priority": 5}))]).await;
    assert_eq!(one_by_one(&lane, 4, false).await, ["late", "0/4", "-1/5", "-100/1"]);
}

async fn equals_come_in_the_order_of_their_ids(store: Store) {
    let lane = Lane::shared(store).await;
    lane.jobs((0..40).map(|n| named(n, json!({})))).await;
    let mut order = one_by_one(&lane, 10, true).await;
    order.extend(subjects(&lane.take_all(30, json!({"max": 30})).await));
    assert_eq!(order, (0..40).map(|n| n.to_string()).collect::<Vec<_>>());
}

async fn earlier_run_at_comes_first(store: Store) {
    let lane = Lane::shared(store).await;
    let delays = [900, 300, 600, 0];
    let jobs = lane.jobs(delays.map(|ms| named(ms, json!({"delay_ms": ms})))).await;
    // All are due, whatever has moved them by then.
    tokio::time::sleep(std::time::Duration::from_millis(2_200)).await;
    let got = lane.take_all(4, json!({"max": 4})).await;
    assert_eq!(subjects(&got), ["0", "300", "600", "900"]);
    for job in jobs {
        assert_folds(&job).await;
    }
}

async fn job_that_comes_back_keeps_no_place_of_its_own(store: Store) {
    let lane = Lane::shared(store).await;
    lane.jobs(["a", "b", "c"].map(|name| named(name, json!({})))).await;
    let lease = lane.take(json!({})).await;
    assert_eq!(subjects(std::slice::from_ref(&lease)), ["a"]);
    // Its `run_at` is now the moment of the release.
    lease.release(json!({})).await;
    assert_eq!(one_by_one(&lane, 3, true).await, ["b", "c", "a"]);
}

async fn one_claim_takes_the_keys_in_turn(store: Store) {
    let lane = Lane::shared(store).await;
    let of = |key: &str, count: usize| {
        (0..count).map(|n| named(format!("{key}{n}"), json!({"concurrency_key": key}))).collect::<Vec<_>>()
    };
    lane.jobs([of("a", 10), of("b", 3), of("c", 1)].concat()).await;
    let got = subjects(&lane.take_all(9, json!({"max": 9})).await);
    for key in ["a", "b", "c"] {
        let mine: Vec<&String> = got.iter().filter(|subject| subject.starts_with(key)).collect();
        assert!(mine.is_sorted(), "within a key the order is that of the ids: {got:?}");
    }
    let share = |part: &[String], key: &str| part.iter().filter(|subject| subject.starts_with(key)).count();
    let first_round = &got[..3];
    assert_eq!(["a", "b", "c"].map(|key| share(first_round, key)), [1, 1, 1], "{got:?}");
    assert_eq!(["a", "b", "c"].map(|key| share(&got, key)), [5, 3, 1], "{got:?}");
}

async fn claim_is_filled_though_most_keys_have_little(store: Store) {
    let lane = Lane::shared(store).await;
    let little = ('a'..='j').map(|key| named(key, json!({"concurrency_key": key.to_string()})));
    let much = (0..30).map(|n| named(format!("z{n}"), json!({"concurrency_key": "z"})));
    lane.jobs(little.chain(much)).await;
    let got = subjects(&lane.take_all(20, json!({"max": 20})).await);
    assert_eq!(got.iter().filter(|subject| subject.starts_with('z')).count(), 10, "{got:?}");
    lane.take_all(20, json!({})).await;
}

async fn claims_one_by_one_take_the_keys_in_turn(store: Store) {
    for complete in [true, false] {
        let lane = Lane::shared(store).await;
        let keys = ["a", "a", "a", "a", "a", "a", "b", "b", "b", "c", "c", "c"];
        lane.jobs(keys.map(|key| named(key, json!({"concurrency_key": key})))).await;
        let got = one_by_one(&lane, 12, complete).await;
        for round in got[..9].chunks(3) {
            let mut round = round.to_vec();
            round.sort();
            assert_eq!(round, ["a", "b", "c"], "each key once in a round of {got:?}");
        }
    }
}

async fn priority_goes_before_fairness(store: Store) {
    let lane = Lane::shared(store).await;
    let urgent = (0..4).map(|n| named(format!("a{n}"), json!({"concurrency_key": "a", "priority": 1})));
    let plain = (0..2).map(|n| named(format!("b{n}"), json!({"concurrency_key": "b"})));
    lane.jobs(plain.chain(urgent)).await;
    assert_eq!(one_by_one(&lane, 6, true).await, ["a0", "a1", "a2", "a3", "b0", "b1"]);
}

async fn flood_of_one_key_does_not_starve_the_next(store: Store) {
    for max in [1, 10] {
        let lane = Lane::shared(store).await;
        lane.jobs((0..2_000).map(|_| named("a", json!({"concurrency_key": "a"})))).await;
        for lease in lane.claim(json!({"max": 20})).await {
            lease.complete().await;
        }
        lane.jobs([named("b", json!({"concurrency_key": "b"}))]).await;
        let mut claims = 0;
        loop {
            let leases = lane.claim(json!({"max": max})).await;
            claims += 1;
            for lease in &leases {
                lease.complete().await;
            }
            if subjects(&leases).contains(&"b".to_owned()) {
                break;
            }
            assert!(claims < 4, "b still waits after {claims} claims of {max}");
        }
    }
}

async fn flood_of_one_key_does_not_starve_those_without(store: Store) {
    let lane = Lane::shared(store).await;
    lane.jobs((0..500).map(|_| named("a", json!({"concurrency_key": "a"})))).await;
    lane.jobs([named("none", json!({}))]).await;
    assert!(one_by_one(&lane, 4, true).await.contains(&"none".to_owned()), "no key is a tenant, too");
}
