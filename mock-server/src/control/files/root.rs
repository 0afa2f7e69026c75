//! The directory beneath which everything happens.

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

/// A directory that no operation leaves, whatever the path or the links on it. All operations block.
#[derive(Debug, Clone)]
pub(in crate::control) struct Root {
    /// The open directory; every path is resolved beneath it by the operating system or the library.
    dir: Arc<Dir>,
    /// Where it is, for tests that look at the files directly.
    path: PathBuf,
    /// Removes the directory with the last clone, if it was made for this root.
    _temporary: Option<Arc<TempDir>>,
    /// Numbers the names that are used on the way.
    spare_names: Arc<AtomicU64>,
}

impl Root {
    /// A directory that exists and is kept.
    pub(in crate::control) fn open(path: &Path) -> io::Result<Self> {
        let dir = Dir::open_ambient_dir(path, ambient_authority())?;
        Ok(Self { dir: Arc::new(dir), path: path.to_owned(), _temporary: None, spare_names: Arc::default() })
    }

    /// A new directory that is removed in the end.
    pub(in crate::control) fn temporary() -> io::Result<Self> {
        let temporary = tempfile::Builder::new().prefix("mock-server-").tempdir()?;
        let mut root = Self::open(temporary.path())?;
        root._temporary = Some(Arc::new(temporary));
        Ok(root)
    }

    pub(in crate::control) fn path(&self) -> &Path {
        &self.path
    }

    /// The open directory, for operations of other modules.
    pub(in crate::control) fn dir(&self) -> &Arc<Dir> {
        &self.dir
    }

    /// A name beside `path` that nothing has.
    pub(in crate::control) fn spare_name(&self, path: &Path) -> PathBuf {
        let number = self.spare_names.fetch_add(1, Ordering::Relaxed);
        path.with_file_name(format!(".mock-server-{}-{number}", std::process::id()))
    }

    /// The entries of a directory; links are described, not followed.
    pub(super) fn entries(&self, path: &VirtualPath) -> Result<Vec<DirectoryEntry>, Problem> {
        let failed = |error| problem(&error, path);
        if !self.dir.metadata(path.inner()).map_err(failed)?.is_dir() {
            let message = format!("path is not a directory: {}", path.shown());
            return Err(Problem::invalid_request(message));
        }
        let mut entries = Vec::new();
        for entry in self.dir.read_dir(path.inner()).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            // An entry that went away between the two calls is not an entry any more.
            let Ok(metadata) = entry.metadata() else { continue };
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{}/{name}", path.shown().trim_end_matches('/'));
            entries.push(DirectoryEntry { name, path, facts: Facts::from(&metadata) });
        }
        Ok(entries)
    }

    /// Opens a file for reading; gives back its size too.
    pub(super) fn open_file(&self, path: &VirtualPath) -> Result<(std::fs::File, u64), Problem> {
        let mut options = OpenOptions::new();
        // A named pipe would otherwise keep the server waiting for a writer.
        options.read(true).custom_flags(OFlag::O_NONBLOCK.bits());
        let file = self.dir.open_with(path.inner(), &options).map_err(|error| problem(&error, path))?;
        let metadata = file.metadata().map_err(|error| problem(&error, path))?;
        if !metadata.is_file() {
            return Err(Problem::invalid_request(format!("path is not a file: {}", path.shown())));
        }
        Ok((file.into_std(), metadata.len()))
    }

    /// The facts about a path; links are followed.
    pub(super) fn stat(&self, path: &VirtualPath) -> Result<Stat, Problem> {
        let metadata = self.dir.metadata(path.inner()).map_err(|error| problem(&error, path))?;
        Ok(Stat { path: path.shown().to_owned(), facts: Facts::from(&metadata) })
    }

    /// Makes a directory and those above it; one that exists is fine.
    pub(in crate::control) fn make_directory(&self, path: &VirtualPath) -> Result<(), Problem> {
        self.make_all(path.inner()).map_err(|error| problem(&error, path))
    }

    /// Makes the directories above a path.
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
            // That something stands in the way is half of the truth if it is a link that leads out.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => match self.dir.metadata(path) {
                Err(escape) if leads_out(&escape) => Err(escape),
                _ => Err(error),
            },
            _ => made,
        }
    }

    /// Deletes a file, a link or an empty directory; one that is not empty only if told so.
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

    /// Renames an entry. A target that exists is refused, or replaced if told so.
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

    /// Puts `from` where `to` is. The old target is set aside first and comes back if that fails, which it
    /// does when one of the two lies within the other.
    fn replace(&self, from: &VirtualPath, to: &VirtualPath) -> Result<(), Problem> {
        if from.inner() == to.inner() {
            return Ok(());
        }
        let aside = self.spare_name(to.inner());
        self.dir.rename(to.inner(), &self.dir, &aside).map_err(|error| problem(&error, to))?;
        if let Err(failure) = self.rename_inner(from, to) {
            if let Err(error) = self.dir.rename(&aside, &self.dir, to.inner()) {
                tracing::warn!(%error, "the target of a failed move could not be put back");
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

/// What becomes of the contents of a directory that is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contents {
    /// The directory has to be empty.
    Keep,
    /// They are deleted with it.
    Delete,
}

/// What becomes of the target of a move if there is one already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Existing {
    /// The move is refused.
    Refuse,
    /// The target is replaced.
    Replace,
}

/// The problem that stands for a failed operation on a path.
pub(in crate::control) fn problem(error: &io::Error, path: &VirtualPath) -> Problem {
    match error.kind() {
        ErrorKind::NotFound => Problem::invalid_request(format!("path not found: {}", path.shown())),
        _ if leads_out(error) => {
            Problem::invalid_request(format!("path leads outside of the root: {}", path.shown()))
        }
        _ => Problem::stream_error(error.to_string()),
    }
}

/// Whether a path was refused because it leaves the directory. The library does that with an error of its
/// own, which is the only denied permission that does not come from the operating system.
fn leads_out(error: &io::Error) -> bool {
    error.kind() == ErrorKind::PermissionDenied && error.raw_os_error().is_none()
}

/// Refuses to change the root, or a directory that is named from within it.
fn refuse_root(path: &VirtualPath) -> Result<(), Problem> {
    if path.is_entry() {
        return Ok(());
    }
    Err(Problem::invalid_request(format!("path names no entry of a directory: {}", path.shown())))
}
