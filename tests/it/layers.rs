//! Section 10: imports point right only. This test reads the source as text, so that no layer can reach up unseen.

use std::fs;
use std::path::{Path, PathBuf};

/// Left to right: a layer may use what stands to its right, and nothing else.
const ORDER: [&str; 9] = ["main", "cli", "compose", "server", "http", "service", "bus", "store", "domain"];

/// Modules beside the row, and those that may use them.
const BESIDE: [(&str, &[&str]); 4] = [
    ("worker", &["main", "cli", "compose"]),
    ("client", &["main", "cli", "worker"]),
    ("config", &["main", "cli", "compose"]),
    ("telemetry", &["main", "cli", "compose"]),
];

/// What the modules beside the row may use of the row.
/// `config` fills the small struct of each layer, so it knows those; that none of them knows `config` keeps it no knot.
const BESIDE_USES: [(&str, &[&str]); 4] = [
    ("worker", &["service", "domain"]),
    ("client", &["domain"]),
    ("config", &["compose", "server", "http", "service", "store", "domain"]),
    ("telemetry", &[]),
];

/// Words that belong to some layers only.
const WORDS: [(&str, &[&str]); 5] = [
    ("sqlx", &["store"]),
    ("axum", &["http", "lib"]),
    ("env::var", &["config"]),
    ("reqwest", &["client"]),
    ("clap", &["config", "cli", "main"]),
];

/// What would make the domain impure: I/O, and a clock of its own.
const IMPURE: [&str; 11] = [
    "tokio",
    "std::fs",
    "std::net",
    "std::io",
    "std::env",
    "std::process",
    "std::thread",
    "SystemTime",
    "Instant::now",
    "now_utc",
    "now_v7",
];

/// One source file without comments and tests.
struct Source {
    layer: String,
    path: PathBuf,
    code: String,
    depth: usize,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut folders, mut found) = (vec![root.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("src can be read").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                if path.ends_with("tests.rs") {
                    continue;
                }
                let inner = path.strip_prefix(&root).expect("it is below src").with_extension("");
                let layer = inner.iter().next().expect("a file has a name").to_string_lossy().into_owned();
                let code = without_comments_and_tests(&fs::read_to_string(&path).expect("source is UTF-8"));
                found.push(Source { layer, depth: inner.iter().count(), path, code });
            }
        }
    }
    found
}

fn without_comments_and_tests(source: &str) -> String {
    let lines = source.lines().take_while(|line| line.trim() != "#[cfg(test)]");
    lines.map(|line| line.split_once("//").map_or(line, |(code, _)| code)).collect::<Vec<_>>().join("\n")
}

/// The modules at the top that a file names: `crate::x`, `milepost::x`, `super::…::x`, `crate::{x::y, z}`.
fn imports(source: &Source) -> Vec<String> {
    let up = "super::".repeat(source.depth);
    let mut found = Vec::new();
    for root in ["crate::", "milepost::", &up] {
        for (at, _) in source.code.match_indices(root) {
            let longer =
                source.code[..at].ends_with("super::") || source.code[..at].ends_with(|c: char| c.is_alphanumeric());
            if !longer {
                found.extend(heads(&source.code[at + root.len()..]));
            }
        }
    }
    found
}

/// The first names of a path or of a group of paths, each with its second name if it has one.
fn heads(rest: &str) -> Vec<String> {
    let name = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_' || *c == ':').collect();
    let Some(group) = rest.strip_prefix('{') else {
        return vec![name(rest)];
    };
    let (mut depth, mut heads, mut begin) = (0, Vec::new(), 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            ',' if depth == 0 => {
                heads.push(name(group[begin..at].trim_start()));
                begin = at + 1;
            }
            '}' if depth == 0 => {
                heads.push(name(group[begin..at].trim_start()));
                break;
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    heads
}

fn may_import(from: &str, target: &str, path: &str) -> bool {
    let listed = |table: &[(&str, &[&str])], key: &str, value: &str| {
        table.iter().any(|(name, others)| *name == key && others.contains(&value))
    };
    let place = |layer: &str| ORDER.iter().position(|known| *known == layer);
    match (place(from), place(target)) {
        _ if from == target => true,
        _ if path.starts_with("telemetry::names") => true,
        (Some(left), Some(right)) => left < right,
        (_, None) => listed(&BESIDE, target, from),
        (None, Some(_)) => listed(&BESIDE_USES, from, target),
    }
}

#[test]
fn imports_point_right_only() {
    let sources = sources();
    let known = |name: &str| ORDER.contains(&name) || BESIDE.iter().any(|(beside, _)| *beside == name);
    let mut judged = 0;
    for source in sources.iter().filter(|source| source.layer != "lib") {
        assert!(known(&source.layer), "{} is no layer of section 10", source.path.display());
        for path in imports(source) {
            let target = path.split("::").next().expect("a path has a head");
            judged += usize::from(known(target));
            let fine = !known(target) || may_import(&source.layer, target, &path);
            assert!(fine, "{} imports {path}: {} stands below {target}", source.path.display(), source.layer);
        }
    }
    assert!(judged > 30, "only {judged} imports were seen: the reader of imports is blind");
}

#[test]
fn no_two_layers_import_each_other() {
    let sources = sources();
    let uses = |from: &str, target: &str| {
        let of_layer = sources.iter().filter(|source| source.layer == from);
        of_layer.flat_map(imports).any(|path| path.split("::").next() == Some(target))
    };
    let all: Vec<&str> = ORDER.into_iter().chain(BESIDE.map(|(name, _)| name)).collect();
    for (index, left) in all.iter().enumerate() {
        for right in &all[index + 1..] {
            assert!(!(uses(left, right) && uses(right, left)), "{left} and {right} import each other");
        }
    }
}

#[test]
fn bus_takes_only_committed_from_the_store() {
    for source in sources().iter().filter(|source| source.layer == "bus") {
        for path in imports(source).iter().filter(|path| path.starts_with("store")) {
            let proof = ["store::Committed", "store::CommittedJob"];
            assert!(proof.contains(&path.as_str()), "{} imports {path}", source.path.display());
        }
    }
}

#[test]
fn words_stay_in_their_layers() {
    for source in sources() {
        for (word, layers) in WORDS {
            let uses = source.code.contains(&format!("{word}::")) || source.code.contains(&format!("{word}("));
            assert!(!uses || layers.contains(&source.layer.as_str()), "{} uses {word}", source.path.display());
        }
    }
}

#[test]
fn domain_has_no_clock_and_no_io() {
    for source in sources().iter().filter(|source| source.layer == "domain") {
        for word in IMPURE {
            assert!(!source.code.contains(word), "{} uses {word}", source.path.display());
        }
    }
}

#[test]
fn reader_of_imports_sees_every_form() {
    let code =
        "use crate::{store::Committed, http::{a, b},\n domain};\nuse super::super::bus::x;\nmilepost::cli::run();";
    let source = Source { layer: "http".into(), path: PathBuf::new(), code: code.into(), depth: 2 };
    let mut found = imports(&source);
    found.sort();
    assert_eq!(found, ["bus::x", "cli::run", "domain", "http::", "store::Committed"]);
    let upward = [("store", "bus"), ("domain", "store"), ("http", "server"), ("service", "config"), ("http", "worker")];
    for (from, target) in upward {
        assert!(!may_import(from, target, target), "{from} may not import {target}");
    }
    for (from, target) in [("cli", "client"), ("worker", "service"), ("http", "domain"), ("compose", "config")] {
        assert!(may_import(from, target, target), "{from} may import {target}");
    }
}
