//! `milepost work`: any program, once per job of a queue, however it ends and whoever is stopped or killed meanwhile.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::cli::{Running, is_gone, messages, milepost, milepost_at};
use crate::harness::{Job, PATIENCE, Server, Store, eventually, number, on_both_stores, pairs, text};

on_both_stores!(
    a_command_runs_once_for_each_job,
    each_exit_code_ends_the_job_as_documented,
    a_cancel_stops_the_whole_group,
    a_deaf_command_is_killed_after_the_jobs_grace,
    sigterm_lets_a_job_finish_and_takes_no_more,
    sigterm_gives_a_job_back_after_the_grace,
    a_second_signal_gives_everything_back_at_once,
    a_killed_worker_loses_the_attempt_and_no_event,
    a_payload_need_not_be_read,
    a_process_left_behind_does_not_keep_the_job,
    any_output_is_survived,
    a_restart_of_the_gateway_loses_and_doubles_nothing,
    a_gateway_that_comes_later_is_waited_for,
    a_lost_job_stops_its_command,
    a_short_lease_is_kept_while_the_command_is_silent,
    queues_are_served_in_order_and_kinds_are_kept_to,
    no_more_jobs_are_held_than_are_worked_on,
    output_text_arrives_to_the_byte,
);

/// A queue of the test's own.
pub struct Lane {
    pub server: Server,
    pub queue: String,
}

impl Lane {
    pub async fn of(store: Store) -> Self {
        let server = store.shared().await;
        Self { queue: server.own_queue(), server }
    }

    /// Enqueues with these fields beside the usual ones; a retry comes at once.
    pub async fn job(&self, fields: Value) -> Job {
        let mut spec = json!({"queue": self.queue, "kind": "test", "backoff": {"initial_ms": 1}});
        let fields = fields.as_object().expect("fields are an object").clone();
        spec.as_object_mut().expect("a spec is an object").extend(fields);
        self.server.job(spec).await
    }

    /// A worker that runs a shell script for each job.
    pub fn work(&self, flags: &[&str], script: &str) -> Running {
        self.work_with(flags, &["sh", "-c", script])
    }

    /// A worker that runs a command for each job.
    pub fn work_with(&self, flags: &[&str], command: &[&str]) -> Running {
        milepost(&self.server, &[&["work", "--queue", &self.queue], flags, &["--"], command].concat())
    }
}

/// Ends a worker that has nothing to do.
pub async fn dismiss(worker: Running) {
    worker.signal(Signal::SIGTERM);
    assert_eq!(worker.ended().await.code, 0);
}

async fn is_running(job: &Job) {
    job.until("a log entry", PATIENCE, |state| state["state"] == "running").await;
}

/// The first message of the log, once there is one.
pub async fn first_message(job: &Job) -> String {
    eventually(PATIENCE, "a message", async || messages(&job.log().await).first().map(|text| (*text).to_owned())).await
}

async fn a_command_runs_once_for_each_job(store: Store) {
    let lane = Lane::of(store).await;
    let payload = json!({"url": "https://example.com/ä", "n": [1, 2.50, null]});
    let job = lane.job(json!({"payload": payload, "subject": "article:42"})).await;
    let plain = lane.job(json!({})).await;
    let worker = lane.work(
        &["--worker", "w-1"],
        r#"echo "$MILEPOST_URL $MILEPOST_JOB_ID $MILEPOST_QUEUE $MILEPOST_KIND ${MILEPOST_SUBJECT-none} $MILEPOST_ATTEMPT $MILEPOST_RUN"
           cat; echo
           echo '{"type":"progress","data":{"percent":40,"phase":"encoding"}}'
           echo '{"type":"completed","data":{"items":3,"data":{"done":true}}}'
           sleep 0.3; echo oops >&2"#,
    );
    let (state, _) = job.ended().await;
    assert_eq!((&state["state"], &state["worker"], &state["attempt"]), (&json!("completed"), &json!("w-1"), &json!(1)));
    assert_eq!((&state["outcome"]["items"], &state["progress"]["percent"]), (&json!(3), &json!(40)));
    assert_eq!(job.get("/result").send().await.expect(200), json!({"done": true}));
    // The two streams come by different ways: only what was printed well apart is in order.
    let log = job.log().await;
    let said = messages(&log);
    let address = lane.server.address();
    assert_eq!(said[0], format!("http://{address} {} {} test article:42 1 1", job.id, lane.queue));
    assert_eq!(serde_json::from_str::<Value>(said[1]).expect("the payload is JSON"), payload);
    assert!(log.iter().any(|event| event["data"] == json!({"level": "error", "message": "oops"})));
    assert_eq!(log.last().expect("a log")["type"], "completed");
    assert_eq!(plain.ended().await.0["state"], "completed");
    let log = plain.log().await;
    let said = messages(&log);
    assert!(said[0].ends_with(" test none 1 1"), "{said:?}");
    assert_eq!(said[1], "null");
    dismiss(worker).await;
}

async fn each_exit_code_ends_the_job_as_documented(store: Store) {
    let lane = Lane::of(store).await;
    let script = r#"case $MILEPOST_KIND in
        zero) exit 0;;
        three) echo why >&2; exit 3;;
        later) [ $MILEPOST_ATTEMPT = 2 ] || exit 75;;
        crash) [ $MILEPOST_ATTEMPT = 2 ] || kill -SEGV $$;;
        said) echo '{"type":"failed","data":{"code":"quota","message":"out of quota","retryable":false}}'; exit 75;;
        half) echo '{"type":"completed","data":{"note":"no"}}'; exit 1;;
    esac"#;
    let worker = lane.work(&["--concurrency", "3"], script);
    for (kind, state, attempts, error) in [
        ("zero", "completed", 1, Value::Null),
        ("three", "failed", 1, json!("exit_code")),
        ("later", "completed", 2, Value::Null),
        ("crash", "completed", 2, Value::Null),
        ("said", "failed", 1, json!("quota")),
        ("half", "failed", 1, json!("exit_code")),
    ] {
        let job = lane.job(json!({"kind": kind})).await;
        let (end, _) = job.ended().await;
        assert_eq!((&end["state"], number(&end["attempt"])), (&json!(state), attempts), "{kind}");
        assert_eq!(end["error"]["code"], error, "{kind}");
        let tried_again = job.types().await.iter().filter(|kind| *kind == "retrying").count() as u64;
        assert_eq!(tried_again, attempts - 1, "{kind}");
    }
    dismiss(worker).await;
    let missing = lane.job(json!({"max_attempts": 1})).await;
    let worker = milepost(&lane.server, &["work", "--queue", &lane.queue, "--", "/no/such/command"]);
    assert_eq!(missing.ended().await.0["error"]["code"], "command_not_found");
    dismiss(worker).await;
}

async fn a_cancel_stops_the_whole_group(store: Store) {
    let lane = Lane::of(store).await;
    let job = lane.job(json!({})).await;
    let worker = lane.work(&[], "sleep 1000 & echo $!; wait");
    let grandchild = first_message(&job).await;
    // Nothing is printed any more: only the held heartbeat can tell.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let begun = Instant::now();
    job.cancel(json!({"reason": "changed my mind"})).await.expect(202);
    job.ended().await;
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    let log = job.log().await;
    assert_eq!(pairs(&log).last(), Some(&("cancelled", &json!({"reason": "changed my mind"}))));
    eventually(PATIENCE, "the end of the grandchild", async || is_gone(&grandchild).then_some(())).await;
    let next = lane.job(json!({})).await;
    is_running(&next).await;
    next.cancel(json!({})).await.expect(202);
    next.ended().await;
    dismiss(worker).await;
}

async fn a_deaf_command_is_killed_after_the_jobs_grace(store: Store) {
    let lane = Lane::of(store).await;
    let job = lane.job(json!({})).await;
    let worker = lane.work(&[], "trap '' TERM; echo $$; while :; do sleep 0.1; done");
    let pid = first_message(&job).await;
    let begun = Instant::now();
    job.cancel(json!({"grace_ms": 1000})).await.expect(202);
    assert_eq!(job.ended().await.0["state"], "cancelled");
    assert!(begun.elapsed() >= Duration::from_millis(900), "{:?}", begun.elapsed());
    eventually(PATIENCE, "the end of the command", async || is_gone(&pid).then_some(())).await;
    dismiss(worker).await;
}

async fn sigterm_lets_a_job_finish_and_takes_no_more(store: Store) {
    let lane = Lane::of(store).await;
    let (job, next) = (lane.job(json!({})).await, lane.job(json!({})).await);
    let worker = lane.work(&[], "echo up; sleep 1; echo done");
    first_message(&job).await;
    worker.signal(Signal::SIGTERM);
    assert_eq!(worker.ended().await.code, 0);
    assert_eq!(job.state().await["state"], "completed");
    assert_eq!(messages(&job.log().await), ["up", "done"]);
    assert_eq!(next.types().await, ["queued"]);
}

async fn sigterm_gives_a_job_back_after_the_grace(store: Store) {
    let lane = Lane::of(store).await;
    let job = lane.job(json!({})).await;
    let worker = lane.work(&["--grace-ms", "300"], "sleep 1000 & echo $!; wait");
    let grandchild = first_message(&job).await;
    worker.signal(Signal::SIGTERM);
    assert_eq!(worker.ended().await.code, 0);
    let state = job.state().await;
    assert_eq!((&state["state"], &state["attempt"]), (&json!("queued"), &json!(0)), "no attempt is used");
    let log = job.log().await;
    assert_eq!(pairs(&log).last(), Some(&("released", &json!({"reason": "worker_shutdown"}))));
    assert!(is_gone(&grandchild), "what the command has started is stopped with it");
}

async fn a_second_signal_gives_everything_back_at_once(store: Store) {
    let lane = Lane::of(store).await;
    let job = lane.job(json!({})).await;
    let worker = lane.work(&["--grace-ms", "60000"], "trap '' TERM; echo $$; while :; do sleep 0.1; done");
    let pid = first_message(&job).await;
    worker.signal(Signal::SIGTERM);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!is_gone(&pid), "the command has its grace");
    let begun = Instant::now();
    worker.signal(Signal::SIGINT);
    assert_eq!(worker.ended().await.code, 0);
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    assert!(is_gone(&pid));
    assert_eq!(job.state().await["state"], "queued");
}

async fn a_killed_worker_loses_the_attempt_and_no_event(store: Store) {
    let lane = Lane::of(store).await;
    let job = lane.job(json!({})).await;
    let script = r#"[ $MILEPOST_ATTEMPT = 2 ] && exit 0
        echo $$; for i in $(seq 1000); do echo $i; sleep 0.01; done"#;
    let worker = lane.work(&["--lease-ms", "1000"], script);
    let orphan = first_message(&job).await;
    let seen = eventually(PATIENCE, "some events", async || {
        let log = job.log().await;
        (log.len() > 30).then_some(log)
    })
    .await;
    worker.signal(Signal::SIGKILL);
    assert_eq!(worker.ended().await.code, 137);
    let worker = lane.work(&[], script);
    let (state, _) = job.ended().await;
    assert_eq!((&state["state"], &state["attempt"]), (&json!("completed"), &json!(2)));
    let log = job.log().await;
    assert_eq!(log[..seen.len()], seen, "what was stored stays");
    let said = messages(&log);
    let numbers: Vec<String> = (1..said.len()).map(|n| n.to_string()).collect();
    assert_eq!(said[1..], numbers, "in order, without a hole or a double");
    let retrying = log.iter().find(|event| event["type"] == "retrying").expect("a lost attempt");
    assert_eq!(retrying["data"]["error"]["code"], "lease_expired");
    dismiss(worker).await;
    // Nobody reads what it prints any more.
    eventually(PATIENCE, "the end of the orphan", async || is_gone(&orphan).then_some(())).await;
}

async fn a_payload_need_not_be_read(store: Store) {
    let lane = Lane::of(store).await;
    let large = json!({"text": "x".repeat(200_000)});
    let mut jobs = Vec::new();
    for kind in ["never", "closed", "late"] {
        jobs.push(lane.job(json!({"kind": kind, "payload": large})).await);
    }
    let script = r#"case $MILEPOST_KIND in
        never) sleep 0.2;;
        closed) exec <&-; sleep 0.2;;
        late) sleep 0.2; wc -c;;
    esac"#;
    let worker = lane.work(&["--concurrency", "3"], script);
    for job in &jobs {
        assert_eq!(job.ended().await.0["state"], "completed");
    }
    let log = jobs[2].log().await;
    assert_eq!(messages(&log)[0].trim(), large.to_string().len().to_string());
    dismiss(worker).await;
}

async fn a_process_left_behind_does_not_keep_the_job(store: Store) {
    let lane = Lane::of(store).await;
    let job = lane.job(json!({"payload": "x".repeat(100_000)})).await;
    let worker = lane.work(&[], "sleep 15 & echo started");
    let (state, took) = job.ended().await;
    assert_eq!(state["state"], "completed");
    assert!(took < Duration::from_secs(10), "{took:?}");
    dismiss(worker).await;
}

async fn any_output_is_survived(store: Store) {
    let lane = Lane::of(store).await;
    let job = lane.job(json!({})).await;
    let script = r"head -c 10000000 /dev/zero | tr '\0' x; echo
        printf '\377\376\000\033[31m\n'
        echo last";
    let worker = lane.work(&[], script);
    let (state, _) = job.ended().await;
    assert_eq!(state["state"], "completed");
    let log = job.log().await;
    let said = messages(&log);
    let long: usize = said.iter().take_while(|message| message.starts_with('x')).map(|message| message.len()).sum();
    assert_eq!(long, 10_000_000);
    let rest: Vec<&str> = said.into_iter().skip_while(|message| message.starts_with('x')).collect();
    assert!(rest[0].starts_with("\u{FFFD}\u{FFFD}") && rest[0].ends_with("\u{1b}[31m"), "{rest:?}");
    assert_eq!(rest[1..], ["last"]);
    dismiss(worker).await;
}

async fn a_restart_of_the_gateway_loses_and_doubles_nothing(store: Store) {
    let server = store.serve(&[]).await;
    let lane = Lane { queue: server.own_queue(), server: server.clone() };
    let (job, next) = (lane.job(json!({})).await, lane.job(json!({"kind": "next"})).await);
    let script = "[ $MILEPOST_KIND = next ] || for i in $(seq 300); do echo $i; sleep 0.01; done";
    let worker = lane.work(&["--lease-ms", "2000"], script);
    for count in [40, 150] {
        eventually(PATIENCE, "some events", async || (job.log().await.len() > count).then_some(())).await;
        server.kill9();
        tokio::time::sleep(Duration::from_millis(300)).await;
        server.restart().await;
    }
    let (state, _) = job.ended().await;
    assert_eq!((&state["state"], &state["attempt"]), (&json!("completed"), &json!(1)));
    let expected: Vec<String> = (1..=300).map(|n| n.to_string()).collect();
    assert_eq!(messages(&job.log().await), expected);
    assert_eq!(next.ended().await.0["attempt"], 1);
    // Also one that is told to go.
    server.sigterm();
    server.exit(PATIENCE).await;
    server.restart().await;
    assert_eq!(lane.job(json!({"kind": "next"})).await.ended().await.0["attempt"], 1);
    dismiss(worker).await;
}

async fn a_gateway_that_comes_later_is_waited_for(store: Store) {
    let server = store.serve(&[]).await;
    let lane = Lane { queue: server.own_queue(), server: server.clone() };
    let job = lane.job(json!({})).await;
    server.kill9();
    let mut worker = lane.work(&[], "exit 0");
    worker.says("trying again").await;
    server.restart().await;
    assert_eq!(job.ended().await.0["state"], "completed");
    worker.says("the gateway is back").await;
    dismiss(worker).await;
}

async fn a_lost_job_stops_its_command(store: Store) {
    let lane = Lane::of(store).await;
    let job = lane.job(json!({"timeout_ms": 1000, "max_attempts": 1})).await;
    let worker = lane.work(&[], "echo $$; while :; do sleep 0.1; done");
    let pid = first_message(&job).await;
    let (state, _) = job.ended().await;
    assert_eq!((&state["state"], &state["error"]["code"]), (&json!("failed"), &json!("timed_out")));
    eventually(PATIENCE, "the end of the command", async || is_gone(&pid).then_some(())).await;
    assert_eq!(
        lane.job(json!({"kind": "x"})).await.until("its start", PATIENCE, |s| s["attempt"] == 1).await["attempt"],
        1
    );
    worker.signal(Signal::SIGTERM);
    worker.signal(Signal::SIGINT);
    assert_eq!(worker.ended().await.code, 0);
}

async fn a_short_lease_is_kept_while_the_command_is_silent(store: Store) {
    let lane = Lane::of(store).await;
    let job = lane.job(json!({})).await;
    let worker = lane.work(&["--lease-ms", "1000"], "sleep 4");
    let (state, _) = job.ended().await;
    assert_eq!((&state["state"], &state["attempt"]), (&json!("completed"), &json!(1)));
    assert_eq!(job.types().await, ["queued", "started", "completed"]);
    dismiss(worker).await;
}

async fn queues_are_served_in_order_and_kinds_are_kept_to(store: Store) {
    let lane = Lane::of(store).await;
    let second = lane.server.own_queue();
    let light = lane.server.job(json!({"queue": second, "kind": "a"})).await;
    let heavy = lane.job(json!({"kind": "b"})).await;
    let other = lane.job(json!({"kind": "other"})).await;
    let arguments =
        ["work", "--queue", &lane.queue, "--queue", &second, "--kind", "a", "--kind", "b", "--", "sleep", "0.1"];
    let worker = milepost(&lane.server, &arguments);
    let (heavy, light) = (heavy.ended().await.0, light.ended().await.0);
    assert!(text(&heavy["started_at"]) < text(&light["started_at"]), "the first queue comes first");
    assert_eq!(other.types().await, ["queued"]);
    dismiss(worker).await;
    for wrong in [["--queue", "a b"], ["--kind", "ä"], ["--worker", "a b"], ["--concurrency", "0"]] {
        let arguments = [&["work"], &wrong[..], &["--", "true"]].concat();
        assert_eq!(milepost_at("http://127.0.0.1:9", &arguments).ended().await.code, 2, "{wrong:?}");
    }
}

async fn no_more_jobs_are_held_than_are_worked_on(store: Store) {
    let lane = Lane::of(store).await;
    let mut jobs = Vec::new();
    for _ in 0..8 {
        jobs.push(lane.job(json!({})).await);
    }
    let worker = lane.work(&["--concurrency", "3"], "sleep 0.3");
    let mut spans = Vec::new();
    for job in &jobs {
        let (state, _) = job.ended().await;
        spans.push((text(&state["started_at"]).to_owned(), text(&state["finished_at"]).to_owned()));
    }
    let at_a_time = |at: &String| spans.iter().filter(|(begin, end)| begin <= at && at < end).count();
    assert_eq!(spans.iter().map(|(begin, _)| at_a_time(begin)).max(), Some(3));
    dismiss(worker).await;
}

async fn output_text_arrives_to_the_byte(store: Store) {
    let lane = Lane::of(store).await;
    let job = lane.job(json!({})).await;
    let worker = lane.work(&["--output", "text"], r"printf 'tok'; sleep 0.1; printf 'en\r\n\n'; seq 5000");
    assert_eq!(job.ended().await.0["state"], "completed");
    let numbers: String = (1..=5000).map(|n| format!("{n}\n")).collect();
    assert_eq!(job.get("/output").send().await.text(), format!("token\r\n\n{numbers}"));
    dismiss(worker).await;
}
