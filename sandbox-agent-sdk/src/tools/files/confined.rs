//! Files that are confined to directories.

#[cfg(target_os = "linux")]
mod acl;
mod denied;
mod draft;
mod read;
mod repository;
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
use crate::client::network::check_runtime;
use crate::tools::Roots;

/// The default limit of bytes that one request reads or writes.
const LIMIT: u64 = 16 << 20;
/// The default limit of bytes that one request scans for lines.
const SCAN_LIMIT: u64 = 256 << 20;
/// The longest path, as in Linux. The work for a path grows with its length.
const PATH_BYTES: usize = 4096;
/// The default limit of concurrent requests. Further ones wait.
const AT_ONCE: usize = 16;

/// The files below some directories of this machine.
///
/// The directories are opened once, and every path is resolved beneath them. A path that leaves them fails with
/// [`FileError::Outside`], whether it leaves by `..`, by a link that is absolute or leads outside, or as the absolute
/// path of another directory. This holds even if a directory is replaced by a link at the same time. Directories,
/// devices and pipes fail with [`FileError::NotAFile`]; opening them never blocks.
///
/// A write is atomic: a new file replaces the old one and gets its permissions and its owner, without the setuid,
/// setgid and sticky bits. A failed write leaves the old file unchanged and leaves no temporary file, with one
/// exception: on systems other than Linux, and on file systems without unnamed files, a program that is killed during
/// a write leaves a file `.….tmp`. Missing directories are created. A link to a target inside the directories is
/// followed, and the target is written.
///
/// # What is not restricted
/// Refusing a request restricts only what the client does for the agent. The agent's own tools run in its own process:
/// some agents write a file by themselves if the client refuses to write it, and others never ask. Restrict them with
/// a sandbox.
///
/// # Protected files
/// Some files make other programs run code later, without any restriction: git hooks and configuration, `.envrc`,
/// startup files of shells, settings of editors and build tools. Writing a file with such a name, or a file below a
/// directory with such a name, fails with [`FileError::Protected`], even through links. [`DENIED`](Self::DENIED) lists
/// the names.
///
/// Unless `.git` may be written, git repositories with any other directory name are protected too. This includes files
/// that would make their directory a repository: a `HEAD`, and beside an existing `HEAD` also `commondir`, `config`,
/// `objects` and `refs`. Source files, build scripts and `Makefile`s can be written, so build an agent's code only
/// inside a sandbox.
#[derive(Clone)]
pub struct ConfinedFiles {
    roots: Arc<Vec<Dir>>,
    names: Arc<Roots>,
    access: FileAccess,
    read_limit: u64,
    write_limit: u64,
    scan_limit: u64,
    denied: Arc<Denied>,
    /// Limits how many requests run concurrently.
    places: Arc<Semaphore>,
}

impl ConfinedFiles {
    /// The names of files and directories that are protected by default. They match at any depth and in any
    /// letter case. A name that starts with `*` matches every name that ends with the rest.
    ///
    /// The list cannot be complete, because any program can define such files. Add others with
    /// [`deny_writes`](Self::deny_writes).
    pub const DENIED: &'static [&'static str] = denied::DEFAULT;

    /// Opens the directories.
    ///
    /// # Errors
    /// [`FileError::NotFound`] if a directory does not exist, [`FileError::NotAFile`] if it is not a directory.
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

    /// Rejects every write.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.access = FileAccess::Read;
        self
    }

    /// Protects files and directories with these names too. They match at any depth and in any letter case. A name that
    /// starts with `*` matches every name that ends with the rest.
    #[must_use]
    pub fn deny_writes(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Arc::make_mut(&mut self.denied).add(names);
        self
    }

    /// Removes the protection of all names, including those in [`DENIED`](Self::DENIED).
    ///
    /// To protect other names instead, call [`deny_writes`](Self::deny_writes) afterwards.
    #[must_use]
    pub fn allow_all_writes(mut self) -> Self {
        self.denied = Arc::new(Denied::none());
        self
    }

    /// Sets how many bytes one request may read. Default 16 MiB. A larger file can be read in ranges of lines.
    #[must_use]
    pub fn read_limit(mut self, bytes: u64) -> Self {
        self.read_limit = bytes;
        self
    }

    /// Sets how many bytes one request scans for the requested lines. Default 256 MiB.
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

    /// Sets how many files are read or written concurrently. Default 16.
    ///
    /// Further requests wait. A request counts until its result is taken, or, if its future was dropped, until its file
    /// operation is finished.
    #[must_use]
    pub fn max_at_once(mut self, count: usize) -> Self {
        self.places = Arc::new(Semaphore::new(count.clamp(1, Semaphore::MAX_PERMITS)));
        self
    }

    /// Returns the directory that contains a path, and the path relative to it.
    fn locate<'a>(&self, path: &'a Path) -> Result<(&Dir, &'a Path), FileError> {
        if path.as_os_str().len() > PATH_BYTES {
            return Err(FileError::PathTooLong { limit: PATH_BYTES });
        }
        // The operating system ends a path at a NUL byte.
        if !path.is_absolute() || path.as_os_str().as_encoded_bytes().contains(&0) {
            return Err(FileError::NotAbsolute(path.to_owned()));
        }
        let outside = || FileError::Outside(path.to_owned());
        let (index, rest) = self.names.locate(path).ok_or_else(outside)?;
        let dir = self.roots.get(index).ok_or_else(outside)?;
        // The path is the directory itself.
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

/// Records that the future of a request was dropped, which ends the scan of a large file.
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
    check_runtime().map_err(|error| FileError::Refused(error.to_string()))?;
    // The runtime is shutting down.
    let ending = || FileError::Refused("the client program is shutting down".to_owned());
    let place = places.acquire_owned().await.map_err(|_| ending())?;
    // The result counts until it is taken: results that wait for a busy runtime would be unbounded otherwise.
    let placed = move || (work(), place);
    match tokio::task::spawn_blocking(placed).await {
        Ok((result, _place)) => result,
        Err(_) => Err(ending()),
    }
}

/// Returns options that never wait for the other side of a pipe.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    {
        use cap_std::fs::OpenOptionsExt;
        options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
    }
    options
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::{Context, Poll};

    use futures::task::{ArcWake, waker};
    use tokio::sync::{Notify, Semaphore};

    use super::run_blocking;

    struct Woken(Notify);

    impl ArcWake for Woken {
        fn wake_by_ref(woken: &Arc<Self>) {
            woken.0.notify_one();
        }
    }

    #[tokio::test]
    async fn a_result_counts_until_it_is_taken() {
        let places = Arc::new(Semaphore::new(1));
        let mut work = Box::pin(run_blocking(Arc::clone(&places), || Ok("text".to_owned())));
        let woken = Arc::new(Woken(Notify::new()));
        let waker = waker(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        assert!(work.as_mut().poll(&mut context).is_pending());
        woken.0.notified().await;
        assert_eq!(places.available_permits(), 0, "the result is ready and was not taken");
        assert!(matches!(work.as_mut().poll(&mut context), Poll::Ready(Ok(text)) if text == "text"));
        assert_eq!(places.available_permits(), 1);
    }
}
