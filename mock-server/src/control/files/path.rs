//! Paths as clients write them.

use std::path::{Component, Path, PathBuf};

use crate::problem::Problem;

/// A path inside the root: how clients see it, and where it is.
///
/// This type only tells absolute from relative paths and refuses what no path can be. That a path stays
/// inside the root is not decided here, by looking at its text, but by opening it beneath the root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::control) struct VirtualPath {
    /// The absolute path that answers show.
    shown: String,
    /// The same, relative to the root, with `.` in front.
    inner: PathBuf,
}

impl VirtualPath {
    /// Takes a path from a client. A relative one starts at the home directory, which is the root, and may
    /// not climb.
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
        // Taking the path apart drops slashes at its end, which would make a link's target out of a link.
        let inner: PathBuf = Path::new(".").components().chain(Path::new(inner).components()).collect();
        Ok(Self { shown, inner })
    }

    /// A path below this one. It has to be relative and may not climb.
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

    /// The path for answers.
    pub(in crate::control) fn shown(&self) -> &str {
        &self.shown
    }

    /// The path relative to the root.
    pub(in crate::control) fn inner(&self) -> &Path {
        &self.inner
    }

    /// Whether this names an entry of a directory, as opposed to the root or whatever `..` leads to.
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
    fn relative_paths_do_not_climb_and_no_path_has_a_nul() {
        for raw in ["..", "../x", "a/../../x", "a/..", "a\0b", "/\0"] {
            assert!(VirtualPath::parse(raw).is_err(), "{raw:?}");
        }
    }

    #[test]
    fn joined_paths_neither_climb_nor_start_over() {
        let base = VirtualPath::parse("/up/").unwrap();
        let below = base.join(Path::new("./sub/./two")).unwrap();
        assert_eq!((below.shown(), below.inner()), ("/up/sub/two", Path::new("./up/sub/two")));
        for raw in ["../evil", "a/../../b", "/etc/passwd", ".."] {
            assert!(base.join(Path::new(raw)).is_err(), "{raw:?}");
        }
    }

    #[test]
    fn entries_are_told_from_the_root_and_from_what_climbs() {
        for raw in ["", "/", ".", "/./.", "//", "/a/..", "/a/../"] {
            assert!(!VirtualPath::parse(raw).unwrap().is_entry(), "{raw:?}");
        }
        for raw in ["/a", "a/", "/a/.", "/a/../b"] {
            assert!(VirtualPath::parse(raw).unwrap().is_entry(), "{raw:?}");
        }
    }
}
