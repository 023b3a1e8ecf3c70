//! An HTTP server of the test's own, for what Milepost calls: it answers byte by byte as it is told, and remembers what
//! it was asked and when it was hung up on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::{Authority, PATIENCE, within};

/// A request that came.
#[derive(Clone, Debug)]
pub struct Received {
    pub method: String,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Received {
    /// The value of a header, empty if there is none.
    pub fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map_or("", |(_, value)| value)
    }

    /// The value of a header that is there.
    pub fn header_mut(&mut self, name: &str) -> &mut String {
        let found = self.headers.iter_mut().find(|(known, _)| known.eq_ignore_ascii_case(name));
        &mut found.unwrap_or_else(|| panic!("no {name}")).1
    }

    /// As receivers' libraries want them: names in lower case.
    pub fn header_map(&self) -> serde_json::Map<String, Value> {
        self.headers.iter().map(|(name, value)| (name.to_lowercase(), value.as_str().into())).collect()
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {}", self.body))
    }
}

/// What is answered.
#[derive(Clone, Debug)]
pub struct Script {
    bytes: Vec<u8>,
    /// After the bytes the connection stays open until the caller closes it.
    holds: bool,
}

impl Script {
    /// These bytes, then the end of the connection.
    pub fn raw(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into(), holds: false }
    }

    /// A whole answer; `headers` end in CR LF each.
    pub fn whole(status: &str, headers: &str, body: &str) -> Self {
        Self::raw(format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len()))
    }

    pub fn json(body: &Value) -> Self {
        Self::whole("200 OK", "Content-Type: application/json\r\n", &body.to_string())
    }

    pub fn status(status: &str) -> Self {
        Self::whole(status, "", "")
    }

    /// A stream of this media type that ends with the connection.
    pub fn stream(media_type: &str, body: &str) -> Self {
        Self::raw(format!("HTTP/1.1 200 OK\r\nContent-Type: {media_type}\r\nConnection: close\r\n\r\n{body}"))
    }

    /// A chunked stream of this media type; each piece is a chunk, and the last one is not sent.
    pub fn unfinished(media_type: &str, pieces: &[&str]) -> Self {
        let mut bytes = format!("HTTP/1.1 200 OK\r\nContent-Type: {media_type}\r\nTransfer-Encoding: chunked\r\n\r\n");
        for piece in pieces {
            bytes += &format!("{:x}\r\n{piece}\r\n", piece.len());
        }
        Self::raw(bytes)
    }

    /// Not the end of the connection: it is held open.
    pub fn held(self) -> Self {
        Self { holds: true, ..self }
    }

    pub fn never() -> Self {
        Self::raw("").held()
    }
}

/// A running server. It ends with the test's runtime.
pub struct Upstream {
    /// And host.
    scheme: &'static str,
    address: SocketAddr,
    received: watch::Receiver<Vec<Received>>,
    hung_up: watch::Receiver<Vec<Instant>>,
}

impl Upstream {
    /// Answers the request and its number, from 1, as `script` says.
    pub async fn start(script: impl Fn(&Received, usize) -> Script + Send + Sync + 'static) -> Self {
        Self::at(SocketAddr::from(([127, 0, 0, 1], 0)), script).await
    }

    /// As [`Upstream::start`], at an address where nobody listens yet.
    pub async fn at(address: SocketAddr, script: impl Fn(&Received, usize) -> Script + Send + Sync + 'static) -> Self {
        Self::listen(address, None, script).await
    }

    /// As [`Upstream::start`], by HTTPS, as `localhost`.
    pub async fn secure(
        authority: &Authority,
        script: impl Fn(&Received, usize) -> Script + Send + Sync + 'static,
    ) -> Self {
        Self::listen(SocketAddr::from(([127, 0, 0, 1], 0)), Some(authority.acceptor("localhost")), script).await
    }

    async fn listen(
        address: SocketAddr,
        tls: Option<tokio_rustls::TlsAcceptor>,
        script: impl Fn(&Received, usize) -> Script + Send + Sync + 'static,
    ) -> Self {
        let scheme = if tls.is_some() { "https://localhost" } else { "http://127.0.0.1" };
        let listener = TcpListener::bind(address).await.expect("the address is free");
        let address = listener.local_addr().expect("it is bound");
        let (requests, received) = watch::channel(Vec::new());
        let (ends, hung_up) = watch::channel(Vec::new());
        let (script, requests, ends) = (Arc::new(script), Arc::new(requests), Arc::new(ends));
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (script, requests, ends, tls) = (script.clone(), requests.clone(), ends.clone(), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serve(socket, &*script, &requests).await,
                        Some(tls) => {
                            // A caller who trusts another authority does not come further than this.
                            if let Ok(socket) = tls.accept(socket).await {
                                serve(socket, &*script, &requests).await;
                            }
                        }
                    }
                    ends.send_modify(|ends| ends.push(Instant::now()));
                });
            }
        });
        Self { scheme, address, received, hung_up }
    }

    /// An address where nobody listens, until somebody does.
    pub async fn free_address() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
        listener.local_addr().expect("it is bound")
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}:{}{path}", self.scheme, self.port())
    }

    /// What has come so far.
    pub fn received(&self) -> Vec<Received> {
        self.received.borrow().clone()
    }

    /// The first requests, once there are so many.
    pub async fn requests(&self, count: usize) -> Vec<Received> {
        self.requests_within(count, PATIENCE).await
    }

    pub async fn requests_within(&self, count: usize, limit: Duration) -> Vec<Received> {
        let mut received = self.received.clone();
        let enough = received.wait_for(|received| received.len() >= count);
        within(limit, &format!("request {count}"), enough).await.expect("the server runs").clone()
    }

    /// When the first connection was hung up on, or ended.
    pub async fn hung_up(&self) -> Instant {
        self.nth_hung_up(1).await
    }

    /// When the `n`th one was, from 1.
    pub async fn nth_hung_up(&self, n: usize) -> Instant {
        let mut hung_up = self.hung_up.clone();
        let ends = hung_up.wait_for(|ends| ends.len() >= n);
        within(PATIENCE, "the end of a connection", ends).await.expect("it runs")[n - 1]
    }
}

async fn serve(
    mut socket: impl AsyncRead + AsyncWrite + Unpin,
    script: &(dyn Fn(&Received, usize) -> Script + Send + Sync),
    requests: &watch::Sender<Vec<Received>>,
) {
    let mut bytes = Vec::new();
    let Some(request) = read_request(&mut socket, &mut bytes).await else { return };
    let mut number = 0;
    requests.send_modify(|requests| {
        requests.push(request.clone());
        number = requests.len();
    });
    let script = script(&request, number);
    if socket.write_all(&script.bytes).await.is_err() || !script.holds {
        let _gone_already = socket.shutdown().await;
        return;
    }
    // Until the caller hangs up.
    while let Ok(1..) = socket.read_buf(&mut bytes).await {}
}

pub(super) async fn read_request(socket: &mut (impl AsyncRead + Unpin), bytes: &mut Vec<u8>) -> Option<Received> {
    let head_end = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        if socket.read_buf(bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&bytes[..head_end]).into_owned();
    let mut lines = head.split("\r\n");
    let mut first = lines.next()?.split(' ').map(str::to_owned);
    let headers = lines.filter_map(|line| line.split_once(':'));
    let headers = headers.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect();
    let mut request = Received { method: first.next()?, path: first.next()?, headers, body: String::new() };
    let length: usize = request.header("content-length").parse().unwrap_or(0);
    while bytes.len() < head_end + 4 + length {
        if socket.read_buf(bytes).await.ok()? == 0 {
            return None;
        }
    }
    request.body = String::from_utf8_lossy(&bytes[head_end + 4..head_end + 4 + length]).into_owned();
    Some(request)
}
