//! The bare reader of an event stream.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

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
