//! A held heartbeat: a runner's sign of life that is answered when there is something to say to it.

use std::time::{Duration, Instant};

use super::{Appended, Gateway, Reader, ServiceError};
use crate::domain::JobId;

impl Gateway {
    /// Holds the answer to a heartbeat until the runner is asked to stop, the gateway drains, or `time` is over; the
    /// job does not fall silent meanwhile. Errs as soon as the run is over.
    pub async fn hold(
        &self,
        id: JobId,
        run: Option<u64>,
        mut appended: Appended,
        time: Duration,
    ) -> Result<Appended, ServiceError> {
        let until = Instant::now() + time;
        let renew_every = appended.silence_ms.map_or(time, |ms| Duration::from_millis((ms / 3).max(1)));
        while !appended.cancel_requested && Instant::now() < until && !self.is_draining() {
            let renew_at = Instant::now() + renew_every;
            let mut seq = appended.seq;
            while Instant::now() < renew_at.min(until) && !self.is_draining() {
                let rest = renew_at.min(until).saturating_duration_since(Instant::now());
                let job = self.changed_job(id, seq, rest, Reader::Runner).await?;
                if !job.is_in_run(run) {
                    break;
                }
                if job.cancel_requested {
                    return Ok(Appended { seq: job.seq, cancel_requested: true, ..appended });
                }
                seq = job.seq;
            }
            appended = self.append(id, run, Vec::new(), [0; 32], None).await?;
        }
        Ok(appended)
    }
}
