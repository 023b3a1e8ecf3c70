//! Flags, environment (minimal version of this branch).
pub mod client;
