//! The root directory of all files.

use std::{
    io::{self, ErrorKind},
    path::Path,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use cap_std::{
    ambient_authority,
    fs::{Dir, OpenOptions, OpenOptionsExt},
};
use nix::fcntl::OFlag;
use tempfile::TempDir;

use super::{
    entry::{DirectoryEntry, Facts, Stat},
    path::VirtualPath,
};
use crate::problem::Problem;

/// A directory that no operation can leave, by no path and no link. All operations block.
#[derive(Debug, Clone)]
pub(in crate::control) struct Root {
    /// The open directory. The operating system or the library resolves every path beneath it.
    dir: Arc<Dir>,
    /// Its location, for tests that access the files directly.
    path: PathBuf,
    /// Removes a temporary directory with the last clone.
    _temporary: Option<Arc<TempDir>>,
    /// Numbers temporary names.
    spare_names: Arc<AtomicU64>,
}

impl Root {
    /// Opens an existing directory, which is not removed.
    pub(in crate::control) fn open(path: &Path) -> io::Result<Self> {
        let dir = Dir::open_ambient_dir(path, ambient_authority())?;
        Ok(Self { dir: Arc::new(dir), path: path.to_owned(), _temporary: None, spare_names: Arc::default() })
    }

    /// Creates a temporary directory.
    pub(in crate::control) fn temporary() -> io::Result<Self> {
        let temporary = tempfile::Builder::new().prefix("mock-server-").tempdir()?;
        let mut root = Self::open(temporary.path())?;
        root._temporary = Some(Arc::new(temporary));
        Ok(root)
    }

    pub(in crate::control) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the open directory, for operations of other modules.
    pub(in crate::control) fn dir(&self) -> &Arc<Dir> {
        &self.dir
    }

    /// Returns an unused name beside `path`.
    pub(in crate::control) fn spare_name(&self, path: &Path) -> PathBuf {
        let number = self.spare_names.fetch_add(1, Ordering::Relaxed);
        path.with_file_name(format!(".mock-server-{}-{number}", std::process::id()))
    }

    /// Lists a directory. Links are described, not followed.
    pub(super) fn entries(&self, path: &VirtualPath) -> Result<Vec<DirectoryEntry>, Problem> {
        let failed = |error| problem(&error, path);
        if !self.dir.metadata(path.inner()).map_err(failed)?.is_dir() {
            let message = format!("path is not a directory: {}", path.shown());
            return Err(Problem::invalid_request(message));
        }
        let mut entries = Vec::new();
        for entry in self.dir.read_dir(path.inner()).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            // The entry was removed between the two calls.
            let Ok(metadata) = entry.metadata() else { continue };
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{}/{name}", path.shown().trim_end_matches('/'));
            entries.push(DirectoryEntry { name, path, facts: Facts::from(&metadata) });
        }
        Ok(entries)
    }

    /// Opens a file for reading. Returns its size too.
    pub(super) fn open_file(&self, path: &VirtualPath) -> Result<(std::fs::File, u64), Problem> {
        let mut options = OpenOptions::new();
        // Without this flag, opening a named pipe would wait for a writer.
        options.read(true).custom_flags(OFlag::O_NONBLOCK.bits());
        let file = self.dir.open_with(path.inner(), &options).map_err(|error| problem(&error, path))?;
        let metadata = file.metadata().map_err(|error| problem(&error, path))?;
        if !metadata.is_file() {
            return Err(Problem::invalid_request(format!("path is not a file: {}", path.shown())));
        }
        Ok((file.into_std(), metadata.len()))
    }

    /// Describes a path. Links are followed.
    pub(super) fn stat(&self, path: &VirtualPath) -> Result<Stat, Problem> {
        let metadata = self.dir.metadata(path.inner()).map_err(|error| problem(&error, path))?;
        Ok(Stat { path: path.shown().to_owned(), facts: Facts::from(&metadata) })
    }

    /// Creates a directory and its parents. Succeeds if it exists.
    pub(in crate::control) fn make_directory(&self, path: &VirtualPath) -> Result<(), Problem> {
        self.make_all(path.inner()).map_err(|error| problem(&error, path))
    }

    /// Creates the parents of a path.
    pub(in crate::control) fn make_parents(&self, path: &VirtualPath) -> Result<(), Problem> {
        match path.inner().parent() {
            Some(parent) if !parent.as_os_str().is_empty() => {
                self.make_all(parent).map_err(|error| problem(&error, path))
            }
            _ => Ok(()),
        }
    }

    fn make_all(&self, path: &Path) -> io::Result<()> {
        let made = self.dir.create_dir_all(path);
        match made {
            // If the existing entry is a link that leads outside the root, that is the actual error.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => match self.dir.metadata(path) {
                Err(escape) if leads_out(&escape) => Err(escape),
                _ => Err(error),
            },
            _ => made,
        }
    }

    /// Deletes a file, a link or a directory. A directory that is not empty is deleted only with
    /// [`Contents::Delete`].
    pub(super) fn delete(&self, path: &VirtualPath, contents: Contents) -> Result<(), Problem> {
        refuse_root(path)?;
        let failed = |error| problem(&error, path);
        let metadata = self.dir.symlink_metadata(path.inner()).map_err(failed)?;
        let deleted = match (metadata.is_dir(), contents) {
            (false, _) => self.dir.remove_file(path.inner()),
            (true, Contents::Keep) => self.dir.remove_dir(path.inner()),
            (true, Contents::Delete) => self.dir.remove_dir_all(path.inner()),
        };
        deleted.map_err(failed)
    }

    /// Renames an entry. An existing target is rejected or replaced.
    pub(super) fn rename(
        &self,
        from: &VirtualPath,
        to: &VirtualPath,
        existing: Existing,
    ) -> Result<(), Problem> {
        refuse_root(from)?;
        refuse_root(to)?;
        self.dir.symlink_metadata(from.inner()).map_err(|error| problem(&error, from))?;
        let taken = match self.dir.symlink_metadata(to.inner()) {
            Ok(_) => true,
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => return Err(problem(&error, to)),
        };
        if !taken {
            self.make_parents(to)?;
            return self.rename_inner(from, to);
        }
        if existing == Existing::Refuse {
            return Err(Problem::invalid_request(format!("destination already exists: {}", to.shown())));
        }
        self.replace(from, to)
    }

    /// Replaces `to` by `from`. The old target is moved aside first and restored on failure, for example if
    /// one path is inside the other.
    fn replace(&self, from: &VirtualPath, to: &VirtualPath) -> Result<(), Problem> {
        if from.inner() == to.inner() {
            return Ok(());
        }
        let aside = self.spare_name(to.inner());
        self.dir.rename(to.inner(), &self.dir, &aside).map_err(|error| problem(&error, to))?;
        if let Err(failure) = self.rename_inner(from, to) {
            if let Err(error) = self.dir.rename(&aside, &self.dir, to.inner()) {
                tracing::warn!(%error, "failed to restore the target of a failed move");
            }
            return Err(failure);
        }
        let old = self.dir.symlink_metadata(&aside).map_err(|error| problem(&error, to))?;
        let removed =
            if old.is_dir() { self.dir.remove_dir_all(&aside) } else { self.dir.remove_file(&aside) };
        removed.map_err(|error| problem(&error, to))
    }

    fn rename_inner(&self, from: &VirtualPath, to: &VirtualPath) -> Result<(), Problem> {
        self.dir.rename(from.inner(), &self.dir, to.inner()).map_err(|error| problem(&error, from))
    }
}

/// What happens to the contents of a deleted directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contents {
    /// The directory must be empty.
    Keep,
    /// The contents are deleted too.
    Delete,
}

/// What happens to the existing target of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Existing {
    /// The move is rejected.
    Refuse,
    /// The target is replaced.
    Replace,
}

/// Converts a failed operation on a path to a problem.
pub(in crate::control) fn problem(error: &io::Error, path: &VirtualPath) -> Problem {
    match error.kind() {
        ErrorKind::NotFound => Problem::invalid_request(format!("path not found: {}", path.shown())),
        _ if leads_out(error) => {
            Problem::invalid_request(format!("path leads outside of the root: {}", path.shown()))
        }
        _ => Problem::stream_error(error.to_string()),
    }
}

/// Whether a path was rejected because it leaves the directory. The library uses its own error for that, the
/// only denied permission that does not come from the operating system.
fn leads_out(error: &io::Error) -> bool {
    error.kind() == ErrorKind::PermissionDenied && error.raw_os_error().is_none()
}

/// Rejects changes of the root, or of a directory that is named from within it.
fn refuse_root(path: &VirtualPath) -> Result<(), Problem> {
    if path.is_entry() {
        return Ok(());
    }
    Err(Problem::invalid_request(format!("path names no entry of a directory: {}", path.shown())))
}
