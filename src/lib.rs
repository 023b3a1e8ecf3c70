//! x
pub mod bus;
pub mod domain;
pub mod service;
pub mod store;
