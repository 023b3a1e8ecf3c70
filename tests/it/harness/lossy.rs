//! A road on which answers get lost: what is asked for is done, but whoever asked hears of it only when he asks again.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use super::Request;
use super::upstream::read_request;

type Asked = Arc<Mutex<HashSet<(String, String)>>>;

/// An address that leads to the gateway. The first answer to each body is lost, but for those of held heartbeats. It
/// ends with the test's runtime.
pub async fn lossy(gateway: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
    let address = listener.local_addr().expect("it is bound");
    let asked = Asked::default();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(relay(socket, gateway, asked.clone()));
        }
    });
    address
}

async fn relay(mut socket: TcpStream, gateway: SocketAddr, asked: Asked) {
    let Some(request) = read_request(&mut socket, &mut Vec::new()).await else { return };
    let mut relayed = Request::new(gateway, &request.method, &request.path).body(request.body.clone());
    for name in ["Content-Type", "Lease-Token", "Idempotency-Key"] {
        if !request.header(name).is_empty() {
            relayed = relayed.header(name, request.header(name));
        }
    }
    let is_heartbeat = request.path.contains("?wait_ms=");
    let is_new = asked.lock().expect("nobody panics with it").insert((request.path, request.body));
    let Ok(answer) = relayed.try_send().await else { return };
    if is_heartbeat || !is_new {
        let head = format!("HTTP/1.1 {} \r\nContent-Length: {}\r\n", answer.status(), answer.body.len());
        let bytes = [head.as_bytes(), b"Connection: close\r\n\r\n", &answer.body].concat();
        let _gone_already = socket.write_all(&bytes).await;
    }
}
