//! Runs as the logs tell of them: the judge of limits, which looks at every moment and not at samples.

use serde_json::Value;

use super::job::{instant, number, text};

/// One run: from its `started` to the event that ended it.
#[derive(Debug, Clone)]
pub struct Run {
    pub from: i64,
    /// `i64::MAX` while it goes on.
    pub to: i64,
    pub run: u64,
}

/// The runs of one job. Each must begin after the one before it has ended, with a greater number.
#[track_caller]
pub fn runs(log: &[Value]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for event in log {
        let at = instant(&event["at"]);
        match text(&event["type"]) {
            "started" => {
                let run = number(&event["data"]["run"]);
                let fits = runs.last().is_none_or(|last| last.to != i64::MAX && last.run < run);
                assert!(fits, "two runs at once, or a number that fell: {log:?}");
                runs.push(Run { from: at, to: i64::MAX, run });
            }
            "completed" | "failed" | "cancelled" | "retrying" | "released" | "expired" => {
                if let Some(last) = runs.last_mut().filter(|last| last.to == i64::MAX) {
                    last.to = at;
                }
            }
            _ => {}
        }
    }
    runs
}

/// The largest number of runs that were on at one moment. What ends in the millisecond in which another begins makes
/// room for it.
pub fn most_at_once<'a>(runs: impl IntoIterator<Item = &'a Run>) -> usize {
    let mut turns: Vec<(i64, i64)> = runs.into_iter().flat_map(|run| [(run.from, 1), (run.to, -1)]).collect();
    turns.sort_unstable();
    let (mut now, mut most) = (0_i64, 0);
    for (_, turn) in turns {
        now += turn;
        most = most.max(now);
    }
    most as usize
}

/// The largest number of starts in any window `[t, t + width)`, in milliseconds.
pub fn most_in_a_window(starts: &[i64], width: i64) -> usize {
    let mut starts = starts.to_vec();
    starts.sort_unstable();
    let mut first = 0;
    let windows = starts.iter().enumerate().map(|(last, at)| {
        while starts[first] <= at - width {
            first += 1;
        }
        last - first + 1
    });
    windows.max().unwrap_or(0)
}

#[test]
fn the_judge_sees_what_it_must_see() {
    let run = |from, to| Run { from, to, run: 1 };
    assert_eq!(most_at_once(&[run(0, 5), run(5, 9), run(9, 9)]), 1);
    assert_eq!(most_at_once(&[run(0, 5), run(4, 9), run(1, i64::MAX), run(20, i64::MAX)]), 3);
    assert_eq!(most_in_a_window(&[0, 10, 20, 30, 99, 100], 31), 4);
    assert_eq!(most_in_a_window(&[0, 10, 20, 30, 99, 100], 10), 2);
    assert_eq!(most_in_a_window(&[], 10), 0);
}
