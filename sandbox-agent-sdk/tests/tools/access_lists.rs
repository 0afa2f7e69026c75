//! Access control lists of files that are replaced.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;

use super::support::{Place, write};

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// A list by which the owner may do everything, one other user may read and write, and the group and others nothing.
fn list() -> Vec<u8> {
    let none = u32::MAX;
    // The owner, the user, the group, the mask, others: their tags, permissions and ids.
    let entries = [(0x01, 7, none), (0x02, 6, 12345), (0x04, 0, none), (0x10, 6, none), (0x20, 0, none)];
    let entries = entries.into_iter().flat_map(|(tag, permissions, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    });
    2_u32.to_le_bytes().into_iter().chain(entries).collect()
}

/// Gives a file or directory the list; `false`, with a word about it, where the file system has none.
fn give(path: &Path, name: &str) -> bool {
    let given = setxattr(path, name, &list(), XattrFlags::empty());
    if let Err(error) = given {
        assert!(std::env::var_os("CI").is_none(), "this test needs access control lists: {error}");
        eprintln!("NOT TESTED: {error}");
    }
    given.is_ok()
}

fn list_of(path: &Path) -> Option<Vec<u8>> {
    let mut list = vec![0; 1024];
    match getxattr(path, ACCESS, &mut list[..]) {
        Ok(size) => Some(list[..size].to_vec()),
        Err(Errno::NODATA) => None,
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn a_file_that_is_replaced_keeps_its_access_control_list() {
    let place = Place::new();
    let path = place.file("shared", "old");
    if !give(&path, ACCESS) {
        return;
    }
    // The group bits are the mask: without the list, the group could read and write.
    assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o760);
    write(&place.files(), &path, "new").await.unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    assert_eq!((list_of(&path), path.metadata().unwrap().mode() & 0o777), (Some(list()), 0o760));
}

#[tokio::test]
async fn a_file_that_is_replaced_gets_no_access_control_list_from_its_directory() {
    let place = Place::new();
    let path = place.file("private", "old");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    if !give(&place.root(), DEFAULT) {
        return;
    }
    write(&place.files(), &path, "new").await.unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    assert_eq!((list_of(&path), path.metadata().unwrap().mode() & 0o777), (None, 0o640));
}
