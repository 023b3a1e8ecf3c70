//! Lets time pass: the sweep (what is overdue becomes an ordinary event), retention, housekeeping, the store's pulse.

use std::time::{Duration, Instant};

use tracing::{debug, info, warn};

use super::catch_up::Found;
use super::journal::Command;
use super::{Gateway, ServiceError};
use crate::bus::News;
use crate::domain::JobId;

/// The sweep runs this often, with jitter, so that nodes do not sweep in step.
const SWEEP_MS: std::ops::Range<u64> = 350..650;

/// Jobs per sweep and per removal: a backlog is worked off in steps that leave room for everybody else.
const PER_SWEEP: u32 = 500;
const PER_REMOVAL: u32 = 200;

/// A sweep that finds a full hand goes on at once, this often at most: the pulse must not wait for long.
const SWEEPS_IN_A_ROW: usize = 10;

/// How often workers that listen are reminded, and what other nodes wrote is looked for: what was lost, or went through
/// another node, is at most so late.
const REMIND: Duration = Duration::from_secs(2);

/// How often partitions and old keys are looked after.
const TIDY: Duration = Duration::from_secs(15 * 60);

/// Runs until the gateway drains. Trouble of the store is logged once per kind and tried again.
pub async fn run(gateway: Gateway) {
    let mut drained = std::pin::pin!(gateway.drained());
    let (mut tidied, mut retired, mut probed, mut reminded) =
        (Instant::now(), Instant::now(), Instant::now(), Instant::now());
    // Often enough that a short --keep is honoured, seldom enough to cost nothing.
    let retire_every = Duration::from_millis((gateway.inner.settings.keep_ms / 10).clamp(500, 60_000));
    let mut found = Found::default();
    let mut failing = false;
    loop {
        tokio::select! {
            () = &mut drained => return,
            () = tokio::time::sleep(Duration::from_millis(rand::random_range(SWEEP_MS))) => {}
        }
        gateway.inner.bus.forget_idle(Instant::now());
        let mut pass = async || {
            if probed.elapsed() >= Duration::from_secs(1) {
                gateway.inner.store.probe().await?;
                gateway.read_defaults().await?;
                gateway.store_statistics().await?;
                gateway.note_workers().await?;
                probed = Instant::now();
            }
            let watched = gateway.inner.bus.audience_news(Instant::now());
            if !watched.is_empty() {
                gateway.inner.store.note_watched(&watched).await?;
            }
            if reminded.elapsed() >= REMIND {
                gateway.remind_workers().await?;
                gateway.catch_up(&mut found).await?;
                reminded = Instant::now();
            }
            gateway.sweep().await?;
            if retired.elapsed() >= retire_every {
                gateway.retire().await?;
                retired = Instant::now();
            }
            if tidied.elapsed() >= TIDY {
                gateway.inner.store.tidy(gateway.inner.settings.keep_ms).await?;
                tidied = Instant::now();
            }
            Ok::<(), ServiceError>(())
        };
        match pass().await {
            Ok(()) if failing => {
                info!("the store answers again");
                failing = false;
            }
            Err(error) if !failing => {
                warn!(%error, "maintenance waits for the store");
                failing = true;
            }
            Ok(()) | Err(_) => {}
        }
    }
}

impl Gateway {
    /// Turns whatever is overdue into events.
    async fn sweep(&self) -> Result<(), ServiceError> {
        for queue in self.inner.store.promote().await? {
            self.inner.bus.queues().note(&queue, News::Work);
        }
        for _ in 0..SWEEPS_IN_A_ROW {
            let overdue = self.inner.store.overdue(PER_SWEEP).await?;
            let swept = overdue.iter().map(|id| self.sweep_one(*id));
            for swept in futures_util::future::join_all(swept).await {
                swept?;
            }
            if overdue.len() < PER_SWEEP as usize {
                break;
            }
        }
        Ok(())
    }

    pub(super) async fn sweep_one(&self, id: JobId) -> Result<(), ServiceError> {
        debug!(job.id = %id, "an instant has passed for this job");
        self.inner.journal.submit(|answer| Command::Sweep { id, answer }).await
    }

    /// Removes jobs that ended longer ago than they are kept.
    async fn retire(&self) -> Result<(), ServiceError> {
        loop {
            let old = self.inner.store.retired(self.inner.settings.keep_ms, PER_REMOVAL).await?;
            if old.is_empty() {
                return Ok(());
            }
            let removed = self.inner.store.remove(&old).await?;
            self.inner.bus.publish(&removed);
            info!(jobs = removed.removed().len(), "removed jobs that ended longer ago than they are kept");
            if old.len() < PER_REMOVAL as usize || removed.removed().is_empty() {
                return Ok(());
            }
        }
    }
}
