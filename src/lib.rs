//! x
pub mod bus;
pub mod domain;
pub mod http;
pub mod service;
pub mod store;
