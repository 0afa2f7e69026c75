//! What the crates depend on: licences, sources, bans, unused dependencies, compiler versions; and that the core of the
//! SDK depends on none of its optional parts.
//!
//! The rules are those of `deny.toml`. `cargo deny check` reads the same file and knows advisories besides.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";
const LIBRARIES: [&str; 2] = ["acp-http-client", "sandbox-agent-sdk"];
/// Crates and features that belong to optional parts, as `cargo tree` prints them.
const OPTIONAL: [&str; 9] = [
    "cap-std v",
    "process-wrap v",
    "sqlx v",
    "sqlx-core v",
    "arbitrary v",
    "shuttle v",
    "tokio feature \"process\"",
    "tokio feature \"signal\"",
    "native-tls v",
];

/// The folders of the core. `tools` is not one of them, although its traits are compiled without features: the core does
/// not name it.
const CORE: [&str; 6] = ["client", "convert", "control", "error", "requests", "usage"];
/// The features and the modules of its optional parts.
const FEATURES: [&str; 8] =
    ["sessions", "sqlite", "postgres", "conformance", "files", "terminals", "local", "providers"];
const MODULES: [&str; 5] = ["sessions", "tools", "local", "process_tree", "provider"];
/// The modules of the core that conversions do not name, because these are pure.
const IMPURE: [&str; 3] = ["client", "control", "requests"];
/// The files of the core that name an optional part, with the reason.
const NAMING: [(&str, &str); 2] = [
    ("error/classify.rs", "classifies the variants of `error/mod.rs`"),
    ("error/mod.rs", "callers match on the errors of a store and of a status like on any other error"),
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn cargo(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO")).args(arguments).arg("--locked").current_dir(root()).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The packages of the workspace and of everything that it depends on here, with all features.
fn metadata() -> Value {
    let compiler = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let output = Command::new(compiler).arg("-vV").output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let host = output.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let arguments = ["metadata", "--format-version", "1", "--all-features", "--filter-platform", host];
    serde_json::from_str(&cargo(&arguments)).unwrap()
}

fn text<'a>(value: &'a Value, member: &str) -> &'a str {
    value[member].as_str().unwrap_or_default()
}

fn list<'a>(value: &'a Value, member: &str) -> &'a [Value] {
    value[member].as_array().map_or(&[], Vec::as_slice)
}

fn members(metadata: &Value) -> impl Iterator<Item = &Value> {
    list(metadata, "packages").iter().filter(|package| package["source"].is_null())
}

/// The strings of a list in `deny.toml`.
fn rules(name: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("deny.toml")).unwrap();
    let (_, list) = text.split_once(&format!("\n{name} = [")).unwrap();
    let (list, _) = list.split_once(']').unwrap();
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn every_dependency_has_an_allowed_licence_and_comes_from_the_registry() {
    let (metadata, allowed) = (metadata(), rules("allow"));
    assert!(allowed.contains("MIT"), "{allowed:?}");
    let mut wrong = Vec::new();
    for package in list(&metadata, "packages") {
        let (name, licence) = (text(package, "name"), text(package, "license"));
        let expression = spdx::Expression::parse_mode(licence, spdx::ParseMode::LAX);
        let fits =
            expression.is_ok_and(|expression| expression.evaluate(|one| allowed.contains(&one.to_string())));
        if !fits {
            wrong.push(format!("{name}: licence {licence:?}"));
        }
        match package["source"].as_str() {
            None | Some(REGISTRY) => {}
            Some(other) => wrong.push(format!("{name}: {other}")),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn banned_crates_and_open_versions_are_not_used() {
    let metadata = metadata();
    let names: HashMap<&str, &str> = list(&metadata, "packages")
        .iter()
        .map(|package| (text(package, "id"), text(package, "name")))
        .collect();
    for node in list(&metadata["resolve"], "nodes") {
        for dependency in list(node, "dependencies").iter().filter_map(Value::as_str) {
            let user = names[text(node, "id")];
            assert!(names[dependency] != "openssl" || user == "native-tls", "{user} uses openssl");
        }
    }
    for package in members(&metadata) {
        for dependency in list(package, "dependencies").iter().filter(|one| one["path"].is_null()) {
            assert_ne!(text(dependency, "req"), "*", "{} of {}", dependency["name"], package["name"]);
        }
    }
}

#[test]
fn every_dependency_of_the_libraries_builds_with_the_declared_compiler() {
    let metadata = metadata();
    let versions: BTreeSet<&str> = members(&metadata).map(|package| text(package, "rust_version")).collect();
    assert_eq!(versions.len(), 1, "the packages declare different versions: {versions:?}");
    let declared = version(versions.first().unwrap());
    let in_use: HashSet<String> = LIBRARIES
        .iter()
        .flat_map(|library| tree(library, &["--all-features"]))
        .filter_map(|line| {
            let mut words = line.split(' ');
            Some(format!("{} {}", words.next()?, words.next()?.strip_prefix('v')?))
        })
        .collect();
    assert!(in_use.len() > 100, "{in_use:?}");
    let newer: Vec<String> = list(&metadata, "packages")
        .iter()
        .filter(|package| in_use.contains(&format!("{} {}", text(package, "name"), text(package, "version"))))
        .filter(|package| package["rust_version"].as_str().is_some_and(|needed| version(needed) > declared))
        .map(|package| format!("{} needs {}", text(package, "name"), text(package, "rust_version")))
        .collect();
    assert!(newer.is_empty(), "{newer:#?}");
}

fn version(text: &str) -> (u32, u32) {
    let mut parts = text.split('.').map(|part| part.parse().unwrap());
    (parts.next().unwrap(), parts.next().unwrap_or(0))
}

#[test]
fn every_dependency_is_used() {
    let metadata = metadata();
    let mut unused = Vec::new();
    for package in members(&metadata) {
        let (library, all) = (sources(package, false), sources(package, true));
        for dependency in list(package, "dependencies") {
            let name = dependency["rename"].as_str().unwrap_or(text(dependency, "name"));
            let source = if dependency["kind"] == "dev" { &all } else { &library };
            // A package that depends on itself turns its features on for its tests.
            if name != package["name"] && !names(source, &name.replace('-', "_")) {
                unused.push(format!("{name} of {}", package["name"]));
            }
        }
    }
    assert!(unused.is_empty(), "{unused:#?}");
}

/// Whether a source text names a crate, as a path or on its own.
fn names(source: &str, krate: &str) -> bool {
    source.match_indices(krate).any(|(at, _)| {
        let before = source[..at].chars().next_back();
        let behind = &source[at + krate.len()..];
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let begins = !before.is_some_and(|c| is_word(c) || c == '.' || c == '"');
        begins && ["::", ";", " as ", ",", "}"].iter().any(|end| behind.starts_with(end))
    })
}

/// The text of a package's targets, with or without tests and benchmarks.
fn sources(package: &Value, tests: bool) -> String {
    let mut files = BTreeSet::new();
    for target in list(package, "targets") {
        let is_test = target["kind"][0] == "test" || target["kind"][0] == "bench";
        if tests || !is_test {
            rust_files(Path::new(text(target, "src_path")).parent().unwrap(), tests, &mut files);
        }
    }
    files.iter().map(|file| fs::read_to_string(file).unwrap()).collect()
}

fn rust_files(directory: &Path, tests: bool, files: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() && (tests || name != "tests") && name != "target" {
            rust_files(&path, tests, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.insert(path);
        }
    }
}

#[test]
fn default_features_bring_none_of_the_optional_parts() {
    for library in LIBRARIES {
        let lines = tree(library, &[]);
        assert!(lines.iter().any(|line| line.starts_with("tokio feature \"rt\"")), "{lines:?}");
        let found: Vec<_> =
            lines.iter().filter(|line| OPTIONAL.iter().any(|part| line.starts_with(part))).collect();
        assert!(found.is_empty(), "{library}: {found:?}");
    }
}

#[test]
fn the_core_of_the_sdk_names_none_of_its_optional_parts() {
    let source = root().join("sandbox-agent-sdk/src");
    let mut naming = Vec::new();
    for part in CORE {
        let mut files = BTreeSet::new();
        rust_files(&source.join(part), true, &mut files);
        assert!(!files.is_empty(), "{part} has no files");
        naming.extend(files.into_iter().filter(|file| {
            let text = fs::read_to_string(file).unwrap();
            let has_feature = |feature: &&str| text.contains(&format!("feature = \"{feature}\""));
            let named = modules(&text);
            let has_module = |module: &&str| named.contains(*module);
            FEATURES.iter().any(has_feature) || MODULES.iter().any(has_module)
        }));
    }
    let naming: Vec<_> = naming.iter().map(|file| file.strip_prefix(&source).unwrap()).collect();
    let expected: Vec<_> = NAMING.iter().map(|(file, _)| Path::new(file)).collect();
    assert_eq!(naming, expected);
}

/// The modules of the crate that a source text names: in paths, and in groups of imports.
fn modules(text: &str) -> BTreeSet<&str> {
    let word = |text: &str| text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
    let mut modules = BTreeSet::new();
    for (at, name) in text.match_indices("crate::") {
        let behind = text[at + name.len()..].trim_start();
        let Some(group) = behind.strip_prefix('{') else {
            modules.insert(&behind[..word(behind)]);
            continue;
        };
        let mut depth = 0;
        let mut begins = true;
        for (at, c) in group.char_indices() {
            match c {
                '}' if depth == 0 => break,
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => begins = true,
                c if c.is_whitespace() => {}
                _ if std::mem::take(&mut begins) => {
                    modules.insert(&group[at..at + word(&group[at..])]);
                }
                _ => {}
            }
        }
    }
    modules
}

#[test]
fn modules_are_found_in_paths_and_in_groups_of_imports() {
    let text =
        "use crate::{\n    Error, sessions::{store, tools},\n    local::Server as S};\ncrate::usage::Budget;";
    let expected = ["Error", "local", "sessions", "usage"];
    assert_eq!(modules(text).into_iter().collect::<Vec<_>>(), expected);
    assert!(modules("use crate::{};").is_empty());
}

#[test]
fn conversions_name_neither_the_client_nor_a_runtime() {
    let source = root().join("sandbox-agent-sdk/src/convert");
    let mut files = BTreeSet::new();
    rust_files(&source, true, &mut files);
    assert!(files.len() > 20, "{files:?}");
    // It compares the protocol schema with all of the crate, in a test.
    files.remove(&source.join("schema_walk.rs"));
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let named = modules(&text);
        let allowed = |module: &&str| !IMPURE.contains(module) && !MODULES.contains(module);
        assert!(named.iter().all(allowed), "{}: {named:?}", file.display());
        assert!(!["tokio", "reqwest"].iter().any(|krate| names(&text, krate)), "{}", file.display());
    }
}

/// What a library depends on, with the features that are on.
fn tree(library: &str, features: &[&str]) -> Vec<String> {
    let arguments = ["tree", "-p", library, "-e", "normal,features", "--prefix", "none"];
    cargo(&[&arguments, features].concat()).lines().map(str::to_owned).collect()
}
