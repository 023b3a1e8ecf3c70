//! `GET /v1/jobs`: newest first, page by page, filtered.

use serde_json::{Value, json};

use crate::harness::*;

on_both_stores!(
    pages_hold_every_job_once_newest_first,
    filters_select_and_combine,
    reloaded_page_finds_its_running_job_by_subject,
    times_bound_the_list,
    nul_in_a_filter_is_refused,
    bad_query_is_refused,
);

fn ids(jobs: &[Value]) -> Vec<&str> {
    jobs.iter().map(|job| text(&job["id"])).collect()
}

async fn pages_hold_every_job_once_newest_first(store: Store) {
    let server = store.shared().await;
    let queue = server.own_queue();
    let mut created = Vec::new();
    for _ in 0..7 {
        created.push(server.job(json!({"kind": "k", "queue": queue})).await.id);
    }
    created.reverse();
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("/v1/jobs?queue={queue}&limit=3{cursor}")).send().await.expect(200);
        let jobs = page["jobs"].as_array().expect("jobs is a list");
        seen.extend(ids(jobs).iter().map(|id| id.to_string()));
        // A job that is born while somebody leafs through belongs to no later page.
        server.job(json!({"kind": "k", "queue": queue})).await;
        match &page["next"] {
            Value::Null => break,
            next => cursor = format!("&cursor={}", text(next)),
        }
        assert_eq!(jobs.len(), 3);
    }
    assert_eq!(seen, created);
    let all = server.list(&format!("queue={queue}")).await;
    assert_eq!(all.len(), 10);
    let first = Job::new(&server, text(&all[0]["id"]));
    assert_eq!(all[0], first.state().await, "a list holds state documents");
    for job in &all {
        Job::new(&server, text(&job["id"])).cancel(json!({})).await.expect(202);
    }
    let capped = server.get(&format!("/v1/jobs?queue={queue}&limit=9999")).send().await.expect(200);
    assert_eq!(capped["jobs"].as_array().map(Vec::len), Some(10));
    for _ in 0..5 {
        let jobs = vec![json!({"kind": "k", "queue": queue}); 50];
        server.post("/v1/jobs/batch").json(&json!({"jobs": jobs})).send().await.expect(200);
    }
    for (limit, count) in [("", 50), ("&limit=9999", 200), ("&limit=200", 200), ("&limit=1", 1)] {
        let page = server.get(&format!("/v1/jobs?queue={queue}{limit}")).send().await.expect(200);
        assert_eq!(page["jobs"].as_array().map(Vec::len), Some(count), "{limit}");
    }
}

async fn filters_select_and_combine(store: Store) {
    let server = store.shared().await;
    let queue = server.own_queue();
    let spec = |kind: &str, more: Value| {
        let mut spec = json!({"kind": kind, "queue": queue, "subject": format!("s:{kind}")});
        spec.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        spec
    };
    let running = server.job(spec("a", json!({"tracked": true}))).await;
    let done = server.job(spec("a", json!({"tracked": true}))).await;
    done.complete().await;
    let waiting = server.job(spec("b", json!({}))).await;
    let later = server.job(spec("b", json!({"delay_ms": 600_000}))).await;
    let cancelled = server.job(spec("b", json!({}))).await;
    cancelled.cancel(json!({})).await.expect(202);
    let table = [
        ("kind=a", vec![&done, &running]),
        ("subject=s:b", vec![&cancelled, &later, &waiting]),
        ("state=running", vec![&running]),
        ("state=queued,scheduled", vec![&later, &waiting]),
        ("state=completed,cancelled&kind=b", vec![&cancelled]),
        ("active=true", vec![&later, &waiting, &running]),
        ("active=true&subject=s%3Aa", vec![&running]),
        ("kind=none", vec![]),
        ("state=failed", vec![]),
    ];
    for (query, expected) in table {
        let found = server.list(&format!("queue={queue}&{query}")).await;
        let expected: Vec<&str> = expected.iter().map(|job| job.id.as_str()).collect();
        assert_eq!(ids(&found), expected, "{query}");
    }
    let mut cursor = String::new();
    for expected in [Some(&later.id), Some(&waiting.id), Some(&running.id)] {
        let page = server.get(&format!("/v1/jobs?queue={queue}&active=true&limit=1{cursor}")).send().await.expect(200);
        assert_eq!(page["jobs"][0]["id"].as_str(), expected.map(String::as_str));
        cursor = page["next"].as_str().map(|next| format!("&cursor={next}")).unwrap_or_default();
    }
    assert_eq!(cursor, "", "the last page says that it is the last");
}

async fn reloaded_page_finds_its_running_job_by_subject(store: Store) {
    let server = store.shared().await;
    let subject = unique("article ü&=+/");
    let job = server.job(json!({"kind": "k", "subject": subject, "tracked": true})).await;
    let encoded: String = subject.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let query = format!("active=true&subject={encoded}");
    assert_eq!(ids(&server.list(&query).await), [&job.id]);
    job.complete().await;
    assert_eq!(server.list(&query).await, [] as [Value; 0]);
}

async fn times_bound_the_list(store: Store) {
    let server = store.shared().await;
    let queue = server.own_queue();
    let old = server.job(json!({"kind": "k", "queue": queue, "tracked": true})).await;
    tokio::time::sleep(std::time::Duration::from_millis(30)).await;
    let new = server.job(json!({"kind": "k", "queue": queue, "tracked": true})).await;
    tokio::time::sleep(std::time::Duration::from_millis(30)).await;
    new.complete().await;
    tokio::time::sleep(std::time::Duration::from_millis(30)).await;
    old.complete().await;
    let (old_state, new_state) = (old.state().await, new.state().await);
    let after = |field: &str, time: &Value| format!("queue={queue}&{field}={}", text(time));
    assert_eq!(ids(&server.list(&after("created_after", &old_state["created_at"])).await), [&new.id]);
    assert_eq!(ids(&server.list(&after("finished_after", &new_state["finished_at"])).await), [&old.id]);
    assert_eq!(server.list(&after("created_after", &json!("2000-01-01T00:00:00Z"))).await.len(), 2);
    assert_eq!(server.list(&after("created_after", &json!("2100-01-01T00:00:00Z"))).await.len(), 0);
}

async fn bad_query_is_refused(store: Store) {
    let server = store.shared().await;
    let bad = [
        "limit=0",
        "limit=-1",
        "limit=x",
        "limit=",
        "state=nope",
        "state=running,nope",
        "active=maybe",
        "cursor=garbage",
        "created_after=yesterday",
        "finished_after=5",
        "nope=1",
        "Queue=x",
    ];
    for query in bad {
        server.get(&format!("/v1/jobs?{query}")).send().await.problem(422, "invalid_request");
    }
}

async fn nul_in_a_filter_is_refused(store: Store) {
    let server = store.shared().await;
    for query in ["subject=%00", "queue=a%00b", "kind=%00"] {
        server.get(&format!("/v1/jobs?{query}")).send().await.problem(422, "invalid_request");
    }
}
