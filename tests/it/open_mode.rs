//! Section 8 without keys: any web page can reach a loopback server, so a foreign one must be able to do nothing.

use std::process::Command;

use serde_json::json;

use crate::harness::*;

on_both_stores!(
    foreign_host_name_is_refused_everywhere,
    own_host_names_are_served,
    foreign_origin_can_change_nothing,
    own_origin_may_write,
    public_url_names_one_more_host_and_origin,
    ready_line_is_all_that_is_printed,
);

async fn foreign_host_name_is_refused_everywhere(store: Store) {
    let job = store.shared().await.tracked().await;
    let port = job.server.address().port();
    let own_port = format!("evil.example:{port}");
    let hosts = [
        "evil.example",
        &own_port,
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "evil-localhost",
        "10.0.0.1",
        "0.0.0.0",
        "169.254.169.254",
        "[::2]",
        "127.0.0.1@evil.example",
        "2130706433",
    ];
    job.untouched(async {
        for host in hosts {
            for (method, path) in
                [("GET", "/v1/jobs"), ("GET", &job.path("")), ("POST", "/v1/jobs"), ("POST", &job.path("/cancel"))]
            {
                let answer =
                    job.server.request(method, path).header("Host", host).json(&json!({"kind": "k"})).send().await;
                assert!([400, 403].contains(&answer.status()), "{host}: {}", answer.status());
                if answer.status() == 403 {
                    answer.problem(403, "forbidden");
                }
            }
            let stream = job.get("/events").header("Host", host).header("Accept", "text/event-stream").send().await;
            assert!([400, 403].contains(&stream.status()), "{host}: {}", stream.status());
        }
        job.get("").header("Host", "evil.example").send().await.problem(403, "forbidden");
    })
    .await;
}

async fn own_host_names_are_served(store: Store) {
    let server = store.shared().await;
    let port = server.address().port();
    for host in ["127.0.0.1", "localhost", "LocalHost", "[::1]", "127.1.2.3"] {
        for host in [host.to_owned(), format!("{host}:{port}"), format!("{host}:80")] {
            server.get("/v1/jobs?limit=1").header("Host", host).send().await.expect(200);
        }
    }
}

async fn foreign_origin_can_change_nothing(store: Store) {
    let server = store.shared().await;
    let port = server.address().port();
    let (job, done) = (server.tracked().await, server.tracked().await);
    done.complete().await;
    let queue = server.own_queue();
    let used = Queue::own(&server);
    let waiting = used.job(json!({})).await;
    let other_port = format!("http://127.0.0.1:{}", port - 1);
    let other_name = format!("http://localhost:{port}");
    let longer = format!("http://127.0.0.1:{port}.evil.example");
    let origins = ["https://evil.example", "null", "", "file://", &other_port, &other_name, &longer];
    job.untouched(async {
        for origin in origins {
            let unsafe_requests = [
                server.post("/v1/jobs").json(&json!({"kind": "k", "queue": queue})),
                server.post("/v1/jobs/batch").json(&json!({"jobs": [{"kind": "k", "queue": queue}]})),
                server.post("/v1/jobs").header("Content-Type", "text/plain").body(r#"{"kind":"k"}"#),
                job.post("/events").json(&json!({"type": "completed"})),
                job.post("/cancel").json(&json!({})),
                job.post("/retry"),
                server.request("DELETE", &done.path("")),
                used.worker().claim(1, 0),
                server.request("PATCH", &used.path("")).json(&json!({"concurrency": 1})),
                server.post(&used.path("/pause")),
                server.post(&used.path("/resume")),
                server.post(&used.path("/purge")),
                server.post(&used.path("/redrive")),
            ];
            for request in unsafe_requests {
                let answer = request.header("Origin", origin).send().await;
                answer.problem(403, "forbidden");
                assert_eq!(answer.header("access-control-allow-origin"), None);
            }
        }
    })
    .await;
    assert!(server.list(&format!("queue={queue}")).await.is_empty());
    done.state().await;
    assert_eq!(waiting.types().await, ["queued"]);
    let read = used.read().await;
    assert_eq!((&read["paused"], &read["concurrency"]), (&json!(null), &json!(null)));
    let read = job.get("").header("Origin", "https://evil.example").send().await;
    assert_eq!(read.header("access-control-allow-origin"), None, "a foreign page cannot read the answer");
}

async fn own_origin_may_write(store: Store) {
    let server = store.shared().await;
    let port = server.address().port();
    for host in [format!("127.0.0.1:{port}"), format!("localhost:{port}")] {
        let request = server.post("/v1/jobs").header("Host", &host).header("Origin", format!("http://{host}"));
        request.json(&json!({"kind": "k"})).send().await.expect(202);
    }
}

async fn public_url_names_one_more_host_and_origin(store: Store) {
    let server = store.serve(&["--public-url", "https://progress.example.org"]).await;
    let post = |host: &str, origin: &str| {
        let request = server.post("/v1/jobs").header("Host", host).header("Origin", origin);
        request.json(&json!({"kind": "k"})).send()
    };
    let host = "progress.example.org";
    post(host, "https://progress.example.org").await.expect(202);
    post(host, "https://evil.example").await.problem(403, "forbidden");
    post(host, "https://progress.example.org.evil.example").await.problem(403, "forbidden");
    post("evil.example", "https://progress.example.org").await.problem(403, "forbidden");
    server.get("/v1/jobs").header("Host", "PROGRESS.example.org:443").send().await.expect(200);
}

async fn ready_line_is_all_that_is_printed(store: Store) {
    let server = store.serve(&[]).await;
    server.tracked().await.complete().await;
    server.sigterm();
    server.exit(PATIENCE).await;
    assert_eq!(server.printed(), [] as [String; 0]);
}

fn serve(directory: &Directory, arguments: &[&str]) -> Command {
    let mut command = milepost();
    command.arg("serve").arg("--data-dir").arg(directory.path()).args(arguments);
    command
}

#[test]
fn address_that_others_can_reach_is_refused_without_keys() {
    run(async {
        for listen in ["0.0.0.0:0", "[::]:0", "192.0.2.1:8080", "nonsense", "127.0.0.1:99999"] {
            let directory = Directory::create();
            let (status, printed, said) = run_to_end(serve(&directory, &["--listen", listen])).await;
            assert!(!status.success() && printed.is_empty(), "{listen}: {status} {printed}");
            assert!(said.contains("listen") || said.contains("loopback"), "{listen}: {said}");
        }
    });
}

#[test]
fn second_server_on_one_data_directory_refuses_to_start() {
    run(async {
        let server = Store::Sqlite.serve(&[]).await;
        let job = server.tracked().await;
        let (status, printed, said) = run_to_end(serve(&server.setup.directory, &["--listen", "127.0.0.1:0"])).await;
        assert!(!status.success() && printed.is_empty() && !said.is_empty(), "{status} {printed} {said}");
        job.note("the first one goes on").await;
    });
}

#[test]
fn flag_that_nobody_knows_is_refused() {
    run(async {
        let directory = Directory::create();
        for arguments in [&["--nope"][..], &["--ping-ms", "x"], &["--keep", "soon"], &["--max-streams", "-1"]] {
            let (status, printed, said) = run_to_end(serve(&directory, arguments)).await;
            assert!(!status.success() && printed.is_empty() && !said.is_empty(), "{arguments:?}: {status}");
        }
    });
}
