//! What the README tells people to type does what it says.

use serde_json::json;

use crate::harness::*;

/// The README's `sh` block that holds `mark`, against this server and binary, without its pauses.
fn block(mark: &str, server: &Server) -> String {
    let readme = include_str!("../../README.md");
    let blocks = readme.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let found: Vec<&str> = blocks.filter(|block| block.contains(mark)).collect();
    assert_eq!(found.len(), 1, "one block holds {mark}");
    let url = format!("http://{}", server.address());
    assert!(mark != "URL=" || found[0].contains("http://127.0.0.1:8080"), "the README names the default address");
    found[0]
        .replace("http://127.0.0.1:8080", &url)
        .replace("target/release/milepost run", &format!("{} run --url {url}", env!("CARGO_BIN_EXE_milepost")))
        .replace("sleep 1", "sleep 0.05")
}

async fn shell(script: String) -> String {
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script]);
    let (status, stdout, stderr) = run_to_end(command).await;
    assert!(status.success(), "{script}\n{stdout}\n{stderr}");
    stdout
}

on_both_stores!(first_live_job_is_a_command, worker_in_ten_lines_of_curl_completes_its_job);

async fn first_live_job_is_a_command(store: Store) {
    let server = store.serve(&[]).await;
    let stdout = shell(block("milepost run", &server)).await;
    assert!(stdout.contains("step 10"), "{stdout}");
    let job = &server.list("subject=demo:1").await[0];
    assert_eq!((&job["state"], &job["outcome"]["ok"]), (&json!("completed"), &json!(true)));
    assert_eq!((&job["progress"]["percent"], &job["progress"]["unit"]), (&json!(100), &json!("steps")));
}

async fn worker_in_ten_lines_of_curl_completes_its_job(store: Store) {
    let server = store.serve(&[]).await;
    shell(block("URL=", &server)).await;
    let job = &server.list("subject=file:7").await[0];
    assert_eq!((&job["state"], &job["outcome"]["items"]), (&json!("completed"), &json!(5)));
    assert_eq!(job["progress"]["current"], 5);
}
