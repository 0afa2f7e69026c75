//! Writing files.

use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sandbox_agent_sdk::tools::{FileAccess, FileError, TextFiles};

use super::support::{Place, read, without_waiting, write};

fn names(place: &Place) -> BTreeSet<String> {
    let entries = std::fs::read_dir(place.root()).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[tokio::test]
async fn a_file_is_written_as_it_is_given_with_the_directories_that_are_missing() {
    let place = Place::new();
    let files = place.files();
    let text = "one\r\ntwo\n\0é🦀";
    write(&files, place.at("a/b/c/f"), text).await.unwrap();
    assert_eq!(std::fs::read_to_string(place.at("a/b/c/f")).unwrap(), text);
    write(&files, place.at("a/b/c/f"), "").await.unwrap();
    assert_eq!(std::fs::read(place.at("a/b/c/f")).unwrap(), b"");
    assert_eq!(std::fs::read_dir(place.at("a/b/c")).unwrap().count(), 1, "nothing is left over");
}

#[tokio::test]
async fn the_permissions_of_a_file_are_kept() {
    let place = Place::new();
    let path = place.file("run.sh", "old");
    for mode in [0o755, 0o600, 0o640] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        write(&place.files(), &path, "new").await.unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, mode);
    }
    // A new file has what the system gives to new files.
    std::fs::write(place.at("by_hand"), "").unwrap();
    write(&place.files(), place.at("by_sdk"), "").await.unwrap();
    let mode = |name: &str| place.at(name).metadata().unwrap().mode();
    assert_eq!(mode("by_sdk"), mode("by_hand"));
}

#[tokio::test]
async fn a_file_that_may_not_be_written_is_left_alone() {
    let place = Place::new();
    let path = place.file("f", "old");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
    assert!(matches!(write(&place.files(), &path, "new").await, Err(FileError::ReadOnly(_))));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
    let files = place.files().read_only();
    assert_eq!(files.access(), FileAccess::Read);
    assert!(matches!(write(&files, place.at("g"), "new").await, Err(FileError::ReadOnly(_))));
    assert_eq!(read(&files, &path).await.unwrap(), "old");
    assert_eq!(names(&place), BTreeSet::from(["f".to_owned()]));
}

#[tokio::test]
async fn a_text_over_the_limit_is_refused_and_the_file_is_unchanged() {
    let place = Place::new();
    let files = place.files().write_limit(10);
    let path = place.file("f", "old");
    let result = write(&files, &path, "x".repeat(11)).await;
    assert!(matches!(result, Err(FileError::TooLarge { limit: 10, .. })));
    assert!(write(&files, place.at("deep/f"), "x".repeat(11)).await.is_err());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
    assert_eq!(names(&place), BTreeSet::from(["f".to_owned()]), "nothing is made for it");
    write(&files, &path, "x".repeat(10)).await.unwrap();
}

#[test]
fn what_is_not_a_file_is_not_overwritten_and_never_blocks() {
    without_waiting(async {
        let place = Place::new();
        let files = place.files();
        std::fs::create_dir(place.at("dir")).unwrap();
        assert!(Command::new("mkfifo").arg(place.at("pipe")).status().unwrap().success());
        let _listener = UnixListener::bind(place.at("socket")).unwrap();
        let before = names(&place);
        for name in ["dir", "dir/", "pipe", "socket", "", ".", "dir/..", "dir/."] {
            let result = write(&files, place.at(name), "x").await;
            assert!(matches!(result, Err(FileError::NotAFile(_))), "{name}: {result:?}");
        }
        place.file("f", "x");
        assert!(write(&files, place.at("f/below"), "x").await.is_err());
        std::fs::remove_file(place.at("f")).unwrap();
        assert_eq!(names(&place), before);
        assert!(place.at("dir").is_dir());
    });
}

#[tokio::test]
async fn a_name_of_any_length_that_the_system_takes_can_be_written() {
    let place = Place::new();
    let longest = place.at("n".repeat(255));
    write(&place.files(), &longest, "x").await.unwrap();
    assert_eq!(read(&place.files(), &longest).await.unwrap(), "x");
    assert!(write(&place.files(), place.at("n".repeat(256)), "x").await.is_err());
    assert_eq!(names(&place).len(), 1, "nothing is left over");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_concurrent_reader_sees_the_old_text_or_the_new_one() {
    let place = Place::new();
    let files = place.files();
    let (one, two) = ("1".repeat(300_000), "2".repeat(200_000));
    let path = place.file("f", &one);
    let stop = Arc::new(AtomicBool::new(false));
    let reader = {
        let (stop, path, one, two) = (Arc::clone(&stop), path.clone(), one.clone(), two.clone());
        std::thread::spawn(move || {
            let mut seen = (0, 0);
            while !stop.load(Ordering::Relaxed) {
                let text = std::fs::read_to_string(&path).unwrap();
                if text == one {
                    seen.0 += 1;
                } else if text == two {
                    seen.1 += 1;
                } else {
                    panic!("a mixture of {} bytes", text.len());
                }
            }
            seen
        })
    };
    for round in 0..60 {
        write(&files, &path, if round % 2 == 0 { two.clone() } else { one.clone() }).await.unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    let seen = reader.join().unwrap();
    assert!(seen.0 + seen.1 > 0);
    assert_eq!(names(&place), BTreeSet::from(["f".to_owned()]));
}

#[tokio::test]
async fn writers_of_one_file_do_not_mix() {
    let place = Place::new();
    let files = place.files();
    let writers = (0..20).map(|number| {
        let (files, path) = (files.clone(), place.at("f"));
        async move { write(&files, path, format!("{number} ").repeat(20_000)).await.unwrap() }
    });
    futures::future::join_all(writers).await;
    let text = read(&files, place.at("f")).await.unwrap();
    let words: BTreeSet<_> = text.split_whitespace().collect();
    assert_eq!(words.len(), 1);
    assert_eq!(names(&place), BTreeSet::from(["f".to_owned()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_finished_has_no_name() {
    let place = Place::new();
    let text = "x".repeat(3 << 20);
    let stop = Arc::new(AtomicBool::new(false));
    let watcher = {
        let (stop, root, whole) = (Arc::clone(&stop), place.root(), text.len() as u64);
        std::thread::spawn(move || {
            let mut looks = 0;
            while !stop.load(Ordering::Relaxed) {
                for entry in std::fs::read_dir(&root).unwrap().flatten() {
                    // It may have got another name meanwhile.
                    let Ok(metadata) = entry.path().symlink_metadata() else { continue };
                    assert_eq!(metadata.len(), whole, "{}", entry.path().display());
                }
                looks += 1;
            }
            looks
        })
    };
    for round in 0..40 {
        // New files, and files in the place of others.
        write(&place.files(), place.at(format!("f{}", round % 20)), text.clone()).await.unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    assert!(watcher.join().unwrap() > 0);
    assert_eq!(names(&place).len(), 20);
}

#[tokio::test]
async fn a_file_is_written_although_another_process_takes_its_temporary_name() {
    let place = Place::new();
    let files = place.files().max_at_once(4);
    let writers = (0..30).map(|number| {
        let (files, path) = (files.clone(), place.at("new"));
        async move { write(&files, path, format!("{number}")).await.unwrap() }
    });
    futures::future::join_all(writers).await;
    assert_eq!(names(&place), BTreeSet::from(["new".to_owned()]));
}
