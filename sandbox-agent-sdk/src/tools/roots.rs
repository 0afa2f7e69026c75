//! The directories that an agent may use.

use std::path::{Path, PathBuf};

/// Directories of this machine, each with the path that the agent uses for it.
///
/// This type only compares paths. The code that opens a file checks that the path does not leave its directory
/// by `..` or by a link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Roots {
    roots: Vec<Root>,
}

/// One directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Root {
    /// The absolute path that the agent uses.
    pub(crate) name: PathBuf,
    /// The path on this machine.
    pub(crate) local: PathBuf,
}

impl Roots {
    /// Creates an empty set. [`and`](Self::and) adds directories.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a set of one directory under its path on this machine.
    #[must_use]
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self::new().and(directory)
    }

    /// Adds a directory under its path on this machine.
    ///
    /// If the path contains links, the directory is added under the resolved path too.
    #[must_use]
    pub fn and(mut self, directory: impl Into<PathBuf>) -> Self {
        let local = directory.into();
        let name = std::path::absolute(&local).unwrap_or_else(|_| local.clone());
        if let Ok(real) = local.canonicalize()
            && real != name
        {
            self.roots.push(Root { name: real, local: local.clone() });
        }
        self.roots.push(Root { name, local });
        self
    }

    /// Adds a directory under another path, for example its path in the agent's sandbox.
    #[must_use]
    pub fn and_as(mut self, name: impl Into<PathBuf>, directory: impl Into<PathBuf>) -> Self {
        self.roots.push(Root { name: name.into(), local: directory.into() });
        self
    }

    #[cfg_attr(not(any(feature = "files", feature = "terminals")), allow(dead_code))]
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Root> {
        self.roots.iter()
    }

    /// Returns the root that contains a path, and the rest of the path.
    ///
    /// Of several roots the innermost is used, and of several with the same name the one that was added last.
    #[cfg_attr(not(any(feature = "files", feature = "terminals")), allow(dead_code))]
    pub(crate) fn locate<'a>(&self, path: &'a Path) -> Option<(usize, &'a Path)> {
        if !path.is_absolute() {
            return None;
        }
        let fitting = self.roots.iter().enumerate().filter_map(|(index, root)| {
            let rest = path.strip_prefix(&root.name).ok()?;
            Some((root.name.components().count(), index, rest))
        });
        fitting.max_by_key(|(depth, index, _)| (*depth, *index)).map(|(_, index, rest)| (index, rest))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::Roots;

    #[test]
    fn a_path_belongs_to_the_innermost_root_that_contains_it() {
        let roots = Roots::new().and_as("/w", "/a").and_as("/w/inner", "/b").and_as("/other", "/c");
        let table = [
            ("/w", Some((0, ""))),
            ("/w/x", Some((0, "x"))),
            ("/w/./x/", Some((0, "x"))),
            ("//w//x", Some((0, "x"))),
            ("/w/inner/y", Some((1, "y"))),
            ("/w/inner2/y", Some((0, "inner2/y"))),
            ("/other", Some((2, ""))),
            ("/w/../etc/passwd", Some((0, "../etc/passwd"))),
            ("/etc/../w/x", None),
            ("/wx", None),
            ("w/x", None),
            ("", None),
            ("/", None),
            ("../w/x", None),
        ];
        for (path, expected) in table {
            let expected = expected.map(|(index, rest)| (index, Path::new(rest)));
            assert_eq!(roots.locate(Path::new(path)), expected, "{path}");
        }
        assert_eq!(Roots::new().locate(Path::new("/")), None);
    }

    #[test]
    fn a_directory_behind_a_link_has_both_paths() {
        let scratch = tempfile::tempdir().unwrap();
        let real = scratch.path().canonicalize().unwrap().join("real");
        std::fs::create_dir(&real).unwrap();
        #[cfg(unix)]
        {
            let link = scratch.path().join("link");
            std::os::unix::fs::symlink(&real, &link).unwrap();
            let roots = Roots::at(&link);
            assert!(roots.locate(&link.join("x")).is_some());
            assert!(roots.locate(&real.join("x")).is_some());
        }
    }
}
