//! `SECURITY.md` and `docs/sessions.md` name tests that exist.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
};

/// Collects the names of all functions in the Rust files below a directory.
fn functions(directory: &Path, names: &mut HashSet<String>) {
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            functions(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let found = text.lines().filter_map(|line| {
                let line = line.trim_start();
                let rest = line.strip_prefix("async fn ").or_else(|| line.strip_prefix("fn "))?;
                Some(rest.split(['(', '<']).next()?.to_owned())
            });
            names.extend(found);
        }
    }
}

/// Checks that each row of a page's tables of guarantees names tests, and that all named tests exist.
fn check(page: &str, at_least: usize) {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned();
    let mut names = HashSet::new();
    for directory in [
        "tests/tests",
        "sandbox-agent-sdk/tests",
        "sandbox-agent-sdk/src",
        "acp-http-client/tests",
        "acp-http-client/src",
    ] {
        functions(&root.join(directory), &mut names);
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
        .filter(|name| !names.contains(name.rsplit("::").next().unwrap()))
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
