//! Running work: any program, or any Rust future, as a job.
//!
//! [`pool`] is the one worker loop: it claims from a [`source`] ([`remote`], over HTTP) and hands each job to
//! a [`pool::Handler`]: [`commands`] runs a command for it.
//!
//! [`command`] starts a program, [`lines`] cuts what it prints, [`entry`] tells events from text, and [`reporter`]
//! brings them to the gateway in order, once each, while the program waits rather than memory growing. What a way of
//! ending means is decided in [`exit`]. The gateway itself stands behind the small trait [`report::Report`], so that
//! a tracked run (`milepost run`) and a leased one (`milepost work`) share everything here; claims are not known.

pub mod command;
pub mod commands;
pub mod entry;
pub mod exit;
pub mod job;
pub mod lines;
pub mod pool;
pub mod process;
pub mod pump;
pub mod remote;
pub mod report;
pub mod reporter;
pub mod source;
