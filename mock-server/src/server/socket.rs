use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// How often a blocked socket is checked while a fault waits for it to drain.
const DRAIN_CHECK: Duration = Duration::from_millis(1);

/// Control over one TCP connection that faults need and HTTP does not provide.
#[derive(Debug, Default)]
pub(crate) struct Socket {
    /// Set if the connection must end with a reset instead of a close.
    reset: AtomicBool,
    /// Wakes the task that serves the connection when it must end.
    end: Notify,
    /// Whether the last write found the kernel's buffer full.
    blocked: AtomicBool,
}

impl Socket {
    /// Ends the connection with a reset.
    pub(crate) fn reset(&self) {
        self.reset.store(true, Ordering::SeqCst);
        self.end.notify_one();
    }

    /// Completes when the connection must end.
    pub(crate) async fn ended(&self) {
        self.end.notified().await;
    }

    /// Completes once the HTTP layer has written its data and the kernel has accepted all of it.
    pub(crate) async fn flushed(&self) {
        tokio::task::yield_now().await;
        while self.blocked.load(Ordering::SeqCst) {
            tokio::time::sleep(DRAIN_CHECK).await;
        }
    }
}

/// A TCP stream that its owner can reset.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: TcpStream,
    socket: Arc<Socket>,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream, socket: Arc<Socket>) -> Self {
        Self { stream, socket }
    }

    fn note<T>(&self, poll: Poll<T>) -> Poll<T> {
        self.socket.blocked.store(poll.is_pending(), Ordering::SeqCst);
        poll
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if self.socket.reset.load(Ordering::SeqCst) {
            // A failure means that the peer is already gone.
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note(poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.note(poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
