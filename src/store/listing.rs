//! The one query that is put together at run time: a list of jobs by whatever was asked for.

use super::JobFilter;
use super::row::JOB_COLUMNS;
use crate::domain::JobId;

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
    let mut sql = format!("select {JOB_COLUMNS} from jobs where true");
    let mut binds = Vec::new();
    let mut bind = |value: Bind| {
        binds.push(value);
        (dialect.placeholder)(binds.len())
    };
    for (column, value) in [("queue", &filter.queue), ("kind", &filter.kind), ("subject", &filter.subject)] {
        if let Some(value) = value {
            sql += &format!(" and {column} = {}", bind(Bind::Text(value.clone())));
        }
    }
    if !filter.states.is_empty() {
        // Our own words: nothing of the caller's goes into the text.
        let words: Vec<String> = filter.states.iter().map(|state| format!("'{state}'")).collect();
        sql += &format!(" and state in ({})", words.join(", "));
    }
    if filter.active && filter.subject.is_some() {
        sql += " and state in ('scheduled', 'queued', 'running', 'retrying')";
    } else if filter.active {
        // Every live job stands in one of these small tables; `jobs` itself has no index on the state.
        sql += " and job_id in (select job_id from ready union all select job_id from later \
                union all select job_id from leases)";
    }
    if let Some(after) = filter.created_after {
        // Ids grow with time: the primary key leads to the place, the column decides.
        let lowest = bind(Bind::Text(JobId::lowest_at(after).to_string()));
        let instant = bind(Bind::Integer(after.as_millis()));
        sql += &format!(" and job_id >= {} and created_at > {}", (dialect.id)(&lowest), (dialect.instant)(&instant));
    }
    if let Some(after) = filter.finished_after {
        let instant = bind(Bind::Integer(after.as_millis()));
        sql += &format!(" and finished_at > {}", (dialect.instant)(&instant));
    }
    if let Some(before) = filter.before {
        let before = bind(Bind::Text(before.to_string()));
        sql += &format!(" and job_id < {}", (dialect.id)(&before));
    }
    sql += &format!(" order by job_id desc limit {}", bind(Bind::Integer(i64::from(limit))));
    (sql, binds)
}
