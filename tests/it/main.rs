//! The contract, held against the real binary over real HTTP: one file per promise, every promise on both stores.

mod harness;

mod append;
mod batch;
mod cancel;
mod delete;
mod enqueue;
mod idempotency;
mod list;
mod outcome;
mod output;
mod poll;
mod progress;
mod result;
mod state;
mod stream;
mod text;
mod unique;
