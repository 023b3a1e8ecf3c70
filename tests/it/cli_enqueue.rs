//! `milepost enqueue`: a job handed over from a shell, once, with what it says meaning what it says.

use std::path::Path;

use serde_json::{Value, json};

use crate::cli::{Ended, milepost, milepost_at};
use crate::harness::{Job, Server, Store, run, text, unique};

async fn enqueue(server: &Server, arguments: &[&str]) -> Ended {
    milepost(server, &[&["enqueue"], arguments].concat()).ended().await
}

async fn job_of(server: &Server, arguments: &[&str]) -> Job {
    let ended = enqueue(server, arguments).await;
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    Job::new(server, ended.stdout.trim())
}

#[test]
fn the_id_is_printed_and_every_flag_arrives() {
    run(async {
        let server = Store::Sqlite.shared().await;
        let queue = server.own_queue();
        let ended = enqueue(
            &server,
            &[
                "--kind",
                "summarize",
                "--queue",
                &queue,
                "--subject",
                "article:42",
                "--priority",
                "-7",
                "--delay-ms",
                "3600000",
                "--max-attempts",
                "5",
                "--meta",
                "user=anna",
                "--meta",
                "n=2",
            ],
        )
        .await;
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        let job = Job::new(&server, ended.stdout.trim());
        assert!(ended.stderr.contains("scheduled: ") && ended.stderr.contains(&format!("/jobs/{}", job.id)));
        let state = job.state().await;
        for (field, value) in [
            ("kind", json!("summarize")),
            ("queue", json!(queue)),
            ("subject", json!("article:42")),
            ("priority", json!(-7)),
            ("max_attempts", json!(5)),
            ("state", json!("scheduled")),
            ("meta", json!({"user": "anna", "n": 2})),
        ] {
            assert_eq!(state[field], value, "{field}");
        }
        let tracked = job_of(&server, &["--kind", "backup", "--tracked"]).await;
        assert_eq!(tracked.state().await["state"], "running");
    });
}

#[test]
fn a_payload_comes_from_the_line_a_file_or_stdin() {
    run(async {
        let server = Store::Sqlite.shared().await;
        let payload = r#"{"url":"https://example.com","big":12345678901234567890.5}"#;
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{}", unique("payload"), std::process::id()));
        std::fs::write(&file, payload).expect("cargo's directory for tests can be written");
        let from_file = format!("@{}", file.display());
        for argument in [payload, &from_file, "-"] {
            let running = milepost(&server, &["enqueue", "--kind", "test", "--payload", argument]);
            let ended = running.input(payload).await.ended().await;
            assert_eq!(ended.code, 0, "{}", ended.stderr);
            let job = Job::new(&server, ended.stdout.trim());
            let answer = job.get("?include=payload").send().await;
            assert_eq!(answer.expect(200)["payload"], serde_json::from_str::<Value>(payload).expect("JSON"));
        }
        std::fs::remove_file(file).expect("it was read, no more");
        for bad in ["{", "@/no/such/file"] {
            let ended = enqueue(&server, &["--kind", "test", "--payload", bad]).await;
            assert_eq!((ended.code, ended.stdout.as_str()), (1, ""));
            assert!(ended.stderr.contains("--payload"), "{}", ended.stderr);
        }
    });
}

#[test]
fn the_whole_answer_can_be_had() {
    run(async {
        let server = Store::Sqlite.shared().await;
        let ended = enqueue(&server, &["--kind", "test", "--json"]).await;
        let answer: Value = serde_json::from_str(&ended.stdout).expect("one JSON document");
        assert_eq!(answer["created"], true);
        assert_eq!(answer["job"]["state"], "queued");
    });
}

#[test]
fn a_unique_key_answers_with_the_live_job_or_replaces_it() {
    run(async {
        let server = Store::Sqlite.shared().await;
        let queue = server.own_queue();
        let unique = ["--kind", "test", "--queue", &queue, "--unique-key", "k"];
        let first = job_of(&server, &unique).await;
        let again = enqueue(&server, &unique).await;
        assert_eq!(again.stdout.trim(), first.id);
        assert!(again.stderr.contains("was there already, queued"), "{}", again.stderr);
        let replacing = enqueue(&server, &[&unique[..], &["--replace"]].concat()).await;
        assert_ne!(replacing.stdout.trim(), first.id);
        assert!(replacing.stderr.contains(&format!("queued, in place of {}", first.id)), "{}", replacing.stderr);
        assert_eq!(first.state().await["state"], "cancelled");
    });
}

#[test]
fn an_idempotency_key_makes_a_repetition_safe() {
    run(async {
        let server = Store::Sqlite.shared().await;
        let (queue, key) = (server.own_queue(), unique("key"));
        let arguments = ["--kind", "test", "--queue", &queue, "--idempotency-key", &key];
        let first = job_of(&server, &arguments).await;
        let second = job_of(&server, &arguments).await;
        assert_eq!(first.id, second.id);
        assert_eq!(server.list(&format!("queue={queue}")).await.len(), 1);
    });
}

#[test]
fn a_refusal_says_why() {
    run(async {
        let server = Store::Sqlite.shared().await;
        let ended = enqueue(&server, &["--kind", "not a kind"]).await;
        assert_eq!((ended.code, ended.stdout.as_str()), (1, ""));
        assert!(ended.stderr.contains("invalid_request") && ended.stderr.contains("/kind"), "{}", ended.stderr);
        let ended = milepost_at("http://127.0.0.1:9", &["enqueue", "--kind", "test"]).ended().await;
        assert_eq!(ended.code, 1);
        assert!(ended.stderr.contains("cannot reach the gateway"), "{}", ended.stderr);
        assert_eq!(enqueue(&server, &["--kind", "a", "--no-such-flag"]).await.code, 2);
    });
}

#[test]
fn waiting_ends_with_how_the_job_ended() {
    run(async {
        let server = Store::Sqlite.shared().await;
        for (last, code) in [
            (json!({"type": "completed", "data": {}}), 0),
            (json!({"type": "completed", "data": {"ok": false}}), 3),
            (json!({"type": "failed", "data": {"code": "c", "message": "m"}}), 4),
        ] {
            let mut waiting = milepost(&server, &["enqueue", "--kind", "test", "--tracked", "--wait"]);
            let printed = waiting.prints("running").await;
            let job = Job::new(&server, text(&json!(printed.lines().next().expect("the id comes first"))));
            job.append(last).await;
            assert_eq!(waiting.ended().await.code, code);
        }
    });
}
