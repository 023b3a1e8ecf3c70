//! The cheapest HTTP client that serves: what it costs is not what is measured.

use std::net::SocketAddr;

use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// One kept-alive connection.
pub struct Poster {
    socket: TcpStream,
    buffer: Vec<u8>,
}

impl Poster {
    pub async fn connect(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).await.expect("the server accepts");
        socket.set_nodelay(true).expect("a socket option");
        Self { socket, buffer: Vec::with_capacity(64 * 1024) }
    }

    /// Appends to a job; returns the status.
    pub async fn post(&mut self, job: &str, body: &str) -> u16 {
        self.request(&format!("/v1/jobs/{job}/events"), "", body).await.0
    }

    /// Posts a job; returns its id.
    pub async fn enqueue(&mut self, body: &str) -> String {
        let (status, answer) = self.request("/v1/jobs", "", body).await;
        assert_eq!(status, 202);
        let answer = String::from_utf8_lossy(answer);
        let (_, after) = answer.split_once("\"id\":\"").expect("an id");
        after[..36].to_owned()
    }

    /// Posts a body, with whole header lines added; returns status and answer.
    pub async fn request(&mut self, path: &str, headers: &str, body: &str) -> (u16, &[u8]) {
        let request =
            format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len());
        self.socket.write_all(request.as_bytes()).await.expect("the server reads");
        self.buffer.clear();
        let (status, body) = loop {
            let read = self.socket.read_buf(&mut self.buffer).await.expect("the server answers");
            assert_ne!(read, 0, "the server closed the connection instead of answering {path}");
            let Some(end) = memmem::find(&self.buffer, b"\r\n\r\n") else { continue };
            let head = std::str::from_utf8(&self.buffer[..end]).expect("a head is text");
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
            let whole = end + 4 + length.parse::<usize>().expect("a number");
            if self.buffer.len() >= whole {
                break (head[9..12].parse().expect("a status"), end + 4..whole);
            }
        };
        (status, &self.buffer[body])
    }
}
