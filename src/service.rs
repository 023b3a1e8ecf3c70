//! What Milepost does: one method per wish, the same for every way in.
//!
//! [`Gateway`] is the face of this layer. Writes go through the `journal` (group commit), reads of one job's log
//! through [`Follow`], whatever the transport, of many jobs' states through [`Gateway::feed`]; [`maintenance`] lets time pass.

mod backlog;
mod catch_up;
mod claims;
mod defaults;
mod enqueue;
mod error;
mod feed;
mod follow;
mod gateway;
mod heartbeat;
mod journal;
pub mod maintenance;
mod queues;
mod reads;
mod signals;
mod workers;

pub use claims::Delivery;
pub use enqueue::Enqueued;
pub use error::ServiceError;
pub use feed::{Fate, FeedCursor, FeedStep};
pub use follow::{Cursor, Follow, Opening, Reader, ResetReason, Step};
pub use gateway::{Gateway, Settings};
pub use journal::{Appended, CancelAnswer};
pub use queues::QueueReport;
pub use reads::{EventPage, JobPage};
pub use signals::Told;

pub use crate::store::{Idempotency, RequestKey, Taken, Worker};
