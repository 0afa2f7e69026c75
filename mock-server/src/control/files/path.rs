//! Paths from clients.

use std::path::{Component, Path, PathBuf};

use crate::problem::Problem;

/// A path inside the root: as clients see it, and its location.
///
/// This type only distinguishes absolute from relative paths and rejects invalid ones. It does not check the
/// text for escapes from the root: opening the path beneath the root does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::control) struct VirtualPath {
    /// The absolute path that responses show.
    shown: String,
    /// The same path relative to the root, starting with `.`.
    inner: PathBuf,
}

impl VirtualPath {
    /// Parses a path from a client. A relative path starts at the home directory, which is the root, and may
    /// not leave it.
    pub(in crate::control) fn parse(raw: &str) -> Result<Self, Problem> {
        if raw.contains('\0') {
            return Err(Problem::invalid_request("invalid path: it contains a NUL character"));
        }
        let inner = raw.trim_start_matches('/');
        let relative = inner.len() == raw.len();
        if relative && climbs(Path::new(raw)) {
            return Err(Problem::invalid_request(format!("invalid relative path: {raw}")));
        }
        let shown = if relative { format!("/{raw}") } else { raw.to_owned() };
        // Splitting the path drops trailing slashes, which would make the operating system follow a link.
        let inner: PathBuf = Path::new(".").components().chain(Path::new(inner).components()).collect();
        Ok(Self { shown, inner })
    }

    /// Appends a relative path that may not leave this one.
    pub(in crate::control) fn join(&self, below: &Path) -> Result<Self, Problem> {
        let text = below.to_string_lossy();
        let names = below.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if !names || text.contains('\0') {
            return Err(Problem::invalid_request(format!("invalid relative path: {text}")));
        }
        let names: PathBuf = below.components().filter(|part| *part != Component::CurDir).collect();
        let shown = format!("{}/{}", self.shown.trim_end_matches('/'), names.display());
        Ok(Self { shown, inner: self.inner.join(names) })
    }

    /// Returns the path for responses.
    pub(in crate::control) fn shown(&self) -> &str {
        &self.shown
    }

    /// Returns the path relative to the root.
    pub(in crate::control) fn inner(&self) -> &Path {
        &self.inner
    }

    /// Whether this names an entry of a directory. `false` for the root and for paths that end in `..`.
    pub(in crate::control) fn is_entry(&self) -> bool {
        self.inner.file_name().is_some()
    }
}

fn climbs(path: &Path) -> bool {
    path.components().any(|part| part == Component::ParentDir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_and_relative_paths_start_at_the_root() {
        let table = [
            ("/a/b", "/a/b", "./a/b"),
            ("a/b/", "/a/b/", "./a/b"),
            ("//a", "//a", "./a"),
            ("", "/", "."),
            ("/", "/", "."),
            ("/a/../b", "/a/../b", "./a/../b"),
            ("..a/b..", "/..a/b..", "./..a/b.."),
        ];
        for (raw, shown, inner) in table {
            let path = VirtualPath::parse(raw).unwrap();
            assert_eq!((path.shown(), path.inner()), (shown, Path::new(inner)), "{raw:?}");
        }
    }

    #[test]
    fn relative_paths_cannot_leave_the_root_and_no_path_has_a_nul() {
        for raw in ["..", "../x", "a/../../x", "a/..", "a\0b", "/\0"] {
            assert!(VirtualPath::parse(raw).is_err(), "{raw:?}");
        }
    }

    #[test]
    fn joined_paths_cannot_be_parent_or_absolute_paths() {
        let base = VirtualPath::parse("/up/").unwrap();
        let below = base.join(Path::new("./sub/./two")).unwrap();
        assert_eq!((below.shown(), below.inner()), ("/up/sub/two", Path::new("./up/sub/two")));
        for raw in ["../evil", "a/../../b", "/etc/passwd", ".."] {
            assert!(base.join(Path::new(raw)).is_err(), "{raw:?}");
        }
    }

    #[test]
    fn entries_are_distinguished_from_the_root_and_parent_paths() {
        for raw in ["", "/", ".", "/./.", "//", "/a/..", "/a/../"] {
            assert!(!VirtualPath::parse(raw).unwrap().is_entry(), "{raw:?}");
        }
        for raw in ["/a", "a/", "/a/.", "/a/../b"] {
            assert!(VirtualPath::parse(raw).unwrap().is_entry(), "{raw:?}");
        }
    }
}
