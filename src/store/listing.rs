//! The one query that is put together at run time: a list of jobs by whatever was asked for.

use serde::Serialize;

use super::JobFilter;
use super::row::JOB_COLUMNS;
use crate::domain::{JobId, State};

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
    if filter.active {
        sql += " and jobs.finished_at is null";
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
    let end = format!(" order by {table}.job_id desc limit {}", bind(Bind::Integer(i64::from(limit))));
    let Some(after) = filter.active_or_finished_after else { return (sql + &end, binds) };
    // Each half has an index of its own. The instant is written out: how far it reaches back decides which index is the
    // better one, and a statement that is planned for any instant cannot know.
    let instant = (dialect.instant)(&after.as_millis().to_string());
    let live = format!("{sql} and jobs.finished_at is null{end}");
    let late = format!("{sql} and jobs.finished_at > {instant}{end}");
    let both = format!("select * from ({live}) as live union all select * from ({late}) as late");
    (both + &end.replace(&format!("{table}."), ""), binds)
}
