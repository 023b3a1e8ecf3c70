use serde_json::json;

use super::*;
use crate::domain::{Limits, NewEvent, Spec, Timestamp, rules};

/// A tracked job and `n` log events after its first two.
fn log(n: usize, text_bytes: usize) -> (Vec<Job>, Vec<Event>) {
    let at = Timestamp::from_millis(1_800_000_000_000);
    let limits = Limits::default();
    let spec = Spec::parse(json!({"kind": "k", "tracked": true}), &limits).expect("a right spec");
    let mut step =
        rules::enqueue(crate::domain::JobId::mint(at, [3; 10]), &spec, &crate::domain::Defaults::default(), at);
    let mut jobs = vec![step.record.job.clone()];
    for i in 0..n {
        let event = json!({"type": "log", "data": {"message": format!("{i}{}", "x".repeat(text_bytes))}});
        let event = NewEvent::parse(event, &limits).expect("a right event");
        rules::append(&mut step, &[event], [0; 32], at, 0.5, &limits).expect("a tracked job runs");
        jobs.push(step.record.job.clone());
    }
    (jobs, step.events)
}

fn ids(bytes: &Bytes) -> Vec<u64> {
    let text = std::str::from_utf8(bytes).expect("frames are text");
    text.lines().filter_map(|line| line.strip_prefix("id: ")).map(|id| id.parse().expect("a seq")).collect()
}

#[test]
fn a_channel_sequences_whatever_order_commits_are_published_in() {
    let (jobs, events) = log(5, 0);
    let channel = Channel::new();
    assert!(matches!(channel.read(0, false), Reading::Behind), "nothing is known yet");
    channel.push(&jobs[1], &events[2..3]);
    assert!(matches!(channel.read(0, false), Reading::Behind));
    let Reading::Frames { bytes, to: 3 } = channel.read(2, false) else { panic!("seq 3 is in the ring") };
    assert_eq!(ids(&bytes), [3]);
    channel.push(&jobs[1], &events[2..3]);
    channel.fill(jobs[0].clone(), &events[..2], None);
    assert!(matches!(channel.read(3, false), Reading::UpToDate), "what is late or doubled is dropped");
    channel.push(&jobs[3], &events[4..5]);
    assert!(matches!(channel.read(3, false), Reading::Behind), "a gap is filled from the store");
    channel.push(&jobs[4], &events[5..6]);
    let Reading::Frames { bytes, to: 6 } = channel.read(4, false) else { panic!("5 and 6 are in the ring") };
    assert_eq!(ids(&bytes), [5, 6]);
    channel.remove();
    assert!(matches!(channel.read(6, false), Reading::Removed));
}

#[test]
fn a_ring_is_bounded_and_a_burst_ends_on_a_frame() {
    let (jobs, events) = log(600, 4_000);
    let channel = Channel::new();
    for (job, event) in jobs[1..].iter().zip(&events[2..]) {
        channel.push(job, std::slice::from_ref(event));
    }
    assert!(channel.lock().ring_bytes <= RING_BYTES);
    assert!(matches!(channel.read(2, false), Reading::Behind));
    let mut cursor = channel.lock().ring.front().expect("the ring is not empty").seq - 1;
    let mut seen = Vec::new();
    while let Reading::Frames { bytes, to } = channel.read(cursor, false) {
        assert!(bytes.ends_with(b"\n\n") && bytes.len() < 2 * BURST_BYTES);
        seen.extend(ids(&bytes));
        cursor = to;
    }
    assert_eq!(seen, (seen[0]..=602).collect::<Vec<_>>());
}

#[test]
fn readers_at_one_cursor_share_one_join() {
    let (jobs, events) = log(3, 0);
    let channel = Channel::new();
    channel.fill(jobs[3].clone(), &events, None);
    let pointer = |unnamed| match channel.read(1, unnamed) {
        Reading::Frames { bytes, .. } => bytes.as_ptr(),
        other => panic!("{other:?}"),
    };
    assert_eq!(pointer(false), pointer(false));
    assert_ne!(pointer(false), pointer(true));
}

#[test]
fn the_store_is_told_who_watches_when_it_begins_now_and_then_and_when_it_ends() {
    let (jobs, events) = log(0, 0);
    let channel = Arc::new(Channel::new());
    let begun = Instant::now();
    let at = |seconds| begun + Duration::from_secs(seconds);
    drop(Subscription::new(channel.clone(), true));
    assert_eq!(channel.audience_news(at(0)), None, "whether it matters is not known yet");
    channel.fill(jobs[0].clone(), &events, Some(500));
    assert_eq!(channel.audience_news(at(0)), Some(500), "somebody came and went");
    assert_eq!(channel.audience_news(at(0)), None);
    let watcher = Subscription::new(channel.clone(), true);
    let _runner = Subscription::new(channel.clone(), false);
    assert_eq!(channel.audience_news(at(1)), Some(6_500));
    assert_eq!(channel.audience_news(at(2)), None);
    assert_eq!(channel.audience_news(at(4)), Some(6_500));
    drop(watcher);
    assert_eq!(channel.audience_news(at(5)), Some(500), "a runner who waits is no watcher");
    assert_eq!(channel.audience_news(at(6)), None);
    channel.glimpse();
    assert_eq!(channel.audience_news(at(1)), Some(6_500));
    assert_eq!(channel.audience_news(at(12)), Some(500), "a glimpse counts for ten seconds");
}
