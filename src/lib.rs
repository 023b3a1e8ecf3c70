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
//! | [`service`] | [`service::Gateway`]: one method per wish; group commit; the reader of one job |
//! | [`http`] | the table of routes, problems, the life of a stream |
//! | [`server`] | the accept loop, time limits, drain |
//! | [`compose`] | puts them together |
//! | [`client`], [`worker`] | the gateway from outside; running any program as a job |
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
//! # Three walks
//!
//! **A job is posted.** `http::jobs` reads a [`domain::Spec`] and calls [`service::Gateway::enqueue`], which hands a
//! command to the journal. A committer gathers what waits, looks up idempotency and unique keys, folds each command
//! in memory ([`domain::rules`]), and commits the batch. The answer carries the state document.
//!
//! **A runner appends.** The same road: `http::append` checks each event by itself ([`domain::NewEvent`]), the
//! committer folds it on the job as it wrote it last, and the store's guard (`seq`) decides whether that was right.
//! After the commit the bus pushes one encoded frame per event into the job's channel, if somebody watches.
//!
//! **A browser watches.** `http::stream` opens a [`service::Gateway::follow`]: subscribe, read after the cursor, go
//! live. It never misses the gap between backlog and live, since it subscribes first; behind the ring it reads the
//! store again. State first without a cursor, exactly the missing events with one.

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
