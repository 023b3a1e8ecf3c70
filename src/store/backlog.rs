//! What piled up in a queue: jobs that wait, and dead letters.

use crate::domain::{JobId, QueueName};

/// Jobs of one queue on which an operator acts all at once.
#[derive(Clone, Debug)]
pub struct Backlog {
    /// The queue.
    pub queue: QueueName,
    /// Which of its jobs.
    pub part: BacklogPart,
    /// Only those whose last error has this code.
    pub error_code: Option<String>,
}

/// A part of a queue's jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BacklogPart {
    /// Scheduled, queued and retrying ones.
    Waiting,
    /// Failed ones that can be handed out again: neither tracked ones nor those whose unique key a live job holds.
    Dead,
}

/// How far a backlog reaches at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BacklogExtent {
    /// Nobody has heard of the queue.
    UnknownQueue,
    /// There is nothing in it.
    Empty,
    /// Up to this job, its newest.
    UpTo(JobId),
}

/// A stretch of a backlog, oldest first.
#[derive(Clone, Copy, Debug)]
pub struct BacklogRange {
    /// Only jobs newer than this one.
    pub after: JobId,
    /// None newer than this one.
    pub upto: JobId,
    /// At most this many.
    pub limit: u32,
}

/// A job of a backlog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BacklogJob {
    /// Which.
    pub id: JobId,
    /// The key it would hold again if it came back, which nobody holds now. Only of dead letters.
    pub unique_key: Option<String>,
}
