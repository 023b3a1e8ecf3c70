//! `GET /v1/jobs/{id}/output`: the whole text so far, or a part of it (RFC 9110, 14).

use serde_json::json;

use crate::harness::*;

on_both_stores!(
    whole_text_has_its_headers,
    range_matrix,
    version_changes_with_the_text,
    last_run_stays_after_the_end,
    large_output_is_whole,
);

async fn whole_text_has_its_headers(store: Store) {
    let job = store.shared().await.tracked().await;
    let empty = job.get("/output").send().await;
    assert_eq!((empty.status(), empty.body.len()), (200, 0));
    job.output("zwei ").await;
    job.note("between").await;
    job.output("Wörter\r\n").await;
    let answer = job.get("/output").header("Accept-Encoding", "gzip").send().await;
    assert_eq!((answer.status(), answer.text().as_str()), (200, "zwei Wörter\r\n"));
    let expected = [
        ("content-type", Some("text/plain; charset=utf-8")),
        ("accept-ranges", Some("bytes")),
        ("content-encoding", None),
        ("content-length", Some("14")),
    ];
    for (name, value) in expected {
        assert_eq!(answer.header(name), value, "{name}");
    }
    assert!(answer.header("etag").is_some_and(|tag| tag.starts_with('"')));
    job.get("/output?nope=1").send().await.problem(422, "invalid_request");
}

async fn range_matrix(store: Store) {
    let job = store.shared().await.tracked().await;
    for part in ["0123", "45ü", "89"] {
        job.output(part).await;
    }
    let whole = "012345ü89".as_bytes();
    let length = whole.len();
    let parts: [(&str, usize, usize); 9] = [
        ("bytes=0-0", 0, 1),
        ("bytes=0-4", 0, 5),
        ("bytes=3-5", 3, 6),
        ("bytes=6-6", 6, 7),
        ("bytes=4-", 4, length),
        ("bytes=-3", length - 3, length),
        ("bytes=-999", 0, length),
        ("bytes=8-999", 8, length),
        ("bytes=9-9", 9, length),
    ];
    for (range, from, to) in parts {
        let answer = job.get("/output").header("Range", range).send().await;
        assert_eq!((answer.status(), &answer.body[..]), (206, &whole[from..to]), "{range}");
        let stated = format!("bytes {from}-{}/{length}", to - 1);
        assert_eq!(answer.header("content-range"), Some(&*stated), "{range}");
    }
    for range in ["bytes=10-", "bytes=99-100", "bytes=-0"] {
        let answer = job.get("/output").header("Range", range).send().await;
        answer.problem(416, "range_not_satisfiable");
        assert_eq!(answer.header("content-range"), Some(&*format!("bytes */{length}")), "{range}");
    }
    for range in ["bytes=5-2", "bytes=a-b", "lines=0-1", "bytes 0-1", "bytes=", "garbage"] {
        let answer = job.get("/output").header("Range", range).send().await;
        assert!([200, 416].contains(&answer.status()), "{range}: {}", answer.status());
    }
    let several = job.get("/output").header("Range", "bytes=0-1,3-4").send().await;
    assert!([200, 206].contains(&several.status()));
    assert!(several.status() == 206 || several.body == whole);
    let tag = job.get("/output").send().await.header("etag").expect("an ETag").to_owned();
    for (value, status) in [(tag.as_str(), 206), ("\"other\"", 200)] {
        let answer = job.get("/output").header("Range", "bytes=0-1").header("If-Range", value).send().await;
        assert_eq!(answer.status(), status, "If-Range: {value}");
    }
}

async fn version_changes_with_the_text(store: Store) {
    let job = store.shared().await.tracked().await;
    job.output("a").await;
    let old = job.get("/output").send().await.header("etag").expect("an ETag").to_owned();
    job.get("/output").header("If-None-Match", &old).send().await.expect_empty(304);
    job.output("b").await;
    let answer = job.get("/output").header("If-None-Match", &old).send().await;
    assert_eq!((answer.status(), answer.text().as_str()), (200, "ab"));
}

async fn last_run_stays_after_the_end(store: Store) {
    let job = store.shared().await.tracked().await;
    job.output("kept").await;
    job.append(json!({"type": "failed", "data": {}})).await;
    assert_eq!(job.get("/output").send().await.text(), "kept");
    assert_eq!(job.state().await["output"], json!({"bytes": 4}));
}

async fn large_output_is_whole(store: Store) {
    let job = store.shared().await.tracked().await;
    let mut whole = String::new();
    for n in 0..60 {
        let text = format!("{n}:{}", "äö".repeat(12_000));
        whole += &text;
        job.output(&text).await;
    }
    assert_eq!(job.get("/output").send().await.text(), whole);
    let tail = job.get("/output").header("Range", "bytes=-100").send().await;
    assert_eq!(tail.body, &whole.as_bytes()[whole.len() - 100..]);
    let middle = job.get("/output").header("Range", "bytes=1000000-1500000").send().await;
    assert_eq!(middle.body, &whole.as_bytes()[1_000_000..=1_500_000]);
}
