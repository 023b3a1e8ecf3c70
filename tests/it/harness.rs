//! What every promise's tests share: the real binary as a child process, HTTP and SSE clients that hide nothing,
//! and a judge for logs. Nothing here imports the package: the suite knows Milepost by its contract alone.

mod authority;
mod fold;
mod http;
mod job;
mod lane;
mod lossy;
mod queue;
mod random;
mod runs;
mod server;
mod session;
mod sse;
mod stream;
mod upstream;

pub use authority::Authority;
pub use fold::{assert_covers, fold, plain};
pub use http::{Answer, Connection, Request};
pub use job::{Job, Posted, assert_problem, instant, number, pairs, text};
pub use lane::{Lane, Lease, SWEEP, assert_folds, assert_lost, keys, merged, now_ms, tries};
pub use lossy::lossy;
pub use queue::{Queue, Worker};
pub use random::Random;
pub use runs::{Run, most_at_once, most_in_a_window, runs};
pub use server::{Directory, Server, Store, milepost, run_to_end};
pub use session::Session;
pub use sse::{Frame, Parser};
pub use stream::Stream;
pub use upstream::{Received, Script, Upstream};

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Long enough for a machine under full load, short enough to name the request that hangs.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Makes `sqlite::name` and `postgres::name` of each `async fn name(store: Store)` beside it.
/// A case that is left out of the list is an unused function, and the compiler says so.
macro_rules! on_both_stores {
    ($($name:ident),+ $(,)?) => {
        mod sqlite {
            $(#[test] fn $name() { $crate::harness::run(super::$name($crate::harness::Store::Sqlite)); })+
        }
        mod postgres {
            $(#[test] fn $name() { $crate::harness::run(super::$name($crate::harness::Store::Postgres)); })+
        }
    };
}
pub(crate) use on_both_stores;

/// Runs one test on a runtime of its own; a test that hangs fails.
pub fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime needs nothing but threads");
    runtime.block_on(async {
        within(Duration::from_secs(180), "the whole test", test).await;
    });
}

/// The future's answer, or a panic that names what did not happen.
pub async fn within<T>(limit: Duration, what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(limit, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what} did not happen within {limit:?}"),
    }
}

/// Asks again until the answer is `Some`, at most `limit` long.
pub async fn eventually<T, F: Future<Output = Option<T>>>(
    limit: Duration,
    what: &str,
    mut ask: impl FnMut() -> F,
) -> T {
    within(limit, what, async {
        loop {
            if let Some(value) = ask().await {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
}

/// A name that no other test of this process uses: tests that share a server share no queue, key or subject.
pub fn unique(stem: &str) -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    format!("{stem}-{}", COUNT.fetch_add(1, Ordering::Relaxed))
}
