//! The lease: who may write, what keeps it alive, and that a healthy worker keeps its job however long it takes.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    only_the_token_of_the_run_opens_the_job,
    token_of_an_earlier_run_is_worthless,
    tokens_are_told_to_nobody_else,
    answer_says_seq_lease_and_whether_to_stop,
    every_kind_of_append_renews,
    heartbeat_changes_nothing_in_the_job,
    refused_append_does_not_renew,
    renewal_moves_the_end_forward,
    healthy_long_job_is_handed_out_once,
    held_heartbeat_keeps_the_lease,
    lines_keep_the_lease_and_silence_does_not,
    lease_outlives_the_process,
);

/// Every body that an append can have.
fn bodies() -> Vec<Value> {
    vec![
        json!([]),
        json!({"type": "log", "data": {"message": "m"}}),
        json!([{"type": "progress", "data": {"percent": 90}}, {"type": "output", "data": {"text": "t"}}]),
        json!({"type": "own"}),
        json!({"type": "completed", "data": {}}),
        json!({"type": "failed", "data": {"code": "c"}}),
        json!({"type": "cancelled", "data": {}}),
        json!({"type": "released", "data": {}}),
    ]
}

async fn only_the_token_of_the_run_opens_the_job(store: Store) {
    let lane = Lane::shared(store).await;
    lane.jobs([json!({}), json!({})]).await;
    let leases = lane.take_all(2, json!({})).await;
    let (mine, other) = (&leases[0], &leases[1]);
    assert_eq!(mine.run, other.run);
    assert_ne!(mine.token, other.token);
    let mut stream = mine.job.resume(2).await;
    let flipped = {
        let mut token = mine.token.clone().into_bytes();
        let middle = token.len() / 2;
        token[middle] = if token[middle] == b'0' { b'1' } else { b'0' };
        token
    };
    let longer = format!("{}0", mine.token).into_bytes();
    let shorter = mine.token.as_bytes()[..mine.token.len() - 1].to_vec();
    let tokens = [None, Some(other.token.clone().into_bytes()), Some(flipped), Some(longer), Some(shorter)];
    let odd = [b"".to_vec(), b"nonsense".to_vec(), b"\xff\xfe".to_vec(), vec![b'x'; 5_000]];
    for token in tokens.into_iter().chain(odd.map(Some)) {
        let request = match &token {
            Some(token) => mine.job.post("/events").header("Lease-Token", token),
            None => mine.job.post("/events"),
        };
        for body in bodies() {
            assert_lost(&mine.job, request.clone().json(&body)).await;
            if let Value::Object(_) = body {
                assert_lost(&mine.job, request.clone().ndjson(format!("{body}\n"))).await;
            }
        }
        assert_lost(&mine.job, mine.job.post("/events?wait_ms=5000").body("[]")).await;
    }
    mine.append(json!({"type": "log", "data": {"message": "mine"}})).await;
    assert_eq!(stream.told().await.json()["data"]["message"], "mine", "nothing else was streamed");
    other.complete().await;
    assert_eq!(assert_folds(&mine.job).await.len(), 3);
}

async fn token_of_an_earlier_run_is_worthless(store: Store) {
    let lane = Lane::shared(store).await;
    lane.job(json!({})).await;
    let mut earlier: Vec<Lease> = Vec::new();
    for run in 1..=4 {
        let lease = lane.take(json!({"worker": "same"})).await;
        assert_eq!((lease.run, &lease.document["attempt"]), (run, &json!(1)));
        for old in &earlier {
            assert_ne!(old.token, lease.token);
            for body in bodies() {
                assert_lost(&old.job, old.post().json(&body)).await;
            }
        }
        match run {
            4 => drop(lease.complete().await),
            _ => drop(lease.release(json!({"reason": format!("after run {run}")})).await),
        }
        earlier.push(lease);
    }
}

async fn tokens_are_told_to_nobody_else(store: Store) {
    let lane = Lane::shared(store).await;
    lane.job(json!({})).await;
    let lease = lane.take(json!({})).await;
    lease.append(json!({"type": "log", "data": {"message": "m"}})).await;
    let job = &lease.job;
    for request in [job.get(""), job.get("?include=payload"), job.get("/events"), lane.server.get("/v1/workers")] {
        let answer = request.send().await;
        answer.expect_ok();
        assert!(!answer.text().contains(&lease.token), "{}", answer.text());
    }
    let mut stream = job.stream().await;
    stream.expect("state").await;
    lease.complete().await;
    stream.rest().await;
    assert!(!String::from_utf8_lossy(&stream.raw).contains(&lease.token));
    assert!(!lane.server.setup.directory.log_tail().contains(&lease.token));
}

async fn answer_says_seq_lease_and_whether_to_stop(store: Store) {
    let lane = Lane::shared(store).await;
    lane.jobs([json!({}), json!({})]).await;
    let [lease, other]: [Lease; 2] = lane.take_all(2, json!({"lease_ms": 20_000})).await.try_into().ok().expect("two");
    let live = |seq: u64, stop: bool| json!({"seq": seq, "lease": {"expires_in_ms": 20_000}, "cancel_requested": stop});
    let ended = |seq: u64, stop: bool| json!({"seq": seq, "lease": null, "cancel_requested": stop});
    assert_eq!(lease.beat().await, live(2, false));
    assert_eq!(lease.append(json!([{"type": "own"}, {"type": "own"}])).await, live(4, false));
    let lines = lease.post().ndjson("{\"type\":\"own\"}\n\n{\"type\":\"own\"}\n").send().await.expect(200);
    assert_eq!((&lines["seq"], &lines["cancel_requested"]), (&json!(6), &json!(false)));
    assert_eq!(lease.append(json!([{"type": "own"}, {"type": "completed"}])).await, ended(8, false));
    other.job.cancel(json!({"grace_ms": 60_000})).await.expect(202);
    assert_eq!(other.beat().await, live(3, true));
    assert_eq!(other.append(json!({"type": "own"})).await, live(4, true));
    assert_eq!(other.append(json!({"type": "cancelled"})).await, ended(5, true));
}

/// When the lease of this job ends, as operators see it.
async fn ends_at(lease: &Lease) -> i64 {
    let workers = lease.job.server.get("/v1/workers").send().await.expect(200);
    let workers = workers["workers"].as_array().expect("workers is a list").clone();
    let mut jobs = workers.iter().flat_map(|worker| worker["jobs"].as_array().expect("jobs is a list"));
    let mine = jobs.find(|job| job["id"] == lease.job.id).expect("a live lease is listed");
    assert_eq!(mine["run"], lease.run);
    instant(&mine["expires_at"])
}

async fn every_kind_of_append_renews(store: Store) {
    let lane = Lane::shared(store).await;
    lane.job(json!({})).await;
    let lease = lane.take(json!({"lease_ms": 30_000})).await;
    let mut end = ends_at(&lease).await;
    assert!(
        (end - instant(&lease.expires_at)).abs() < 250,
        "two clocks may differ by a little: {end}, {}",
        lease.expires_at
    );
    let appends = bodies().into_iter().take(4).map(|body| lease.post().json(&body));
    let lines = lease.post().ndjson("{\"type\":\"own\"}\n");
    let blank = lease.post().ndjson("\n");
    for request in appends.chain([lines, blank]) {
        tokio::time::sleep(Duration::from_millis(60)).await;
        let sent = now_ms();
        request.send().await.expect_ok();
        let renewed = ends_at(&lease).await;
        assert!(renewed > end, "the end stands still at {renewed}");
        assert!((renewed - sent - 30_000).abs() < 1_500, "renewed for {} ms", renewed - sent);
        end = renewed;
    }
    lease.complete().await;
}

async fn heartbeat_changes_nothing_in_the_job(store: Store) {
    let lane = Lane::shared(store).await;
    lane.job(json!({})).await;
    let lease = lane.take(json!({})).await;
    let mut stream = lease.job.resume(2).await;
    let etag = lease.job.get("").send().await.header("etag").map(str::to_owned);
    lease
        .job
        .untouched(async {
            for _ in 0..3 {
                assert_eq!(lease.beat().await["seq"], 2);
            }
        })
        .await;
    assert_eq!(lease.job.get("").send().await.header("etag").map(str::to_owned), etag);
    lease.append(json!({"type": "own"})).await;
    assert_eq!(stream.told().await.seq(), 3, "no heartbeat is seen on the stream");
}

async fn refused_append_does_not_renew(store: Store) {
    let lane = Lane::shared(store).await;
    lane.job(json!({})).await;
    let lease = lane.take(json!({})).await;
    let end = ends_at(&lease).await;
    tokio::time::sleep(Duration::from_millis(60)).await;
    lease.try_append(&json!({"type": "progress", "data": {"percent": 101}})).await.problem(422, "invalid_request");
    lease.try_append(&json!({"type": "started"})).await.problem(422, "invalid_request");
    lease.post().body("{").send().await.problem(400, "invalid_json");
    assert_lost(&lease.job, lease.job.post("/events").json(&json!([]))).await;
    assert_eq!(ends_at(&lease).await, end);
}

async fn renewal_moves_the_end_forward(store: Store) {
    let lane = Lane::shared(store).await;
    lane.jobs([json!({}), json!({})]).await;
    let leases = lane.take_all(2, json!({"lease_ms": 1_500})).await;
    let (beating, silent) = (&leases[0], &leases[1]);
    for _ in 0..14 {
        let left = number(&beating.beat().await["lease"]["expires_in_ms"]);
        assert!((1_000..=1_500).contains(&left), "{left} ms left just after a renewal");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert_eq!(silent.job.types().await, ["queued", "started", "released"]);
    assert_eq!(beating.job.types().await, ["queued", "started"]);
    beating.complete().await;
}

/// Claims in a loop for so long, as a rival would, and returns what came.
async fn rival(lane: Lane, time: Duration) -> Vec<String> {
    let until = std::time::Instant::now() + time;
    let mut got = Vec::new();
    while std::time::Instant::now() < until {
        let leases = lane.claim(json!({"worker": "rival", "max": 10, "wait_ms": 200})).await;
        got.extend(leases.into_iter().map(|lease| lease.job.id));
    }
    got
}

async fn healthy_long_job_is_handed_out_once(store: Store) {
    let lane = Lane::shared(store).await;
    lane.jobs((0..3).map(|_| json!({}))).await;
    let leases = lane.take_all(3, json!({"lease_ms": 1_500})).await;
    let waiting = tokio::spawn(rival(lane.clone(), Duration::from_secs(6)));
    let ways = [json!([]), json!({"type": "log", "data": {"message": "m"}}), json!({"type": "progress", "data": {}})];
    let working = leases.iter().zip(ways).map(|(lease, body)| {
        let lease = lease.clone();
        tokio::spawn(async move {
            for _ in 0..22 {
                lease.append(body.clone()).await;
                tokio::time::sleep(Duration::from_millis(250)).await;
            }
            lease.complete().await;
        })
    });
    for worker in working.collect::<Vec<_>>() {
        worker.await.expect("a healthy worker keeps its lease");
    }
    assert_eq!(waiting.await.expect("the rival ends"), [] as [String; 0]);
    for lease in leases {
        let log = assert_folds(&lease.job).await;
        let starts = log.iter().filter(|event| event["type"] == "started").count();
        assert_eq!((starts, &log[log.len() - 1]["type"]), (1, &json!("completed")));
    }
}

async fn held_heartbeat_keeps_the_lease(store: Store) {
    let lane = Lane::shared(store).await;
    lane.job(json!({})).await;
    let lease = lane.take(json!({"lease_ms": 1_500})).await;
    let waiting = tokio::spawn(rival(lane.clone(), Duration::from_secs(5)));
    let begun = std::time::Instant::now();
    let held = lease.job.post("/events?wait_ms=4000").header("Lease-Token", &lease.token).body("[]");
    let answer = held.send().await.expect(200);
    assert!(begun.elapsed() >= Duration::from_millis(3_900), "there was nothing to say: {:?}", begun.elapsed());
    let left = number(&answer["lease"]["expires_in_ms"]);
    assert!((300..=1_500).contains(&left), "{left} ms are left after it was held");
    for _ in 0..8 {
        lease.beat().await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(waiting.await.expect("the rival ends"), [] as [String; 0]);
    assert_eq!(lease.job.types().await, ["queued", "started"]);
    lease.complete().await;
}

async fn lines_keep_the_lease_and_silence_does_not(store: Store) {
    let lane = Lane::shared(store).await;
    lane.jobs([json!({}), json!({})]).await;
    let leases = lane.take_all(2, json!({"lease_ms": 1_500})).await;
    let (talking, silent) = (&leases[0], &leases[1]);
    let mut open = open_lines(talking).await;
    let mut mute = open_lines(silent).await;
    mute.write_chunk(b"{\"type\":\"own\"}\n{\"type\":\"own\"}\n").await.expect("the server reads");
    for n in 0..12 {
        // Every other line is blank: a heartbeat.
        open.write_chunk([&b"{\"type\":\"own\"}\n"[..], b"\n"][n % 2]).await.expect("the server reads");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let refusal = within(PATIENCE, "an answer", mute.answer("POST")).await.expect("an answer");
    assert_eq!(refusal.problem(409, "lease_lost")["stored"], 2);
    assert_eq!(silent.job.types().await[..4], ["queued", "started", "own", "own"]);
    assert_eq!(talking.job.state().await["state"], "running");
    open.write_chunk(b"{\"type\":\"completed\"}\n").await.expect("the server reads");
    open.write(b"0\r\n\r\n").await.expect("the server reads");
    let answer = within(PATIENCE, "an answer", open.answer("POST")).await.expect("an answer").expect(200);
    assert_eq!((&answer["lease"], &answer["seq"]), (&Value::Null, &json!(9)));
}

/// A line request under a lease, whose body has not ended yet.
async fn open_lines(lease: &Lease) -> Connection {
    let mut connection = Connection::open(lease.job.server.address()).await.expect("the server accepts");
    let head = lease.post().header("Content-Type", "application/x-ndjson").header("Transfer-Encoding", "chunked");
    connection.write(&head.head()).await.expect("the server reads");
    connection
}

async fn lease_outlives_the_process(store: Store) {
    let server = store.serve(&[]).await;
    let lane = Lane::on(&server);
    lane.jobs([json!({}), json!({})]).await;
    let leases = lane.take_all(2, json!({"lease_ms": 60_000})).await;
    server.kill9();
    server.restart().await;
    lane.assert_none().await;
    assert_lost(&leases[0].job, leases[0].job.post("/events").header("Lease-Token", &leases[1].token).body("[]")).await;
    for lease in &leases {
        assert_eq!(lease.beat().await["seq"], 2);
        lease.complete().await;
    }
}
