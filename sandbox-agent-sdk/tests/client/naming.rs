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

fn sources(directory: &Path) -> String {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let source = |path: PathBuf| match path.extension() {
        _ if path.is_dir() => sources(&path),
        Some(extension) if extension == "rs" => std::fs::read_to_string(path).unwrap(),
        _ => String::new(),
    };
    entries.map(source).collect()
}

#[test]
fn every_test_that_the_parity_table_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = std::fs::read_to_string(root.join("../docs/parity.md")).unwrap();
    let mut named = 0;
    let places = [
        ("client", "tests/client"),
        ("control", "tests/control"),
        ("unit", "src"),
        ("local", "../tests/tests/it"),
    ];
    for (file, directory) in places {
        let tests = sources(&root.join(directory));
        for rest in table.split(&format!("`{file}::")).skip(1) {
            let name = rest.split('`').next().unwrap();
            assert!(tests.contains(&format!("fn {name}(")), "{file}::{name} does not exist");
            named += 1;
        }
    }
    assert!(named > 60, "only {named} tests are named");
}
