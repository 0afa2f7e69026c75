//! Writes files.

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use cap_std::fs::{Dir, File, Permissions};

#[cfg(target_os = "linux")]
use super::acl;
use super::denied::Denied;
use super::draft::Draft;
use super::read::is_no_such_device;
use super::{ConfinedFiles, options, repository};
use crate::tools::{FileAccess, FileError, WriteText};

impl ConfinedFiles {
    pub(super) fn write_now(&self, request: &WriteText) -> Result<(), FileError> {
        let path = &request.path;
        let (dir, rest) = self.locate(path)?;
        if self.access == FileAccess::Read {
            return Err(FileError::ReadOnly(path.clone()));
        }
        if request.content.len() as u64 > self.write_limit {
            return Err(FileError::TooLarge { path: path.clone(), limit: self.write_limit });
        }
        let (parent, name) = self.destination(dir, rest, request)?;
        let old = existing(&parent, &name, path)?;
        replace(&parent, &name, request.content.as_bytes(), old.as_ref(), path)
    }

    /// Returns the directory and the name of the file to write, with all links resolved.
    fn destination(&self, dir: &Dir, rest: &Path, request: &WriteText) -> Result<(Dir, OsString), FileError> {
        let path = request.path.as_path();
        let failed = |error| FileError::from_io(path, error);
        // Checks the requested path before anything is opened or created.
        self.permit(rest, path)?;
        let target = match dir.symlink_metadata(rest) {
            Ok(metadata) if metadata.is_symlink() => dir.canonicalize(rest).map_err(failed)?,
            Ok(_) => rest.to_owned(),
            Err(error) if error.kind() == ErrorKind::NotFound => rest.to_owned(),
            Err(error) => return Err(failed(error)),
        };
        // A path that is empty or ends in `..` is a directory.
        let name = target.file_name().ok_or_else(|| FileError::NotAFile(path.to_owned()))?;
        let parent =
            target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // Checks the real path before directories are created.
        let real = real_path(dir, parent).map_err(failed)?;
        self.permit_in(dir, &real, name, request)?;
        let created = create_missing(dir, parent).map_err(failed)?;
        let opened = dir.open_dir(parent).map_err(failed).and_then(|opened| {
            // Checks the directory that was opened, because links may have changed meanwhile.
            let real = match path_below(&opened, dir) {
                Below::At(now) => now,
                Below::Elsewhere => return Err(FileError::Outside(path.to_owned())),
                Below::Unknown => real,
            };
            self.permit_in(dir, &real, name, request)?;
            Ok(opened)
        });
        if opened.is_err() {
            remove(dir, &created);
        }
        Ok((opened?, name.to_owned()))
    }

    /// Rejects a protected name, and every file that is in a git repository or would complete one. `real` is the
    /// directory below a root, without links.
    fn permit_in(&self, root: &Dir, real: &Path, name: &OsStr, request: &WriteText) -> Result<(), FileError> {
        let path = request.path.as_path();
        self.permit(&real.join(name), path)?;
        if self.denied.is_repository(name, &request.content) {
            return Err(FileError::Protected(path.to_owned()));
        }
        let failed = |error| FileError::from_io(path, error);
        let is_inside = || repository::is_inside(root, real, name, Denied::is_part).map_err(failed);
        match self.denied.protects_git() && is_inside()? {
            true => Err(FileError::Protected(path.to_owned())),
            false => Ok(()),
        }
    }

    /// Rejects a protected name. `relative` is the path below a root.
    fn permit(&self, relative: &Path, path: &Path) -> Result<(), FileError> {
        if self.denied.matches(relative) { Err(FileError::Protected(path.to_owned())) } else { Ok(()) }
    }
}

/// Creates a directory and those above it that are missing. Returns those that it created, the outermost first.
fn create_missing<'a>(dir: &Dir, path: &'a Path) -> io::Result<Vec<&'a Path>> {
    let is_missing = |path: &&Path| {
        !path.as_os_str().is_empty()
            && dir.metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
    };
    let missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
    let mut created = Vec::new();
    for directory in missing.into_iter().rev() {
        match dir.create_dir(directory) {
            Ok(()) => created.push(directory),
            // Another request created it meanwhile.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => {
                remove(dir, &created);
                return Err(error);
            }
        }
    }
    Ok(created)
}

/// Removes directories that were created for a refused file.
fn remove(dir: &Dir, created: &[&Path]) {
    for directory in created.iter().rev() {
        // An error means that a directory is not there any more, or not empty.
        let _ = dir.remove_dir(directory);
    }
}

/// Resolves the links in the existing part of a path.
fn real_path(dir: &Dir, path: &Path) -> io::Result<PathBuf> {
    let mut missing = Vec::new();
    for ancestor in path.ancestors() {
        let existing = if ancestor.as_os_str().is_empty() { Path::new(".") } else { ancestor };
        match dir.canonicalize(existing) {
            Ok(real) => return Ok(missing.iter().rev().fold(real, |path, name| path.join(name))),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // `..` after a directory that does not exist cannot be resolved.
                missing.push(existing.file_name().ok_or(error)?.to_owned());
            }
            Err(error) => return Err(error),
        }
    }
    Err(ErrorKind::NotFound.into())
}

/// The location of an open directory, as the system reports it.
enum Below {
    /// Below the other directory, at this path.
    At(PathBuf),
    /// Elsewhere: it was moved meanwhile.
    Elsewhere,
    /// The system does not report it.
    Unknown,
}

/// Returns the location of an open directory relative to `root`.
#[cfg(target_os = "linux")]
fn path_below(directory: &Dir, root: &Dir) -> Below {
    use std::os::fd::{AsFd, AsRawFd};
    let path = |dir: &Dir| std::fs::read_link(format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd())).ok();
    let (Some(directory), Some(root)) = (path(directory), path(root)) else { return Below::Unknown };
    directory.strip_prefix(root).map_or(Below::Elsewhere, |path| Below::At(path.to_owned()))
}

#[cfg(not(target_os = "linux"))]
fn path_below(_: &Dir, _: &Dir) -> Below {
    Below::Unknown
}

/// The attributes that a new file copies from the old one.
#[derive(Debug)]
struct Existing {
    permissions: Permissions,
    #[cfg(unix)]
    owner: (u32, u32),
    /// The access control list, if there is one.
    #[cfg(target_os = "linux")]
    acl: Option<Vec<u8>>,
}

/// Returns the attributes of the existing file, if there is one. Fails if it must not be written.
fn existing(parent: &Dir, name: &OsString, path: &Path) -> Result<Option<Existing>, FileError> {
    let file = match parent.open_with(name, options().write(true)) {
        Ok(file) => file,
        Err(error) => match error.kind() {
            ErrorKind::NotFound => return Ok(None),
            ErrorKind::PermissionDenied if error.raw_os_error().is_some() => {
                return Err(FileError::ReadOnly(path.to_owned()));
            }
            _ if is_no_such_device(&error) => return Err(FileError::NotAFile(path.to_owned())),
            _ => return Err(FileError::from_io(path, error)),
        },
    };
    let metadata = file.metadata().map_err(|error| FileError::from_io(path, error))?;
    if !metadata.is_file() {
        return Err(FileError::NotAFile(path.to_owned()));
    }
    // Checked here because root can open a read-only file for writing.
    if metadata.permissions().readonly() {
        return Err(FileError::ReadOnly(path.to_owned()));
    }
    Ok(Some(Existing {
        permissions: metadata.permissions(),
        #[cfg(unix)]
        owner: owner(&metadata),
        #[cfg(target_os = "linux")]
        acl: acl::read(&file).map_err(|error| FileError::from_io(path, error))?,
    }))
}

/// Writes a new file and replaces the old one with it.
fn replace(
    parent: &Dir,
    name: &OsString,
    content: &[u8],
    old: Option<&Existing>,
    path: &Path,
) -> Result<(), FileError> {
    let failed = |error| FileError::from_io(path, error);
    let mut draft = Draft::new(parent, old.is_some()).map_err(failed)?;
    if let Some(old) = old {
        take_over(&draft.file, old, path)?;
    }
    draft.file.write_all(content).map_err(failed)?;
    // The content must be on the disk before the name refers to it.
    draft.file.sync_all().map_err(failed)?;
    draft.put(name).map_err(failed)
}

/// Copies owner, access control list and permissions from the old file, without the setuid, setgid and sticky bits,
/// which were meant for the old content.
#[cfg(unix)]
fn take_over(file: &File, old: &Existing, path: &Path) -> Result<(), FileError> {
    use cap_std::fs::PermissionsExt;
    use rustix::fs::{Gid, Uid, fchown};
    let failed = |error| FileError::from_io(path, error);
    let (user, group) = old.owner;
    if owner(&file.metadata().map_err(failed)?) != old.owner {
        fchown(file, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))
            .map_err(|_| FileError::OtherOwner(path.to_owned()))?;
    }
    #[cfg(target_os = "linux")]
    let kept = if acl::write(file, old.acl.as_deref()).map_err(failed)? { 0o777 } else { 0o700 };
    #[cfg(not(target_os = "linux"))]
    let kept = 0o777;
    file.set_permissions(Permissions::from_mode(old.permissions.mode() & kept)).map_err(failed)
}

#[cfg(not(unix))]
fn take_over(file: &File, old: &Existing, path: &Path) -> Result<(), FileError> {
    file.set_permissions(old.permissions.clone()).map_err(|error| FileError::from_io(path, error))
}

#[cfg(unix)]
fn owner(metadata: &cap_std::fs::Metadata) -> (u32, u32) {
    use cap_std::fs::MetadataExt;
    (metadata.uid(), metadata.gid())
}
