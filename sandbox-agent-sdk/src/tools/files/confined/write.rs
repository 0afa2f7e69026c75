//! Writing.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use cap_std::fs::{Dir, Permissions};

use super::draft::Draft;
use super::read::is_no_such_device;
use super::{ConfinedFiles, options};
use crate::{FileAccess, FileError, WriteText};

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
        let (parent, name) = place(dir, rest, path)?;
        let permissions = permissions_of(&parent, &name, path)?;
        replace(&parent, &name, request.content.as_bytes(), permissions)
            .map_err(|error| FileError::from_io(path, error))
    }
}

/// The directory and the name under which the file is, behind all links, or is to be.
fn place(dir: &Dir, rest: &Path, path: &Path) -> Result<(Dir, OsString), FileError> {
    let failed = |error| FileError::from_io(path, error);
    let split = |way: &Path| -> Result<(PathBuf, OsString), FileError> {
        // A path that ends in `..`, or that is empty, is that of a directory.
        let name = way.file_name().ok_or_else(|| FileError::NotAFile(path.to_owned()))?;
        let parent = way.parent().filter(|parent| !parent.as_os_str().is_empty());
        Ok((parent.unwrap_or(Path::new(".")).to_owned(), name.to_owned()))
    };
    match dir.symlink_metadata(rest) {
        Ok(metadata) if metadata.is_symlink() => {
            let way = dir.canonicalize(rest).map_err(failed)?;
            let (parent, name) = split(&way)?;
            Ok((dir.open_dir(parent).map_err(failed)?, name))
        }
        Ok(_) => {
            let (parent, name) = split(rest)?;
            Ok((dir.open_dir(parent).map_err(failed)?, name))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let (parent, name) = split(rest)?;
            dir.create_dir_all(&parent).map_err(failed)?;
            Ok((dir.open_dir(parent).map_err(failed)?, name))
        }
        Err(error) => Err(failed(error)),
    }
}

/// The permissions of the file that is there, if there is one and it may be written.
fn permissions_of(parent: &Dir, name: &OsString, path: &Path) -> Result<Option<Permissions>, FileError> {
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
    // The superuser could open it all the same.
    if metadata.permissions().readonly() {
        return Err(FileError::ReadOnly(path.to_owned()));
    }
    Ok(Some(metadata.permissions()))
}

/// Writes a new file and puts it in the place of the old one.
fn replace(
    parent: &Dir,
    name: &OsString,
    content: &[u8],
    permissions: Option<Permissions>,
) -> io::Result<()> {
    let mut draft = Draft::new(parent, permissions.is_some())?;
    draft.file.write_all(content)?;
    if let Some(permissions) = permissions {
        draft.file.set_permissions(permissions)?;
    }
    // The name must not come to lead to content that is not on the disk yet.
    draft.file.sync_all()?;
    draft.put(name)
}
