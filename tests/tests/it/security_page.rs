//! `SECURITY.md` and `docs/sessions.md` name tests that exist, and `SECURITY.md` names every limit.

use std::{
    collections::{BTreeSet, HashSet},
    fmt::Debug,
    fs,
    path::{Path, PathBuf},
};

/// Collects the tests in the Rust files below a directory, each with its modules before its name.
fn tests(directory: &Path, modules: &[&str], found: &mut HashSet<String>) {
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        let stem = path.file_stem().unwrap().to_str().unwrap();
        // Tests beside the code are named without their modules.
        let inner: Vec<&str> = match modules {
            ["unit"] => vec!["unit"],
            modules if stem == "main" => modules.to_vec(),
            modules => modules.iter().copied().chain([stem]).collect(),
        };
        if path.is_dir() {
            tests(&path, &inner, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let mut is_test = false;
            for line in fs::read_to_string(&path).unwrap().lines().map(str::trim_start) {
                let function = line.strip_prefix("async fn ").or_else(|| line.strip_prefix("fn "));
                match function.and_then(|rest| rest.split(['(', '<']).next()) {
                    Some(name) if is_test => drop(found.insert(format!("{}::{name}", inner.join("::")))),
                    _ => {}
                }
                is_test = line.starts_with("#[") && (is_test || line.contains("test"));
            }
        }
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The fields of a struct, as its `Debug` shows them.
fn fields(of: &impl Debug) -> BTreeSet<String> {
    let shown = format!("{of:#?}");
    shown.lines().filter_map(|line| Some(line.trim().split_once(": ")?.0.to_owned())).collect()
}

/// The names in the first column of the table with this header.
fn rows(page: &str, header: &str) -> BTreeSet<String> {
    let table = page.lines().skip_while(|line| !line.contains(header)).skip(2);
    let rows = table.take_while(|line| line.starts_with('|'));
    let names = rows.flat_map(|row| row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2));
    names.map(str::to_owned).collect()
}

#[test]
fn every_limit_is_on_the_page_with_its_tests() {
    let page = fs::read_to_string(root().join("SECURITY.md")).unwrap();
    let protocol = fields(&acp_http_client::Limits::default());
    assert!(protocol.contains("message"), "{protocol:?}");
    assert_eq!(rows(&page, "field of `acp_http_client::Limits`"), protocol);
    let sdk = fields(&sandbox_agent_sdk::limits::Limits::default());
    assert_eq!(rows(&page, "field of `sandbox_agent_sdk::limits::Limits`"), sdk);
}

/// Checks that each row of a page's tables of guarantees names tests, and that all named tests exist.
fn check(page: &str, at_least: usize) {
    let root = root();
    let mut names = HashSet::new();
    for (directory, modules) in [
        ("tests/tests", &[][..]),
        ("sandbox-agent-sdk/tests", &[]),
        ("acp-http-client/tests", &[]),
        ("mock-server/tests", &[]),
        ("sandbox-agent-sdk/src", &["unit"]),
        ("acp-http-client/src", &["unit"]),
        ("mock-server/src", &["unit"]),
    ] {
        tests(&root.join(directory), modules, &mut names);
    }
    let page = fs::read_to_string(root.join(page)).unwrap();
    let is_name = |word: &str| {
        word.contains("::")
            && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_:".contains(c))
    };
    let named: Vec<_> = page.split('`').skip(1).step_by(2).filter(|word| is_name(word)).collect();
    assert!(named.len() > at_least, "{named:?}");
    let missing: Vec<_> = named
        .iter()
        .filter(|name| **name != "binary::module::test")
        .filter(|name| match name.strip_prefix("unit::").and_then(|name| name.rsplit("::").next()) {
            Some(name) => !names.contains(&format!("unit::{name}")),
            None => !names.contains(**name),
        })
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
    let unproven: Vec<_> =
        page.lines().filter(|line| line.starts_with('|') && line.ends_with("| |")).collect();
    assert!(unproven.is_empty(), "{unproven:?}");
}

#[test]
fn every_test_on_the_page_exists() {
    check("SECURITY.md", 30);
}

#[test]
fn every_test_on_the_page_of_stored_sessions_exists() {
    check("docs/sessions.md", 20);
}

/// Files that parse JSON directly, into types without a `Value`, or after a check of the names.
const DIRECT_PARSERS: [&str; 17] = [
    "acp-http-client/src/client/core.rs",
    "acp-http-client/src/events/peek.rs",
    "acp-http-client/src/events/text_chunk.rs",
    "acp-http-client/src/fuzzing/message.rs",
    "acp-http-client/src/fuzzing/names.rs",
    "acp-http-client/src/handler/typed.rs",
    "acp-http-client/src/inbound/router.rs",
    "acp-http-client/src/json/decoded.rs",
    "acp-http-client/src/json/mod.rs",
    "acp-http-client/src/rpc/message.rs",
    "sandbox-agent-sdk/src/client/router/incoming.rs",
    "sandbox-agent-sdk/src/convert/lenient.rs",
    "sandbox-agent-sdk/src/convert/partial_json.rs",
    "sandbox-agent-sdk/src/provider/relay.rs",
    "sandbox-agent-sdk/src/sessions/entry.rs",
    "sandbox-agent-sdk/src/sessions/store/limits.rs",
    "sandbox-agent-sdk/src/sessions/transcript.rs",
];

fn direct_parsers(directory: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            direct_parsers(&path, found);
        } else if path.file_name().unwrap() != "tests.rs" {
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
            let is_direct = |line: &str| {
                !line.trim_start().starts_with("//")
                    && ["from_str", "from_slice", "from_reader", "Deserializer::from_"]
                        .iter()
                        .any(|function| line.contains(&format!("serde_json::{function}")))
            };
            if code.lines().any(is_direct) {
                found.insert(path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
}

/// Everything else goes through `acp_http_client::json`, which refuses reserved names.
#[test]
fn json_of_the_wire_is_parsed_by_one_function() {
    let mut found = BTreeSet::new();
    for directory in ["acp-http-client/src", "sandbox-agent-sdk/src"] {
        direct_parsers(&root().join(directory), &mut found);
    }
    assert_eq!(found, DIRECT_PARSERS.map(str::to_owned).into());
}
