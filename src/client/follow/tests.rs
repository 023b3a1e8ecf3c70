//! The follower against a scripted gateway: each connection gets the next answer, byte for byte.

use std::pin::pin;
use std::sync::{Arc, Mutex};

use futures_util::StreamExt;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::client::Address;

const OPEN: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";

/// The heads of the requests that came, and everything the follower told.
struct Told {
    requests: Vec<String>,
    updates: Vec<Update>,
    error: Option<ClientError>,
}

impl Told {
    /// The updates without the comings and goings of connections.
    fn news(&self) -> Vec<Update> {
        let is_news = |update: &&Update| !matches!(update, Update::Connected | Update::Waiting { .. });
        self.updates.iter().filter(is_news).cloned().collect()
    }

    fn cursors(&self) -> Vec<Option<&str>> {
        fn cursor(request: &str) -> Option<&str> {
            request.lines().find_map(|line| line.strip_prefix("last-event-id: "))
        }
        self.requests.iter().map(|request| cursor(request)).collect()
    }
}

async fn follow_script(begin: Begin, script: &[&str]) -> Told {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = format!("http://{}", listener.local_addr().expect("bound"));
    let requests = Arc::new(Mutex::new(Vec::new()));
    let server = tokio::spawn({
        let requests = Arc::clone(&requests);
        let script: Vec<String> = script.iter().map(|answer| answer.to_string()).collect();
        async move {
            let mut silent = Vec::new();
            for answer in script {
                let (mut connection, _) = listener.accept().await.expect("the follower comes");
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(connection.read_u8().await.expect("a whole request"));
                }
                requests.lock().expect("no panic").push(String::from_utf8_lossy(&head).into_owned());
                // A script of a stream that falls silent ends with this mark.
                let (answer, stays) = match answer.strip_suffix("<silence>") {
                    Some(answer) => (answer.to_owned(), true),
                    None => (answer, false),
                };
                connection.write_all(answer.as_bytes()).await.expect("the follower reads");
                if stays {
                    silent.push(connection);
                }
            }
            // Whoever comes after the script is wrong, and finds nobody.
        }
    });
    let pace = Pace {
        patience: Duration::from_secs(5),
        first_retry: Duration::from_millis(5),
        watchdog: Duration::from_millis(300),
    };
    let client = Client::new(Address::parse(&address).expect("an address"), None).expect("a client");
    let mut stream = pin!(follow(client, "job".to_owned(), begin, pace));
    let mut told = Told { requests: Vec::new(), updates: Vec::new(), error: None };
    let all = async {
        while let Some(item) = stream.next().await {
            match item {
                Ok(update) => told.updates.push(update),
                Err(error) => told.error = Some(error),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), all).await.expect("the follower ends");
    server.abort();
    told.requests = requests.lock().expect("no panic").clone();
    told
}

fn state(seq: u64, state: &str) -> String {
    let terminal = state == "completed";
    format!("event: state\ndata: {{\"seq\":{seq},\"state\":\"{state}\",\"terminal\":{terminal}}}\n\n")
}

fn state_with_id(seq: u64, name: &str) -> String {
    format!("id: {seq}\n{}", state(seq, name))
}

fn event(seq: u64, event_type: &str) -> String {
    format!("id: {seq}\nevent: {event_type}\ndata: {{\"seq\":{seq},\"type\":\"{event_type}\"}}\n\n")
}

fn seqs(updates: &[Update]) -> Vec<u64> {
    let seq = |update: &Update| match update {
        Update::Event(event) => event["seq"].as_u64(),
        Update::Connected | Update::Waiting { .. } | Update::State(_) | Update::Reset { .. } | Update::Ended { .. } => {
            None
        }
    };
    updates.iter().filter_map(seq).collect()
}

const END: &str = "event: end\ndata: {\"state\":\"completed\"}\n\n";

#[tokio::test]
async fn the_end_of_a_stream_is_not_the_end_of_the_job() {
    let first = format!(
        "{OPEN}retry: 5\n{}{}id: 5\nevent: log\ndata: {{\"seq\":5",
        state_with_id(3, "running"),
        event(4, "log")
    );
    let second = format!("{OPEN}retry: 5\n{}{}{END}", event(5, "log"), event(6, "completed"));
    let told = follow_script(Begin::State, &[&first, &second]).await;
    assert_eq!(told.cursors(), [None, Some("4")], "a half-written frame moves no cursor");
    assert_eq!(seqs(&told.updates), [4, 5, 6]);
    assert_eq!(told.news().last(), Some(&Update::Ended { state: "completed".to_owned() }));
    assert!(told.error.is_none());
}

#[tokio::test]
async fn passing_trouble_is_waited_for() {
    let stream = format!("{OPEN}{}{END}", state_with_id(3, "completed"));
    let told = follow_script(
        Begin::State,
        &[
            "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 0\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 4\r\nConnection: close\r\n\r\nhey!",
            "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            "",
            &stream,
        ],
    )
    .await;
    assert_eq!(told.requests.len(), 6);
    assert!(told.error.is_none());
    assert_eq!(told.news().len(), 2);
}

#[tokio::test]
async fn what_will_not_pass_ends_at_once() {
    for (status, code) in [(401, "unauthorized"), (403, "forbidden"), (404, "job_not_found")] {
        let body = json!({"code": code, "detail": "no", "status": status}).to_string();
        let answer = format!(
            "HTTP/1.1 {status} No\r\nContent-Type: application/problem+json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        let told = follow_script(Begin::State, &[&answer]).await;
        let error = told.error.expect("an error");
        assert_eq!(error.code(), Some(code));
        assert_eq!(told.requests.len(), 1, "{status}");
        assert_eq!(told.updates, []);
    }
}

#[tokio::test]
async fn a_planned_end_is_resumed_without_complaint() {
    let first =
        format!("{OPEN}{}retry: 7\nevent: bye\ndata: {{\"reason\":\"rotate\"}}\n\n", state_with_id(3, "running"));
    let second = format!("{OPEN}event: ping\ndata: {{\"seq\":3}}\n\n{}{END}", event(4, "completed"));
    let told = follow_script(Begin::State, &[&first, &second]).await;
    assert_eq!(told.cursors(), [None, Some("3")]);
    let waiting = Update::Waiting { delay: Duration::from_millis(7), reason: "rotate".to_owned(), planned: true };
    assert!(told.updates.contains(&waiting), "{:?}", told.updates);
}

#[tokio::test]
async fn a_204_is_the_end() {
    let first = format!("{OPEN}retry: 5\n{}{}", state_with_id(3, "running"), event(4, "failed"));
    let told = follow_script(Begin::State, &[&first, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"]).await;
    assert_eq!(told.news().last(), Some(&Update::Ended { state: "failed".to_owned() }));
    assert_eq!(told.requests.len(), 2);
}

#[tokio::test]
async fn events_come_once_and_a_jump_is_asked_for_again() {
    let first = format!(
        "{OPEN}retry: 5\n{}{}{}{}",
        state_with_id(3, "running"),
        event(3, "log"),
        event(4, "log"),
        event(6, "log")
    );
    let merged = "id: 7\nevent: output\ndata: {\"seq\":7,\"from_seq\":5,\"type\":\"output\"}\n\n";
    let second = format!("{OPEN}{merged}{}{END}", event(8, "completed"));
    let told = follow_script(Begin::State, &[&first, &second]).await;
    assert_eq!(told.cursors(), [None, Some("4")]);
    assert_eq!(seqs(&told.updates), [4, 7, 8]);
}

#[tokio::test]
async fn the_log_is_followed_from_its_first_event() {
    let all = format!("{OPEN}{}{}{END}", event(1, "queued"), event(2, "completed"));
    let told = follow_script(Begin::Log, &[&all]).await;
    assert_eq!(told.cursors(), [Some("0")]);
    assert_eq!(seqs(&told.updates), [1, 2]);
}

#[tokio::test]
async fn a_reset_is_told_and_its_state_may_move_backwards() {
    let first = format!("{OPEN}retry: 5\n{}", state_with_id(480, "running"));
    let second = format!(
        "{OPEN}event: reset\ndata: {{\"reason\":\"ahead\"}}\n\n{}{}{END}",
        state_with_id(300, "running"),
        event(301, "completed")
    );
    let told = follow_script(Begin::State, &[&first, &second]).await;
    assert_eq!(told.cursors(), [None, Some("480")]);
    assert!(told.updates.contains(&Update::Reset { reason: "ahead".to_owned() }));
    assert_eq!(seqs(&told.updates), [301]);
}

#[tokio::test]
async fn an_opening_cut_before_its_output_is_opened_again() {
    let first = format!("{OPEN}retry: 5\n{}", state(3, "running"));
    let output = "id: 3\nevent: output\ndata: {\"type\":\"output\",\"data\":{\"offset\":0,\"text\":\"abc\"}}\n\n";
    let second = format!("{OPEN}{}{output}", state(3, "running"));
    let third = format!("{OPEN}retry: 5\n{}{END}", event(4, "completed"));
    let told = follow_script(Begin::State, &[&first, &second, &third]).await;
    assert_eq!(told.cursors(), [None, None, Some("3")]);
}

#[tokio::test]
async fn a_silent_connection_is_left() {
    let first = format!("{OPEN}retry: 5\n{}<silence>", state_with_id(3, "running"));
    let second = format!("{OPEN}{}{END}", event(4, "completed"));
    let told = follow_script(Begin::State, &[&first, &second]).await;
    assert_eq!(told.cursors(), [None, Some("3")]);
}

#[tokio::test]
async fn without_a_first_stream_it_gives_up() {
    let address = Address::parse("http://127.0.0.1:9").expect("an address");
    let client = Client::new(address, None).expect("a client");
    let pace = Pace { patience: Duration::from_millis(100), first_retry: Duration::from_millis(5), ..Pace::default() };
    let updates: Vec<_> = follow(client, "job".to_owned(), Begin::State, pace).collect().await;
    assert!(matches!(updates.last(), Some(Err(ClientError::GaveUp { .. }))));
}
