//! `/openapi.json` is OpenAPI 3.1 and complete.

use std::collections::HashSet;

use serde_json::Value;

use crate::harness::*;

on_both_stores!(description_names_every_route_and_every_reference_resolves);

const ROUTES: [(&str, &[&str]); 19] = [
    ("/v1/jobs", &["get", "post"]),
    ("/v1/jobs/batch", &["post"]),
    ("/v1/jobs/{id}", &["get", "delete"]),
    ("/v1/jobs/{id}/events", &["get", "post"]),
    ("/v1/jobs/{id}/output", &["get"]),
    ("/v1/jobs/{id}/result", &["get"]),
    ("/v1/jobs/{id}/cancel", &["post"]),
    ("/v1/jobs/{id}/retry", &["post"]),
    ("/v1/claims", &["post"]),
    ("/v1/workers", &["get"]),
    ("/v1/workers/{worker}/signals", &["get"]),
    ("/v1/queues", &["get"]),
    ("/v1/queues/{q}", &["get", "patch"]),
    ("/v1/queues/{q}/pause", &["post"]),
    ("/v1/queues/{q}/resume", &["post"]),
    ("/v1/queues/{q}/purge", &["post"]),
    ("/v1/queues/{q}/redrive", &["post"]),
    ("/livez", &["get"]),
    ("/readyz", &["get"]),
];

/// The routes that do not create a queue.
const UNKNOWN_QUEUE_IS_404: [(&str, &str); 4] = [
    ("get", "/v1/queues/{q}"),
    ("post", "/v1/queues/{q}/resume"),
    ("post", "/v1/queues/{q}/purge"),
    ("post", "/v1/queues/{q}/redrive"),
];

/// Every `$ref` below a value.
fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("$ref").and_then(Value::as_str));
            fields.values().for_each(|field| references(field, found));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

/// The description of a path, however its parameters are called.
fn named<'a>(document: &'a Value, path: &str) -> &'a Value {
    let shape = |path: &str| -> Vec<String> {
        let parts = path.split('/').map(|part| if part.starts_with('{') { "{}" } else { part });
        parts.map(str::to_owned).collect()
    };
    let paths = document["paths"].as_object().expect("paths is an object");
    let found = paths.iter().find(|(known, _)| shape(known) == shape(path));
    found.map_or(&Value::Null, |(_, described)| described)
}

async fn description_names_every_route_and_every_reference_resolves(store: Store) {
    let server = store.shared().await;
    let answer = server.get("/openapi.json").send().await;
    let document = answer.expect(200);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert!(text(&document["openapi"]).starts_with("3.1."), "{}", document["openapi"]);
    let mut names = HashSet::new();
    for (path, methods) in ROUTES {
        for method in methods {
            let operation = &named(&document, path)[method];
            assert!(operation.is_object(), "{method} {path} is missing");
            let responses = operation["responses"].as_object().expect("responses is an object");
            assert!(responses.keys().any(|status| status.starts_with('2')), "{method} {path} never succeeds");
            assert!(names.insert(text(&operation["operationId"]).to_owned()), "{}", operation["operationId"]);
            if path.contains("{id}") {
                assert!(responses.contains_key("404"), "{method} {path} finds every job");
            }
            if UNKNOWN_QUEUE_IS_404.contains(&(*method, path)) {
                assert!(responses.contains_key("404"), "{method} {path} finds every queue");
            }
        }
    }
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(!found.is_empty());
    for reference in found {
        let pointer = reference.strip_prefix('#').unwrap_or_else(|| panic!("{reference} leads outside"));
        assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
    }
}
