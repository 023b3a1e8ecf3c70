//! `milepost work` around programs that people really run, and around what is left of them when their runner is killed.

use std::fs;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::cli::{is_gone, milepost};
use crate::cli_work::{Lane, dismiss, first_message};
use crate::harness::{Directory, Job, PATIENCE, Store, eventually, on_both_stores, unique};

on_both_stores!(
    tar_tells_each_file_that_it_packs,
    tar_that_fails_fails_the_job,
    ffmpeg_tells_how_far_it_is,
    a_cancel_ends_ffmpeg_and_its_whole_pipeline,
    a_killed_worker_takes_its_silent_commands_with_it,
    a_worker_killed_at_any_moment_leaves_nothing_behind,
    a_guard_outlives_what_asks_its_worker_to_stop,
    a_daemon_neither_keeps_its_job_nor_is_stopped_with_it,
);

/// As people write it: the pipeline fails if any of it does.
const BASH: [&str; 4] = ["bash", "-o", "pipefail", "-c"];

/// What turns `-progress pipe:1` into events, of a film that takes three seconds.
const PROGRESS_OF_FFMPEG: &str = r#"while IFS='=' read -r key value; do
        case $key=$value in
            out_time_us=[0-9]*) echo "{\"type\":\"progress\",\"data\":{\"current\":$value,\"total\":3000000,\"unit\":\"µs\"}}";;
            progress=end) echo '{"type":"completed","data":{"items":1,"note":"encoded"}}';;
        esac
    done"#;

/// Starts a worker that runs this bash script for each job.
fn bash(lane: &Lane, flags: &[&str], script: &str) -> crate::cli::Running {
    lane.work_with(flags, &[&BASH[..], &[script]].concat())
}

/// A process that has not ended.
#[derive(Debug)]
struct Process {
    id: i32,
    name: String,
    parent: i32,
    group: i32,
}

/// All processes of this machine.
fn processes() -> Vec<Process> {
    let found = fs::read_dir("/proc").expect("Linux").flatten();
    let ids = found.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let read = |id: i32| {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        let (name, fields) = stat.split_once(" (")?.1.rsplit_once(") ")?;
        let fields: Vec<&str> = fields.split(' ').collect();
        let number = |at: usize| fields[at].parse().ok();
        (fields[0] != "Z").then_some(Process { id, name: name.to_owned(), parent: number(1)?, group: number(2)? })
    };
    ids.filter_map(read).collect()
}

/// The names of a group's processes.
fn members(group: &str) -> Vec<String> {
    let group: i32 = group.parse().expect("a number");
    processes().into_iter().filter(|process| process.group == group).map(|process| process.name).collect()
}

async fn is_empty(group: &str) {
    eventually(PATIENCE, "the end of the group", async || members(group).is_empty().then_some(())).await;
}

fn percents(log: &[Value]) -> Vec<f64> {
    let reports = log.iter().filter(|event| event["type"] == "progress");
    let percent =
        |data: &Value| data["current"].as_f64().expect("a number") / data["total"].as_f64().expect("a number");
    reports.map(|event| percent(&event["data"])).collect()
}

async fn tar_tells_each_file_that_it_packs(store: Store) {
    const FILES: usize = 120;
    let (lane, directory) = (Lane::of(store).await, Directory::create());
    let (from, archive) = (directory.path().join("from"), directory.path().join("files.tar"));
    fs::create_dir(&from).expect("a directory can be made");
    for n in 0..FILES {
        fs::write(from.join(format!("file {n} ä")), "x".repeat(1_000 * n)).expect("a file can be written");
    }
    let script = format!(
        r#"tar --create --verbose --file '{}' --directory '{}' . | while read -r name; do
            n=$((n + 1)); echo "packing $name"
            echo "{{\"type\":\"progress\",\"data\":{{\"current\":$n,\"total\":{},\"unit\":\"files\"}}}}"
        done"#,
        archive.display(),
        from.display(),
        FILES + 1
    );
    let worker = bash(&lane, &[], &script);
    let job = lane.job(json!({})).await;
    let (state, _) = job.ended().await;
    assert_eq!((&state["state"], &state["progress"]["percent"]), (&json!("completed"), &json!(100)), "{state}");
    let log = job.log().await;
    let expected: Vec<f64> = (1..=FILES + 1).map(|n| n as f64 / (FILES + 1) as f64).collect();
    assert_eq!(percents(&log), expected);
    assert!(crate::cli::messages(&log).contains(&"packing ./file 7 ä"));
    let listed = std::process::Command::new("tar").arg("-tf").arg(&archive).output().expect("tar starts");
    assert_eq!(listed.stdout.iter().filter(|byte| **byte == b'\n').count(), FILES + 1, "the archive is whole");
    dismiss(worker).await;
}

async fn tar_that_fails_fails_the_job(store: Store) {
    let lane = Lane::of(store).await;
    let worker = bash(&lane, &[], "tar --create --file /dev/null /no/such/directory | cat");
    let (state, _) = lane.job(json!({})).await.ended().await;
    let error = &state["error"];
    assert_eq!((&state["state"], &error["details"]["exit_code"]), (&json!("failed"), &json!(2)));
    assert!(error["details"]["stderr"].as_str().is_some_and(|said| said.contains("/no/such/directory")), "{error}");
    dismiss(worker).await;
}

async fn ffmpeg_tells_how_far_it_is(store: Store) {
    let (lane, directory) = (Lane::of(store).await, Directory::create());
    let film = directory.path().join("film.mp4");
    // `-re` takes as long as the film does: so there is something to tell on any machine.
    let script = format!(
        "ffmpeg -nostdin -v error -stats_period 0.1 -progress pipe:1 -re -f lavfi -i testsrc=duration=3:size=320x240 \
         -c:v mpeg4 '{}' | {PROGRESS_OF_FFMPEG}",
        film.display()
    );
    let worker = bash(&lane, &[], &script);
    let job = lane.job(json!({})).await;
    let halfway = |state: &Value| state["progress"]["percent"].as_f64().is_some_and(|percent| percent > 30.0);
    let state = job.until("a third of it", PATIENCE, halfway).await;
    assert_eq!(state["state"], "running", "it is told while it runs");
    let (state, _) = job.ended().await;
    assert_eq!((&state["state"], &state["outcome"]["note"]), (&json!("completed"), &json!("encoded")), "{state}");
    let percents = percents(&job.log().await);
    assert!(percents.len() > 5 && percents.is_sorted(), "{percents:?}");
    let frames = ["-v", "error", "-count_packets", "-show_entries", "stream=nb_read_packets", "-of", "csv=p=0"];
    let probed = std::process::Command::new("ffprobe").args(frames).arg(&film).output().expect("ffprobe starts");
    assert_eq!(String::from_utf8_lossy(&probed.stdout).trim(), "75", "the film is whole");
    dismiss(worker).await;
}

/// A pipeline that encodes for ever, and says its group first.
fn endless(says: &str) -> String {
    format!(
        "echo $$; ffmpeg -nostdin -v error -stats_period 0.1 -progress pipe:1 -re -f lavfi -i testsrc -f null - \
         | cat | {says}"
    )
}

async fn a_cancel_ends_ffmpeg_and_its_whole_pipeline(store: Store) {
    let lane = Lane::of(store).await;
    let worker = bash(&lane, &[], &endless(PROGRESS_OF_FFMPEG));
    let job = lane.job(json!({})).await;
    let group = first_message(&job).await;
    job.until("progress", PATIENCE, |state| !state["progress"].is_null()).await;
    let running = members(&group);
    assert!(running.iter().any(|name| name == "ffmpeg") && running.len() >= 4, "{running:?}");
    job.cancel(json!({})).await.expect(202);
    assert_eq!(job.ended().await.0["state"], "cancelled");
    is_empty(&group).await;
    dismiss(worker).await;
}

async fn a_killed_worker_takes_its_silent_commands_with_it(store: Store) {
    let lane = Lane::of(store).await;
    let silent = endless("cat >/dev/null");
    let deaf = "echo $$; trap '' TERM; while :; do sleep 0.1; done";
    let script = format!("if [ $MILEPOST_KIND = deaf ]; then {deaf}; else {silent}; fi");
    let worker = bash(&lane, &["--concurrency", "2"], &script);
    let jobs = [lane.job(json!({"kind": "silent"})).await, lane.job(json!({"kind": "deaf"})).await];
    let groups = [first_message(&jobs[0]).await, first_message(&jobs[1]).await];
    let has_ffmpeg = async || members(&groups[0]).contains(&"ffmpeg".to_owned()).then_some(());
    eventually(PATIENCE, "ffmpeg", has_ffmpeg).await;
    worker.signal(Signal::SIGKILL);
    assert_eq!(worker.ended().await.code, 137);
    for group in &groups {
        is_empty(group).await;
    }
}

async fn a_worker_killed_at_any_moment_leaves_nothing_behind(store: Store) {
    let lane = Lane::of(store).await;
    // Nothing else on this machine sleeps that long.
    let mark = format!("98{}{}", std::process::id(), unique("").trim_start_matches('-'));
    let sleeps = || {
        let line = |process: &Process| fs::read_to_string(format!("/proc/{}/cmdline", process.id)).unwrap_or_default();
        processes().iter().any(|process| line(process) == format!("sleep\0{mark}\0"))
    };
    let mut have_slept = 0;
    for round in 0..12 {
        let worker = milepost(&lane.server, &["work", "--queue", &lane.queue, "--", "sleep", &mark]);
        let job = lane.job(json!({"max_attempts": 1})).await;
        job.until("its start", PATIENCE, |state| state["state"] == "running").await;
        // Before the command starts, while it does, and after.
        tokio::time::sleep(Duration::from_millis(round)).await;
        have_slept += u32::from(sleeps());
        worker.signal(Signal::SIGKILL);
        worker.ended().await;
        eventually(PATIENCE, "the end of the command", async || (!sleeps()).then_some(())).await;
        job.cancel(json!({"grace_ms": 1})).await;
    }
    assert!(have_slept > 0, "some of them had started");
}

async fn a_guard_outlives_what_asks_its_worker_to_stop(store: Store) {
    let lane = Lane::of(store).await;
    let worker = bash(&lane, &[], "echo $$; exec sleep 1000");
    let group = first_message(&lane.job(json!({})).await).await;
    let sleeper = processes().into_iter().find(|process| process.id.to_string() == group).expect("it runs");
    let mut guards = processes();
    guards.retain(|process| process.parent == sleeper.parent && process.name == "milepost");
    let [guard] = guards.as_slice() else { panic!("not one guard: {guards:?}") };
    assert_eq!(guard.group, guard.id, "Ctrl-C does not reach it");
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        kill(Pid::from_raw(guard.id), signal).expect("it runs");
    }
    worker.signal(Signal::SIGKILL);
    worker.ended().await;
    is_empty(&group).await;
    eventually(PATIENCE, "the end of the guard", async || is_gone(&guard.id.to_string()).then_some(())).await;
}

async fn a_daemon_neither_keeps_its_job_nor_is_stopped_with_it(store: Store) {
    let lane = Lane::of(store).await;
    // One lets go of everything, as daemons do; one keeps its streams.
    let script = r#"case $MILEPOST_KIND in
        tidy) setsid sh -c 'echo $$; exec sleep 1000 </dev/null >/dev/null 2>&1' & ;;
        untidy) setsid sh -c 'echo $$; exec sleep 1000' & ;;
    esac; sleep 0.2"#;
    let worker = bash(&lane, &["--concurrency", "2"], script);
    let (tidy, untidy): (Job, Job) =
        (lane.job(json!({"kind": "tidy"})).await, lane.job(json!({"kind": "untidy"})).await);
    for job in [tidy, untidy] {
        let (state, took) = job.ended().await;
        assert_eq!(state["state"], "completed");
        assert!(took < Duration::from_secs(10), "{took:?}");
        let daemon = first_message(&job).await;
        assert!(!is_gone(&daemon) && Path::new("/proc").join(&daemon).exists(), "it has left the job's group");
        killpg(Pid::from_raw(daemon.parse().expect("a number")), Signal::SIGKILL).expect("it leads its own");
    }
    dismiss(worker).await;
}
