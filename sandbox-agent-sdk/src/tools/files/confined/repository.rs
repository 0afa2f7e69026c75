//! Git repositories whose directory is not called `.git`.

use std::ffi::OsStr;
use std::io::{self, ErrorKind, Read};
use std::path::{Component, Path};

use cap_std::fs::Dir;

use super::options;

/// The file that, with `config`, `objects` and `refs`, makes its directory a git repository.
///
/// The name of the directory does not matter, and git runs the programs that `config` names.
pub(super) const HEAD: &str = "HEAD";

/// How much of a `HEAD` is read.
const HEAD_BYTES: u64 = 256;

/// Whether git accepts this content of a `HEAD`: a reference, or the id of a commit. Git ignores what follows the id.
pub(super) fn is_head(content: &[u8]) -> bool {
    let content = content.trim_ascii();
    let is_id = content.get(..40).is_some_and(|id| id.iter().all(u8::is_ascii_hexdigit));
    is_id || content.starts_with(b"ref:")
}

/// The names that make a directory with a `HEAD` a git repository, and the configuration that git then obeys.
pub(super) const PARTS: [&str; 4] = ["commondir", "config", "objects", "refs"];

/// Whether a file is in a git repository, or would complete one. `directory` has no links, and its end may not exist
/// yet. `is_part` recognises the names in [`PARTS`].
///
/// A directory that has a `HEAD` and lacks other parts is not a repository yet. Git tracks no empty directories, so a
/// project may contain one.
pub(super) fn is_inside(
    root: &Dir,
    directory: &Path,
    name: &OsStr,
    is_part: impl Fn(&OsStr) -> bool,
) -> io::Result<bool> {
    let mut dir = root.try_clone()?;
    for part in directory.components() {
        let Component::Normal(part) = part else { continue };
        if (is_part(part) || is_complete(&dir)) && has_head(&dir) {
            return Ok(true);
        }
        match dir.open_dir(part) {
            Ok(inner) => dir = inner,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok((is_part(name) || is_complete(&dir)) && has_head(&dir))
}

/// Whether a directory with a `HEAD` is a git repository.
fn is_complete(dir: &Dir) -> bool {
    // A linked working tree has its objects and references in the directory that `commondir` names.
    let has = |name: &str| dir.symlink_metadata(name).is_ok();
    has("commondir") || (has("objects") && has("refs"))
}

/// Whether a directory has a `HEAD` that git accepts.
fn has_head(dir: &Dir) -> bool {
    let Ok(head) = dir.symlink_metadata(HEAD) else { return false };
    let mut content = Vec::new();
    let file = dir.open_with(HEAD, options().read(true));
    let read = file.and_then(|file| file.take(HEAD_BYTES).read_to_end(&mut content));
    // Old versions of git make it a link to a branch that may not exist yet. One that cannot be read may be one.
    head.is_symlink() || read.is_err() || is_head(&content)
}
