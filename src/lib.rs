//! Milepost (minimal map of this branch).
#![warn(missing_docs)]
pub mod bus;
pub mod cli;
pub mod client;
pub mod config;
pub mod domain;
pub mod service;
pub mod store;
pub mod worker;
