//! HTTP/1.1 over a bare socket. A library would hide what the contract speaks about: header lines sent twice,
//! bytes that are no text, a body that comes in pieces, the exact framing of an answer.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::{PATIENCE, Stream, within};

/// One request, built up and then sent over a connection of its own.
#[derive(Clone)]
pub struct Request {
    address: SocketAddr,
    method: String,
    path: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Option<Vec<u8>>,
    patience: Duration,
}

impl Request {
    pub fn new(address: SocketAddr, method: &str, path: &str) -> Self {
        let (method, path) = (method.to_owned(), path.to_owned());
        Self { address, method, path, headers: Vec::new(), body: None, patience: PATIENCE }
    }

    /// Adds one header line; the same name twice makes two lines.
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push((name.to_owned(), value.as_ref().to_vec()));
        self
    }

    pub fn json(self, value: &Value) -> Self {
        self.header("Content-Type", "application/json").body(value.to_string())
    }

    pub fn ndjson(self, body: impl Into<Vec<u8>>) -> Self {
        self.header("Content-Type", "application/x-ndjson").body(body)
    }

    /// For an answer that may rightly take longer than others.
    pub fn patient(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = Some(body.into());
        self
    }

    /// The head as it goes over the wire.
    pub fn head(&self) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.path).into_bytes();
        if !self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head.extend(format!("Host: {}\r\n", self.address).bytes());
        }
        if let Some(body) = &self.body {
            head.extend(format!("Content-Length: {}\r\n", body.len()).bytes());
        }
        for (name, value) in &self.headers {
            head.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
        }
        head.extend(b"\r\n");
        head
    }

    pub async fn send(self) -> Answer {
        let what = format!("an answer to {} {}", self.method, self.path);
        within(self.patience, &what, self.try_send()).await.unwrap_or_else(|error| panic!("{what}: {error}"))
    }

    /// For tests which cut connections: the error is an answer too.
    pub async fn try_send(&self) -> io::Result<Answer> {
        let mut connection = Connection::open(self.address).await?;
        self.clone().header("Connection", "close").send_over(&mut connection).await
    }

    /// Sends over a connection that is kept.
    pub async fn send_over(&self, connection: &mut Connection) -> io::Result<Answer> {
        let bytes = [self.head(), self.body.clone().unwrap_or_default()].concat();
        // A server may refuse a body before it has read the whole of it: the answer still counts.
        let written = connection.write(&bytes).await;
        let answer = connection.answer(&self.method).await;
        if answer.is_err() { written.and(answer) } else { answer }
    }

    /// Opens an event stream; the test looks at its status itself.
    pub async fn stream(self) -> Stream {
        let connection = Connection::open(self.address).await;
        self.stream_over(connection.expect("the server accepts connections")).await
    }

    /// Opens an event stream over a connection that the caller has prepared.
    pub async fn stream_over(self, connection: Connection) -> Stream {
        let what = format!("the head of {}", self.path);
        within(PATIENCE, &what, self.try_stream_over(connection)).await.unwrap_or_else(|e| panic!("{what}: {e}"))
    }

    pub async fn try_stream(self) -> io::Result<Stream> {
        let connection = Connection::open(self.address).await?;
        self.try_stream_over(connection).await
    }

    async fn try_stream_over(self, mut connection: Connection) -> io::Result<Stream> {
        let accepting = match self.headers.iter().any(|(name, _)| name == "Accept") {
            true => self,
            false => self.header("Accept", "text/event-stream"),
        };
        connection.write(&accepting.head()).await?;
        let head = connection.read_head().await?;
        Ok(Stream::new(connection, head, &accepting.method))
    }
}

/// Status line and header lines of an answer.
#[derive(Debug, Clone)]
pub struct Head {
    pub status: u16,
    pub headers: Vec<(String, String)>,
}

impl Head {
    /// The only line of that name, `None` if there is none.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.headers.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
        let first = lines.next().map(|(_, value)| value.as_str());
        assert!(lines.next().is_none(), "{name} stands twice in {:?}", self.headers);
        first
    }
}

/// An answer whose body has arrived whole.
#[derive(Debug, Clone)]
pub struct Answer {
    pub head: Head,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn status(&self) -> u16 {
        self.head.status
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.header(name)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in a {}: {}", self.head.status, self.text()))
    }

    /// The JSON body of an answer that must have this status.
    #[track_caller]
    pub fn expect(&self, status: u16) -> Value {
        assert_eq!(self.head.status, status, "{}", self.text());
        self.json()
    }

    #[track_caller]
    pub fn expect_ok(&self) {
        assert_eq!(self.head.status, 200, "{}", self.text());
    }

    #[track_caller]
    pub fn expect_empty(&self, status: u16) {
        assert_eq!((self.head.status, self.text().as_str()), (status, ""));
    }

    /// The answer is this problem, with everything that section 9 says of one.
    #[track_caller]
    pub fn problem(&self, status: u16, code: &str) -> Value {
        let problem = self.expect(status);
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{problem}");
        assert_eq!(self.header("etag"), None, "an error is no version of anything");
        super::job::assert_problem(&problem, status, code);
        problem
    }

    /// The problem, and the place it points at.
    #[track_caller]
    pub fn problem_at(&self, status: u16, code: &str, pointer: &str) -> Value {
        let problem = self.problem(status, code);
        assert_eq!(problem["pointer"], pointer, "{problem}");
        problem
    }
}

/// One socket and what has been read from it but not yet used.
pub struct Connection {
    socket: TcpStream,
    unread: Vec<u8>,
}

impl Connection {
    pub async fn open(address: SocketAddr) -> io::Result<Self> {
        Self::from_socket(TcpSocket::new_v4()?, address).await
    }

    /// A connection with a receive buffer so small that a reader which does not read soon has a zero window.
    pub async fn narrow(address: SocketAddr) -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(4096)?;
        Self::from_socket(socket, address).await
    }

    async fn from_socket(socket: TcpSocket, address: SocketAddr) -> io::Result<Self> {
        let socket = socket.connect(address).await?;
        socket.set_nodelay(true)?;
        Ok(Self { socket, unread: Vec::new() })
    }

    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.write_all(bytes).await
    }

    /// One chunk of a request body whose length is not known yet.
    pub async fn write_chunk(&mut self, bytes: &[u8]) -> io::Result<()> {
        let framed = [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
        self.write(&framed).await
    }

    /// The stream that answers the request that was written.
    pub async fn into_stream(mut self) -> Stream {
        let head = within(PATIENCE, "the head of a stream", self.read_head()).await.expect("a head");
        Stream::new(self, head, "GET")
    }

    /// A head that no body follows.
    pub async fn head_alone(&mut self) -> io::Result<Head> {
        self.read_head().await
    }

    /// Reads the answer to the request that was written.
    pub async fn answer(&mut self, method: &str) -> io::Result<Answer> {
        let head = self.read_head().await?;
        let mut framing = Framing::of(&head, method);
        let mut body = Vec::new();
        while let Some(piece) = self.read_body(&mut framing).await? {
            body.extend(piece);
        }
        Ok(Answer { head, body })
    }

    pub(super) async fn read_head(&mut self) -> io::Result<Head> {
        let end = loop {
            match find(&self.unread, b"\r\n\r\n") {
                Some(at) => break at,
                None => self.fill().await?,
            }
        };
        let head: Vec<u8> = self.unread.drain(..end + 4).collect();
        let text = String::from_utf8(head).map_err(|_| invalid("a head that is no UTF-8"))?;
        let mut lines = text.trim_end().split("\r\n");
        let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 ").or(line.strip_prefix("HTTP/1.0 ")));
        let status = status.and_then(|rest| rest.get(..3)?.parse().ok()).ok_or_else(|| invalid("no status line"))?;
        let headers = lines
            .map(|line| line.split_once(": ").or_else(|| line.split_once(':')).unwrap_or((line, "")))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        Ok(Head { status, headers })
    }

    /// The next piece of the body as it comes; `None` when it has ended as its framing says it must.
    pub(super) async fn read_body(&mut self, framing: &mut Framing) -> io::Result<Option<Vec<u8>>> {
        loop {
            match framing {
                Framing::Length(0) | Framing::Ended => return Ok(None),
                Framing::UntilClose => return self.piece_until_close().await,
                Framing::Chunked { left: 0, first } => {
                    let lead = if *first { "" } else { "\r\n" };
                    let size = self.read_chunk_size(lead).await?;
                    *framing = Framing::Chunked { left: size, first: false };
                    if size == 0 {
                        self.read_exactly(b"\r\n").await?;
                        *framing = Framing::Ended;
                    }
                }
                Framing::Length(left) | Framing::Chunked { left, .. } => {
                    if self.unread.is_empty() {
                        self.fill().await?;
                    }
                    let take = self.unread.len().min(*left);
                    *left -= take;
                    return Ok(Some(self.unread.drain(..take).collect()));
                }
            }
        }
    }

    async fn piece_until_close(&mut self) -> io::Result<Option<Vec<u8>>> {
        if self.unread.is_empty() {
            match self.fill().await {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                other => other?,
            }
        }
        Ok(Some(std::mem::take(&mut self.unread)))
    }

    async fn read_chunk_size(&mut self, lead: &str) -> io::Result<usize> {
        self.read_exactly(lead.as_bytes()).await?;
        let end = loop {
            match find(&self.unread, b"\r\n") {
                Some(at) => break at,
                None => self.fill().await?,
            }
        };
        let line: Vec<u8> = self.unread.drain(..end + 2).collect();
        let digits = std::str::from_utf8(&line[..end]).map_err(|_| invalid("a chunk size that is no text"))?;
        usize::from_str_radix(digits, 16).map_err(|_| invalid("a chunk size that is no number"))
    }

    async fn read_exactly(&mut self, expected: &[u8]) -> io::Result<()> {
        while self.unread.len() < expected.len() {
            self.fill().await?;
        }
        let got: Vec<u8> = self.unread.drain(..expected.len()).collect();
        if got == expected { Ok(()) } else { Err(invalid("broken chunk framing")) }
    }

    async fn fill(&mut self) -> io::Result<()> {
        match self.socket.read_buf(&mut self.unread).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

/// How the length of a body is known (RFC 9112, 6.3).
#[derive(Debug)]
pub enum Framing {
    Length(usize),
    Chunked { left: usize, first: bool },
    UntilClose,
    Ended,
}

impl Framing {
    pub(super) fn of(head: &Head, method: &str) -> Self {
        if method == "HEAD" || matches!(head.status, 204 | 304) {
            return Self::Ended;
        }
        match (head.header("transfer-encoding"), head.header("content-length")) {
            (Some("chunked"), None) => Self::Chunked { left: 0, first: true },
            (None, Some(length)) => Self::Length(length.parse().expect("a content-length is a number")),
            (None, None) => Self::UntilClose,
            both => panic!("a body with two lengths: {both:?}"),
        }
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
