//! Invariant 10: text comes out as it went in, and no input forges a frame.

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    hostile_text_arrives_byte_equal_everywhere,
    nul_and_lone_surrogates_become_replacement_characters,
    failure_with_nul_and_surrogates_can_be_stored,
    sizes_around_the_limit_arrive_byte_equal,
    resumed_text_is_never_lost_or_doubled,
);

/// What has forged frames, moved cursors or broken parsers elsewhere.
fn hostile() -> Vec<String> {
    let long_lines = "x".repeat(60_000);
    let three_bytes = "€".repeat(3_000);
    [
        "",
        " ",
        "  two",
        ":colon",
        "\u{feff}bom",
        "\n",
        "\r",
        "\r\n",
        "a\r\n\r\ndata: y",
        "a\rid: 9999\rdata: x",
        "\n\nid: 0\nevent: completed\ndata: {}\n\n",
        "trailing\n",
        "\u{2028}\u{2029}\u{85}",
        "\u{0b}\u{0c}\u{1b}[31m",
        "\u{1}\u{7f}",
        "data: x",
        "\t",
        "\\u0000 \\n \\",
        "\"quoted\"",
        "</script><script>alert(1)</script>",
        "\u{202e}rtl",
        "e\u{301}",
        "😀",
        "\u{fffd}",
        "\u{10ffff}",
        "{\"type\":\"completed\"}",
        &long_lines,
        &three_bytes,
    ]
    .map(str::to_owned)
    .to_vec()
}

/// The text itself if it can stand three times in one event.
fn short(text: &str) -> &str {
    if text.len() < 1_000 { text } else { "long" }
}

fn texts(log: &[Value], kind: &str, field: &str) -> Vec<String> {
    let of_kind = log.iter().filter(|event| event["type"] == kind);
    of_kind.map(|event| text(&event["data"][field]).to_owned()).collect()
}

async fn hostile_text_arrives_byte_equal_everywhere(store: Store) {
    let job = store.shared().await.tracked().await;
    let posted = hostile();
    let mut live = job.resume(2).await;
    for text in &posted {
        job.append(json!([
            {"type": "log", "data": {"level": "info", "message": text, "fields": {short(text): short(text)}}},
            {"type": "output", "data": {"text": text}},
            {"type": "own", "data": {"text": text}},
        ]))
        .await;
    }
    let last = job.append(json!({"type": "completed", "data": {"note": posted[9]}})).await;
    assert_eq!(last as usize, 2 + 3 * posted.len() + 1);
    let log = job.log().await;
    for (kind, field) in [("log", "message"), ("output", "text"), ("own", "text")] {
        assert_eq!(texts(&log, kind, field), posted, "{kind} in the log");
    }
    let seen = live.rest().await;
    assert_eq!(seen.len() as u64, last - 2 + 1, "as many frames as events, and the end");
    assert_covers(&seen, &log, 2);
    for cursor in [0, 2, 17, last - 3] {
        assert_covers(&job.resume(cursor).await.rest().await, &log, cursor);
    }
    let whole = posted.concat();
    assert_eq!(job.get("/output").send().await.body, whole.as_bytes());
    let mut fresh = job.stream().await;
    fresh.expect("state").await;
    assert_eq!(fresh.frame().await.json()["data"]["text"], whole);
}

async fn nul_and_lone_surrogates_become_replacement_characters(store: Store) {
    let job = store.shared().await.tracked().await;
    let table = [
        (r"a\u0000b", "a\u{fffd}b"),
        (r"\ud800", "\u{fffd}"),
        (r"\udc00x", "\u{fffd}x"),
        (r"\ud83dx\ude00", "\u{fffd}x\u{fffd}"),
        (r"\ud800\ud800\udc00", "\u{fffd}\u{10000}"),
        (r"\ud83d\ude00", "😀"),
        (r"\uD83D\uDE00", "😀"),
        (r"\\u0000", "\\u0000"),
        (r"\\\u0000", "\\\u{fffd}"),
    ];
    let mut offset = 0;
    for (escaped, stored) in table {
        let body = format!(
            r#"[{{"type":"log","data":{{"level":"info","message":"{escaped}","fields":{{"k{escaped}":["{escaped}"]}}}}}},
                {{"type":"progress","data":{{"message":"{escaped}"}}}},
                {{"type":"output","data":{{"text":"{escaped}"}}}}]"#
        );
        job.append_raw(body).await.expect(200);
        let log = job.log().await;
        let [said, progress, output] = &log[log.len() - 3..] else { panic!("three events") };
        assert_eq!(
            said["data"],
            json!({"level": "info", "message": stored, "fields": {format!("k{stored}"): [stored]}}),
            "{escaped}"
        );
        assert_eq!(progress["data"]["message"], stored);
        assert_eq!(output["data"], json!({"text": stored, "offset": offset}), "the offset counts what is stored");
        offset += stored.len();
        assert_eq!(job.state().await["progress"]["message"], stored);
    }
    assert_eq!(job.state().await["output"]["bytes"], offset);
    job.output("\u{fffd}").await;
    for half in [r"\ud83d", r"\ude00"] {
        job.append_raw(format!(r#"{{"type":"output","data":{{"text":"{half}"}}}}"#)).await.expect(200);
    }
    let whole = job.get("/output").send().await.text();
    assert!(whole.ends_with("\u{fffd}\u{fffd}\u{fffd}"), "an emoji cut in two halves is two replacements");
    let lines = "{\"type\":\"output\",\"data\":{\"text\":\"\\u0000\\ud800\"}}\n";
    job.post("/events").ndjson(lines).send().await.expect(200);
    assert_eq!(job.log().await.pop().expect("stored")["data"]["text"], "\u{fffd}\u{fffd}");
}

async fn failure_with_nul_and_surrogates_can_be_stored(store: Store) {
    let server = store.shared().await;
    for (end, field) in [
        (r#"{"type":"failed","data":{"code":"x","message":"a\u0000\ud800","details":{"\u0000":"\udfff"}}}"#, "error"),
        (r#"{"type":"completed","data":{"note":"a\u0000\ud800","data":{"\u0000":"\udfff"}}}"#, "outcome"),
        (r#"{"type":"cancelled","data":{"reason":"a\u0000\ud800"}}"#, "error"),
    ] {
        let job = server.tracked().await;
        let mut stream = job.resume(2).await;
        job.append_raw(end).await.expect(200);
        assert_eq!(job.state().await["terminal"], true, "{field}");
        assert!(stream.told().await.data.is_some_and(|data| data.contains("a\u{fffd}\u{fffd}")));
        assert_eq!(stream.told().await.kind(), "end");
    }
}

async fn sizes_around_the_limit_arrive_byte_equal(store: Store) {
    let job = store.shared().await.tracked().await;
    let mut live = job.resume(2).await;
    let around = json!({"level": "info", "message": ""}).to_string().len();
    let mut posted = 0;
    for bytes in [7_990, 8_000, 8_001, 65_535, 65_536] {
        let event = json!({"type": "log", "data": {"level": "info", "message": "x".repeat(bytes - around)}});
        job.append(event.clone()).await;
        assert_eq!(live.told().await.json()["data"], event["data"], "{bytes} bytes");
        posted += 1;
    }
    for bytes in [65_537, 100_000, 1_000_000] {
        let event = json!({"type": "log", "data": {"level": "info", "message": "x".repeat(bytes - around)}});
        job.untouched(job.try_append(&event)).await.problem(413, "payload_too_large");
    }
    let last = job.note("still usable").await;
    assert_eq!(live.told().await.seq(), last);
    assert_eq!(last, posted + 3);
}

async fn resumed_text_is_never_lost_or_doubled(store: Store) {
    let job = store.shared().await.tracked().await;
    let mut random = Random::new();
    let poster = job.clone();
    let posting = tokio::spawn(async move {
        let deltas = ["ab", "ab", "\n\n", "\n\n", " ", " ", "ü", "😀"];
        let mut whole = String::new();
        for n in 0..600 {
            whole += deltas[n % deltas.len()];
            poster.output(deltas[n % deltas.len()]).await;
        }
        poster.complete().await;
        whole
    });
    let (mut shown, mut cursor) = (String::new(), None::<u64>);
    'connections: loop {
        let mut stream = match cursor {
            Some(cursor) => job.get("/events").header("Last-Event-ID", cursor.to_string()).stream().await,
            None => job.stream().await,
        };
        if stream.head.status == 204 {
            break;
        }
        for _ in 0..random.below(40) + 1 {
            let frame = stream.told().await;
            if frame.kind() == "output" {
                let data = frame.json()["data"].clone();
                assert_eq!(number(&data["offset"]) as usize, shown.len(), "text was lost or doubled");
                shown += text(&data["text"]);
            }
            if frame.kind() == "end" {
                break 'connections;
            }
            cursor = frame.id.as_deref().map(|id| id.parse().expect("an id is a seq")).or(cursor);
        }
    }
    assert_eq!(shown, posting.await.expect("the poster ends"));
}
