//! The accept loop, and the life of connections: time limits, drain.
//!
//! Our own, since `axum::serve` waits for open streams for ever and leaves Nagle's algorithm on. A stream's response
//! carries [`Live`] among its extensions: a transport that delivers streams by itself can take it
//! from there and leave the body unread. This one hands the body to hyper.

mod activity;
mod patient;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{Instrument, debug, info, info_span, warn};

use crate::http::{App, Live, Topic};
use activity::{Activity, Watched};
use patient::Patient;

/// A peer that takes no byte for this long is gone.
const WRITE_DEADLINE: Duration = Duration::from_secs(30);

/// What hyper buffers for a peer that reads slowly, in bytes; more waits in the store.
const WRITE_BUFFER: usize = 64 * 1024;

/// A connection that comes while draining must say at once what it wants, or a browser's spare one holds up the end.
const LATE_HEADER_TIMEOUT: Duration = Duration::from_millis(500);

/// How the server behaves.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// A request's head must have arrived within this.
    pub header_timeout: Duration,
    /// After the drain began, connections that are still open are cut after this.
    pub drain: Duration,
}

/// Serves until `shutdown` completes, then drains: open requests and streams end by themselves, and what has not
/// ended after `settings.drain`, or when `impatience` completes, is cut.
pub async fn serve(
    listener: TcpListener,
    app: App,
    settings: ServerSettings,
    shutdown: impl Future<Output = ()>,
    impatience: impl Future<Output = ()>,
) {
    let draining = watch::Sender::new(false);
    let mut connections = JoinSet::new();
    let (mut shutdown, mut impatience) = (pin!(shutdown), pin!(impatience));
    let mut deadline = pin!(tokio::time::sleep(Duration::MAX));
    loop {
        let is_draining = *draining.borrow();
        tokio::select! {
            accepted = listener.accept() => match accepted {
                // Also while draining: readiness says so, streams and new jobs are turned away in words.
                Ok((socket, peer)) => {
                    let span = info_span!("connection", %peer);
                    let connection = connection(socket, app.clone(), settings.clone(), draining.subscribe());
                    connections.spawn(connection.instrument(span));
                }
                Err(error) => {
                    // Out of file descriptors, mostly. Trying again at once would spin.
                    warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            Some(_) = connections.join_next() => {}
            () = &mut shutdown, if !is_draining => {
                info!(connections = connections.len(), "draining");
                draining.send_replace(true);
                deadline.as_mut().reset(tokio::time::Instant::now() + settings.drain);
            }
            () = &mut deadline, if is_draining => {
                warn!(connections = connections.len(), "the drain time is over, cutting what is still open");
                break;
            }
            () = &mut impatience, if is_draining => {
                warn!(connections = connections.len(), "told again to stop, cutting what is still open");
                break;
            }
        }
        if *draining.borrow() && connections.is_empty() {
            break;
        }
    }
    connections.shutdown().await;
}

async fn connection(socket: TcpStream, app: App, settings: ServerSettings, mut draining: watch::Receiver<bool>) {
    if let Err(error) = prepare(&socket) {
        debug!(%error, "the socket was closed at once");
        return;
    }
    let came_late = *draining.borrow();
    let activity = Activity::new(match came_late {
        true => settings.header_timeout.min(LATE_HEADER_TIMEOUT),
        false => settings.header_timeout,
    });
    let requests = activity.clone();
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let app = app.clone();
        let being_answered = requests.begin_request();
        async move {
            let response = app.answer(request).await;
            let stream = response.extensions().get::<Live>().map(|live| {
                match &live.topic {
                    Topic::Job { id, cursor } => debug!(job.id = %id, cursor, "a stream begins"),
                    Topic::Worker(worker) => debug!(worker = worker.as_str(), "a worker listens"),
                    Topic::Feed => debug!("a feed begins"),
                }
                being_answered.becomes_stream()
            });
            Ok::<_, Infallible>(response.map(|body| Watched::new(body, stream)))
        }
    });
    let connection = http1::Builder::new()
        .keep_alive(!came_late)
        .max_buf_size(WRITE_BUFFER)
        .serve_connection(TokioIo::new(Patient::new(socket, WRITE_DEADLINE, activity.clone())), service);
    let mut connection = pin!(connection);
    let drained = async {
        // A connection that came while draining is closed after its first answer anyway.
        if came_late || draining.wait_for(|draining| *draining).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let mut overdue = pin!(activity.overdue());
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = &mut overdue => {
            debug!("a connection kept us waiting for too long");
            return;
        }
        () = drained => {
            // Idle: closed now. Busy: closed after the answer.
            connection.as_mut().graceful_shutdown();
            tokio::select! { ended = connection => ended, () = overdue => return }
        }
    };
    if let Err(error) = ended {
        debug!(%error, "a connection ended early");
    }
}

/// Frames leave at once, and the kernel gives up on a peer that acknowledges nothing: pings to a vanished client would
/// otherwise fill its buffers for many minutes.
fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    SockRef::from(socket).set_tcp_user_timeout(Some(WRITE_DEADLINE))
}
