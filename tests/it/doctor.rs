//! `milepost doctor`: what stands between is named, by relays that each have one vice.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::cli::{milepost, milepost_at};
use crate::harness::{Server, Store, number, run, text};

/// What a relay does to what passes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Vice {
    /// Answers are passed on once they are whole.
    Hold,
    /// Every connection is cut so long after its request.
    Cut(Duration),
    /// Every connection is cut after such a silence.
    Impatient(Duration),
    /// Each piece of an answer is passed on when the next one is there.
    OneLate,
    /// Event streams are said to be compressed.
    Compress,
    /// Lines of heads that begin so are left out, in both directions.
    Strip(&'static str),
    /// The gateway sees an address of its own instead of the browser's.
    Rewrite,
    /// Says that it is nginx.
    Sign,
}

/// A relay of one request per connection: what is asked for is not to be kept alive.
async fn relay(target: SocketAddr, vice: Vice) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it listens");
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let passing = pass(socket, target, vice);
                match vice {
                    Vice::Cut(limit) => drop(tokio::time::timeout(limit, passing).await),
                    _ => passing.await,
                }
            });
        }
    });
    address
}

/// Reads up to the end of a head; the rest belongs to the body.
async fn head(socket: &mut (impl AsyncRead + Unpin)) -> Option<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let body = bytes.split_off(end + 4);
            return Some((String::from_utf8(bytes).ok()?, body));
        }
        if socket.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

fn changed(head: &str, vice: Vice, target: SocketAddr, more: &str) -> String {
    let lines = head.trim_end().split("\r\n").filter(|line| {
        let line = line.to_ascii_lowercase();
        !line.starts_with("connection:") && !matches!(vice, Vice::Strip(name) if line.starts_with(name))
    });
    let lines = lines.map(|line| match vice {
        Vice::Rewrite if line.to_ascii_lowercase().starts_with("host:") => format!("host: {target}"),
        _ => line.to_owned(),
    });
    format!("{}\r\n{more}connection: close\r\n\r\n", lines.collect::<Vec<_>>().join("\r\n"))
}

async fn pass(mut client: TcpStream, target: SocketAddr, vice: Vice) {
    let Some((asked, body)) = head(&mut client).await else { return };
    let Ok(mut gateway) = TcpStream::connect(target).await else { return };
    let request = [changed(&asked, vice, target, "").into_bytes(), body].concat();
    if gateway.write_all(&request).await.is_err() {
        return;
    }
    let (mut from_client, mut to_client) = client.split();
    let (mut from_gateway, mut to_gateway) = gateway.split();
    let answering = async {
        let limit = if let Vice::Impatient(limit) = vice { limit } else { Duration::MAX };
        let (answered, body) = tokio::time::timeout(limit, head(&mut from_gateway)).await.ok()??;
        let more = match vice {
            Vice::Compress if answered.contains("text/event-stream") => "content-encoding: gzip\r\n",
            Vice::Sign => "server: nginx/1.22.1\r\n",
            _ => "",
        };
        let mut piece = [changed(&answered, vice, target, more).into_bytes(), body].concat();
        loop {
            if !matches!(vice, Vice::Hold | Vice::OneLate) {
                to_client.write_all(&piece).await.ok()?;
                piece.clear();
            }
            let mut next = Vec::new();
            let count = tokio::time::timeout(limit, from_gateway.read_buf(&mut next)).await.ok()?.ok()?;
            if vice == Vice::OneLate && count > 0 {
                to_client.write_all(&piece).await.ok()?;
                piece.clear();
            }
            piece.append(&mut next);
            if count == 0 {
                to_client.write_all(&piece).await.ok()?;
                return to_client.shutdown().await.ok();
            }
        }
    };
    // Who hangs up is not answered any more.
    tokio::select! {
        _ = answering => {}
        _ = tokio::io::copy(&mut from_client, &mut to_gateway) => {}
    }
}

/// What the doctor says of this address, and his exit code.
async fn examine(address: SocketAddr, seconds: u64) -> (Value, i32) {
    let (url, seconds) = (format!("http://{address}"), seconds.to_string());
    let ended = milepost_at("http://127.0.0.1:9", &["doctor", &url, "--seconds", &seconds, "--json"]).ended().await;
    let found = serde_json::from_str(&ended.stdout);
    (found.unwrap_or_else(|error| panic!("{error}: {} {}", ended.stdout, ended.stderr)), ended.code)
}

fn codes(found: &Value) -> Vec<&str> {
    let troubles = found["troubles"].as_array().expect("a list");
    troubles.iter().map(|trouble| text(&trouble["code"])).collect()
}

async fn through(server: &Server, vice: Vice, seconds: u64) -> Value {
    let (found, code) = examine(relay(server.address(), vice).await, seconds).await;
    assert_eq!(code, i32::from(!codes(&found).is_empty()), "{found}");
    found
}

#[test]
fn nothing_is_wrong_with_the_gateway_itself_and_nothing_is_left_behind() {
    run(async {
        let server = Store::Sqlite.serve(&[]).await;
        let (found, code) = examine(server.address(), 4).await;
        assert_eq!((codes(&found), code), (vec![], 0), "{found}");
        assert_eq!((&found["transport"], &found["intermediary"]), (&json!("stream"), &Value::Null), "{found}");
        assert_eq!((&found["last_event_id"], &found["http_version"]), (&json!(true), &json!("HTTP/1.1")));
        assert_eq!(found["stream"]["shown"], found["stream"]["sent"], "{found}");
        assert!(number(&found["stream"]["sent"]) >= 3, "{found}");
        assert_eq!(server.list("kind=milepost.doctor").await, Vec::<Value>::new());
        let ended = milepost(&server, &["doctor", "--seconds", "3"]).ended().await;
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        assert!(ended.stdout.contains("Nothing is wrong"), "{}", ended.stdout);
    });
}

#[test]
fn who_cannot_be_reached_is_no_patient() {
    run(async {
        for url in ["http://127.0.0.1:9", "ftp://example.com"] {
            let ended = milepost_at("http://127.0.0.1:9", &["doctor", url]).ended().await;
            assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{}", ended.stderr);
        }
    });
}

#[test]
fn each_vice_is_named() {
    run(async {
        let server = Store::Sqlite.shared().await;
        let (impatient, late, vary) = tokio::join!(
            through(&server, Vice::Impatient(Duration::from_secs(2)), 5),
            through(&server, Vice::OneLate, 5),
            through(&server, Vice::Strip("vary:"), 3),
        );
        assert_eq!(codes(&impatient), ["cut_when_quiet", "long_poll_cut"], "{impatient}");
        assert_eq!((codes(&late), &late["transport"]), (vec!["buffered"], &json!("stream")), "{late}");
        assert_eq!(codes(&vary), ["vary_lost"], "{vary}");
        let (held, cut, compressed, etag, cursor, rewritten, signed) = tokio::join!(
            through(&server, Vice::Hold, 4),
            through(&server, Vice::Cut(Duration::from_secs(2)), 5),
            through(&server, Vice::Compress, 3),
            through(&server, Vice::Strip("etag:"), 3),
            through(&server, Vice::Strip("last-event-id:"), 3),
            through(&server, Vice::Rewrite, 3),
            through(&server, Vice::Sign, 3),
        );
        assert_eq!((codes(&held), &held["transport"]), (vec!["held"], &json!("long-poll")), "{held}");
        assert_eq!((codes(&cut), &cut["transport"]), (vec!["cut", "long_poll_cut"], &json!("stream")), "{cut}");
        let after = number(&cut["stream"]["cut_after_ms"]);
        assert!((2_000..4_500).contains(&after), "{cut}");
        assert_eq!((codes(&compressed), &compressed["transport"]), (vec!["compressed"], &json!("stream")));
        assert_eq!(compressed["stream"]["content_encoding"], "gzip");
        assert_eq!(codes(&etag), ["etag_lost"], "{etag}");
        assert_eq!((codes(&cursor), &cursor["last_event_id"]), (vec!["last_event_id_lost"], &json!(false)), "{cursor}");
        assert_eq!(codes(&rewritten), ["host_rewritten"], "{rewritten}");
        assert_eq!((codes(&signed), &signed["intermediary"]), (vec![], &json!("nginx")), "{signed}");
        // Nobody said who he is: then everybody's remedy is shown.
        let remedies = held["troubles"][0]["remedies"].to_string();
        for name in ["nginx: ", "Caddy: ", "Traefik: "] {
            assert!(remedies.contains(name), "{remedies}");
        }
    });
}
