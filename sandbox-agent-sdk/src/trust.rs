//! Checks who can replace a program.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::process::geteuid;

/// How many symbolic links are followed; the same limit as the kernel's.
const MAX_LINKS: usize = 40;
const ROOT: u32 = 0;
const WRITABLE_BY_GROUP: u32 = 0o020;
const WRITABLE_BY_OTHERS: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// Why a file or directory is not trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathProblem {
    /// Other users can write to the file or directory.
    #[non_exhaustive]
    WritableByOthers {
        /// The permission bits of the file or directory.
        mode: u32,
    },
    /// The owner is another user who is not root.
    #[non_exhaustive]
    OwnedBy {
        /// The id of that user.
        user: u32,
    },
}

impl fmt::Display for PathProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WritableByOthers { mode } => write!(f, "other users can write to it (mode {mode:04o})"),
            Self::OwnedBy { user } => write!(f, "it is owned by user {user}"),
        }
    }
}

/// The result of checking a path.
#[derive(Debug)]
pub(crate) enum Verdict {
    Trusted,
    /// This entry in the path is not trusted.
    Untrusted(PathBuf, PathProblem),
}

/// Checks every directory, link and file in an absolute path.
///
/// Each must be owned by this user or by root, and no other user may be able to write to it. In a sticky
/// directory, such as `/tmp`, other users can add entries but not replace those of others, so the owner of
/// the entry decides.
pub(crate) fn check(path: &Path) -> io::Result<Verdict> {
    let untrusted = walk(path, |entry, metadata| {
        Ok(problem(entry, metadata)?.map(|problem| Verdict::Untrusted(entry.to_owned(), problem)))
    })?;
    Ok(untrusted.unwrap_or(Verdict::Trusted))
}

/// Visits every directory, link and file in an absolute path, by paths without links, until `visit` returns something.
pub(crate) fn walk<T>(
    path: &Path,
    mut visit: impl FnMut(&Path, &Metadata) -> io::Result<Option<T>>,
) -> io::Result<Option<T>> {
    let mut place = PathBuf::from("/");
    let mut rest = parts(path);
    let mut links = 0;
    if let Some(found) = visit(&place, &fs::symlink_metadata(&place)?)? {
        return Ok(Some(found));
    }
    while let Some(part) = rest.pop_front() {
        if part == ".." {
            place.pop();
            continue;
        }
        let entry = place.join(&part);
        let metadata = fs::symlink_metadata(&entry)?;
        if let Some(found) = visit(&entry, &metadata)? {
            return Ok(Some(found));
        }
        if !metadata.is_symlink() {
            place = entry;
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(rustix::io::Errno::LOOP.into());
        }
        let target = fs::read_link(&entry)?;
        if target.is_absolute() {
            place = PathBuf::from("/");
        }
        let mut new = parts(&target);
        new.extend(rest);
        rest = new;
    }
    Ok(None)
}

/// Returns the names in a path, without the root and `.`.
fn parts(path: &Path) -> VecDeque<OsString> {
    let names = path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    names.map(|part| part.as_os_str().to_owned()).collect()
}

fn problem(path: &Path, metadata: &Metadata) -> io::Result<Option<PathProblem>> {
    let user = metadata.uid();
    if user != ROOT && user != geteuid().as_raw() {
        return Ok(Some(PathProblem::OwnedBy { user }));
    }
    // The mode of a link has no meaning: its directory decides who can replace it.
    if metadata.is_symlink() || (metadata.is_dir() && metadata.mode() & STICKY != 0) {
        return Ok(None);
    }
    let mode = metadata.mode() & 0o7777;
    // Members of root's group have the rights of root, so the group may write. With an access control list, the group
    // bits are the mask of all its entries, and an entry may name any other user.
    let is_writable = mode & WRITABLE_BY_OTHERS != 0
        || mode & WRITABLE_BY_GROUP != 0 && (metadata.gid() != ROOT || has_acl(path)?);
    Ok(is_writable.then_some(PathProblem::WritableByOthers { mode }))
}

/// Whether a file or directory has a POSIX access control list.
#[cfg(target_os = "linux")]
fn has_acl(path: &Path) -> io::Result<bool> {
    use rustix::io::Errno;
    match rustix::fs::lgetxattr_query(path, "system.posix_acl_access") {
        Ok(size) => Ok(size > 0),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Other systems have lists of another kind, which do not show in the mode and are not checked.
#[cfg(not(target_os = "linux"))]
fn has_acl(_: &Path) -> io::Result<bool> {
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::{PathProblem, Verdict, check, fs};

    #[test]
    fn what_other_users_can_change_is_not_trusted_wherever_it_is_on_the_way() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().canonicalize().unwrap();
        let at = |name: &str| root.join(name);
        let set = |name: &str, mode| fs::set_permissions(at(name), Permissions::from_mode(mode)).unwrap();
        for directory in ["safe", "open", "open/inner", "sticky"] {
            fs::create_dir(at(directory)).unwrap();
            set(directory, 0o755);
        }
        for file in ["safe/program", "open/inner/program", "sticky/program", "safe/loose"] {
            fs::write(at(file), "").unwrap();
            set(file, 0o755);
        }
        set("open", 0o777);
        set("sticky", 0o1777);
        set("safe/loose", 0o757);
        symlink(at("safe/program"), at("open/link")).unwrap();
        symlink("../open/inner/program", at("safe/link")).unwrap();
        symlink("program", at("safe/good")).unwrap();
        symlink("circle", at("safe/circle")).unwrap();
        for trusted in ["safe/program", "safe/good", "sticky/program", "sticky/../safe/./program"] {
            assert!(matches!(check(&at(trusted)).unwrap(), Verdict::Trusted), "{trusted}");
        }
        let cases = [
            ("safe/loose", "safe/loose"),
            ("open/inner/program", "open"),
            ("open/link", "open"),
            ("safe/link", "open"),
            ("open/../safe/program", "open"),
        ];
        for (path, culprit) in cases {
            let Verdict::Untrusted(entry, PathProblem::WritableByOthers { .. }) = check(&at(path)).unwrap()
            else {
                panic!("{path} is trusted");
            };
            assert_eq!(entry, at(culprit), "{path}");
        }
        assert!(check(&at("safe/circle")).is_err());
        assert!(check(&at("safe/none")).is_err());
    }

    #[test]
    fn a_program_of_another_user_is_not_trusted() {
        let scratch = tempfile::tempdir().unwrap();
        let program = scratch.path().canonicalize().unwrap().join("program");
        fs::write(&program, "").unwrap();
        // Only root can change the owner of a file.
        if let Err(error) = std::os::unix::fs::chown(&program, Some(12345), None) {
            assert!(std::env::var_os("CI").is_none(), "this test needs root: {error}");
            eprintln!("NOT TESTED: {error}");
            return;
        }
        let verdict = check(&program).unwrap();
        assert!(
            matches!(&verdict, Verdict::Untrusted(entry, PathProblem::OwnedBy { user: 12345 }) if *entry == program),
            "{verdict:?}"
        );
    }

    /// The access control list of a file whose owner and group may do everything, with one entry more.
    #[cfg(target_os = "linux")]
    fn acl(extra: &[(u16, u16, u32)]) -> Vec<u8> {
        const NOBODY: u32 = u32::MAX;
        let mut entries = vec![(0x01, 7, NOBODY), (0x04, 5, NOBODY), (0x20, 5, NOBODY)];
        entries.extend(extra);
        entries.sort_unstable();
        let entries = entries.iter().flat_map(|(tag, rights, id): &(u16, u16, u32)| {
            [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
        });
        2u32.to_le_bytes().into_iter().chain(entries).collect()
    }

    /// The group bits of the mode are the mask of the list. They say nothing about the group.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_program_that_another_user_can_write_by_an_access_control_list_is_not_trusted() {
        const USER: u16 = 0x02;
        const GROUP: u16 = 0x08;
        const MASK: u16 = 0x10;
        let scratch = tempfile::tempdir().unwrap();
        let program = scratch.path().canonicalize().unwrap().join("program");
        fs::write(&program, "").unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        let none = u32::MAX;
        let set = |extra: &[(u16, u16, u32)]| {
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(&program, "system.posix_acl_access", &acl(extra), flags)
        };
        if let Err(error) = set(&[]) {
            assert!(std::env::var_os("CI").is_none(), "this test needs access control lists: {error}");
            eprintln!("NOT TESTED: {error}");
            return;
        }
        assert!(matches!(check(&program).unwrap(), Verdict::Trusted));
        set(&[(USER, 5, 12345), (GROUP, 5, 12345), (MASK, 5, none)]).unwrap();
        assert!(matches!(check(&program).unwrap(), Verdict::Trusted), "they can only read");
        set(&[(USER, 7, 12345), (MASK, 5, none)]).unwrap();
        assert!(matches!(check(&program).unwrap(), Verdict::Trusted), "the mask forbids writing");
        for entry in [(USER, 6, 12345), (USER, 7, 12345), (GROUP, 7, 12345)] {
            set(&[entry, (MASK, 7, none)]).unwrap();
            let verdict = check(&program).unwrap();
            assert!(
                matches!(&verdict, Verdict::Untrusted(path, PathProblem::WritableByOthers { .. }) if *path == program),
                "{entry:?}: {verdict:?}"
            );
        }
    }
}
