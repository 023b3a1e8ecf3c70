//! Statements that cross to the connection's thread together.
//!
//! sqlx runs each SQLite connection on a thread of its own, and every statement sent to it costs two context switches,
//! more than most of ours cost to run. A write's statements rarely wait for what the one before them answered, only for
//! whether it did what it had to: so they go over as one text, and the first that did not ends the script.

use serde::Serialize;
use sqlx::sqlite::{SqliteArguments, SqliteConnection};
use sqlx::{Arguments, AssertSqlSafe, Either, Executor, Row};
use tokio_stream::StreamExt;

use crate::store::StoreError;

/// What a statement must have done for those after it to matter.
#[derive(Clone, Copy)]
enum Must {
    /// Whatever it does is right.
    Run,
    /// It changes so many rows.
    Change(u64),
    /// The one number that it selects is this.
    Select(i64),
}

/// Statements in the order in which they are to run. Their parameters are positional (`?`): each takes the next.
#[derive(Default)]
pub(super) struct Script {
    sql: String,
    arguments: SqliteArguments,
    musts: Vec<Must>,
}

impl Script {
    /// A statement whose only parameter is `rows` as a JSON array (its statement reads it by `jsonb_each`, which takes a row's fields out of it three times as fast as `json_each`,
    /// which writes the row as text for each of them); nothing, if there are none.
    pub fn run(&mut self, sql: &'static str, rows: &[impl Serialize]) {
        if !rows.is_empty() {
            self.push(sql, Must::Run, [json(rows)]);
        }
    }

    /// As [`Self::run`], but it must change a row for each of `rows`.
    pub fn change_each(&mut self, sql: &'static str, rows: &[impl Serialize]) {
        if !rows.is_empty() {
            self.push(sql, Must::Change(rows.len() as u64), [json(rows)]);
        }
    }

    /// A statement that selects one number, which must be `expected`.
    pub fn select(&mut self, sql: &'static str, expected: usize, arguments: impl IntoIterator<Item = String>) {
        self.push(sql, Must::Select(expected as i64), arguments);
    }

    fn push(&mut self, sql: &'static str, must: Must, arguments: impl IntoIterator<Item = String>) {
        self.sql.push_str(sql);
        self.sql.push_str(";\n");
        self.musts.push(must);
        for argument in arguments {
            self.arguments.add(argument).expect("text can be a parameter");
        }
    }

    /// Runs it inside the transaction that is open. `false`: a statement has not done what it must, and the transaction
    /// has to be rolled back; what those after it have done, and whether they could at all, is then of no interest.
    pub async fn play(self, connection: &mut SqliteConnection) -> Result<bool, StoreError> {
        if self.musts.is_empty() {
            return Ok(true);
        }
        // The statements are ours, only how many there are varies.
        let query = sqlx::query_with(AssertSqlSafe(self.sql), self.arguments);
        let mut results = connection.fetch_many(query);
        for must in self.musts {
            let mut selected = None;
            let changed = loop {
                match results.try_next().await? {
                    Some(Either::Right(row)) => selected = Some(row.try_get::<i64, _>(0)?),
                    Some(Either::Left(done)) => break done.rows_affected(),
                    None => return Err(StoreError::Unreadable("SQLite ended a script early".to_owned())),
                }
            };
            let holds = match must {
                Must::Run => true,
                Must::Change(rows) => changed == rows,
                Must::Select(number) => selected == Some(number),
            };
            if !holds {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Rows as one parameter.
pub(super) fn json(rows: &(impl Serialize + ?Sized)) -> String {
    serde_json::to_string(rows).expect("rows have string keys only")
}
