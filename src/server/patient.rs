//! A socket whose writes give up on a peer that takes no byte for too long, and that notes its activity.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use super::activity::Activity;

pub(super) struct Patient<S> {
    socket: S,
    patience: Duration,
    /// Runs while a write waits. Boxed and kept: most sockets never need one.
    deadline: Option<Pin<Box<Sleep>>>,
    waiting: bool,
    activity: Arc<Activity>,
}

impl<S> Patient<S> {
    pub fn new(socket: S, patience: Duration, activity: Arc<Activity>) -> Self {
        Self { socket, patience, deadline: None, waiting: false, activity }
    }

    /// Watches over the outcome of a write: counts from the last byte that was accepted.
    fn watch<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.activity.bytes_written();
            self.waiting = false;
            return written;
        }
        let patience = self.patience;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(patience)));
        if !self.waiting {
            self.waiting = true;
            deadline.as_mut().reset(Instant::now() + patience);
        }
        ready!(deadline.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer takes no bytes")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.socket).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.activity.bytes_read();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.watch(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(context, slices);
        self.watch(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(context);
        self.watch(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_is_given_up_and_one_byte_is_a_sign_of_life() {
        let (near, mut far) = tokio::io::duplex(4);
        let mut near = Patient::new(near, Duration::from_secs(30), Activity::new(Duration::from_secs(10)));
        let writer = tokio::spawn(async move {
            let begun = Instant::now();
            let error = near.write_all(&[0; 64]).await.expect_err("nobody reads to the end");
            (error.kind(), begun.elapsed())
        });
        tokio::time::sleep(Duration::from_secs(20)).await;
        far.read_exact(&mut [0; 1]).await.expect("there are bytes");
        let (kind, after) = writer.await.expect("the writer does not panic");
        assert_eq!(kind, io::ErrorKind::TimedOut);
        assert!(after >= Duration::from_secs(50), "counted from the last byte accepted, but it took {after:?}");
    }
}
