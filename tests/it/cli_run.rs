//! `milepost run`: any program is a job, however it prints and however it ends.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::cli::{Ended, is_gone, messages, milepost, milepost_at, start};
use crate::harness::{Job, PATIENCE, Server, Store, eventually, pairs, run, text, unique};

/// Runs a shell script as a job of a kind of its own, to its end.
async fn run_script(server: &Server, flags: &[&str], script: &str) -> (Ended, Job) {
    let kind = unique("kind");
    let arguments = [&["run", "--kind", &kind], flags, &["--", "sh", "-c", script]].concat();
    let ended = milepost(server, &arguments).ended().await;
    let jobs = server.list(&format!("kind={kind}")).await;
    let [job] = jobs.as_slice() else {
        panic!("not one job, but {jobs:?}; {}", ended.stderr);
    };
    (ended, Job::new(server, text(&job["id"])))
}

struct Marker(PathBuf);

impl Marker {
    fn new() -> Self {
        Self(Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{}", unique("marker"), std::process::id())))
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        let _was_never_made = std::fs::remove_file(&self.0);
    }
}

#[test]
fn what_a_command_prints_becomes_its_log() {
    run(async {
        let server = Store::Sqlite.shared().await;
        let script = r#"echo hello; echo '{"type":"progress","data":{"percent":40,"phase":"encoding"}}'; echo oops >&2; sleep 0.2; printf end"#;
        let (ended, job) = run_script(&server, &["--subject", "article:42", "--meta", "n=1"], script).await;
        assert_eq!(ended.code, 0);
        assert_eq!(
            ended.stdout,
            "hello\n{\"type\":\"progress\",\"data\":{\"percent\":40,\"phase\":\"encoding\"}}\nend"
        );
        assert!(ended.stderr.contains(&format!("/jobs/{}", job.id)) && ended.stderr.contains("oops\n"));
        let log = job.log().await;
        let events = pairs(&log);
        assert_eq!((events[0].0, events[1].0), ("queued", "started"));
        let said: Vec<&(&str, &Value)> = events[2..].iter().filter(|(_, data)| data["level"] != "error").collect();
        assert_eq!(said[0], &("log", &json!({"level": "info", "message": "hello"})));
        assert_eq!(said[1], &("progress", &json!({"percent": 40, "phase": "encoding"})));
        assert_eq!(said[2], &("log", &json!({"level": "info", "message": "end"})));
        assert_eq!(said[3].0, "completed");
        assert!(events.contains(&("log", &json!({"level": "error", "message": "oops"}))));
        let state = job.state().await;
        assert_eq!((&state["state"], &state["tracked"]), (&json!("completed"), &json!(true)));
        assert_eq!((&state["subject"], &state["meta"]["n"]), (&json!("article:42"), &json!(1)));
    });
}

#[test]
fn output_text_arrives_to_the_byte() {
    run(async {
        let server = Store::Sqlite.shared().await;
        let script =
            r#"printf 'tok'; sleep 0.1; printf 'en\r\n\n'; printf 'b\303'; sleep 0.1; printf '\244 \377 '; seq 5000"#;
        let (ended, job) = run_script(&server, &["--output", "text"], script).await;
        assert_eq!(ended.code, 0);
        let numbers: String = (1..=5000).map(|n| format!("{n}\n")).collect();
        let output = job.get("/output").send().await;
        assert_eq!(output.text(), format!("token\r\n\nbä \u{FFFD} {numbers}"));
    });
}

#[test]
fn each_way_to_end_has_its_event_and_its_exit_code() {
    run(async {
        let server = Store::Sqlite.shared().await;
        for (script, code, state, error) in [
            ("exit 0", 0, "completed", Value::Null),
            ("exit 3", 3, "failed", json!({"code": "exit_code", "details": {"exit_code": 3}})),
            ("exit 75", 75, "failed", json!({"code": "exit_code", "details": {"exit_code": 75}})),
            (
                "kill -SEGV $$",
                139,
                "failed",
                json!({"code": "signal", "details": {"signal": "SIGSEGV", "signal_number": 11}}),
            ),
        ] {
            let (ended, job) = run_script(&server, &[], script).await;
            assert_eq!(ended.code, code, "{script}");
            let end = job.state().await;
            assert_eq!(end["state"], state, "{script}");
            assert_eq!(end["error"]["code"], error["code"], "{script}");
            assert_eq!(end["error"]["details"], error["details"], "{script}");
        }
    });
}

#[test]
fn a_command_that_cannot_start_fails_its_job() {
    run(async {
        let server = Store::Sqlite.shared().await;
        for (command, code, error) in
            [("/no/such/command", 127, "command_not_found"), ("/etc/passwd", 126, "command_not_executable")]
        {
            let kind = unique("kind");
            let ended = milepost(&server, &["run", "--kind", &kind, "--", command]).ended().await;
            assert_eq!(ended.code, code);
            assert!(ended.stderr.contains(&format!("cannot start {command}")), "{}", ended.stderr);
            let jobs = server.list(&format!("kind={kind}")).await;
            assert_eq!((&jobs[0]["state"], &jobs[0]["error"]["code"]), (&json!("failed"), &json!(error)));
        }
    });
}

#[test]
fn a_completed_line_is_the_outcome_if_the_command_exits_with_zero() {
    run(async {
        let server = Store::Sqlite.shared().await;
        let line = r#"echo '{"type":"completed","data":{"ok":false,"status":"empty","note":"no pages","data":{"n":1}}}'; echo after;"#;
        let (ended, job) = run_script(&server, &[], &format!("{line} exit 0")).await;
        assert_eq!(ended.code, 0);
        let state = job.state().await;
        assert_eq!((&state["state"], &state["outcome"]["ok"]), (&json!("completed"), &json!(false)));
        assert_eq!(job.get("/result").send().await.expect(200), json!({"n": 1}));
        let (ended, job) = run_script(&server, &[], &format!("{line} exit 9")).await;
        assert_eq!(ended.code, 9);
        let state = job.state().await;
        assert_eq!((&state["state"], &state["outcome"]), (&json!("failed"), &Value::Null));
    });
}

#[test]
fn a_refused_event_becomes_a_warning_and_takes_nothing_with_it() {
    run(async {
        let server = Store::Sqlite.shared().await;
        let script = r#"echo a
            echo '{"type":"progress","data":{"percent":150}}'
            echo b
            echo '{"type":"started","data":{}}'
            echo '{"type":"Not A Type"}'
            echo '{"type":"progress","data":7}'
            echo '{"type":"custom.step","data":{"n":1e999}}'
            echo c"#;
        let (ended, job) = run_script(&server, &[], script).await;
        assert_eq!(ended.code, 0);
        let log = job.log().await;
        let said = messages(&log);
        assert_eq!((said[0], said[2], said[said.len() - 1]), ("a", "b", "c"), "{said:?}");
        let warnings = log.iter().filter(|event| event["data"]["level"] == "warn").count();
        assert!(warnings >= 4, "{said:?}");
        assert!(said[1].contains("\"percent\":150"));
        assert_eq!(job.state().await["state"], "completed");
    });
}

#[test]
fn the_command_knows_its_job() {
    run(async {
        let server = Store::Sqlite.shared().await;
        let script = "echo $MILEPOST_URL $MILEPOST_JOB_ID $MILEPOST_QUEUE $MILEPOST_SUBJECT $MILEPOST_ATTEMPT $MILEPOST_RUN; env | grep -c MILEPOST_KIND; cat";
        let arguments = ["run", "--queue", "render", "--subject", "a:1", "--", "sh", "-c", script];
        let mut running = milepost(&server, &arguments).input("from stdin\n").await;
        let job = running.job(&server).await;
        let ended = running.ended().await;
        assert_eq!(ended.stdout, format!("http://{} {} render a:1 1 1\n1\nfrom stdin\n", server.address(), job.id));
        assert_eq!(job.state().await["kind"], "sh");
    });
}

#[test]
fn ctrl_c_stops_the_whole_command_and_cancels_the_job() {
    run(async {
        let server = Store::Sqlite.shared().await;
        for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
            let mut running = milepost(&server, &["run", "--", "sh", "-c", "sleep 1000 & echo $!; wait"]);
            let job = running.job(&server).await;
            let grandchild = running.prints("\n").await.trim().to_owned();
            running.signal(signal);
            assert_eq!(running.ended().await.code, code);
            let state = job.state().await;
            assert_eq!(state["state"], "cancelled");
            assert_eq!(job.log().await.last().map(|event| &event["data"]["reason"]), Some(&json!("interrupted")));
            eventually(PATIENCE, "the end of the grandchild", async || is_gone(&grandchild).then_some(())).await;
        }
    });
}

#[test]
fn a_second_ctrl_c_kills_a_deaf_command() {
    run(async {
        let server = Store::Sqlite.shared().await;
        let deaf = "trap '' TERM; echo up; while :; do sleep 0.1; done";
        let mut running = milepost(&server, &["run", "--", "sh", "-c", deaf]);
        let job = running.job(&server).await;
        running.prints("up").await;
        running.signal(Signal::SIGINT);
        tokio::time::sleep(Duration::from_millis(300)).await;
        running.signal(Signal::SIGINT);
        assert_eq!(running.ended_within(Duration::from_secs(5)).await.code, 130);
        assert_eq!(job.state().await["state"], "cancelled");
    });
}

#[test]
fn a_cancel_reaches_the_command_at_once() {
    run(async {
        let server = Store::Sqlite.shared().await;
        let mut running = milepost(&server, &["run", "--", "sh", "-c", "echo up; sleep 1000"]);
        let job = running.job(&server).await;
        running.prints("up").await;
        // Nothing is printed any more: only the held heartbeat can tell.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let begun = Instant::now();
        job.cancel(json!({"reason": "changed my mind"})).await.expect(202);
        assert_eq!(running.ended().await.code, 143);
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
        let log = job.log().await;
        assert_eq!(pairs(&log).last(), Some(&("cancelled", &json!({"reason": "changed my mind"}))));
    });
}

#[test]
fn a_deaf_command_is_killed_after_the_jobs_grace() {
    run(async {
        let server = Store::Sqlite.shared().await;
        let deaf = "trap '' TERM; echo up; while :; do sleep 0.1; done";
        let mut running = milepost(&server, &["run", "--", "sh", "-c", deaf]);
        let job = running.job(&server).await;
        running.prints("up").await;
        let begun = Instant::now();
        job.cancel(json!({"grace_ms": 1500})).await.expect(202);
        assert_eq!(running.ended_within(Duration::from_secs(8)).await.code, 137);
        assert!(begun.elapsed() >= Duration::from_millis(1400), "{:?}", begun.elapsed());
        assert_eq!(job.state().await["state"], "cancelled");
    });
}

#[test]
fn without_a_gateway_the_command_is_not_run_unless_one_insists() {
    run(async {
        let marker = Marker::new();
        let touch = marker.0.to_str().expect("a plain path");
        // The discard port: nobody listens there.
        let ended = milepost_at("http://127.0.0.1:9", &["run", "--", "touch", touch]).ended().await;
        assert_eq!(ended.code, 125);
        assert!(ended.stderr.contains("cannot reach the gateway at http://127.0.0.1:9"), "{}", ended.stderr);
        assert!(!marker.0.exists());
        let insisting = ["run", "--best-effort", "--", "sh", "-c", &format!("touch {touch}; exit 5")];
        let ended = milepost_at("http://127.0.0.1:9", &insisting).ended().await;
        assert_eq!(ended.code, 5);
        assert!(ended.stderr.contains("running untracked"), "{}", ended.stderr);
        assert!(marker.0.exists());
    });
}

#[test]
fn a_unique_key_lets_one_run_at_a_time() {
    run(async {
        let server = Store::Sqlite.shared().await;
        let (queue, marker) = (server.own_queue(), Marker::new());
        let first = ["run", "--queue", &queue, "--unique-key", "nightly", "--", "sleep", "1000"];
        let mut running = milepost(&server, &first);
        let job = running.job(&server).await;
        let touch = marker.0.to_str().expect("a plain path");
        let second = ["run", "--queue", &queue, "--unique-key", "nightly", "--", "touch", touch];
        let ended = milepost(&server, &second).ended().await;
        assert_eq!(ended.code, 75);
        assert!(ended.stderr.contains("already running") && ended.stderr.contains(&job.id), "{}", ended.stderr);
        assert!(!marker.0.exists());
        running.signal(Signal::SIGTERM);
        running.ended().await;
        assert_eq!(milepost(&server, &second).ended().await.code, 0);
    });
}

#[test]
fn a_restart_of_the_gateway_loses_and_doubles_nothing() {
    run(async {
        let server = Store::Sqlite.serve(&[]).await;
        let script = "for i in $(seq 300); do echo $i; sleep 0.01; done";
        let mut running = milepost(&server, &["run", "--", "sh", "-c", script]);
        let job = running.job(&server).await;
        for line in ["\n40\n", "\n150\n"] {
            running.prints(line).await;
            server.kill9();
            tokio::time::sleep(Duration::from_millis(300)).await;
            server.restart().await;
        }
        assert_eq!(running.ended().await.code, 0);
        let log = job.log().await;
        let expected: Vec<String> = (1..=300).map(|n| n.to_string()).collect();
        assert_eq!(messages(&log), expected);
        assert_eq!(job.state().await["state"], "completed");
    });
}

#[test]
fn any_output_is_survived() {
    run(async {
        let server = Store::Sqlite.shared().await;
        let script = r"
            head -c 10000000 /dev/zero | tr '\0' x; echo
            printf '\377\376\000\033[31m\n'
            for i in 1 2 3; do printf '\r%s%%' $i; done; echo
            printf '\n\n'
            echo last";
        let (ended, job) = run_script(&server, &["--quiet"], script).await;
        assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (0, "", ""));
        let log = job.log().await;
        let said = messages(&log);
        let long: usize = said.iter().take_while(|message| message.starts_with('x')).map(|message| message.len()).sum();
        assert_eq!(long, 10_000_000);
        let rest: Vec<&str> = said.into_iter().skip_while(|message| message.starts_with('x')).collect();
        assert!(rest[0].starts_with("\u{FFFD}\u{FFFD}") && rest[0].ends_with("\u{1b}[31m"), "{rest:?}");
        assert_eq!(rest[1..], ["1%", "2%", "3%", "", "", "last"]);
    });
}

#[test]
fn a_process_left_behind_does_not_keep_the_job() {
    run(async {
        let server = Store::Sqlite.shared().await;
        let begun = Instant::now();
        let (ended, job) = run_script(&server, &[], "sleep 15 & echo started").await;
        assert_eq!(ended.code, 0);
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        assert_eq!(job.state().await["state"], "completed");
    });
}

#[test]
fn a_reader_that_has_had_enough_ends_the_command() {
    run(async {
        let server = Store::Sqlite.shared().await;
        let kind = unique("kind");
        let line = format!("{} run --kind {kind} -- yes | head -n 2", env!("CARGO_BIN_EXE_milepost"));
        let mut shell = Command::new("sh");
        shell.args(["-c", &line]).env("MILEPOST_URL", format!("http://{}", server.address()));
        assert_eq!(start(shell).ended().await.stdout, "y\ny\n");
        let jobs = server.list(&format!("kind={kind}")).await;
        assert_eq!(jobs[0]["error"]["details"]["signal"], "SIGPIPE");
    });
}

#[test]
fn a_gateway_under_a_base_path_is_found() {
    run(async {
        let server = Store::Sqlite.serve(&["--base-path", "/progress"]).await;
        let url = format!("http://{}/progress", server.address());
        let arguments = ["run", "--", "sh", "-c", "echo $MILEPOST_URL"];
        let ended = milepost_at(&url, &arguments).ended().await;
        assert_eq!((ended.code, ended.stdout.trim()), (0, url.as_str()));
        assert!(ended.stderr.contains(&format!("{url}/jobs/")), "{}", ended.stderr);
    });
}

#[test]
fn a_silent_command_stays_alive_and_a_killed_runner_times_out() {
    run(async {
        let server = Store::Sqlite.shared().await;
        let mut silent = milepost(&server, &["run", "--", "sleep", "80"]);
        let silent_job = silent.job(&server).await;
        let mut killed = milepost(&server, &["run", "--", "sh", "-c", "echo $$; exec sleep 100"]);
        let killed_job = killed.job(&server).await;
        let orphan = killed.prints("\n").await.trim().to_owned();
        killed.signal(Signal::SIGKILL);
        eventually(PATIENCE, "the end of the command", async || is_gone(&orphan).then_some(())).await;
        let state = killed_job.until("the end of the job", Duration::from_secs(70), |s| s["terminal"] == true).await;
        assert_eq!((&state["state"], &state["error"]["code"]), (&json!("failed"), &json!("timed_out")));
        assert_eq!(silent.ended_within(Duration::from_secs(60)).await.code, 0);
        assert_eq!(silent_job.state().await["state"], "completed");
    });
}
