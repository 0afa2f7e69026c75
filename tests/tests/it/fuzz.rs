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
