//! Section 5, the claim: what may be asked for, what the answer holds, and what is never handed out.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    claim_hands_out_state_payload_and_lease,
    lease_lasts_as_long_as_was_asked_for,
    body_is_checked_and_a_refusal_takes_nothing,
    route_takes_posts_of_json_only,
    names_may_use_all_their_characters,
    claim_without_wait_answers_at_once,
    claim_waits_as_long_as_it_said,
    queue_left_out_is_default,
    kinds_choose_among_the_jobs,
    name_that_is_said_twice_counts_once,
    thousands_that_become_due_together_are_all_handed_out,
    tracked_job_is_never_handed_out,
    ended_job_is_never_handed_out,
    scheduled_job_waits_for_its_time,
    paused_queue_gives_nothing,
    claim_of_one_never_yields_two,
    claim_never_yields_more_than_it_asked_for,
    payload_comes_out_as_it_went_in,
);

async fn claim_hands_out_state_payload_and_lease(store: Store) {
    let lane = Lane::shared(store).await;
    let spec = json!({"payload": {"url": "u", "n": [1, 2.5]}, "subject": "s:1", "max_attempts": 5, "meta": {"m": 1}});
    let job = lane.job(spec).await;
    let mut stream = job.resume(1).await;
    let lease = lane.take(json!({"worker": "host-1"})).await;
    assert_eq!(lease.job.id, job.id);
    let state = job.state().await;
    assert_eq!(lease.document, merged(state.clone(), json!({"payload": {"url": "u", "n": [1, 2.5]}})));
    assert_eq!(
        (&state["state"], &state["worker"], &state["attempt"], &state["seq"]),
        (&json!("running"), &json!("host-1"), &json!(1), &json!(2))
    );
    let log = assert_folds(&job).await;
    assert_eq!(pairs(&log)[1], ("started", &json!({"worker": "host-1", "run": 1})));
    assert_eq!(stream.expect("started").await.json(), log[1]);
    assert_eq!((lease.run, &state["started_at"]), (1, &log[1]["at"]));
}

async fn lease_lasts_as_long_as_was_asked_for(store: Store) {
    let lane = Lane::shared(store).await;
    for (asked, expected) in
        [(None, 30_000), (Some(1_000), 1_000), (Some(45_500), 45_500), (Some(3_600_000), 3_600_000)]
    {
        lane.job(json!({})).await;
        let more = asked.map_or(json!({}), |ms| json!({"lease_ms": ms}));
        let lease = lane.take(more).await;
        let lasts = instant(&lease.expires_at) - instant(&lease.document["started_at"]);
        assert!((lasts - expected).abs() <= 100, "{lasts} ms for {expected}");
        let left = lease.expires_in_ms as i64;
        assert!((expected - 900..=expected).contains(&left), "{left} ms left of {expected}");
        assert!(text(&lease.expires_at).ends_with('Z') && text(&lease.expires_at).len() == 24, "{}", lease.expires_at);
    }
}

async fn body_is_checked_and_a_refusal_takes_nothing(store: Store) {
    let lane = Lane::shared(store).await;
    let job = lane.job(json!({})).await;
    let table = [
        (json!({"worker": ""}), "/worker"),
        (json!({"worker": 5}), "/worker"),
        (json!({"worker": "two words"}), "/worker"),
        (json!({"worker": "wörker"}), "/worker"),
        (json!({"worker": "a/b"}), "/worker"),
        (json!({"worker": "a\u{0}"}), "/worker"),
        (json!({"worker": "w".repeat(129)}), "/worker"),
        (json!({"queues": lane.name}), "/queues"),
        (json!({"queues": [lane.name, "two words"]}), "/queues/1"),
        (json!({"queues": [lane.name, ""]}), "/queues/1"),
        (json!({"queues": [lane.name, 5]}), "/queues/1"),
        (json!({"queues": ["q".repeat(65), lane.name]}), "/queues/0"),
        (json!({"max": 0}), "/max"),
        (json!({"max": 101}), "/max"),
        (json!({"max": -1}), "/max"),
        (json!({"max": 1.5}), "/max"),
        (json!({"max": "1"}), "/max"),
        (json!({"wait_ms": -1}), "/wait_ms"),
        (json!({"wait_ms": 0.5}), "/wait_ms"),
        (json!({"wait_ms": "5"}), "/wait_ms"),
        (json!({"lease_ms": 999}), "/lease_ms"),
        (json!({"lease_ms": 3_600_001}), "/lease_ms"),
        (json!({"lease_ms": 0}), "/lease_ms"),
        (json!({"lease_ms": "1000"}), "/lease_ms"),
        (json!({"kinds": "k"}), "/kinds"),
        (json!({"kinds": ["k", "two words"]}), "/kinds/1"),
        (json!({"kinds": [5]}), "/kinds/0"),
        (json!({"nope": 1}), "/nope"),
        (json!({"a/b~c": 1}), "/a~1b~0c"),
    ];
    job.untouched(async {
        for (more, pointer) in table {
            lane.request(more).send().await.problem_at(422, "invalid_request", pointer);
        }
        let claims = lane.server.post("/v1/claims");
        let nobody = claims.clone().json(&json!({"queues": [lane.name]}));
        nobody.send().await.problem_at(422, "invalid_request", "/worker");
        for body in ["[]", "5", "null", "\"w\""] {
            claims.clone().body(body).send().await.problem(422, "invalid_request");
        }
        for body in ["", "{", "{\"worker\":\"w\"} x"] {
            claims.clone().body(body).send().await.problem(400, "invalid_json");
        }
        claims.clone().body(*b"{\"worker\":\"\xff\"}").send().await.problem(400, "invalid_json");
    })
    .await;
    assert_eq!(lane.take(json!({})).await.job.id, job.id);
}

async fn route_takes_posts_of_json_only(store: Store) {
    let lane = Lane::shared(store).await;
    let job = lane.job(json!({})).await;
    job.untouched(async {
        let get = lane.server.get("/v1/claims").send().await;
        get.problem(405, "method_not_allowed");
        assert_eq!(get.header("allow"), Some("POST"));
        let wish = lane.wish(json!({})).to_string();
        for media_type in ["text/plain", "application/x-www-form-urlencoded", "application/x-ndjson"] {
            let request = lane.server.post("/v1/claims").header("Content-Type", media_type).body(wish.clone());
            request.send().await.problem(415, "unsupported_media_type");
        }
        lane.server.post("/v1/claims?wait=5").body(wish.clone()).send().await.problem(422, "invalid_request");
        let foreign = lane.request(json!({})).header("Origin", "https://evil.example");
        foreign.send().await.problem(403, "forbidden");
    })
    .await;
    let untyped = lane.server.post("/v1/claims").body(lane.wish(json!({})).to_string()).send().await;
    assert_eq!(Lease::all(&lane.server, &untyped).len(), 1, "no content type is JSON");
}

async fn names_may_use_all_their_characters(store: Store) {
    let mut lane = Lane::shared(store).await;
    lane.name = format!("{}._-Z9", lane.name);
    for worker in ["host-1.a_B:7@zone".to_owned(), "w".repeat(128)] {
        let job = lane.job(json!({"kind": "Kind.a_b-9"})).await;
        let lease = lane.take(json!({"worker": worker, "kinds": ["Kind.a_b-9"]})).await;
        assert_eq!((&lease.job.id, &lease.document["worker"]), (&job.id, &json!(worker)));
    }
}

async fn claim_without_wait_answers_at_once(store: Store) {
    let lane = Lane::shared(store).await;
    for more in [json!({}), json!({"wait_ms": 0})] {
        let begun = Instant::now();
        assert!(lane.claim(more).await.is_empty(), "there is nothing");
        assert!(begun.elapsed() < Duration::from_millis(700), "{:?}", begun.elapsed());
    }
}

async fn claim_waits_as_long_as_it_said(store: Store) {
    let lane = Lane::shared(store).await;
    let begun = Instant::now();
    assert!(lane.claim(json!({"wait_ms": 800})).await.is_empty(), "there is nothing");
    let took = begun.elapsed();
    assert!((Duration::from_millis(790)..Duration::from_millis(2_000)).contains(&took), "{took:?}");
    // More than 55 s is no fault, it is only not waited for.
    let patient = lane.park(json!({"wait_ms": 3_600_000_u64}));
    let job = lane.job(json!({})).await;
    assert_eq!(patient.await.expect("answered").0[0].job.id, job.id);
}

async fn queue_left_out_is_default(store: Store) {
    let server = store.shared().await;
    // Other tests have jobs there, too.
    let kind = unique("kind");
    let job = server.job(json!({"kind": kind})).await;
    let claim = server.post("/v1/claims").json(&json!({"worker": "w", "kinds": [kind]}));
    let leases = Lease::all(&server, &claim.send().await);
    assert_eq!(leases.iter().map(|lease| &lease.job.id).collect::<Vec<_>>(), [&job.id]);
}

async fn kinds_choose_among_the_jobs(store: Store) {
    let lane = Lane::shared(store).await;
    let jobs = lane.jobs(["a", "b", "c", "b"].map(|kind| json!({"kind": kind}))).await;
    let ids = |leases: Vec<Lease>| leases.into_iter().map(|lease| lease.job.id).collect::<Vec<_>>();
    assert!(lane.claim(json!({"kinds": ["z"], "max": 10})).await.is_empty(), "no job is of kind z");
    let of_b = lane.claim(json!({"kinds": ["b"], "max": 10})).await;
    assert_eq!(ids(of_b), [&*jobs[1].id, &jobs[3].id]);
    let parked = lane.park(json!({"kinds": ["d", "e"]}));
    let other = lane.job(json!({"kind": "f"})).await;
    let wanted = lane.job(json!({"kind": "e"})).await;
    assert_eq!(ids(parked.await.expect("answered").0), [wanted.id], "a job of another kind is not for this claim");
    let rest = lane.claim(json!({"kinds": [], "max": 10})).await;
    assert_eq!(ids(rest), [&*jobs[0].id, &jobs[2].id, &other.id], "no kinds are all kinds");
}

async fn name_that_is_said_twice_counts_once(store: Store) {
    let lane = Lane::shared(store).await;
    lane.jobs((0..4).map(|_| json!({}))).await;
    let wish = json!({"queues": [lane.name, lane.name], "kinds": ["k", "k"], "max": 3});
    let leases = lane.claim(wish).await;
    let ids: HashSet<&str> = leases.iter().map(|lease| lease.job.id.as_str()).collect();
    assert_eq!((leases.len(), ids.len()), (3, 3));
    lane.take_all(1, json!({})).await;
}

async fn thousands_that_become_due_together_are_all_handed_out(store: Store) {
    let lane = Lane::shared(store).await;
    lane.jobs((0..2_000).map(|_| json!({"delay_ms": 1_500}))).await;
    let parked: Vec<_> = (0..20).map(|_| lane.park(json!({"max": 100}))).collect();
    let mut handed_out = HashSet::new();
    for claim in parked {
        handed_out.extend(claim.await.expect("answered").0.into_iter().map(|lease| lease.job.id));
    }
    while let leases @ [_, ..] = &lane.claim(json!({"max": 100, "wait_ms": 500})).await[..] {
        handed_out.extend(leases.iter().map(|lease| lease.job.id.clone()));
    }
    assert_eq!(handed_out.len(), 2_000);
}

async fn tracked_job_is_never_handed_out(store: Store) {
    let lane = Lane::shared(store).await;
    let tracked = lane.job(json!({"tracked": true})).await;
    lane.assert_none().await;
    let parked = lane.park(json!({"wait_ms": 800}));
    let second = lane.job(json!({"tracked": true})).await;
    assert!(parked.await.expect("answered").0.is_empty(), "an outside runner has it");
    for job in [tracked, second] {
        assert_eq!(job.types().await, ["queued", "started"]);
    }
}

async fn ended_job_is_never_handed_out(store: Store) {
    let lane = Lane::shared(store).await;
    let [cancelled, completed, failed, live] = [(); 4].map(|()| json!({"max_attempts": 1}));
    let jobs = lane.jobs([cancelled, completed, failed, live]).await;
    jobs[0].cancel(json!({})).await.expect(202);
    lane.take(json!({})).await.complete().await;
    lane.take(json!({})).await.fail(json!({"code": "c"})).await;
    let left = lane.take_all(1, json!({})).await;
    assert_eq!(left[0].job.id, jobs[3].id);
    lane.assert_none().await;
    let logs = ["queued cancelled", "queued started completed", "queued started failed", "queued started"];
    for (job, expected) in jobs.iter().zip(logs) {
        assert_eq!(job.types().await.join(" "), expected);
    }
}

async fn scheduled_job_waits_for_its_time(store: Store) {
    let lane = Lane::shared(store).await;
    let in_an_hour = lane.job(json!({"delay_ms": 3_600_000})).await;
    let soon = lane.job(json!({"delay_ms": 900})).await;
    lane.assert_none().await;
    let (leases, _) = lane.park(json!({"max": 10})).await.expect("answered");
    assert_eq!(leases.iter().map(|lease| &lease.job.id).collect::<Vec<_>>(), [&soon.id]);
    let log = assert_folds(&soon).await;
    let late = instant(&log[1]["at"]) - instant(&log[0]["data"]["run_at"]);
    assert!((0..=1_500).contains(&late), "started {late} ms after its time");
    assert_eq!(in_an_hour.types().await, ["queued"]);
    // Without anybody who waits for it, too.
    let next = lane.job(json!({"delay_ms": 300})).await;
    let begun = Instant::now();
    let lease = eventually(PATIENCE, "a job that is due", async || lane.claim(json!({})).await.pop()).await;
    assert_eq!(lease.job.id, next.id);
    assert!(begun.elapsed() < Duration::from_millis(1_500), "due is claimable: {:?}", begun.elapsed());
}

async fn paused_queue_gives_nothing(store: Store) {
    let (lane, other) = (Lane::shared(store).await, Lane::shared(store).await);
    let job = lane.job(json!({})).await;
    let pause = lane.server.post(&format!("/v1/queues/{}/pause", lane.name));
    pause.json(&json!({"reason": "deploy"})).send().await.expect(200);
    lane.assert_none().await;
    let parked = lane.park(json!({}));
    let both = lane.park(json!({"queues": [lane.name, other.name]}));
    let elsewhere = other.job(json!({})).await;
    assert_eq!(both.await.expect("answered").0[0].job.id, elsewhere.id, "a pause is one queue's");
    assert_eq!(job.types().await, ["queued"]);
    let begun = Instant::now();
    lane.server.post(&format!("/v1/queues/{}/resume", lane.name)).send().await.expect(200);
    let (leases, answered) = parked.await.expect("answered");
    assert_eq!(leases[0].job.id, job.id);
    assert!(answered - begun < Duration::from_secs(2), "{:?} after the resume", answered - begun);
}

async fn claim_of_one_never_yields_two(store: Store) {
    let lane = Lane::shared(store).await;
    lane.jobs((0..60).map(|_| json!({}))).await;
    let claimers: Vec<_> = (0..6)
        .map(|n| {
            let lane = lane.clone();
            let more = [json!({}), json!({"max": 1}), json!({"max": 1, "wait_ms": 1_000})][n % 3].clone();
            tokio::spawn(async move {
                let mut ids = Vec::new();
                for _ in 0..10 {
                    let mut leases = lane.claim(more.clone()).await;
                    assert_eq!(leases.len(), 1, "one was asked for, and there is one");
                    ids.extend(leases.pop().map(|lease| lease.job.id));
                }
                ids
            })
        })
        .collect();
    let mut handed_out = HashSet::new();
    for claimer in claimers {
        for id in claimer.await.expect("answered") {
            assert!(handed_out.insert(id.clone()), "{id} was handed out twice");
        }
    }
    assert_eq!(handed_out.len(), 60);
    lane.assert_none().await;
}

async fn claim_never_yields_more_than_it_asked_for(store: Store) {
    let lane = Lane::shared(store).await;
    lane.jobs((0..240).map(|_| json!({}))).await;
    let wishes = [1, 100, 7, 2, 50, 1, 3, 30];
    let claims = wishes.map(|max| tokio::spawn(lane.request(json!({"max": max})).send()));
    let mut handed_out = HashSet::new();
    for (claim, max) in claims.into_iter().zip(wishes) {
        let leases = Lease::all(&lane.server, &claim.await.expect("answered"));
        assert_eq!(leases.len(), max, "there is enough for everybody");
        handed_out.extend(leases.into_iter().map(|lease| lease.job.id));
    }
    assert_eq!(handed_out.len(), wishes.iter().sum::<usize>());
    lane.take_all(240 - handed_out.len(), json!({})).await;
}

async fn payload_comes_out_as_it_went_in(store: Store) {
    let lane = Lane::shared(store).await;
    let payloads = [
        json!(null),
        json!([]),
        json!("text \" \\ \u{2028} é 😀"),
        json!(12_345_678_901_234_567_890_u64),
        json!({"z": 1, "a": {"deep": [null, true, 0.1, -0.0, 1e300]}, "": "empty name"}),
        json!("x".repeat(200_000)),
    ];
    lane.jobs(payloads.iter().map(|payload| json!({"payload": payload}))).await;
    let leases = lane.take_all(payloads.len(), json!({})).await;
    let got: Vec<&Value> = leases.iter().map(|lease| &lease.document["payload"]).collect();
    assert_eq!(got, payloads.iter().collect::<Vec<_>>());
}
