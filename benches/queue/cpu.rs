//! Who spends the CPU: whoever does the jobs, the gateway between, the database below.

use std::ops::Sub;
use std::time::Duration;

use crate::server::cpu_of;

/// CPU time of each side.
#[derive(Clone, Copy, Default)]
pub struct Cpu {
    /// The workers: this process, or the peer's.
    pub client: Duration,
    /// The gateway; peers have none.
    pub gateway: Duration,
    /// Postgres with all its processes, or Redis; SQLite is within the gateway.
    pub database: Duration,
}

impl Sub for Cpu {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            client: self.client - before.client,
            gateway: self.gateway - before.gateway,
            database: self.database - before.database,
        }
    }
}

impl Cpu {
    /// A table's three columns: CPU-seconds per thousand jobs.
    pub fn columns(&self, jobs: usize) -> String {
        let per_thousand = |time: Duration| match time.is_zero() {
            true => "–".to_owned(),
            false => format!("{:.2}", time.as_secs_f64() / jobs as f64 * 1e3),
        };
        format!("{} | {} | {}", per_thousand(self.client), per_thousand(self.gateway), per_thousand(self.database))
    }
}

/// CPU time of a process, of its children, and of those that have ended.
pub fn cpu_of_family(parent: u32) -> Duration {
    let processes = std::fs::read_dir("/proc").expect("Linux lists its processes").flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut ticks = 0;
    for id in ids {
        // Gone since the directory was read: its time is its parent's by now.
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{id}/stat")) else { continue };
        let (_, after_name) = stat.rsplit_once(')').expect("the name is in parentheses");
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        if fields[1] == parent.to_string() && id != parent {
            ticks += fields[11..13].iter().map(|field| field.parse::<u64>().expect("ticks")).sum::<u64>();
        }
        if id == parent {
            ticks += fields[13..15].iter().map(|field| field.parse::<u64>().expect("ticks")).sum::<u64>();
        }
    }
    // USER_HZ is 100 wherever Linux runs.
    Duration::from_millis(ticks * 10) + cpu_of(parent)
}
