//! Reading files.

use std::os::unix::net::UnixListener;
use std::process::Command;

use futures::poll;
use proptest::prelude::*;
use sandbox_agent_sdk::tools::{ConfinedFiles, FileError, LineRange, ReadText, Roots, TextFiles};

use super::support::{Place, lines, read, within, without_waiting};

#[tokio::test]
async fn a_file_is_read_whole_with_its_line_ends() {
    let place = Place::new();
    for text in ["", "\n", "one", "one\r\ntwo\rthree\n\n", "\u{FEFF}with a mark\n", "tab\tand nul \0 é 🦀"]
    {
        let path = place.file("f", text);
        assert_eq!(read(&place.files(), path).await.unwrap(), text);
    }
}

#[tokio::test]
async fn lines_are_counted_from_one_and_the_edges_are_defined() {
    let place = Place::new();
    let path = place.file("f", "one\r\ntwo\nthree");
    let table = [
        (Some(1), Some(1), "one\r\n"),
        (Some(2), Some(1), "two\n"),
        (Some(2), None, "two\nthree"),
        (None, Some(2), "one\r\ntwo\n"),
        (Some(3), Some(99), "three"),
        (Some(0), Some(1), "one\r\n"),
        (Some(0), None, "one\r\ntwo\nthree"),
        (Some(1), Some(0), ""),
        (Some(4), None, ""),
        (Some(u64::MAX), Some(u64::MAX), ""),
    ];
    for (line, limit, expected) in table {
        assert_eq!(lines(&place.files(), &path, line, limit).await.unwrap(), expected, "{line:?} {limit:?}");
    }
}

#[tokio::test]
async fn a_large_file_is_read_by_its_lines_and_refused_whole() {
    let place = Place::new();
    let files = place.files().read_limit(1000);
    let text: String = (1..=300_000).map(|number| format!("line {number}\n")).collect();
    let path = place.file("large", &text);
    assert!(matches!(read(&files, &path).await, Err(FileError::TooLarge { limit: 1000, .. })));
    assert_eq!(lines(&files, &path, Some(299_999), None).await.unwrap(), "line 299999\nline 300000\n");
    assert_eq!(lines(&files, &path, Some(150_000), Some(1)).await.unwrap(), "line 150000\n");
    assert!(matches!(lines(&files, &path, Some(2), None).await, Err(FileError::TooLarge { .. })));
    assert!(matches!(lines(&files, &path, Some(1), Some(1000)).await, Err(FileError::TooLarge { .. })));
    let exact = place.file("exact", "x".repeat(1000));
    assert_eq!(read(&files, &exact).await.unwrap().len(), 1000);
    let over = place.file("over", "x".repeat(1001));
    assert!(matches!(read(&files, &over).await, Err(FileError::TooLarge { .. })));
}

#[tokio::test]
async fn a_file_that_is_not_text_is_a_typed_error() {
    let place = Place::new();
    let files = place.files();
    let path = place.file("f", b"good\nbad \xFF\nhalf \xC3");
    assert!(matches!(read(&files, &path).await, Err(FileError::NotText { offset: 9, .. })));
    assert_eq!(lines(&files, &path, Some(1), Some(1)).await.unwrap(), "good\n", "the rest was not asked for");
    assert!(matches!(lines(&files, &path, Some(3), None).await, Err(FileError::NotText { offset: 5, .. })));
}

#[test]
fn what_is_not_a_file_is_refused_and_never_blocks() {
    without_waiting(async {
        let place = Place::new();
        let files = place.files();
        std::fs::create_dir(place.at("dir")).unwrap();
        assert!(Command::new("mkfifo").arg(place.at("pipe")).status().unwrap().success());
        let _listener = UnixListener::bind(place.at("socket")).unwrap();
        for name in ["dir", "dir/", "pipe", "socket", ".", "dir/..", ""] {
            let result = read(&files, place.at(name)).await;
            assert!(matches!(result, Err(FileError::NotAFile(_))), "{name}: {result:?}");
        }
        let file = place.file("f", "x");
        assert!(matches!(read(&files, file.join("below")).await, Err(FileError::NotAFile(_))));
    });
}

#[tokio::test]
async fn a_device_is_not_a_file() {
    let files = ConfinedFiles::open(Roots::at("/dev")).unwrap();
    for name in ["/dev/null", "/dev/zero", "/dev/random"] {
        let result = read(&files, name).await;
        assert!(matches!(result, Err(FileError::NotAFile(_))), "{name}: {result:?}");
    }
}

#[tokio::test]
async fn a_missing_file_is_a_typed_error() {
    let place = Place::new();
    assert!(matches!(read(&place.files(), place.at("none")).await, Err(FileError::NotFound(_))));
    assert!(matches!(read(&place.files(), place.at("none/below")).await, Err(FileError::NotFound(_))));
    assert!(matches!(ConfinedFiles::open(Roots::at(place.at("none"))), Err(FileError::NotFound(_))));
    let file = place.file("f", "");
    assert!(matches!(ConfinedFiles::open(Roots::at(file)), Err(FileError::NotAFile(_))));
}

#[tokio::test]
async fn there_can_be_several_roots_and_roots_under_another_name() {
    let (one, two) = (Place::new(), Place::new());
    one.file("f", "one");
    two.file("f", "two");
    std::fs::create_dir(two.at("inner")).unwrap();
    two.file("inner/f", "inner");
    let roots =
        Roots::at(one.root()).and(two.root()).and_as("/work", one.root()).and_as("/work/b", two.root());
    let files = ConfinedFiles::open(roots).unwrap();
    assert_eq!(read(&files, one.at("f")).await.unwrap(), "one");
    assert_eq!(read(&files, two.at("inner/f")).await.unwrap(), "inner");
    assert_eq!(read(&files, "/work/f").await.unwrap(), "one");
    assert_eq!(read(&files, "/work/b/f").await.unwrap(), "two");
    assert!(matches!(read(&files, "/work/b/../../f").await, Err(FileError::Outside(_))));
    assert!(matches!(read(&files, one.outside().join("secret")).await, Err(FileError::Outside(_))));
}

#[tokio::test]
async fn a_scan_whose_future_was_dropped_ends() {
    let place = Place::new();
    // Without a line feed, so that it would be scanned to its end; sparse, so that it takes no room.
    let file = std::fs::File::create(place.at("huge")).unwrap();
    file.set_len(1 << 42).unwrap();
    let files = place.files();
    let request = ReadText::new(place.at("huge")).range(LineRange::new(Some(2), None));
    {
        let scan = files.read(request);
        futures::pin_mut!(scan);
        assert!(poll!(scan).is_pending());
    }
    // The runtime of this test waits for the scan when it ends; four terabytes take hours.
    assert!(matches!(read(&files, place.at("huge")).await, Err(FileError::TooLarge { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_lines_of_any_file_are_those_of_the_plainest_way(
        text in "([a-c]|é|\r\n|\n|\r){0,60}",
        line in proptest::option::of(0u64..20),
        limit in proptest::option::of(0u64..20),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let place = Place::new();
        let path = place.file("f", &text);
        let result = runtime.block_on(within(lines(&place.files(), path, line, limit))).unwrap();
        let skipped = line.unwrap_or(1).max(1) as usize - 1;
        let taken = limit.map_or(usize::MAX, |limit| limit as usize);
        let expected: String = text.split_inclusive('\n').skip(skipped).take(taken).collect();
        prop_assert_eq!(result, expected);
    }
}
