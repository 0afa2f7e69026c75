//! Files and directories that a sandbox shows.

use std::path::{Path, PathBuf};

use crate::convert::text::printable;

/// A file or directory to show, if its path still leads to it.
///
/// A command can replace a part of a path in a root by a link to any file of this user.
#[derive(Debug, Clone)]
pub(super) struct Visible {
    path: PathBuf,
    /// The path with links resolved before any command could change them.
    real: PathBuf,
    /// Whether it existed then.
    existed: bool,
}

impl Visible {
    /// Resolves a path. Returns `None` if it is empty.
    pub(super) fn new(path: &Path) -> Option<Self> {
        let path = std::path::absolute(path).ok()?;
        let existing = path.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
        let (above, real) = existing?;
        let rest = path.strip_prefix(above).unwrap_or(Path::new(""));
        let existed = rest.as_os_str().is_empty();
        let real = if existed { real } else { real.join(rest) };
        Some(Self { path, real, existed })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn real(&self) -> &Path {
        &self.real
    }

    /// Whether the path still leads to the same file. A file that did not exist in a writable root may be created by a
    /// command at any time.
    pub(super) fn is_unchanged(&self, writable: &[PathBuf]) -> bool {
        if !self.existed && writable.iter().any(|root| self.real.starts_with(root)) {
            return false;
        }
        match self.path.canonicalize() {
            Ok(now) if now == self.real => true,
            Ok(_) => {
                let path = self.path.to_string_lossy();
                tracing::warn!(path = %printable(&path), "a visible path now resolves elsewhere: the sandbox does not show it");
                false
            }
            Err(_) => false,
        }
    }
}
