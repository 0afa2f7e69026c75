//! Keeps `docs/servers.md` and the suite consistent.

use std::{collections::BTreeSet, env, fs, path::Path, process::Command};

use super::given::NOT_APPLICABLE;

/// Returns the paths of all tests of this program.
fn tests() -> BTreeSet<String> {
    let mut program = Command::new(env::current_exe().expect("this program"));
    let list = program.args(["--list", "--format", "terse"]).output().expect("a list of tests");
    let list = String::from_utf8(list.stdout).expect("text");
    list.lines().filter_map(|line| Some(line.strip_suffix(": test")?.to_owned())).collect()
}

fn behaviours_of(row: &str) -> BTreeSet<String> {
    let prefix = format!("servers::{row}::");
    tests().iter().filter_map(|test| Some(test.strip_prefix(&prefix)?.to_owned())).collect()
}

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/servers.md");
    fs::read_to_string(path).expect("the page about servers")
}

/// Returns the words in backticks that look like the name of a test.
fn names(page: &str) -> BTreeSet<&str> {
    let quoted = page.split('`').skip(1).step_by(2);
    let word = |name: &&str| {
        name.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_')
    };
    quoted.filter(word).filter(|name| name.matches('_').count() >= 3).collect()
}

#[test]
fn every_test_that_the_page_names_exists() {
    let tests = tests();
    let rows: BTreeSet<&str> = tests.iter().filter_map(|test| test.split("::").nth(1)).collect();
    let last: BTreeSet<&str> = tests.iter().filter_map(|test| test.rsplit("::").next()).collect();
    let page = page();
    let named = names(&page);
    let unknown: Vec<&&str> =
        named.iter().filter(|name| !last.contains(**name) && !rows.contains(**name)).collect();
    assert!(unknown.is_empty(), "the page names tests that do not exist: {unknown:?}");
    assert!(!page.contains('\u{2026}'), "test names are written in full");
}

#[test]
fn every_behaviour_and_every_row_is_on_the_page() {
    let page = page();
    let rows: BTreeSet<String> = tests()
        .iter()
        .filter_map(|test| Some(test.strip_prefix("servers::")?.split("::").next()?.to_owned()))
        .filter(|row| !["page", "given_row", "stored"].contains(&row.as_str()))
        .collect();
    let missing = |name: &&String| !page.contains(&format!("`{name}`"));
    assert_eq!(rows.iter().filter(missing).collect::<Vec<_>>(), Vec::<&String>::new(), "rows");
    let behaviours: BTreeSet<String> = rows.iter().flat_map(|row| behaviours_of(row)).collect();
    assert_eq!(behaviours.iter().filter(missing).collect::<Vec<_>>(), Vec::<&String>::new(), "behaviours");
}

#[test]
fn an_external_server_is_tested_except_for_what_the_page_names() {
    let mut shown = behaviours_of("what_sandbox_agent_url_points_at");
    let page = page();
    for (behaviour, why) in NOT_APPLICABLE {
        assert!(shown.insert(behaviour.to_owned()), "{behaviour} is tested");
        assert!(page.contains(why), "the page does not say: {why}");
    }
    assert_eq!(shown, behaviours_of("released_0_4_2_by_sdk"));
}

/// Runs one test of a released server in a process without npm and without a downloaded program.
fn without_npm(ci: bool) -> (bool, String) {
    let empty = tempfile::tempdir().expect("a temporary folder");
    let mut test = Command::new(env::current_exe().expect("this program"));
    test.args(["--exact", "servers::released_0_4_2_by_sdk::a_handshake_names_the_agent"])
        .env("PATH", empty.path())
        .env("SDK_TESTS_RELEASED", empty.path().join("released"))
        .env_remove("CI");
    if ci {
        test.env("CI", "true");
    }
    let output = test.output().expect("the test runs");
    let printed = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&printed).into_owned())
}

#[test]
fn without_npm_a_row_reports_that_it_was_not_run_and_fails_in_ci() {
    let (passed, printed) = without_npm(false);
    let note = "NOT RUN: servers::released_0_4_2_by_sdk::a_handshake_names_the_agent: the released server 0.4.2 cannot";
    assert!(passed && printed.contains(note) && printed.contains("npm cannot be run"), "{printed}");
    let (passed, printed) = without_npm(true);
    assert!(!passed && printed.contains("npm cannot be run"), "{printed}");
}
