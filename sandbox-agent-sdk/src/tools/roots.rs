//! The directories that an agent may use.

use std::path::{Path, PathBuf};

/// Directories of this machine, each under the path by which the agent knows it.
///
/// A path is looked up here by its name alone. The code that opens the file checks that nothing leads out of a directory,
/// by `..` or by a link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Roots {
    roots: Vec<Root>,
}

/// One directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Root {
    /// The absolute path under which the agent knows it.
    pub(crate) name: PathBuf,
    /// Where it is on this machine.
    pub(crate) local: PathBuf,
}

impl Roots {
    /// No directories: [`and`](Self::and) adds some.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// This directory, under its own path.
    #[must_use]
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self::new().and(directory)
    }

    /// Adds this directory, under its own path and under the path without links.
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

    /// Adds this directory under another path: the one that it has in the agent's sandbox, for example.
    #[must_use]
    pub fn and_as(mut self, name: impl Into<PathBuf>, directory: impl Into<PathBuf>) -> Self {
        self.roots.push(Root { name: name.into(), local: directory.into() });
        self
    }

    #[cfg_attr(not(any(feature = "files", feature = "terminals")), allow(dead_code))]
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Root> {
        self.roots.iter()
    }

    /// The root that a path is in by its name, with the rest of the path: the innermost of several, and the last one
    /// that was added of those with the same name.
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
    fn a_path_belongs_to_the_innermost_root_that_it_is_below() {
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
    fn a_directory_behind_a_link_has_both_names() {
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
