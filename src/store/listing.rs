//! The one query that is put together at run time: a list of jobs by whatever was asked for.

use super::JobFilter;
use super::row::JOB_COLUMNS;
use crate::domain::{JobId, State};

/// A value for a placeholder.
pub(super) enum Bind {
    Text(String),
    Integer(i64),
}

/// How a database writes what the two write differently. Each is given a placeholder.
pub(super) struct Dialect {
    pub placeholder: fn(usize) -> String,
    /// An id, bound as text.
    pub id: fn(&str) -> String,
    /// An instant, bound as milliseconds since the epoch.
    pub instant: fn(&str) -> String,
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
    for (table, column, value) in [
        (table, "queue", &filter.queue),
        ("jobs", "kind", &filter.kind),
        ("jobs", "subject", &filter.subject),
        ("dead", "error_code", &filter.error_code),
    ] {
        if let Some(value) = value {
            sql += &format!(" and {table}.{column} = {}", bind(Bind::Text(value.clone())));
        }
    }
    if !filter.states.is_empty() {
        // Our own words: nothing of the caller's goes into the text.
        let words: Vec<String> = filter.states.iter().map(|state| format!("'{state}'")).collect();
        sql += &format!(" and jobs.state in ({})", words.join(", "));
    }
    if filter.active && filter.subject.is_some() {
        sql += " and jobs.state in ('scheduled', 'queued', 'running', 'retrying')";
    } else if filter.active {
        // Every live job stands in one of these small tables; `jobs` itself has no index on the state.
        sql += " and jobs.job_id in (select job_id from ready union all select job_id from later \
                union all select job_id from leases)";
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
