//! The table of promises in the README of the crate.

use std::{fs, path::Path};

#[test]
fn every_promise_of_the_readme_names_a_test_that_exists() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(here.join("../acp-http-client/README.md")).unwrap();
    let folders = ["tests/it/acp", "tests/alone"];
    let files = folders.iter().flat_map(|folder| fs::read_dir(here.join(folder)).unwrap());
    let sources: String = files.map(|file| fs::read_to_string(file.unwrap().path()).unwrap()).collect();
    let rows: Vec<_> = readme
        .lines()
        .skip_while(|line| !line.starts_with("| what happens |"))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .collect();
    assert!(rows.len() > 20, "the table is found");
    for row in rows {
        let test = row.trim_end_matches('|').rsplit('|').next().unwrap().trim().trim_matches('`');
        assert!(sources.contains(&format!("fn {test}(")), "no test shows: {row}");
    }
}
