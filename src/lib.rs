//! Milepost, a self-hosted progress gateway for long-running jobs.
//!
//! An app posts a job and gets `202` and a URL at once. Whoever runs the job appends events. Whoever holds the URL
//! sees the **current state first and then every event, live**, from one durable log: over SSE, long-poll or plain
//! GET. This page is the map of the code.
//!
//! # Layers
//!
//! Imports point right only; `tests/it/layers.rs` fails on any other.
//!
//! ```text
//! main → cli → compose → server → http → service → bus → store → domain
//! ```
//!
//! | layer | what it knows |
//! |---|---|
//! | [`domain`] | jobs, events and every rule about them; no I/O, no clock |
//! | [`store`] | one durable log per job, and the state that is its fold; Postgres, SQLite |
//! | [`bus`] | fan-out within this process: channels with a ring of encoded frames |
//! | [`service`] | [`service::Gateway`]: one method per wish; group commit; the reader of one job, and of many |
//! | [`http`] | the table of routes, problems, the life of a stream |
//! | [`server`] | the accept loop, time limits, drain |
//! | [`compose`] | puts them together |
//! | [`client`], [`worker`] | the gateway from outside; the one worker loop, and running any program or future as a job |
//! | [`cli`], [`config`], [`telemetry`] | commands; the only reader of flags and environment; logs |
//!
//! # The one way of an event
//!
//! ```text
//! http::append → service::journal → domain::Job::apply → store → commit → bus → service::follow → http::stream → server
//! ```
//!
//! "The log before the bus" is a type: [`bus::Bus::publish`] takes [`store::Committed`], and only a store's commit
//! makes one.
//!
//! # Six walks
//!
//! **A job is posted.** `http::jobs` reads a [`domain::Spec`] and calls [`service::Gateway::enqueue`], which hands a
//! command to the journal. A committer gathers what waits, looks up idempotency and unique keys, folds each command
//! in memory ([`domain::rules`]), and commits the batch. The answer carries the state document.
//!
//! **A runner appends.** The same road: `http::append` checks each event by itself ([`domain::NewEvent`]), the
//! committer folds it on the job as it wrote it last, and the store's guard (`seq`) decides whether that was right.
//! After the commit the bus pushes one encoded frame per event into the job's channel, if somebody watches.
//!
//! **A worker claims.** `http::claims` hands the request to [`service::Gateway::claim`]; one task claims for the whole
//! process, and parks whom it has nothing for until the bus says that a queue stirred. [`store::Store::claim`] locks the
//! queues asked for; who is next and how many may go is decided in [`domain::dispatch`], the run begins by
//! [`domain::rules::start`]. The worker's appends take the road above, guarded by its lease; what it does not say (it is
//! silent, too slow, asked to stop in vain) the sweep of [`service::maintenance`] says for it, as ordinary events.
//!
//! **A browser watches.** `http::stream` opens a [`service::Gateway::follow`]: subscribe, read after the cursor, go
//! live. It never misses the gap between backlog and live, since it subscribes first; behind the ring it reads the
//! store again. State first without a cursor, exactly the missing events with one.
//!
//! **A page shows many jobs.** `http::feed` opens a [`service::Gateway::feed`]: whole states, not logs, from an inbox of the
//! bus that holds the newest one of each job.
//!
//! **A worker works.** `worker::pool` claims for its free slots, over HTTP or in this process. A job's handler speaks
//! through `worker::reporter`, which keeps the lease, hears the cancel, and stores everything in order, once.
//!
//! # In your own process
//!
//! ```no_run
//! use std::sync::Arc;
//! use milepost::domain::Limits;
//! use milepost::service::{Settings, maintenance};
//! use milepost::store::SqliteStore;
//! use milepost::{Failure, Gateway, Outcome, Progress, Worker};
//!
//! #[derive(serde::Deserialize)]
//! struct Book {
//!     chapters: Vec<String>,
//! }
//!
//! # async fn summarize(chapter: &str) -> Result<String, std::io::Error> { Ok(chapter.to_owned()) }
//! # async fn example(shutdown: impl Future<Output = ()>) -> Result<(), Box<dyn std::error::Error>> {
//! let store = SqliteStore::open("milepost.db".as_ref(), 4).await?;
//! let (gateway, _writers) = Gateway::start(Arc::new(store), Limits::default(), Settings::default());
//! tokio::spawn(maintenance::run(gateway.clone()));
//!
//! Worker::new(gateway)
//!     .queue("llm")
//!     .concurrency(8)
//!     .handle("summarize", |ctx, book: Book| async move {
//!         for (index, chapter) in book.chapters.iter().enumerate() {
//!             if ctx.is_cancelled() {
//!                 return Err(Failure::cancelled());
//!             }
//!             ctx.output(&summarize(chapter).await?).await?;
//!             ctx.progress(Progress::of((index + 1) as f64, book.chapters.len() as f64).unit("chapters")).await?;
//!         }
//!         Ok(Outcome::ok().items(book.chapters.len() as u64))
//!     })
//!     .run(shutdown)
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Worker::remote`] does the same for a gateway that is elsewhere.

#![warn(missing_docs)]

pub mod bus;
pub mod cli;
pub mod client;
pub mod compose;
pub mod config;
pub mod domain;
pub mod http;
pub mod server;
pub mod service;
pub mod store;
pub mod telemetry;
pub mod worker;

pub use service::Gateway;
pub use worker::{Context, EventError, Failure, JobInfo, Level, Outcome, Progress, Worker, WorkerError};
