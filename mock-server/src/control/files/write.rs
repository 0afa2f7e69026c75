//! Writes a file of any size atomically.

use std::{io, path::PathBuf, sync::Arc};

use cap_std::fs::{Dir, OpenOptions};
use nix::errno::Errno;
use tokio::io::AsyncWriteExt;

use super::{
    path::VirtualPath,
    root::{Root, problem},
};
use crate::{control::extract::blocking, problem::Problem};

/// A file that is being written under a temporary name beside its target.
///
/// [`finish`](Self::finish) replaces the target. Dropping the draft before that removes it.
#[derive(Debug)]
pub(super) struct Draft {
    file: tokio::fs::File,
    partial: Partial,
    /// The final location, with links resolved.
    target: PathBuf,
    /// The client's path.
    path: VirtualPath,
    written: u64,
}

impl Draft {
    /// Creates the parents of the target and an empty file beside it. Blocks.
    pub(super) fn begin(root: &Root, path: VirtualPath) -> Result<Self, Problem> {
        root.make_parents(&path)?;
        let failed = |error| problem(&error, &path);
        let dir = Arc::clone(root.dir());
        let (target, permissions) = match dir.metadata(path.inner()) {
            Ok(existing) if existing.is_dir() => return Err(failed(Errno::EISDIR.into())),
            Ok(existing) if !existing.is_file() => {
                return Err(Problem::invalid_request(format!("path is not a file: {}", path.shown())));
            }
            // A link is followed, as opening it would do.
            Ok(existing) => (dir.canonicalize(path.inner()).map_err(failed)?, Some(existing.permissions())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => (path.inner().to_owned(), None),
            Err(error) => return Err(failed(error)),
        };
        let name = root.spare_name(&target);
        let file = dir.open_with(&name, OpenOptions::new().write(true).create_new(true)).map_err(failed)?;
        let partial = Partial { dir, name: Some(name) };
        if let Some(permissions) = permissions {
            file.set_permissions(permissions).map_err(failed)?;
        }
        let file = tokio::fs::File::from_std(file.into_std());
        Ok(Self { file, partial, target, path, written: 0 })
    }

    /// Appends bytes.
    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), Problem> {
        self.file.write_all(bytes).await.map_err(|error| problem(&error, &self.path))?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Replaces the target. Returns the size of the file.
    pub(super) async fn finish(mut self) -> Result<u64, Problem> {
        self.file.flush().await.map_err(|error| problem(&error, &self.path))?;
        blocking(move || {
            self.partial.rename(&self.target).map_err(|error| problem(&error, &self.path))?;
            Ok(self.written)
        })
        .await
    }
}

/// The temporary name of an unfinished file; removed on drop.
#[derive(Debug)]
struct Partial {
    dir: Arc<Dir>,
    /// Taken once the file has its final name.
    name: Option<PathBuf>,
}

impl Partial {
    fn rename(&mut self, target: &PathBuf) -> io::Result<()> {
        if let Some(name) = &self.name {
            self.dir.rename(name, &self.dir, target)?;
        }
        self.name = None;
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        let Some(name) = self.name.take() else { return };
        if let Err(error) = self.dir.remove_file(&name) {
            tracing::debug!(%error, "failed to remove an unfinished file");
        }
    }
}
