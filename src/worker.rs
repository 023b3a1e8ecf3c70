//! Running work: any program as a job.
//!
//! [`command`] starts a program, [`lines`] cuts what it prints, [`entry`] tells events from text, and [`reporter`]
//! brings them to the gateway in order, once each, while the program waits rather than memory growing. What a way of
//! ending means is decided in [`exit`]. The gateway itself stands behind the small trait [`report::Report`], so that
//! a tracked run (`milepost run`) and a leased one (`milepost work`) share everything here; claims are not known.

pub mod command;
pub mod entry;
pub mod exit;
pub mod lines;
pub mod process;
pub mod pump;
pub mod report;
pub mod reporter;
