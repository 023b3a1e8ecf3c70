//! The one query that is put together at run time: a list of jobs by whatever was asked for.

use serde::Serialize;

use super::JobFilter;
use super::row::JOB_COLUMNS;
use crate::domain::{JobId, State};

/// Every live job stands in one of these small tables; `jobs` itself has no index on the state.
const LIVE_IDS: &str =
    "select job_id from ready union all select job_id from later union all select job_id from leases";

/// A value for a placeholder.
pub(super) enum Bind {
    Text(String),
    Integer(i64),
}

impl Bind {
    fn of_list(list: &[impl Serialize]) -> Self {
        Self::Text(serde_json::to_string(list).expect("texts and ids"))
    }
}

/// How a database writes what the two write differently. Each is given a placeholder.
pub(super) struct Dialect {
    pub placeholder: fn(usize) -> String,
    /// An id, bound as text.
    pub id: fn(&str) -> String,
    /// An instant, bound as milliseconds since the epoch.
    pub instant: fn(&str) -> String,
    /// The texts of a JSON array, as a list to look a text up in.
    pub texts: fn(&str) -> String,
    /// The same for ids.
    pub ids: fn(&str) -> String,
}

/// The query, with its values in the order of their placeholders.
pub(super) fn query(filter: &JobFilter, limit: u32, dialect: &Dialect) -> (String, Vec<Bind>) {
    // Failed jobs stand in a table of their own, in the order of their ids, by queue: `jobs` has no index on the state.
    let only_failed = !filter.states.is_empty() && filter.states.iter().all(|state| *state == State::Failed);
    let (table, source) = match filter.error_code.is_some() || only_failed {
        true => ("dead", "dead join jobs on jobs.job_id = dead.job_id"),
        false => ("jobs", "jobs"),
    };
    let mut sql = format!("select {JOB_COLUMNS} from {source} where true");
    let mut binds = Vec::new();
    let mut bind = |value: Bind| {
        binds.push(value);
        (dialect.placeholder)(binds.len())
    };
    let code: Vec<String> = filter.error_code.iter().cloned().collect();
    for (table, column, values) in [
        (table, "queue", &filter.of.queues),
        ("jobs", "kind", &filter.of.kinds),
        ("jobs", "subject", &filter.of.subjects),
        ("dead", "error_code", &code),
    ] {
        match values.as_slice() {
            [] => {}
            [value] => sql += &format!(" and {table}.{column} = {}", bind(Bind::Text(value.clone()))),
            // One parameter, however many there are: the statement stays the same.
            several => sql += &format!(" and {table}.{column} in {}", (dialect.texts)(&bind(Bind::of_list(several)))),
        }
    }
    if let Some(jobs) = &filter.of.jobs {
        sql += &format!(" and {table}.job_id in {}", (dialect.ids)(&bind(Bind::of_list(jobs))));
    }
    if !filter.states.is_empty() {
        // Our own words: nothing of the caller's goes into the text.
        let words: Vec<String> = filter.states.iter().map(|state| format!("'{state}'")).collect();
        sql += &format!(" and jobs.state in ({})", words.join(", "));
    }
    let is_few = !filter.of.subjects.is_empty() || filter.of.jobs.is_some();
    if filter.active && is_few {
        sql += " and jobs.finished_at is null";
    } else if filter.active {
        sql += &format!(" and jobs.job_id in ({LIVE_IDS})");
    }
    if let Some(after) = filter.active_or_finished_after {
        let instant = bind(Bind::Integer(after.as_millis()));
        let instant = (dialect.instant)(&instant);
        sql += &match is_few {
            true => format!(" and (jobs.finished_at is null or jobs.finished_at > {instant})"),
            false => format!(
                " and jobs.job_id in ({LIVE_IDS} union all select job_id from jobs where finished_at > {instant})"
            ),
        };
    }
    if let Some(after) = filter.updated_after {
        let instant = bind(Bind::Integer(after.as_millis()));
        sql += &format!(" and jobs.updated_at > {}", (dialect.instant)(&instant));
    }
    if let Some(after) = filter.created_after {
        // Ids grow with time: the primary key leads to the place, the column decides.
        let lowest = bind(Bind::Text(JobId::lowest_at(after).to_string()));
        let instant = bind(Bind::Integer(after.as_millis()));
        sql += &format!(
            " and {table}.job_id >= {} and jobs.created_at > {}",
            (dialect.id)(&lowest),
            (dialect.instant)(&instant)
        );
    }
    if let Some(after) = filter.finished_after {
        let instant = bind(Bind::Integer(after.as_millis()));
        sql += &format!(" and jobs.finished_at > {}", (dialect.instant)(&instant));
    }
    if let Some(before) = filter.before {
        let before = bind(Bind::Text(before.to_string()));
        sql += &format!(" and {table}.job_id < {}", (dialect.id)(&before));
    }
    sql += &format!(" order by {table}.job_id desc limit {}", bind(Bind::Integer(i64::from(limit))));
    (sql, binds)
}
