//! Ways out, which must not be.

use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use sandbox_agent_sdk::tools::FileError;

use super::support::{Place, read, write};

/// Paths that lead out of the root, or are none, by what they are made of.
fn hostile(place: &Place) -> Vec<String> {
    let root = place.root().display().to_string();
    let outside = place.outside().join("secret").display().to_string();
    std::fs::create_dir(place.at("dir")).unwrap();
    symlink(place.outside(), place.at("link")).unwrap();
    symlink("../outside", place.at("relative")).unwrap();
    symlink(place.outside().join("secret"), place.at("file")).unwrap();
    symlink("/", place.at("slash")).unwrap();
    symlink("dir/../../outside/secret", place.at("winding")).unwrap();
    symlink("chain", place.at("dir/chain")).unwrap();
    symlink("../link", place.at("dir/hop")).unwrap();
    symlink("/proc/self/root", place.at("magic")).unwrap();
    symlink(place.outside().join("new"), place.at("dangling")).unwrap();
    vec![
        outside.clone(),
        format!("{root}/../outside/secret"),
        format!("{root}/dir/../../outside/secret"),
        format!("{root}/./dir/./../.././outside/secret"),
        format!("{root}//..//outside//secret"),
        format!("{root}/link/secret"),
        format!("{root}/relative/secret"),
        format!("{root}/file"),
        format!("{root}/slash{outside}"),
        format!("{root}/winding"),
        format!("{root}/dir/hop/secret"),
        format!("{root}/magic{outside}"),
        format!("{root}/link/../outside/secret"),
        format!("{root}/dangling"),
        format!("{root}x/secret"),
        format!("{root}/.."),
        "/".to_owned(),
        "/etc/passwd".to_owned(),
        "/proc/self/environ".to_owned(),
        "/dev/stdin".to_owned(),
        "secret".to_owned(),
        "../outside/secret".to_owned(),
        "~/secret".to_owned(),
        String::new(),
        ".".to_owned(),
        format!("file://{root}/dir"),
        format!("{root}/dir\0/../../outside/secret"),
        format!("{root}/dir/chain"),
    ]
}

#[tokio::test]
async fn no_path_leads_out_for_reading() {
    let place = Place::new();
    let files = place.files();
    for path in hostile(&place) {
        let result = read(&files, &path).await;
        let allowed = matches!(&result, Err(FileError::Outside(_) | FileError::NotAbsolute(_)))
            // A link in a circle leads nowhere at all.
            || (path.ends_with("chain") && matches!(&result, Err(FileError::Io { .. })));
        assert!(allowed, "{path:?}: {result:?}");
    }
}

#[tokio::test]
async fn no_path_leads_out_for_writing() {
    let place = Place::new();
    let files = place.files();
    for path in hostile(&place) {
        let result = write(&files, &path, "overwritten").await;
        assert!(result.is_err(), "{path:?}");
        let outside = std::fs::read_dir(place.outside()).unwrap().count();
        assert_eq!(outside, 1, "{path:?} made something outside");
        assert_eq!(std::fs::read_to_string(place.outside().join("secret")).unwrap(), "secret", "{path:?}");
    }
    assert!(!std::path::Path::new(&format!("{}x", place.root().display())).exists());
}

#[tokio::test]
async fn links_that_stay_inside_are_followed() {
    let place = Place::new();
    let files = place.files();
    std::fs::create_dir(place.at("dir")).unwrap();
    place.file("dir/f", "inside");
    symlink("dir", place.at("link")).unwrap();
    symlink("../dir/f", place.at("dir/g")).unwrap();
    assert_eq!(read(&files, place.at("link/f")).await.unwrap(), "inside");
    assert_eq!(read(&files, place.at("link/../dir/g")).await.unwrap(), "inside");
    write(&files, place.at("dir/g"), "new").await.unwrap();
    assert_eq!(std::fs::read_to_string(place.at("dir/f")).unwrap(), "new", "the file that the link leads to");
    assert!(place.at("dir/g").symlink_metadata().unwrap().is_symlink());
}

/// Swaps a directory of the root for a link to the outside and back, as fast as it can, until it is dropped.
struct Swapper {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<u64>>,
}

impl Swapper {
    fn start(place: &Place) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (seen, root, outside) = (Arc::clone(&stop), place.root(), place.outside());
        std::fs::create_dir(root.join("swapped")).unwrap();
        std::fs::write(root.join("swapped/secret"), "inside").unwrap();
        symlink(outside, root.join("to_outside")).unwrap();
        let thread = thread::spawn(move || {
            let (one, two) = (root.join("swapped"), root.join("to_outside"));
            let mut swaps = 0;
            while !seen.load(Ordering::Relaxed) {
                renameat_with(CWD, &one, CWD, &two, RenameFlags::EXCHANGE).unwrap();
                swaps += 1;
            }
            swaps
        });
        Self { stop, thread: Some(thread) }
    }

    fn stop(&mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

#[tokio::test]
async fn a_directory_that_is_swapped_for_a_link_while_a_file_is_read_leads_nowhere() {
    let place = Place::new();
    let files = place.files();
    let mut swapper = Swapper::start(&place);
    let (mut inside, mut refused) = (0, 0);
    for _ in 0..20_000 {
        match read(&files, place.at("swapped/secret")).await {
            Ok(text) => {
                assert_eq!(text, "inside");
                inside += 1;
            }
            Err(FileError::Outside(_)) => refused += 1,
            Err(FileError::NotFound(_) | FileError::Io { .. } | FileError::NotAFile(_)) => {}
            Err(error) => panic!("{error:?}"),
        }
        if inside > 50 && refused > 50 {
            break;
        }
    }
    let swaps = swapper.stop();
    assert!(inside > 0 && refused > 0, "the race was not run: {inside} {refused} {swaps}");
}

#[tokio::test]
async fn a_directory_that_is_swapped_for_a_link_while_a_file_is_written_leads_nowhere() {
    let place = Place::new();
    let files = place.files();
    let mut swapper = Swapper::start(&place);
    let (mut written, mut refused) = (0, 0);
    for round in 0..5_000 {
        let name = ["swapped/secret", "swapped/new", "swapped/deep/new"][round % 3];
        match write(&files, place.at(name), "written").await {
            Ok(()) => written += 1,
            Err(_) => refused += 1,
        }
        if written > 50 && refused > 50 {
            break;
        }
    }
    swapper.stop();
    assert!(written > 0 && refused > 0, "the race was not run: {written} {refused}");
    let outside: Vec<_> =
        std::fs::read_dir(place.outside()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(outside, ["secret"]);
    assert_eq!(std::fs::read_to_string(place.outside().join("secret")).unwrap(), "secret");
}
