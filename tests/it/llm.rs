//! `examples/llm.mjs`: a worker whose model speaks while others listen, and stops when it is told to.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::process::Command;

use crate::harness::*;

on_both_stores!(
    tokens_reach_a_stream_while_more_are_generated,
    tokens_that_piled_up_are_joined,
    cancel_stops_the_model_within_a_few_tokens,
    failure_of_the_model_keeps_what_it_said,
);

fn worker(queue: &Queue) -> Session {
    let mut command = Command::new("node");
    command
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/llm.mjs"))
        .arg(&queue.name)
        .env("MILEPOST_URL", format!("http://{}", queue.server.address()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Session::start(command)
}

/// So many different words.
fn prompt(words: usize) -> String {
    (0..words).map(|n| format!("w{n}")).collect::<Vec<_>>().join(" ")
}

fn outputs(log: &[Value]) -> Vec<&str> {
    let outputs = log.iter().filter(|event| event["type"] == "output");
    outputs.map(|event| text(&event["data"]["text"])).collect()
}

async fn tokens_reach_a_stream_while_more_are_generated(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let job = queue.job(json!({"payload": {"prompt": prompt(40), "token_ms": 50}})).await;
    let mut stream = job.stream().await;
    stream.expect("state").await;
    let _worker = worker(&queue);
    stream.expect("started").await;
    let mut heard = text(&stream.expect("output").await.json()["data"]["text"]).to_owned();
    let state = job.state().await;
    assert_eq!(state["state"], "running");
    assert!(number(&state["output"]["bytes"]) < prompt(40).len() as u64, "the first words came with the last: {state}");
    let mut pieces = 1;
    let last = loop {
        let frame = stream.told().await;
        if frame.kind() != "output" {
            break frame;
        }
        heard += text(&frame.json()["data"]["text"]);
        pieces += 1;
    };
    assert_eq!((last.kind().as_str(), heard), ("completed", prompt(40)));
    assert!(pieces > 10, "40 words came in {pieces} pieces");
    assert_eq!(job.state().await["outcome"]["metrics"], json!({"tokens": 40}));
}

async fn tokens_that_piled_up_are_joined(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let _worker = worker(&queue);
    let job = queue.job(json!({"payload": {"prompt": prompt(1000), "token_ms": 0}})).await;
    let (state, _) = job.ended().await;
    assert_eq!((&state["state"], &state["outcome"]["metrics"]["tokens"]), (&json!("completed"), &json!(1000)));
    let log = job.log().await;
    assert_eq!(outputs(&log).concat(), prompt(1000));
    assert!(outputs(&log).len() < 10, "{} requests for tokens that were there at once", outputs(&log).len());
}

async fn cancel_stops_the_model_within_a_few_tokens(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let _worker = worker(&queue);
    let job = queue.job(json!({"payload": {"prompt": prompt(1000), "token_ms": 100}})).await;
    job.until("the first words", PATIENCE, |state| state["output"]["bytes"].as_u64() > Some(10)).await;
    job.cancel(json!({"reason": "not what I meant"})).await.expect(202);
    let (state, _) = job.ended().await;
    assert_eq!(state["state"], "cancelled");
    let log = job.log().await;
    let told = log.iter().position(|event| event["type"] == "cancel_requested").expect("it was cancelled");
    let late = outputs(&log[told..]).concat().split_whitespace().count();
    assert!(late <= 3, "it said {late} words more");
    let took = instant(&log[log.len() - 1]["at"]) - instant(&log[told]["at"]);
    assert!(took < 1000, "it took {took} ms");
    // It is there for others.
    let next = queue.job(json!({"payload": {"prompt": "hello", "token_ms": 1}})).await;
    assert_eq!(next.ended().await.0["state"], "completed");
}

async fn failure_of_the_model_keeps_what_it_said(store: Store) {
    let queue = Queue::own(&store.shared().await);
    let _worker = worker(&queue);
    let payload = json!({"prompt": prompt(10), "token_ms": 1, "limit": 4});
    let job = queue.job(json!({"payload": payload, "max_attempts": 1})).await;
    let (state, _) = job.ended().await;
    assert_eq!((&state["state"], &state["error"]["code"]), (&json!("failed"), &json!("rate_limited")));
    assert_eq!(job.get("/output").send().await.text(), prompt(4));
    assert!(queue.read().await["held_until"].is_string(), "others would hear the same");
}
