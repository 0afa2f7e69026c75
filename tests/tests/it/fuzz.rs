//! The corpus of the fuzzer, replayed through the bodies of its targets.

use std::{
    collections::BTreeSet,
    fs,
    panic::catch_unwind,
    path::{Path, PathBuf},
};

use sdk_tests::fuzz::TARGETS;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

fn names(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).unwrap().flatten();
    entries.filter_map(|entry| Some(entry.path().file_stem()?.to_str()?.to_owned())).collect()
}

#[test]
fn everything_that_the_fuzzer_found_passes() {
    for (name, target) in TARGETS {
        let corpus = directory().join("corpus").join(name);
        let mut inputs: Vec<PathBuf> =
            fs::read_dir(corpus).unwrap().flatten().map(|entry| entry.path()).collect();
        inputs.sort();
        assert!(!inputs.is_empty(), "{name} has no corpus");
        // Every target takes an input without choices.
        target(&[]);
        for path in inputs {
            let input = fs::read(&path).unwrap();
            assert!(catch_unwind(|| target(&input)).is_ok(), "{name} fails with {}", path.display());
        }
    }
}

#[test]
fn every_target_is_built_and_has_a_corpus() {
    let known: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names(&directory().join("fuzz_targets")), known);
    assert_eq!(names(&directory().join("corpus")), known);
}

/// The wrappers need a fuzzer to be compiled, so their text is checked: each calls the function that this crate compiles.
#[test]
fn every_wrapper_calls_the_target_of_its_name() {
    let manifest = fs::read_to_string(directory().join("Cargo.toml")).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/fuzz");
    let targets = fs::read_to_string(source.join("mod.rs")).unwrap();
    for (name, _) in TARGETS {
        let calls = |path: &str, module: &str| {
            format!(
                "#![no_main]\n\n{module}libfuzzer_sys::fuzz_target!(|data: &[u8]| {path}::{name}(data));\n"
            )
        };
        let imported = |krate: &str| {
            let imports =
                targets.lines().find_map(|line| line.strip_prefix(&format!("use {krate}::fuzzing::{{")));
            imports.unwrap().trim_end_matches("};").split(", ").any(|import| import == name)
        };
        let expected = if source.join(name).with_extension("rs").exists() {
            calls("target", &format!("#[path = \"../../src/fuzz/{name}.rs\"]\nmod target;\n\n"))
        } else if imported("acp_http_client") {
            calls("acp_http_client::fuzzing", "")
        } else {
            assert!(imported("sandbox_agent_sdk"), "{name}");
            calls("sandbox_agent_sdk::fuzzing", "")
        };
        let wrapper = fs::read_to_string(directory().join(format!("fuzz_targets/{name}.rs"))).unwrap();
        assert_eq!(wrapper, expected, "{name}");
        let binary = format!("[[bin]]\nname = \"{name}\"\npath = \"fuzz_targets/{name}.rs\"\n");
        assert!(manifest.contains(&binary), "{name}");
    }
}
