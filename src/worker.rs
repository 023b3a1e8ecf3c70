//! Running work: any program, or any Rust future, as a job.
//!
//! [`pool`] is the one worker loop: it claims from a [`source`] ([`remote`] over HTTP, [`local`] in this process) and
//! hands each job to a [`pool::Handler`]: [`commands`] runs a command for it, [`forward`] posts it to an endpoint
//! ([`answer`]), [`handlers`] runs the Rust future of its kind ([`Worker`], with a [`Context`] in its hands).
//! [`callbacks`] is such a worker, of the gateway's own.
//!
//! [`command`] sees a program through to its job's last event, [`task`] a future. [`process`] starts a program
//! (and [`guard`] ends it should its runner be killed), [`pump`] and [`lines`] cut what it prints, [`entry`] tells events from text, [`exit`] decides what a way of ending
//! means. Whatever is said about a job goes through its [`reporter`]: in order, once each, while whoever says it waits
//! rather than memory growing; it also keeps the job alive, and hears what the gateway wants. The gateway itself stands
//! behind the small trait [`report::Report`], so that a tracked run (`milepost run`) and a leased one share all this.

pub mod answer;
pub mod callbacks;
pub mod command;
pub mod commands;
pub mod context;
pub mod entry;
pub mod exit;
pub mod forward;
pub mod guard;
pub mod handlers;
pub mod hands;
pub mod job;
pub mod lines;
pub mod local;
pub mod name;
pub mod outcome;
pub mod pool;
pub mod process;
pub mod pump;
pub mod remote;
pub mod report;
pub mod reporter;
pub mod source;
pub mod task;

pub use context::{Context, EventError};
pub use handlers::{Worker, WorkerError};
pub use job::JobInfo;
pub use outcome::{Failure, Level, Outcome, Progress};
