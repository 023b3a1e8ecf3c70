use serde_json::json;

use super::*;
use crate::domain::{Defaults, Limits, Timestamp, rules};

/// A job in its first state, `n` events later.
fn job(n: u8, seq: u64) -> Job {
    let spec = json!({"kind": "k", "queue": format!("q{}", n % 2)});
    let spec = crate::domain::Spec::parse(spec, &Limits::default()).expect("a spec");
    let id = JobId::mint(Timestamp::from_millis(1), [n; 10]);
    let mut job = rules::enqueue(id, &spec, &Defaults::default(), Timestamp::from_millis(1)).record.job;
    job.seq = seq;
    job
}

fn publish(feeds: &Feeds, jobs: &[(u8, u64)]) {
    feeds.publish(jobs.iter().map(|(n, seq)| Change::State(Shown::of(job(*n, *seq)))));
}

fn seqs(news: News) -> Vec<(JobId, u64)> {
    let News::Changes(changes, _) = news else { panic!("it could keep up") };
    let seq = |change: &Change| match change {
        Change::State(shown) => (shown.job.id, shown.job.seq),
        Change::Gone(job) => (job.id, 0),
    };
    changes.iter().map(seq).collect()
}

#[test]
fn a_slow_reader_gets_the_newest_state_of_each_job_in_order() {
    let feeds = Arc::new(Feeds::default());
    let (mut reader, _) = feeds.subscribe(Interest::default(), None);
    publish(&feeds, &[(1, 1), (2, 1), (1, 2)]);
    publish(&feeds, &[(1, 4), (1, 3)]);
    assert_eq!(seqs(reader.take()), [(job(2, 1).id, 1), (job(1, 4).id, 4)], "and none that was overtaken");
    assert_eq!(seqs(reader.take()), []);
}

#[test]
fn who_comes_back_gets_what_it_missed() {
    let feeds = Arc::new(Feeds::default());
    let (reader, _) = feeds.subscribe(Interest { queues: vec!["q1".to_owned()], ..Interest::default() }, None);
    publish(&feeds, &[(1, 1), (2, 1)]);
    let since = reader.position();
    drop(reader);
    publish(&feeds, &[(3, 1), (4, 1)]);
    let (mut reader, is_known) =
        feeds.subscribe(Interest { queues: vec!["q1".to_owned()], ..Interest::default() }, Some(since));
    assert!(is_known);
    assert_eq!(seqs(reader.take()), [(job(1, 1).id, 1), (job(3, 1).id, 1)]);
    let (mut reader, is_known) = feeds.subscribe(Interest::default(), Some(reader.position()));
    assert!(is_known && seqs(reader.take()).is_empty());
    let (_, is_known) = feeds.subscribe(Interest::default(), Some(1_000));
    assert!(!is_known, "nothing has come that far");
}

#[test]
fn what_is_not_kept_any_more_is_not_known() {
    let feeds = Arc::new(Feeds::default());
    let (reader, _) = feeds.subscribe(Interest::default(), None);
    for n in 0..=KEPT as u64 {
        publish(&feeds, &[(1, n)]);
    }
    assert!(!feeds.subscribe(Interest::default(), Some(0)).1);
    let (other, is_known) = feeds.subscribe(Interest::default(), Some(1));
    assert!(is_known);
    let since = other.position();
    drop((reader, other));
    feeds.forget_idle(Instant::now());
    assert!(feeds.is_on(), "not yet");
    feeds.forget_idle(Instant::now() + LINGER);
    assert!(!feeds.is_on());
    assert!(!feeds.subscribe(Interest::default(), Some(since)).1, "something may have been missed");
}

#[test]
fn a_reader_far_behind_is_told_so_and_goes_on() {
    let feeds = Arc::new(Feeds::default());
    let (mut reader, _) = feeds.subscribe(Interest::default(), None);
    let many = (0..=INBOX).map(|n| {
        let mut job = job(1, 1);
        job.id = JobId::mint(Timestamp::from_millis(n as i64), [1; 10]);
        Change::State(Shown::of(job))
    });
    feeds.publish(many);
    assert!(matches!(reader.take(), News::Behind(position) if position == INBOX as u64 + 1));
    publish(&feeds, &[(1, 1)]);
    assert_eq!(seqs(reader.take()).len(), 1);
}
