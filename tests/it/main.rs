//! The contract, held against the real binary over real HTTP: one file per promise, every promise on both stores.

mod harness;

mod append;
mod poll;
mod progress;
mod stream;
mod text;
