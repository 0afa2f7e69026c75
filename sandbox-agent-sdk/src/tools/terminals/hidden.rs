//! Files and directories that a sandbox hides.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;

/// A file or directory to hide, wherever a command moves it.
#[derive(Debug, Clone)]
pub(super) struct Hidden {
    /// Its path, with links resolved before any command could change them.
    path: PathBuf,
    /// `None` if this program cannot open it.
    file: Option<Arc<File>>,
}

impl Hidden {
    /// Resolves a path, which must exist.
    pub(super) fn new(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize()?;
        if path.parent().is_none() {
            return Err(io::Error::other("the root of the file system cannot be hidden"));
        }
        // Opening a pipe must not wait for its other end.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(&path).ok().map(Arc::new);
        Ok(Self { path, file })
    }

    /// Where it is now: a command may have moved it, and another program may have written a new file at its path.
    pub(super) fn paths(&self) -> impl Iterator<Item = PathBuf> {
        let moved = self
            .file
            .as_ref()
            .and_then(|file| fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok());
        // A path that leads through a link now refers to another file.
        [Some(self.path.clone()), moved]
            .into_iter()
            .flatten()
            .filter(|path| path.canonicalize().is_ok_and(|now| now == *path))
    }
}
