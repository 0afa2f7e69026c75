//! Reads files.

use std::io::{ErrorKind, Read};
use std::sync::atomic::{AtomicBool, Ordering};

use super::{ConfinedFiles, options};
use crate::tools::files::lines::Window;
use crate::tools::{FileError, ReadText};

/// The size of one read.
const PIECE: usize = 64 << 10;

impl ConfinedFiles {
    pub(super) fn read_now(&self, request: &ReadText, abandoned: &AtomicBool) -> Result<String, FileError> {
        let path = &request.path;
        let failed = |error| FileError::from_io(path, error);
        let too_large = || FileError::TooLarge { path: path.clone(), limit: self.read_limit };
        let (dir, rest) = self.locate(path)?;
        let mut file = dir.open_with(rest, options().read(true)).map_err(|error| match error.kind() {
            // A socket cannot be opened.
            _ if is_no_such_device(&error) => FileError::NotAFile(path.clone()),
            _ => failed(error),
        })?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(FileError::NotAFile(path.clone()));
        }
        if request.range.is_whole() && metadata.len() > self.read_limit {
            return Err(too_large());
        }
        let mut window = Window::new(request.range);
        let mut piece = vec![0; PIECE];
        let mut text = Vec::new();
        let mut left = self.scan_limit;
        while !window.is_done() && !abandoned.load(Ordering::Relaxed) {
            // One byte beyond the limit is read, to detect that there is more.
            let end = usize::try_from(left).unwrap_or(PIECE).clamp(1, PIECE);
            let read = match file.read(&mut piece[..end]) {
                Ok(0) => break,
                Ok(_) if left == 0 => {
                    return Err(FileError::ScanLimit { path: path.clone(), limit: self.scan_limit });
                }
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(failed(error)),
            };
            left -= read as u64;
            let range = window.feed(&piece[..read]);
            if (text.len() + range.len()) as u64 > self.read_limit {
                return Err(too_large());
            }
            text.extend_from_slice(&piece[range]);
        }
        String::from_utf8(text).map_err(|error| FileError::NotText {
            path: path.clone(),
            offset: error.utf8_error().valid_up_to(),
        })
    }
}

/// Returns whether opening failed because the path is a socket, or a pipe without a reader.
pub(super) fn is_no_such_device(error: &std::io::Error) -> bool {
    #[cfg(unix)]
    {
        error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error())
    }
    #[cfg(not(unix))]
    {
        let _ = error;
        false
    }
}
