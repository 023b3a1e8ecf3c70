//! The contract, held against the real binary over real HTTP: one file per promise, every promise on both stores.

mod harness;

mod append;
mod batch;
mod cancel;
mod cli;
mod cli_enqueue;
mod cli_run;
mod cli_watch;
mod connect;
mod delete;
mod enqueue;
mod errors;
mod idempotency;
mod idle;
mod kill;
mod layers;
mod list;
mod open_mode;
mod openapi;
mod outage;
mod outcome;
mod output;
mod poll;
mod progress;
mod readme;
mod result;
mod resume;
mod shutdown;
mod stalled;
mod state;
mod stream;
mod sweep;
mod text;
mod unique;
mod wire;
