//! The cheapest HTTP client that serves: what it costs is not what is measured.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

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
        Self { socket, buffer: vec![0; 64 * 1024] }
    }

    /// Appends to a job; returns the status.
    pub async fn post(&mut self, job: &str, body: &str) -> u16 {
        self.request(&format!("/v1/jobs/{job}/events"), body).await.0
    }

    /// Posts a job; returns its id.
    pub async fn enqueue(&mut self, body: &str) -> String {
        let (status, answer) = self.request("/v1/jobs", body).await;
        assert_eq!(status, 202);
        let (_, after) = answer.split_once("\"id\":\"").expect("an id");
        after[..36].to_owned()
    }

    async fn request(&mut self, path: &str, body: &str) -> (u16, String) {
        let request =
            format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        self.socket.write_all(request.as_bytes()).await.expect("the server reads");
        let mut filled = 0;
        loop {
            filled += self.socket.read(&mut self.buffer[filled..]).await.expect("the server answers");
            let text = String::from_utf8_lossy(&self.buffer[..filled]);
            let Some((head, rest)) = text.split_once("\r\n\r\n") else { continue };
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
            if rest.len() >= length.parse::<usize>().expect("a number") {
                return (head[9..12].parse().expect("a status"), rest.to_owned());
            }
        }
    }
}

/// Posts one after the other; returns how many were answered with 200.
pub async fn post_until(address: SocketAddr, job: &str, body: &str, until: Instant) -> usize {
    let mut poster = Poster::connect(address).await;
    let mut answered = 0;
    while Instant::now() < until {
        assert_eq!(poster.post(job, body).await, 200);
        answered += 1;
    }
    answered
}

/// An open stream, past its opening.
pub struct Stream {
    socket: TcpStream,
    buffer: Vec<u8>,
}

impl Stream {
    pub async fn open(address: SocketAddr, job: &str) -> Self {
        let mut socket = TcpStream::connect(address).await.expect("the server accepts");
        let request =
            format!("GET /v1/jobs/{job}/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n");
        socket.write_all(request.as_bytes()).await.expect("the server reads");
        let mut buffer = vec![0; 16 * 1024];
        let mut seen = Vec::new();
        while !seen.ends_with(b"\n\n\r\n") {
            let read = socket.read(&mut buffer).await.expect("the server answers");
            assert_ne!(read, 0, "the stream ended");
            seen.extend_from_slice(&buffer[..read]);
        }
        buffer.truncate(4096);
        buffer.shrink_to_fit();
        Self { socket, buffer }
    }

    /// Waits for the end of a frame.
    pub async fn next_frame(&mut self) {
        loop {
            let read = self.socket.read(&mut self.buffer).await.expect("the server writes");
            if self.buffer[..read].ends_with(b"\n\n\r\n") {
                return;
            }
        }
    }

    /// Counts bytes for so long.
    pub async fn count_bytes(mut self, time: Duration) -> usize {
        let (until, mut bytes) = (tokio::time::Instant::now() + time, 0);
        while let Ok(read) = tokio::time::timeout_at(until, self.socket.read(&mut self.buffer)).await {
            bytes += read.expect("the server writes");
        }
        bytes
    }
}
