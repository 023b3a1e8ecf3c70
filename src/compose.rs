//! The composition root: store → bus → service → maintenance → serve → drain.

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info, warn};

use crate::config::serve::{CallbackSettings, ServeSettings};
use crate::domain::{QueueName, Refusal, Selection};
use crate::http::App;
use crate::server;
use crate::service::{Gateway, ServiceError, maintenance};
use crate::store::{PostgresStore, SqliteStore, Store, StoreError};
use crate::worker::Worker;
use crate::worker::callbacks::Callbacks;

/// After the last connection is gone, what was accepted is still being stored for at most this long.
const LAST_WRITES: Duration = Duration::from_secs(5);

/// Why the gateway did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The store cannot be used.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// The data directory cannot be made.
    #[error("the data directory {0} cannot be made: {1}")]
    DataDir(PathBuf, std::io::Error),
    /// The database URL is of no known kind.
    #[error("DATABASE_URL must begin with postgres:// or sqlite:")]
    DatabaseUrl,
    /// A queue cannot be purged.
    #[error("queue {0} cannot be purged: {1}")]
    Purge(QueueName, ServiceError),
    /// The address cannot be listened on.
    #[error("cannot listen on {0:?}: {1}")]
    Listen(Vec<SocketAddr>, std::io::Error),
    /// Callbacks cannot be sent.
    #[error("callbacks cannot be sent: {0}")]
    Callbacks(String),
    /// Signals cannot be caught.
    #[error("signals cannot be caught: {0}")]
    Signals(std::io::Error),
}

/// Opens the store that the settings name.
async fn open_store(settings: &ServeSettings) -> Result<Arc<dyn Store>, StartError> {
    let path = match settings.database_url.as_deref() {
        Some(url) if url.starts_with("postgres://") || url.starts_with("postgresql://") => {
            return Ok(Arc::new(PostgresStore::connect(url, settings.connections).await?));
        }
        Some(url) => {
            let path = url.strip_prefix("sqlite:").ok_or(StartError::DatabaseUrl)?;
            PathBuf::from(path.strip_prefix("//").unwrap_or(path))
        }
        None => settings.data_dir.join("milepost.db"),
    };
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        let unusable = |error| StartError::DataDir(directory.to_owned(), error);
        std::fs::create_dir_all(directory).map_err(unusable)?;
    }
    Ok(Arc::new(SqliteStore::open(&path, settings.connections).await?))
}

/// Runs a gateway until SIGTERM or SIGINT, and drains it. `ready` is told the address once requests are answered.
pub async fn serve(settings: ServeSettings, ready: impl FnOnce(SocketAddr)) -> Result<(), StartError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(StartError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(StartError::Signals)?;
    let listener = TcpListener::bind(&settings.listen[..]).await;
    let listener = listener.map_err(|error| StartError::Listen(settings.listen.clone(), error))?;
    let address = listener.local_addr().map_err(|error| StartError::Listen(settings.listen.clone(), error))?;
    let store = open_store(&settings).await?;
    let (gateway, committers) = Gateway::start(store, settings.limits, settings.service);
    gateway.read_defaults().await?;
    purge(&gateway, settings.purge_on_start).await?;
    let callbacks = match settings.callbacks {
        None => None,
        Some(callbacks) => {
            let grace = settings.server.drain / 2;
            let CallbackSettings { signer, url, is_private_allowed } = callbacks;
            let callbacks = Callbacks { signer, url, is_private_allowed, grace };
            Some(callbacks.worker(gateway.clone()).map_err(StartError::Callbacks)?)
        }
    };
    let callbacks = callbacks.map(|worker| tokio::spawn(call_back(worker)));
    let maintenance = tokio::spawn(maintain(gateway.clone()));
    let app = App::new(gateway.clone(), settings.http);
    ready(address);

    let (told_again, impatience) = tokio::sync::oneshot::channel::<()>();
    let shutdown = {
        let gateway = gateway.clone();
        async move {
            tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
            info!("told to stop");
            // Before anything is closed: readiness turns, polls are answered, streams say goodbye.
            gateway.drain();
            tokio::spawn(async move {
                tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
                let _ = told_again.send(());
            });
        }
    };
    let impatience = async {
        let _ = impatience.await;
    };
    server::serve(listener, app, settings.server, shutdown, impatience).await;
    let _ = maintenance.await;
    if let Some(mut callbacks) = callbacks
        && tokio::time::timeout(LAST_WRITES, &mut callbacks).await.is_err()
    {
        // Their leases run out.
        callbacks.abort();
    }
    finish(gateway, committers).await;
    info!("stopped");
    Ok(())
}

/// Cancels what was left waiting in queues whose jobs are of no use after a restart.
async fn purge(gateway: &Gateway, queues: Vec<QueueName>) -> Result<(), StartError> {
    for queue in queues {
        match gateway.purge(queue.clone(), &Selection::default(), "--purge-on-start").await {
            Ok(jobs) => info!(%queue, jobs, "purged at start"),
            Err(ServiceError::Refused(Refusal::QueueNotFound)) => {
                info!(%queue, "nothing to purge at start: nobody has heard of this queue yet");
            }
            Err(error) => return Err(StartError::Purge(queue, error)),
        }
    }
    Ok(())
}

/// Sends callbacks until the gateway drains.
async fn call_back(worker: Worker) {
    if let Err(error) = worker.run(std::future::pending()).await {
        error!(%error, "callbacks are no longer sent");
    }
}

/// Keeps maintenance going until the gateway drains, whatever becomes of one run of it.
async fn maintain(gateway: Gateway) {
    while tokio::spawn(maintenance::run(gateway.clone())).await.is_err() {
        error!("maintenance panicked, it is started again");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Lets the gateway go and waits for the committers: they end when nobody can hand anything in any more, and all of it
/// is stored.
async fn finish(gateway: Gateway, committers: Vec<tokio::task::JoinHandle<()>>) {
    let all = async {
        if let Err(error) = gateway.store_statistics().await {
            warn!(%error, "the statistics of the last second are lost");
        }
        drop(gateway);
        for committer in committers {
            let _ = committer.await;
        }
    };
    if timeout_is_over(all).await {
        warn!("the store did not take the last writes in time; nobody was told that they were stored");
    }
}

async fn timeout_is_over(work: impl Future<Output = ()>) -> bool {
    tokio::time::timeout(LAST_WRITES, work).await.is_err()
}
