//! Names in the documentation of the public API, and in the parity table.

use std::path::{Path, PathBuf};
use std::process::Command;

fn pages(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "html") {
            found.push(path);
        }
    }
}

/// Returns the visible text of a page, without tags.
fn visible(page: &str) -> String {
    let mut text = String::new();
    let mut inside = false;
    for character in page.chars() {
        match character {
            '<' => inside = true,
            '>' if inside => inside = false,
            _ if !inside => text.push(character),
            _ => {}
        }
    }
    text
}

fn says_the_protocol(text: &str) -> Option<String> {
    let lower = text.to_lowercase();
    let words = lower.split(|character: char| !character.is_ascii_alphanumeric());
    let found = words.clone().find(|word| *word == "acp").map(str::to_owned);
    found.or_else(|| {
        let names = ["agent client protocol", "json-rpc"];
        names.into_iter().find(|name| lower.contains(name)).map(str::to_owned)
    })
}

/// The features with documentation. The two TLS features have none and exclude each other.
const FEATURES: &str = "conformance,files,local,postgres,providers,sessions,sqlite,terminals";

#[test]
fn the_documentation_does_not_name_the_protocol() {
    // The dependencies are already built in the target directory of the test.
    let executable = std::env::current_exe().unwrap();
    let target = executable.ancestors().nth(3).unwrap();
    let output = Command::new(env!("CARGO"))
        .args(["doc", "--lib", "--no-deps", "--offline", "--features", FEATURES, "--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .arg("--target-dir")
        .arg(target)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut own = Vec::new();
    pages(&target.join("doc/sandbox_agent_sdk"), &mut own);
    assert!(own.len() > 50, "only {} pages were written", own.len());
    for page in own {
        let text = visible(&std::fs::read_to_string(&page).unwrap());
        let found = says_the_protocol(&text);
        assert_eq!(found, None, "{}", page.display());
    }
}

#[test]
fn the_search_for_the_name_finds_it() {
    assert!(says_the_protocol("the ACP client").is_some());
    assert!(says_the_protocol("acp_http_client::Error").is_some());
    assert!(says_the_protocol("an Agent Client Protocol").is_some());
    assert!(says_the_protocol("a JSON-RPC id").is_some());
    assert_eq!(says_the_protocol("capacity, macpherson"), None);
    assert_eq!(visible("<a href=\"acp\">text</a>"), "text");
}

/// The text of a source file, or of all in a directory.
fn sources(directory: &Path) -> String {
    if directory.is_file() {
        return std::fs::read_to_string(directory).unwrap();
    }
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let source = |path: PathBuf| match path.extension() {
        _ if path.is_dir() => sources(&path),
        Some(extension) if extension == "rs" => std::fs::read_to_string(path).unwrap(),
        _ => String::new(),
    };
    entries.map(source).collect()
}

/// The names of tests on the page: with their file, or without one. Those without a file are long, and in the last column.
fn named_tests(page: &str) -> Vec<(Option<&str>, &str)> {
    let rows = page.lines().filter_map(|line| line.strip_prefix('|'));
    let codes = rows.flat_map(|row| {
        let column = row.trim_end().trim_end_matches('|').rsplit('|').next().unwrap_or_default();
        column.split('`').skip(1).step_by(2)
    });
    let is_name = |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    let named = codes.filter_map(|code| match code.split_once("::") {
        Some((file, name)) => (is_name(file) && is_name(name)).then_some((Some(file), name)),
        None => (is_name(code) && code.matches('_').count() > 2).then_some((None, code)),
    });
    named.collect()
}

#[test]
fn every_test_that_the_parity_table_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = std::fs::read_to_string(root.join("../docs/parity.md")).unwrap();
    let places = [
        (Some("client"), vec!["tests/client"]),
        (Some("control"), vec!["tests/control"]),
        (Some("stored"), vec!["tests/stored"]),
        (Some("tools"), vec!["tests/tools"]),
        (Some("unit"), vec!["src"]),
        (Some("local"), vec!["../tests/tests/it"]),
        (None, vec!["../tests/tests/it/control", "../tests/tests/it/provider.rs"]),
    ];
    let places = places.map(|(file, paths)| {
        let text: String = paths.into_iter().map(|path| sources(&root.join(path))).collect();
        (file, text)
    });
    let mut counts = [0; 7];
    for (file, name) in named_tests(&table) {
        let place = places.iter().position(|(known, _)| *known == file);
        let place = place.unwrap_or_else(|| panic!("{file:?}::{name} is in no known file"));
        assert!(places[place].1.contains(&format!("fn {name}(")), "{file:?}::{name} does not exist");
        counts[place] += 1;
    }
    assert!(counts.iter().all(|count| *count > 0) && counts.iter().sum::<i32>() > 100, "{counts:?}");
}

#[test]
fn the_search_for_names_of_tests_finds_those_with_a_file_and_those_without() {
    let page = "`prose::not_in_a_table`\n| `a_b_c_d_e` | `x` | same (`stored::one`, `a_b_c_d`), `follow`, `A::b` |\n";
    assert_eq!(named_tests(page), [(Some("stored"), "one"), (None, "a_b_c_d")]);
}
