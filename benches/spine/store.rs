//! The measure of appends: the same rows, batched by hand, with nothing in between.

use std::time::{Duration, Instant};

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, Executor, PgConnection, SqliteConnection};

use crate::EVENT;
use crate::server::Store;

enum Raw {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

impl Raw {
    async fn open(store: &Store, url: &str) -> Self {
        match store {
            Store::Sqlite => {
                let options: SqliteConnectOptions = url.parse().expect("a SQLite URL");
                let options = options
                    .create_if_missing(true)
                    .journal_mode(SqliteJournalMode::Wal)
                    .synchronous(SqliteSynchronous::Full);
                let mut connection = options.connect().await.expect("the file opens");
                let schema = "create table jobs (id integer primary key, seq integer, progress text);
                    create table events (id integer, seq integer, data text, primary key (id, seq)) without rowid";
                connection.execute(schema).await.expect("tables can be made");
                Self::Sqlite(connection)
            }
            Store::Postgres(_) => {
                let mut connection = PgConnection::connect(url).await.expect("Postgres answers");
                let schema =
                    "create table jobs (id bigint primary key, seq bigint, progress json) with (fillfactor = 70);
                    create table events (id bigint, seq bigint, data json, primary key (id, seq))";
                connection.execute(schema).await.expect("tables can be made");
                Self::Postgres(connection)
            }
        }
    }

    async fn insert_jobs(&mut self, jobs: i64) {
        match self {
            Self::Sqlite(connection) => sqlx::query("insert into jobs select value, 0, null from json_each(?)")
                .bind(serde_json::to_string(&(1..=jobs).collect::<Vec<_>>()).expect("numbers"))
                .execute(&mut *connection)
                .await
                .map(drop),
            Self::Postgres(connection) => {
                sqlx::query("insert into jobs select i, 0, null from generate_series(1, $1) as i")
                    .bind(jobs)
                    .execute(&mut *connection)
                    .await
                    .map(drop)
            }
        }
        .expect("jobs can be inserted");
    }

    /// Appends `array` events to each of `jobs` jobs, in one transaction.
    async fn append(&mut self, jobs: i64, array: i64, seq: i64) {
        match self {
            Self::Sqlite(connection) => {
                let mut transaction = connection.begin().await.expect("a transaction");
                let rows: Vec<(i64, i64)> = (1..=jobs).flat_map(|id| (1..=array).map(move |n| (id, seq + n))).collect();
                let ids: Vec<i64> = (1..=jobs).collect();
                sqlx::query("update jobs set seq = ?, progress = ? where id in (select value from json_each(?))")
                    .bind(seq + array)
                    .bind(EVENT)
                    .bind(serde_json::to_string(&ids).expect("numbers"))
                    .execute(&mut *transaction)
                    .await
                    .expect("jobs can be updated");
                sqlx::query("insert into events select value ->> 0, value ->> 1, ?2 from json_each(?1)")
                    .bind(serde_json::to_string(&rows).expect("numbers"))
                    .bind(EVENT)
                    .execute(&mut *transaction)
                    .await
                    .expect("events can be inserted");
                transaction.commit().await.expect("a commit");
            }
            Self::Postgres(connection) => {
                let (mut ids, mut seqs) = (Vec::new(), Vec::new());
                for id in 1..=jobs {
                    for n in 1..=array {
                        ids.push(id);
                        seqs.push(seq + n);
                    }
                }
                sqlx::query(
                    "with updated as (update jobs set seq = $4, progress = $5::json where id = any($1))
                     insert into events select id, seq, data::json
                     from unnest($1::bigint[], $2::bigint[], $3::text[]) as e (id, seq, data)",
                )
                .bind(&ids)
                .bind(&seqs)
                .bind(vec![EVENT; ids.len()])
                .bind(seq + array)
                .bind(EVENT)
                .execute(&mut *connection)
                .await
                .expect("rows can be written");
            }
        }
    }
}

/// Events per second when `jobs` appends of `array` events each always go together.
pub async fn raw_rate(store: &Store, jobs: usize, array: usize, time: Duration) -> f64 {
    let (_scratch, url) = store.fresh().await;
    let mut raw = Raw::open(store, &url).await;
    raw.insert_jobs(jobs as i64).await;
    let (begun, mut rounds) = (Instant::now(), 0);
    while begun.elapsed() < time {
        raw.append(jobs as i64, array as i64, rounds * array as i64).await;
        rounds += 1;
    }
    (rounds as usize * jobs * array) as f64 / begun.elapsed().as_secs_f64()
}

/// How long single commits take, one event each.
pub async fn bare_commits(store: &Store, commits: usize) -> Vec<Duration> {
    let (_scratch, url) = store.fresh().await;
    let mut raw = Raw::open(store, &url).await;
    raw.insert_jobs(1).await;
    let mut times = Vec::new();
    for seq in 0..commits {
        tokio::time::sleep(Duration::from_millis(5)).await;
        let begun = Instant::now();
        raw.append(1, 1, seq as i64).await;
        times.push(begun.elapsed());
    }
    times
}
