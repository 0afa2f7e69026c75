//! A new file that replaces an existing one.

use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::path::Path;

use cap_std::fs::{Dir, File, OpenOptions};

use crate::client::random::{hex, random_bytes};

/// How many names are tried if a name already exists.
const TRIES: usize = 16;

/// A file that does not have its final name yet.
///
/// On Linux it is unnamed while it is written, if the file system supports that: a program that is killed
/// meanwhile leaves nothing behind. Elsewhere it has a unique temporary name and is removed on drop.
#[derive(Debug)]
pub(super) struct Draft<'a> {
    parent: &'a Dir,
    pub(super) file: File,
    name: Option<String>,
}

impl<'a> Draft<'a> {
    /// Creates an empty draft. A private draft is unreadable for other users until it gets the permissions of the
    /// file that it replaces.
    pub(super) fn new(parent: &'a Dir, private: bool) -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        if let Some(file) = unnamed(parent, private) {
            return Ok(Self { parent, file, name: None });
        }
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        if private {
            use cap_std::fs::OpenOptionsExt;
            options.mode(0o600);
        }
        let (name, file) = with_new_name(|name| parent.open_with(name, &options))?;
        Ok(Self { parent, file, name: Some(name) })
    }

    /// Gives the draft its final name and replaces the file that has this name.
    pub(super) fn put(mut self, name: &OsStr) -> io::Result<()> {
        let draft = match &self.name {
            Some(draft) => draft.clone(),
            None => {
                // Linking to an unused name is atomic.
                match self.link(name) {
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                    outcome => return outcome,
                }
                let (draft, ()) = with_new_name(|draft| self.link(draft.as_ref()))?;
                self.name.insert(draft).clone()
            }
        };
        self.parent.rename(Path::new(&draft), self.parent, Path::new(name))?;
        self.name = None;
        Ok(())
    }

    /// Gives a name to an unnamed file.
    #[cfg(target_os = "linux")]
    fn link(&self, name: &OsStr) -> io::Result<()> {
        use std::os::fd::{AsFd, AsRawFd};

        use rustix::fs::{AtFlags, CWD, linkat};
        let file = format!("/proc/self/fd/{}", self.file.as_fd().as_raw_fd());
        Ok(linkat(CWD, file, self.parent, Path::new(name), AtFlags::SYMLINK_FOLLOW)?)
    }

    /// Other systems do not support unnamed files.
    #[cfg(not(target_os = "linux"))]
    fn link(&self, _: &OsStr) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        // The draft did not replace the file.
        if let Some(name) = &self.name {
            let _ = self.parent.remove_file(name);
        }
    }
}

/// Creates an unnamed file, if the system supports that and can name it later.
#[cfg(target_os = "linux")]
fn unnamed(parent: &Dir, private: bool) -> Option<File> {
    use rustix::fs::{Mode, OFlags, openat};
    if !Path::new("/proc/self/fd").exists() {
        return None;
    }
    let mode = Mode::from_raw_mode(if private { 0o600 } else { 0o666 });
    let file = openat(parent, ".", OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC, mode).ok()?;
    Some(File::from_std(file.into()))
}

/// Calls `work` with a unique name.
fn with_new_name<T>(mut work: impl FnMut(&str) -> io::Result<T>) -> io::Result<(String, T)> {
    let mut tries = 0;
    loop {
        let name = format!(".{}.tmp", hex(&random_bytes::<8>()?));
        match work(&name) {
            Ok(done) => return Ok((name, done)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists && tries < TRIES => tries += 1,
            Err(error) => return Err(error),
        }
    }
}
