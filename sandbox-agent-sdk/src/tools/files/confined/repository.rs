//! Git repositories whose directory is not called `.git`.

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

/// Whether a directory, or one on the way to it from `root`, is a git repository. The path has no links, and its end may
/// not exist yet.
pub(super) fn is_inside(root: &Dir, path: &Path) -> io::Result<bool> {
    let mut dir = root.try_clone()?;
    for part in path.components() {
        if is_repository(&dir) {
            return Ok(true);
        }
        if let Component::Normal(name) = part {
            match dir.open_dir(name) {
                Ok(inner) => dir = inner,
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(is_repository(&dir))
}

fn is_repository(dir: &Dir) -> bool {
    let Ok(head) = dir.symlink_metadata(HEAD) else { return false };
    // A linked working tree has its objects and references in the directory that `commondir` names.
    let has = |name: &str| dir.symlink_metadata(name).is_ok();
    if !(has("commondir") || (has("objects") && has("refs"))) {
        return false;
    }
    let mut content = Vec::new();
    let file = dir.open_with(HEAD, options().read(true));
    let read = file.and_then(|file| file.take(HEAD_BYTES).read_to_end(&mut content));
    // Old versions of git make it a link to a branch that may not exist yet. One that cannot be read may be one.
    head.is_symlink() || read.is_err() || is_head(&content)
}
