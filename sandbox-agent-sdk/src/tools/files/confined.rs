//! The files below directories, and no others.

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

use super::{FileAccess, FileError, ReadText, TextFiles, WriteText};
use crate::Roots;

/// How many bytes are read or written at once, unless told otherwise.
const LIMIT: u64 = 16 << 20;
/// How many files are read or written at once, unless told otherwise. Further ones wait.
const AT_ONCE: usize = 16;

/// The files below some directories of this machine.
///
/// The directories are opened once, and paths are followed from there by the system, step by step, never leaving them:
/// `..` that leads out, links that lead out or are absolute, and absolute paths elsewhere are [`FileError::Outside`],
/// also when a directory is swapped for a link at the very moment. What is no regular file is
/// [`FileError::NotAFile`], and opening it waits for nobody.
///
/// Writing is atomic: a new file is written and takes the place of the old one, with the permissions of the old one.
/// What is not finished, as the disk is full or the program ends, leaves the old one as it was and nothing else (on
/// systems other than Linux, and on file systems without unnamed files, a program that is killed meanwhile leaves a file
/// `.….tmp`). Directories that are missing are made. A link is followed if it stays inside, and the file that it leads
/// to is written.
#[derive(Clone)]
pub struct ConfinedFiles {
    roots: Arc<Vec<Dir>>,
    names: Arc<Roots>,
    access: FileAccess,
    read_limit: u64,
    write_limit: u64,
    /// How many may be used beside those that are.
    places: Arc<Semaphore>,
}

impl ConfinedFiles {
    /// Opens the directories.
    ///
    /// # Errors
    /// [`FileError::NotFound`] or [`FileError::NotAFile`] if one is not there or is no directory.
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
            places: Arc::new(Semaphore::new(AT_ONCE)),
        })
    }

    /// Files may be read and not written.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.access = FileAccess::Read;
        self
    }

    /// How many bytes may be read at once; a larger file can be read by its lines. Default 16 MiB.
    #[must_use]
    pub fn read_limit(mut self, bytes: u64) -> Self {
        self.read_limit = bytes;
        self
    }

    /// How many bytes a file may be written with. Default 16 MiB.
    #[must_use]
    pub fn write_limit(mut self, bytes: u64) -> Self {
        self.write_limit = bytes;
        self
    }

    /// How many files are read or written at once; further ones wait for their turn. Default 16. Work that nobody waits
    /// for any more counts until it is done.
    #[must_use]
    pub fn max_at_once(mut self, count: usize) -> Self {
        self.places = Arc::new(Semaphore::new(count.clamp(1, Semaphore::MAX_PERMITS)));
        self
    }

    /// The directory that a path is in, and the way from there.
    fn locate<'a>(&self, path: &'a Path) -> Result<(&Dir, &'a Path), FileError> {
        // What has a byte in it that ends a path for the system is no path.
        if !path.is_absolute() || path.as_os_str().as_encoded_bytes().contains(&0) {
            return Err(FileError::NotAbsolute(path.to_owned()));
        }
        let outside = || FileError::Outside(path.to_owned());
        let (index, rest) = self.names.locate(path).ok_or_else(outside)?;
        let dir = self.roots.get(index).ok_or_else(outside)?;
        // The directory itself has no way from itself.
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
            off_the_runtime(Arc::clone(&files.places), move || files.read_now(&request, &seen)).await
        })
    }

    fn write(&self, request: WriteText) -> BoxFuture<'_, Result<(), FileError>> {
        let files = self.clone();
        Box::pin(off_the_runtime(Arc::clone(&files.places), move || files.write_now(&request)))
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

/// Says when it is dropped that nobody waits any more: a scan of a huge file then ends.
#[derive(Debug, Default)]
struct Abandoned(Arc<AtomicBool>);

impl Drop for Abandoned {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Files block, so that they are used where blocking harms nobody, and by no more at once than there are places.
async fn off_the_runtime<T: Send + 'static>(
    places: Arc<Semaphore>,
    work: impl FnOnce() -> Result<T, FileError> + Send + 'static,
) -> Result<T, FileError> {
    // The runtime is shutting down, and nobody is there to hear the answer.
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
