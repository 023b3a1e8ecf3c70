//! `milepost watch`: a job followed to its end, over whatever happens to the gateway meanwhile.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::Command;

use crate::cli::{milepost, milepost_at, start};
use crate::harness::{Store, number, run, text};

#[test]
fn each_end_has_its_exit_code_and_its_words() {
    run(async {
        let server = Store::Sqlite.shared().await;
        for (last, code, words) in [
            (json!({"type": "completed", "data": {"note": "41 pages"}}), 0, "completed and succeeded: 41 pages"),
            (
                json!({"type": "completed", "data": {"ok": false, "status": "empty"}}),
                3,
                "warning: completed, but without success (empty)",
            ),
            (json!({"type": "failed", "data": {"code": "quota", "message": "no more"}}), 4, "failed: no more (quota)"),
            (json!({"type": "cancelled", "data": {"reason": "why not"}}), 5, "cancelled: why not"),
        ] {
            let job = server.tracked().await;
            let mut live = milepost(&server, &["watch", &job.id]);
            live.prints("running").await;
            job.append(last.clone()).await;
            let ended = live.ended().await;
            assert_eq!(ended.code, code, "{last}");
            assert!(ended.stdout.contains(words), "{}", ended.stdout);
            let late = milepost(&server, &["watch", &job.id]).ended().await;
            assert_eq!(late.code, code, "a finished job, {last}");
        }
        let job = server.job(json!({"kind": "test", "ttl_ms": 1, "queue": server.own_queue()})).await;
        assert_eq!(milepost(&server, &["watch", &job.id]).ended().await.code, 6);
    });
}

#[test]
fn a_job_that_is_not_there_is_said_so() {
    run(async {
        let server = Store::Sqlite.shared().await;
        let ended = milepost(&server, &["watch", "0199c0de-0000-7000-8000-000000000001"]).ended().await;
        assert_eq!(ended.code, 7);
        assert!(ended.stderr.contains("job_not_found"), "{}", ended.stderr);
        assert_eq!(milepost(&server, &["watch", "../../etc"]).ended().await.code, 1);
        let job = server.tracked().await;
        job.complete().await;
        job.delete().await.expect_empty(204);
        assert_eq!(milepost(&server, &["watch", &job.id]).ended().await.code, 7);
        let away = milepost_at("http://127.0.0.1:9", &["watch", &job.id]).ended().await;
        assert_eq!(away.code, 1);
        assert!(away.stderr.contains("cannot reach the gateway"), "{}", away.stderr);
    });
}

#[test]
fn progress_is_printed_line_by_line() {
    run(async {
        let server = Store::Sqlite.shared().await;
        let job = server.tracked().await;
        let mut watching = milepost(&server, &["watch", &job.id]);
        watching.prints("running").await;
        job.append(json!({"type": "progress", "data": {"current": 83, "total": 200, "unit": "pages", "phase": "drafting", "message": "page 83"}}))
            .await;
        watching.prints("running  41.5 %  drafting · page 83 · 83/200 pages").await;
        job.append(json!({"type": "progress", "data": {"percent": 100}})).await;
        watching.prints("100.0 %").await;
        job.complete().await;
        let ended = watching.ended().await;
        assert!(ended.stdout.ends_with("completed and succeeded\n"), "{}", ended.stdout);
    });
}

#[test]
fn every_event_comes_once_over_restarts() {
    run(async {
        let server = Store::Sqlite.serve(&[]).await;
        let job = server.tracked().await;
        job.fill(10).await;
        let mut watching = milepost(&server, &["watch", "--json", &job.id]);
        for round in 0..3 {
            let mark = format!("round {round}");
            job.note(&mark).await;
            watching.prints(&mark).await;
            server.kill9();
            server.restart().await;
            job.fill(5).await;
        }
        job.complete().await;
        let ended = watching.ended().await;
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        let lines: Vec<Value> =
            ended.stdout.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
        let seqs: Vec<u64> =
            lines.iter().filter(|line| line["seq"].is_u64()).map(|line| number(&line["seq"])).collect();
        let log = job.log().await;
        assert_eq!(seqs, (1..=log.len() as u64).collect::<Vec<_>>());
        assert_eq!(lines.last(), Some(&json!({"type": "end", "data": {"state": "completed"}})));
    });
}

#[test]
fn output_is_printed_once_and_to_the_byte_over_restarts() {
    run(async {
        let server = Store::Sqlite.serve(&[]).await;
        let job = server.tracked().await;
        job.output("ab€\r\n\u{1b}[31m").await;
        let mut watching = milepost(&server, &["watch", "--output", &job.id]);
        watching.prints("[31m").await;
        server.kill9();
        server.restart().await;
        job.output("abab").await;
        watching.prints("abab").await;
        job.output("\n\nend").await;
        job.complete().await;
        let ended = watching.ended().await;
        assert_eq!(ended.stdout, "ab€\r\n\u{1b}[31mabab\n\nend", "stdout is no terminal: nothing is escaped");
        assert!(ended.stderr.contains("completed and succeeded"), "{}", ended.stderr);
    });
}

#[test]
fn log_entries_are_printed_from_the_first() {
    run(async {
        let server = Store::Sqlite.shared().await;
        let job = server.tracked().await;
        job.note("early").await;
        let mut watching = milepost(&server, &["watch", "--logs", &job.id]);
        watching.prints("info  early\n").await;
        job.append(json!({"type": "log", "data": {"level": "error", "message": "late \u{1b}[2J", "fields": {"n": 1}}}))
            .await;
        watching.prints("error late \\x1b[2J {\"n\":1}\n").await;
        job.complete().await;
        assert_eq!(watching.ended().await.code, 0);
    });
}

#[test]
fn any_url_of_the_job_will_do() {
    run(async {
        let server = Store::Sqlite.shared().await;
        let job = server.tracked().await;
        job.complete().await;
        for path in ["/v1/jobs/ID", "/v1/jobs/ID/events", "/v1/jobs/ID/output", "/jobs/ID", "/jobs/ID#token=x"] {
            let url = format!("http://{}{}", server.address(), path.replace("ID", &job.id));
            let ended = milepost_at("http://127.0.0.1:9", &["watch", &url]).ended().await;
            assert_eq!(ended.code, 0, "{url}: {}", ended.stderr);
        }
        let based = Store::Sqlite.serve(&["--base-path", "/progress"]).await;
        let base = format!("http://{}/progress", based.address());
        let queued = milepost_at(&base, &["enqueue", "--kind", "test", "--tracked"]).ended().await;
        let url = format!("{base}/jobs/{}", queued.stdout.trim());
        let mut watching = milepost_at("http://127.0.0.1:9", &["watch", &url]);
        watching.prints("running").await;
    });
}

#[test]
fn a_terminal_gets_a_bar_and_obeys_nothing_of_the_jobs() {
    run(async {
        let server = Store::Sqlite.shared().await;
        let job = server.tracked().await;
        job.append(json!({"type": "progress", "data": {"percent": 41, "message": "evil \u{1b}]0;owned\u{7}\u{202e}"}}))
            .await;
        job.output("line \u{1b}[2J one\nline two").await;
        // script(1) lends it a terminal.
        let line =
            format!("{} watch --output --url http://{} {}", env!("CARGO_BIN_EXE_milepost"), server.address(), job.id);
        let mut command = Command::new("script");
        command.args(["-qefc", &line, "/dev/null"]).env("TERM", "xterm");
        let mut watching = start(command);
        watching.prints("line \\x1b[2J one").await;
        watching.prints("41%").await;
        watching.prints("evil \\x1b]0;owned\\x07\\u{202e}").await;
        job.complete().await;
        let ended = watching.ended().await;
        assert_eq!(ended.code, 0);
        assert!(ended.stdout.contains("line two") && ended.stdout.contains("completed and succeeded"));
        for forbidden in ["\u{1b}[2J one", "\u{1b}]0;", "\u{202e}"] {
            assert!(!ended.stdout.contains(forbidden), "{forbidden:?} reached the terminal");
        }
    });
}

#[test]
fn a_waiting_job_is_shown_as_waiting() {
    run(async {
        let server = Store::Sqlite.shared().await;
        let job = server.job(json!({"kind": "test", "queue": server.own_queue()})).await;
        let mut watching = milepost(&server, &["watch", &job.id]);
        watching.prints("queued, waiting for a worker").await;
        job.cancel(json!({})).await.expect(202);
        let ended = watching.ended_within(Duration::from_secs(10)).await;
        assert_eq!(ended.code, 5);
        assert!(!ended.stdout.contains("succeeded"));
        assert_eq!(text(&job.state().await["state"]), "cancelled");
    });
}
