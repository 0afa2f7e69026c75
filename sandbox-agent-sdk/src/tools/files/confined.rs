//! The files below directories, and no others.

mod denied;
mod draft;
mod read;
mod write;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cap_std::ambient_authority;
use cap_std::fs::{Dir, OpenOptions};
use futures::future::BoxFuture;
use tokio::sync::Semaphore;

use self::denied::Denied;
use super::{FileAccess, FileError, ReadText, TextFiles, WriteText};
use crate::tools::Roots;

/// How many bytes one request reads or writes by default.
const LIMIT: u64 = 16 << 20;
/// How many bytes one request scans for lines by default.
const SCAN_LIMIT: u64 = 256 << 20;
/// The longest path, as in Linux. The work for a path grows with its length.
const PATH_BYTES: usize = 4096;
/// How many files are read or written at once by default. Further ones wait.
const AT_ONCE: usize = 16;

/// The files below some directories of this machine.
///
/// The directories are opened once, and paths are followed from there by the system, step by step, never leaving them:
/// a `..` that leads out, links that lead out or are absolute, and absolute paths elsewhere are [`FileError::Outside`],
/// also if a directory is swapped for a link meanwhile. Directories, devices and pipes are [`FileError::NotAFile`], and
/// opening them never blocks.
///
/// A write is atomic: a new file replaces the old one, with its permissions and its owner. Setuid, setgid and sticky bits
/// are not kept. A failed write leaves the old file as it was and nothing else; on systems other than Linux, and on file
/// systems without unnamed files, a program that is killed meanwhile leaves a file `.….tmp`. Missing directories are
/// created. A link that stays inside is followed, and its target is written.
///
/// # Files that are not written
/// Some files make programs run code later, outside of every restriction: git hooks and configuration, `.envrc`, startup
/// files of shells, settings of editors and build tools. Writing a file or below a directory of such a name is
/// [`FileError::Protected`], also through links: [`DENIED`](Self::DENIED). So is a file `HEAD` that makes its directory a
/// git repository, unless `.git` may be written. Source files, build scripts and `Makefile`s
/// can be written: do not build what an agent wrote outside of a sandbox.
#[derive(Clone)]
pub struct ConfinedFiles {
    roots: Arc<Vec<Dir>>,
    names: Arc<Roots>,
    access: FileAccess,
    read_limit: u64,
    write_limit: u64,
    scan_limit: u64,
    denied: Arc<Denied>,
    /// How many further requests may run.
    places: Arc<Semaphore>,
}

impl ConfinedFiles {
    /// The names of files and directories that are not written by default, at any depth and in any case.
    pub const DENIED: &'static [&'static str] = denied::DEFAULT;

    /// Opens the directories.
    ///
    /// # Errors
    /// [`FileError::NotFound`] or [`FileError::NotAFile`] if one does not exist or is no directory.
    pub fn open(roots: Roots) -> Result<Self, FileError> {
        let open = |local: &Path| {
            Dir::open_ambient_dir(local, ambient_authority())
                .map_err(|error| FileError::from_io(local, error))
        };
        let dirs = roots.iter().map(|root| open(&root.local)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            roots: Arc::new(dirs),
            names: Arc::new(roots),
            access: FileAccess::ReadWrite,
            read_limit: LIMIT,
            write_limit: LIMIT,
            scan_limit: SCAN_LIMIT,
            denied: Arc::default(),
            places: Arc::new(Semaphore::new(AT_ONCE)),
        })
    }

    /// Refuses every write.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.access = FileAccess::Read;
        self
    }

    /// Also refuses to write files and directories of these names, at any depth and in any case.
    #[must_use]
    pub fn deny_writes(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Arc::make_mut(&mut self.denied).add(names);
        self
    }

    /// Writes files of every name, also those of [`DENIED`](Self::DENIED). Call
    /// [`deny_writes`](Self::deny_writes) afterwards for a list of your own.
    #[must_use]
    pub fn allow_all_writes(mut self) -> Self {
        self.denied = Arc::new(Denied::none());
        self
    }

    /// Sets how many bytes one request may read; a larger file can be read by its lines. Default 16 MiB.
    #[must_use]
    pub fn read_limit(mut self, bytes: u64) -> Self {
        self.read_limit = bytes;
        self
    }

    /// Sets how many bytes one request scans for the lines that it wants. Default 256 MiB.
    #[must_use]
    pub fn scan_limit(mut self, bytes: u64) -> Self {
        self.scan_limit = bytes;
        self
    }

    /// Sets how many bytes one request may write. Default 16 MiB.
    #[must_use]
    pub fn write_limit(mut self, bytes: u64) -> Self {
        self.write_limit = bytes;
        self
    }

    /// Sets how many files are read or written at once; further requests wait. Default 16. A request whose future was
    /// dropped counts until its work is done.
    #[must_use]
    pub fn max_at_once(mut self, count: usize) -> Self {
        self.places = Arc::new(Semaphore::new(count.clamp(1, Semaphore::MAX_PERMITS)));
        self
    }

    /// The directory that a path is in, and the path relative to it.
    fn locate<'a>(&self, path: &'a Path) -> Result<(&Dir, &'a Path), FileError> {
        if path.as_os_str().len() > PATH_BYTES {
            return Err(FileError::PathTooLong { limit: PATH_BYTES });
        }
        // The system ends a path at a NUL byte.
        if !path.is_absolute() || path.as_os_str().as_encoded_bytes().contains(&0) {
            return Err(FileError::NotAbsolute(path.to_owned()));
        }
        let outside = || FileError::Outside(path.to_owned());
        let (index, rest) = self.names.locate(path).ok_or_else(outside)?;
        let dir = self.roots.get(index).ok_or_else(outside)?;
        // The directory itself.
        let rest = if rest.as_os_str().is_empty() { Path::new(".") } else { rest };
        Ok((dir, rest))
    }
}

impl TextFiles for ConfinedFiles {
    fn read(&self, request: ReadText) -> BoxFuture<'_, Result<String, FileError>> {
        let files = self.clone();
        let abandoned = Abandoned::default();
        let seen = Arc::clone(&abandoned.0);
        Box::pin(async move {
            let _abandoned = abandoned;
            run_blocking(Arc::clone(&files.places), move || files.read_now(&request, &seen)).await
        })
    }

    fn write(&self, request: WriteText) -> BoxFuture<'_, Result<(), FileError>> {
        let files = self.clone();
        Box::pin(run_blocking(Arc::clone(&files.places), move || files.write_now(&request)))
    }

    fn access(&self) -> FileAccess {
        self.access
    }
}

impl fmt::Debug for ConfinedFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfinedFiles")
            .field("roots", &self.names)
            .field("access", &self.access)
            .field("read_limit", &self.read_limit)
            .field("write_limit", &self.write_limit)
            .finish()
    }
}

/// Records that the future of a request was dropped: a scan of a large file ends then.
#[derive(Debug, Default)]
struct Abandoned(Arc<AtomicBool>);

impl Drop for Abandoned {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs blocking work on the blocking thread pool, within the limit of concurrent requests.
async fn run_blocking<T: Send + 'static>(
    places: Arc<Semaphore>,
    work: impl FnOnce() -> Result<T, FileError> + Send + 'static,
) -> Result<T, FileError> {
    // The runtime is shutting down.
    let ending = || FileError::Refused("this program is ending".to_owned());
    let place = places.acquire_owned().await.map_err(|_| ending())?;
    let placed = move || {
        let _place = place;
        work()
    };
    tokio::task::spawn_blocking(placed).await.unwrap_or_else(|_| Err(ending()))
}

/// Options that never wait for the other side of a pipe.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    {
        use cap_std::fs::OpenOptionsExt;
        options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
    }
    options
}
