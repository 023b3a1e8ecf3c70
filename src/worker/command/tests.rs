//! Real programs against a gateway that is a list: it forgets answers, goes away, refuses and cancels on demand.

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;

use super::*;
use crate::client::{Appended, ClientError, Problem};
use crate::worker::process::Input;
use crate::worker::report::Trouble;

#[derive(Default)]
struct Gateway {
    events: Mutex<Vec<Value>>,
    keys: Mutex<HashMap<String, Appended>>,
    away: AtomicBool,
    /// Every n-th append is stored, but its answer lost.
    forgets_every: u32,
    appends: AtomicU32,
    /// Appends that came, stored or not.
    tries: AtomicU32,
    cancel: watch::Sender<Option<CancelRequest>>,
    /// The job has ended, in this state.
    over: Mutex<Option<String>>,
    exclusive: bool,
    /// Of this type only so many events find room, and whether a refusal says which one did not.
    room: Option<(&'static str, usize, bool)>,
}

impl Gateway {
    fn stored(&self) -> Vec<Value> {
        self.events.lock().expect("no panic").clone()
    }

    fn answer(&self) -> Result<Appended, Trouble> {
        if self.away.load(Ordering::Relaxed) {
            return Err(unreachable());
        }
        if self.over.lock().expect("no panic").is_some() {
            return Err(refusal(409, "job_terminal", None));
        }
        let seq = self.stored().len() as u64;
        Ok(Appended { seq, cancel_requested: self.cancel.borrow().is_some() })
    }

    fn refusal_of(&self, events: &[Value]) -> Option<Trouble> {
        events.iter().enumerate().find_map(|(at, event)| {
            if let Some((full, room, pointed)) = self.room
                && event["type"] == full
            {
                let of_type = |events: &[Value]| events.iter().filter(|event| event["type"] == full).count();
                let pointer = pointed.then(|| format!("/{at}"));
                return (of_type(&self.stored()) + of_type(&events[..at]) >= room)
                    .then(|| refusal(413, "payload_too_large", pointer));
            }
            let percent = event["data"]["percent"].as_f64();
            let reserved = event["type"] == "started";
            let unfit = event["data"]["status"] == "unfit";
            (reserved || unfit || percent.is_some_and(|percent| percent > 100.0))
                .then(|| refusal(422, "invalid_request", Some(format!("/{at}/data"))))
        })
    }
}

fn unreachable() -> Trouble {
    ClientError::Unreachable { url: "test".to_owned(), reason: "away".to_owned() }.into()
}

fn refusal(status: u16, code: &str, pointer: Option<String>) -> Trouble {
    ClientError::Refused(Box::new(Problem { status, code: code.to_owned(), pointer, ..Problem::default() })).into()
}

#[async_trait]
impl Report for Gateway {
    async fn append(&self, body: String, key: Option<&str>) -> Result<Appended, Trouble> {
        self.tries.fetch_add(1, Ordering::Relaxed);
        if self.away.load(Ordering::Relaxed) {
            return Err(unreachable());
        }
        if let Some(answer) = key.and_then(|key| self.keys.lock().expect("no panic").get(key).cloned()) {
            return Ok(answer);
        }
        self.answer()?;
        let events: Vec<Value> = serde_json::from_str(&body).expect("an array");
        assert!(events.len() <= 1_000 && body.len() < 2 << 20);
        for event in &events {
            assert!(event["data"].to_string().len() <= 64 << 10, "the gateway's limit");
        }
        if let Some(refusal) = self.refusal_of(&events) {
            return Err(refusal);
        }
        let ends = |event: &Value| {
            let event_type = event["type"].as_str().unwrap_or("");
            ["completed", "failed", "cancelled", "released"].contains(&event_type).then(|| event_type.to_owned())
        };
        *self.over.lock().expect("no panic") = events.iter().find_map(ends);
        self.events.lock().expect("no panic").extend(events);
        let answer = Appended { seq: self.stored().len() as u64, cancel_requested: self.cancel.borrow().is_some() };
        self.keys.lock().expect("no panic").extend(key.map(|key| (key.to_owned(), answer.clone())));
        let count = self.appends.fetch_add(1, Ordering::Relaxed) + 1;
        if self.forgets_every > 0 && count.is_multiple_of(self.forgets_every) {
            return Err(unreachable());
        }
        Ok(answer)
    }

    async fn heartbeat(&self, wait: Duration) -> Result<Appended, Trouble> {
        self.answer()?;
        let mut cancel = self.cancel.subscribe();
        let _ = tokio::time::timeout(wait, cancel.wait_for(Option::is_some)).await;
        self.answer()
    }

    async fn state(&self) -> Result<String, Trouble> {
        Ok(self.over.lock().expect("no panic").clone().unwrap_or_default())
    }

    async fn cancel_request(&self, _seq: u64) -> Result<CancelRequest, Trouble> {
        Ok(self.cancel.borrow().clone().unwrap_or_default())
    }

    fn lease(&self) -> Option<Duration> {
        self.exclusive.then_some(Duration::from_secs(3))
    }
}

struct Case {
    gateway: Arc<Gateway>,
    cut: Cut,
    input: Input,
}

fn case(gateway: Gateway) -> Case {
    Case { gateway: Arc::new(gateway), cut: Cut::Lines, input: Input::Bytes(Vec::new()) }
}

impl Case {
    /// Runs a shell script; the returned sender interrupts it.
    fn start(self, script: &str) -> (Arc<Gateway>, mpsc::Sender<()>, tokio::task::JoinHandle<Finished>) {
        self.start_command(["sh", "-c", script].map(OsString::from).to_vec())
    }

    fn start_command(
        self,
        command: Vec<OsString>,
    ) -> (Arc<Gateway>, mpsc::Sender<()>, tokio::task::JoinHandle<Finished>) {
        let (interrupts, interrupted) = mpsc::channel(4);
        let run = Run {
            program: Program {
                command,
                environment: vec![("MARK", Some("set".into()))],
                input: self.input,
                guard: None,
            },
            cut: self.cut,
            echo: false,
            interrupted: Entry::from_event(&json!({"type": "cancelled", "data": {"reason": "interrupted"}})),
            grace: DEFAULT_GRACE,
        };
        let report: Arc<dyn Report> = self.gateway.clone();
        let finished = tokio::spawn(super::run(run, report, interrupted, Arc::new(|_: &str| {})));
        (self.gateway, interrupts, finished)
    }

    async fn finish(self, script: &str) -> (Finished, Vec<Value>) {
        let (gateway, _interrupts, finished) = self.start(script);
        let finished = within(20, finished).await.expect("no panic");
        (finished, gateway.stored())
    }
}

async fn within<T>(seconds: u64, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(seconds), future).await.expect("in time")
}

async fn eventually(mut condition: impl FnMut() -> bool) {
    within(10, async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

fn log(level: &str, message: &str) -> Value {
    json!({"type": "log", "data": {"level": level, "message": message}})
}

fn messages(events: &[Value]) -> Vec<&str> {
    events.iter().filter(|e| e["type"] == "log").map(|e| e["data"]["message"].as_str().expect("text")).collect()
}

fn text_of(events: &[Value]) -> String {
    events.iter().filter(|e| e["type"] == "output").map(|e| e["data"]["text"].as_str().expect("text")).collect()
}

#[tokio::test]
async fn lines_become_events_and_log_entries_in_order() {
    let script = r#"echo hello $MARK; echo '{"type":"progress","data":{"percent":50}}'; echo '{"type":"x","other":1}'; printf last"#;
    let (finished, events) = case(Gateway::default()).finish(script).await;
    assert_eq!(
        events,
        [
            log("info", "hello set"),
            json!({"type": "progress", "data": {"percent": 50}}),
            log("info", "{\"type\":\"x\",\"other\":1}"),
            log("info", "last"),
            json!({"type": "completed", "data": {}}),
        ]
    );
    assert_eq!(finished.delivery, Delivery::Stored);
    assert_eq!(finished.exit, Exit::Code(0));
}

#[tokio::test]
async fn stderr_becomes_errors_and_the_last_of_it_the_failures_message() {
    let (_, events) = case(Gateway::default()).finish("echo one >&2; echo '{\"type\":\"log\"}' >&2; exit 3").await;
    assert_eq!(events[..2], [log("error", "one"), log("error", "{\"type\":\"log\"}")], "stderr has no events");
    assert_eq!(events[2]["type"], "failed");
    assert_eq!(events[2]["data"]["details"]["exit_code"], 3);
}

#[tokio::test]
async fn output_is_text_to_the_byte() {
    let case = Case { cut: Cut::Text, ..case(Gateway::default()) };
    let script =
        r#"printf 'a\r\nb\303\244 \377'; echo; echo '{"type":"log","data":{"message":"event"}}'; printf '{no event'"#;
    let (_, events) = case.finish(script).await;
    assert_eq!(text_of(&events), "a\r\nbä \u{FFFD}\n{no event");
    assert!(events.contains(&json!({"type": "log", "data": {"message": "event"}})));
}

#[tokio::test]
async fn a_lost_answer_neither_loses_nor_doubles() {
    let gateway = Gateway { forgets_every: 2, ..Gateway::default() };
    let (finished, events) =
        case(gateway).finish("for i in 1 2 3 4 5 6; do echo $i; sleep 0.05; done; seq 7 3000").await;
    let expected: Vec<String> = (1..=3000).map(|n| n.to_string()).collect();
    assert_eq!(messages(&events), expected);
    assert_eq!(finished.delivery, Delivery::Stored);
    assert_eq!(events.iter().filter(|e| e["type"] == "completed").count(), 1);
}

#[tokio::test]
async fn a_refused_event_becomes_a_warning_in_its_place() {
    let script = r#"echo a; echo '{"type":"progress","data":{"percent":150}}'; echo b; echo '{"type":"started"}'; echo c; echo '{"type":"progress","data":{"percent":5}}'"#;
    let (finished, events) = case(Gateway::default()).finish(script).await;
    let said = messages(&events);
    assert_eq!([said[0], said[2], said[4]], ["a", "b", "c"]);
    assert!(said[1].contains("percent\":150") && said[1].starts_with("event refused: "));
    assert!(said[3].contains("started"));
    assert_eq!(events[1]["data"]["level"], "warn");
    assert_eq!(events[5]["data"]["percent"], 5);
    assert_eq!(finished.delivery, Delivery::Stored);
}

#[tokio::test]
async fn many_refused_events_are_each_told() {
    let script = r#"for i in $(seq 100); do echo '{"type":"started","data":'$i'}'; done"#;
    let (_, events) = case(Gateway::default()).finish(script).await;
    assert_eq!(events.len(), 101);
    for (at, message) in messages(&events).into_iter().enumerate() {
        assert!(message.ends_with(&format!(":{}}}", at + 1)), "{message}");
    }
}

#[tokio::test]
async fn a_full_job_takes_what_fits_and_still_ends() {
    for pointed in [true, false] {
        let gateway = Gateway { room: Some(("log", 1234, pointed)), ..Gateway::default() };
        let script = "seq 5000; echo '{\"type\":\"progress\",\"data\":{\"percent\":9}}'";
        let (gateway, _interrupts, finished) = case(gateway).start(script);
        let finished = within(20, finished).await.expect("no panic");
        let events = gateway.stored();
        let tries = gateway.tries.load(Ordering::Relaxed);
        assert!(tries < 50, "what the job has no room for is not sent again and again, but {tries} times");
        let expected: Vec<String> = (1..=1234).map(|n| n.to_string()).collect();
        assert_eq!(messages(&events), expected);
        assert_eq!(
            events[1234..],
            [json!({"type": "progress", "data": {"percent": 9}}), json!({"type": "completed", "data": {}})]
        );
        assert_eq!(finished.delivery, Delivery::Stored);
    }
}

#[tokio::test]
async fn full_output_is_a_prefix_and_says_so() {
    let gateway = Gateway { room: Some(("output", 3, true)), ..Gateway::default() };
    let case = Case { cut: Cut::Text, ..case(gateway) };
    let (_, events) = case.finish("for i in $(seq 100000); do echo $i; done").await;
    let all: String = (1..=100_000).map(|n| format!("{n}\n")).collect();
    let output = text_of(&events);
    assert!(!output.is_empty() && all.starts_with(&output));
    assert!(messages(&events)[0].starts_with("no more output from here"));
}

#[tokio::test]
async fn a_completed_line_counts_only_if_the_program_exits_with_zero() {
    let line = r#"echo '{"type":"completed","data":{"ok":false,"note":"empty"}}'; echo after;"#;
    let (_, events) = case(Gateway::default()).finish(&format!("{line} exit 0")).await;
    assert_eq!(
        events,
        [log("info", "after"), json!({"type": "completed", "data": {"ok": false, "note": "empty"}})],
        "it is the last event"
    );
    let (_, events) = case(Gateway::default()).finish(&format!("{line} exit 2")).await;
    assert_eq!(events.last().map(|e| &e["data"]["code"]), Some(&json!("exit_code")));
    assert!(events.iter().all(|event| event["type"] != "completed"));
}

#[tokio::test]
async fn a_failed_line_is_the_failure() {
    let line = r#"{"type":"failed","data":{"code":"quota","message":"out of quota"}}"#;
    let (_, events) = case(Gateway::default()).finish(&format!("echo '{line}'; echo bye; exit 1")).await;
    assert_eq!(events, [log("info", "bye"), serde_json::from_str::<Value>(line).expect("JSON")]);
}

#[tokio::test]
async fn a_refused_result_does_not_pass_as_a_success() {
    let (finished, events) =
        case(Gateway::default()).finish(r#"echo '{"type":"completed","data":{"status":"unfit"}}'"#).await;
    assert_eq!(events[0]["data"]["level"], "warn");
    assert_eq!(events[1]["type"], "completed");
    assert_eq!(events[1]["data"]["ok"], false);
    assert_eq!(finished.delivery, Delivery::Stored);
}

#[tokio::test]
async fn a_command_that_is_not_there_fails_the_job() {
    let (gateway, _interrupts, finished) = case(Gateway::default()).start_command(vec!["/no/such/command".into()]);
    let finished = within(10, finished).await.expect("no panic");
    assert_eq!(finished.exit.shell_code(), 127);
    assert_eq!(gateway.stored()[0]["data"]["code"], "command_not_found");
}

#[tokio::test]
async fn a_signal_is_named() {
    let (finished, events) = case(Gateway::default()).finish("kill -KILL $$").await;
    assert_eq!(finished.exit, Exit::Signal(9));
    assert_eq!(events[0]["data"]["code"], "signal");
    assert_eq!(events[0]["data"]["details"]["signal"], "SIGKILL");
}

#[tokio::test]
async fn the_program_waits_while_the_gateway_is_away() {
    let done = std::env::temp_dir().join(format!("milepost-done-{}", std::process::id()));
    let gateway = Gateway { away: AtomicBool::new(true), ..Gateway::default() };
    let case = Case { cut: Cut::Text, ..case(gateway) };
    let script = format!("yes 0123456789abcde | head -c 8000000; touch {}", done.display());
    let (gateway, _interrupts, finished) = case.start(&script);
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(!done.exists(), "8 MB were taken from the program with nobody to give them to");
    gateway.away.store(false, Ordering::Relaxed);
    let finished = within(60, finished).await.expect("no panic");
    std::fs::remove_file(done).expect("the program has gone on");
    assert_eq!(finished.delivery, Delivery::Stored);
    assert_eq!(text_of(&gateway.stored()), "0123456789abcde\n".repeat(500_000));
}

#[tokio::test]
async fn a_cancel_stops_the_whole_group_at_once() {
    let (gateway, _interrupts, finished) = case(Gateway::default()).start("sleep 1000 & echo $!; wait; echo never");
    eventually(|| gateway.stored().len() == 1).await;
    let grandchild: i32 = messages(&gateway.stored())[0].parse().expect("a pid");
    gateway.cancel.send_replace(Some(CancelRequest {
        grace: Some(Duration::from_secs(9)),
        reason: Some("changed my mind".to_owned()),
    }));
    let finished = within(5, finished).await.expect("no panic");
    assert_eq!(finished.exit, Exit::Signal(15));
    assert_eq!(gateway.stored().last(), Some(&json!({"type": "cancelled", "data": {"reason": "changed my mind"}})));
    let process = std::path::PathBuf::from(format!("/proc/{grandchild}/stat"));
    let is_gone = || std::fs::read_to_string(&process).map_or(true, |stat| stat.contains(") Z "));
    eventually(is_gone).await;
}

#[tokio::test]
async fn a_deaf_program_is_killed_after_the_grace() {
    let (gateway, _interrupts, finished) =
        case(Gateway::default()).start("trap '' TERM; echo up; while :; do sleep 0.1; done");
    eventually(|| gateway.stored().len() == 1).await;
    let begun = Instant::now();
    gateway.cancel.send_replace(Some(CancelRequest { grace: Some(Duration::from_millis(700)), reason: None }));
    let finished = within(5, finished).await.expect("no panic");
    assert_eq!(finished.exit, Exit::Signal(9));
    assert!(begun.elapsed() >= Duration::from_millis(650), "{:?}", begun.elapsed());
    assert_eq!(gateway.stored().last().map(|event| &event["type"]), Some(&json!("cancelled")));
}

#[tokio::test]
async fn a_completion_before_the_end_of_the_grace_wins() {
    let script = r#"trap 'echo "{\"type\":\"completed\",\"data\":{\"note\":\"just done\"}}"; exit 0' TERM; echo up; while :; do sleep 0.05; done"#;
    let (gateway, _interrupts, finished) = case(Gateway::default()).start(script);
    eventually(|| gateway.stored().len() == 1).await;
    gateway.cancel.send_replace(Some(CancelRequest::default()));
    let finished = within(5, finished).await.expect("no panic");
    assert!(finished.completed);
    assert_eq!(gateway.stored().last().map(|event| &event["data"]["note"]), Some(&json!("just done")));
}

#[tokio::test]
async fn an_interruption_ends_the_job_and_a_second_one_kills() {
    let (gateway, interrupts, finished) =
        case(Gateway::default()).start("trap '' TERM; echo up; while :; do sleep 0.1; done");
    eventually(|| gateway.stored().len() == 1).await;
    interrupts.send(()).await.expect("the runner listens");
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!finished.is_finished(), "the program has its grace");
    interrupts.send(()).await.expect("the runner listens");
    let finished = within(5, finished).await.expect("no panic");
    assert_eq!((finished.exit, finished.cause), (Exit::Signal(9), Cause::Interrupted));
    assert_eq!(gateway.stored().last(), Some(&json!({"type": "cancelled", "data": {"reason": "interrupted"}})));
}

#[tokio::test]
async fn an_absent_gateway_can_be_given_up() {
    let (gateway, interrupts, finished) = case(Gateway::default()).start("echo up; sleep 0.2");
    eventually(|| gateway.stored().len() == 1).await;
    gateway.away.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(1500)).await;
    interrupts.send(()).await.expect("the runner listens");
    let finished = within(5, finished).await.expect("no panic");
    assert_eq!(finished.exit, Exit::Code(0));
    assert!(matches!(finished.delivery, Delivery::Undelivered(_)));
}

#[tokio::test]
async fn a_left_behind_process_does_not_keep_the_job() {
    let begun = Instant::now();
    let (finished, events) = case(Gateway::default()).finish("sleep 5 & echo started").await;
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    assert_eq!(finished.exit, Exit::Code(0));
    assert_eq!(events[0], log("info", "started"));
    let (_, events) = case(Gateway::default()).finish("yes $(seq 1000) & echo started; exit 4").await;
    assert_eq!(events.last().map(|event| &event["type"]), Some(&json!("failed")), "a flood does not, either");
}

#[tokio::test]
async fn a_program_may_close_its_streams_and_live_on() {
    let (finished, events) = case(Gateway::default()).finish("echo a; exec >&- 2>&-; sleep 0.3; exit 4").await;
    assert_eq!(finished.exit, Exit::Code(4));
    assert_eq!(events.len(), 2);
}

#[tokio::test]
async fn a_payload_is_read_or_not() {
    let payload = vec![b'x'; 3 << 20];
    let with = |gateway| Case { input: Input::Bytes(payload.clone()), ..case(gateway) };
    let (_, events) = with(Gateway::default()).finish("wc -c").await;
    assert_eq!(messages(&events), ["3145728"]);
    let (finished, _) = with(Gateway::default()).finish("exit 0").await;
    assert_eq!(finished.exit, Exit::Code(0));
}

#[tokio::test]
async fn a_long_line_comes_in_pieces() {
    let case = Case { cut: Cut::Lines, ..case(Gateway::default()) };
    let (finished, events) = case.finish("head -c 10000000 /dev/zero | tr '\\0' x; echo; echo end").await;
    assert_eq!(finished.delivery, Delivery::Stored);
    let said = messages(&events);
    assert_eq!(said.last(), Some(&"end"));
    assert_eq!(said[..said.len() - 1].concat().len(), 10_000_000);
}

#[tokio::test]
async fn control_characters_fit_into_the_gateways_limits() {
    let (finished, events) = case(Gateway::default()).finish("head -c 3000000 /dev/zero").await;
    assert_eq!(finished.delivery, Delivery::Stored);
    assert_eq!(messages(&events).concat(), "\0".repeat(3_000_000));
}

#[tokio::test]
async fn a_job_cancelled_by_force_stops_its_program_and_another_end_does_not() {
    let (gateway, _interrupts, finished) = case(Gateway::default()).start("echo up; sleep 1000");
    eventually(|| gateway.stored().len() == 1).await;
    *gateway.over.lock().expect("no panic") = Some("cancelled".to_owned());
    gateway.cancel.send_replace(Some(CancelRequest::default()));
    let finished = within(8, finished).await.expect("no panic");
    assert_eq!(finished.cause, Cause::Lost);
    assert_eq!(finished.delivery, Delivery::Ended("cancelled".to_owned()));

    let (gateway, _interrupts, finished) = case(Gateway::default()).start("echo up; sleep 0.5; echo more; exit 6");
    eventually(|| gateway.stored().len() == 1).await;
    *gateway.over.lock().expect("no panic") = Some("failed".to_owned());
    let finished = within(8, finished).await.expect("no panic");
    assert_eq!((finished.exit, finished.cause), (Exit::Code(6), Cause::Itself));
    assert_eq!(finished.delivery, Delivery::Ended("failed".to_owned()));
}

#[tokio::test]
async fn a_lost_lease_stops_the_program() {
    let gateway = Gateway { exclusive: true, ..Gateway::default() };
    let (gateway, _interrupts, finished) = case(gateway).start("echo up; sleep 0.5; echo more; sleep 1000");
    eventually(|| gateway.stored().len() == 1).await;
    *gateway.over.lock().expect("no panic") = Some("failed".to_owned());
    let finished = within(8, finished).await.expect("no panic");
    assert_eq!(finished.cause, Cause::Lost);
}
