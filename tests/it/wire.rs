//! HTTP/1.0 and kept connections: what proxies speak to us.

use serde_json::json;

use crate::harness::*;

on_both_stores!(
    http_1_0_gets_a_stream_without_chunks,
    pipelined_requests_are_answered_in_order,
    stream_follows_other_requests_on_a_kept_connection,
    request_body_may_wait_for_a_continue,
);

async fn http_1_0_gets_a_stream_without_chunks(store: Store) {
    let job = store.shared().await.tracked().await;
    let mut connection = Connection::open(job.server.address()).await.expect("the server accepts");
    let accept = job.get("/events").header("Accept", "text/event-stream").head();
    let head = String::from_utf8(accept).expect("a head is text").replace(" HTTP/1.1", " HTTP/1.0");
    connection.write(head.as_bytes()).await.expect("the server reads");
    let mut stream = connection.into_stream().await;
    assert_eq!(stream.head.header("transfer-encoding"), None);
    stream.expect("state").await;
    let seq = job.note("live").await;
    assert_eq!(stream.told().await.seq(), seq);
    job.complete().await;
    let kinds: Vec<String> = stream.rest().await.iter().map(Frame::kind).collect();
    assert_eq!(kinds, ["completed", "end"]);
}

async fn pipelined_requests_are_answered_in_order(store: Store) {
    let job = store.shared().await.tracked().await;
    let event = json!({"type": "log", "data": {"level": "info", "message": "m"}}).to_string();
    let post = job.post("/events").header("Content-Type", "application/json").body(event.clone());
    let bytes =
        [job.get("").head(), post.head(), event.into_bytes(), job.get("/events?after=2").head(), job.get("").head()];
    let mut connection = Connection::open(job.server.address()).await.expect("the server accepts");
    connection.write(&bytes.concat()).await.expect("the server reads");
    let mut seqs = Vec::new();
    for method in ["GET", "POST", "GET", "GET"] {
        let answer = within(PATIENCE, "an answer", connection.answer(method)).await.expect("an answer").expect(200);
        seqs.push(answer.get("seq").or(answer.get("next")).expect("a seq").clone());
    }
    assert_eq!(seqs, [2, 3, 3, 3]);
}

async fn stream_follows_other_requests_on_a_kept_connection(store: Store) {
    let job = store.shared().await.tracked().await;
    let mut connection = Connection::open(job.server.address()).await.expect("the server accepts");
    for _ in 0..3 {
        let head = job.server.request("HEAD", &job.path("/events")).header("Accept", "text/event-stream");
        head.send_over(&mut connection).await.expect("an answer");
        job.get("").send_over(&mut connection).await.expect("an answer").expect(200);
        job.get("/events?nope=1").send_over(&mut connection).await.expect("an answer").problem(422, "invalid_request");
    }
    let mut stream = job.get("/events").stream_over(connection).await;
    stream.expect("state").await;
    let seq = job.note("live").await;
    assert_eq!(stream.told().await.seq(), seq);
}

async fn request_body_may_wait_for_a_continue(store: Store) {
    let job = store.shared().await.tracked().await;
    let event = json!({"type": "log", "data": {"level": "info", "message": "m"}}).to_string();
    let post = job.post("/events").header("Content-Type", "application/json").header("Expect", "100-continue");
    let mut connection = Connection::open(job.server.address()).await.expect("the server accepts");
    connection.write(&post.body(event.clone()).head()).await.expect("the server reads");
    let interim = within(PATIENCE, "an interim answer", connection.head_alone()).await.expect("a head");
    assert_eq!(interim.status, 100);
    connection.write(event.as_bytes()).await.expect("the server reads");
    let answer = within(PATIENCE, "an answer", connection.answer("POST")).await.expect("an answer");
    assert_eq!(answer.expect(200)["seq"], 3);
}
