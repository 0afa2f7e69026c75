//! Names that must not be written.

use std::path::{Component, Path};

/// Files and directories that make programs of the user run code, and directories with keys.
///
/// Tools that a user runs later obey them: version control, shells, editors, build tools.
pub(super) const DEFAULT: &[&str] = &[
    ".git",
    ".gitconfig",
    ".gitmodules",
    ".hg",
    ".svn",
    ".jj",
    ".husky",
    ".envrc",
    ".direnv",
    ".ssh",
    ".gnupg",
    ".netrc",
    ".vscode",
    ".idea",
    ".devcontainer",
    ".cargo",
    ".npmrc",
    ".yarnrc",
    ".yarnrc.yml",
    ".pypirc",
    ".mcp.json",
    ".profile",
    ".bashrc",
    ".bash_profile",
    ".bash_login",
    ".bash_logout",
    ".bash_aliases",
    ".zshrc",
    ".zshenv",
    ".zprofile",
    ".zlogin",
    ".zlogout",
];

/// The names of files and directories that must not be written, at any depth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Denied(Vec<String>);

impl Default for Denied {
    fn default() -> Self {
        Self(DEFAULT.iter().map(|name| (*name).to_owned()).collect())
    }
}

impl Denied {
    pub(super) fn none() -> Self {
        Self(Vec::new())
    }

    pub(super) fn add(&mut self, names: impl IntoIterator<Item = impl Into<String>>) {
        self.0.extend(names.into_iter().map(Into::into));
    }

    /// Whether a part of this path has one of the names.
    ///
    /// Some file systems ignore case, and Windows also dots and spaces at the end and the name of a stream.
    pub(super) fn matches(&self, path: &Path) -> bool {
        let mut names = path.components().filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_string_lossy()),
            _ => None,
        });
        names.any(|name| {
            let name = name.split(':').next().unwrap_or_default().trim_end_matches(['.', ' ']);
            let is_short = name.eq_ignore_ascii_case("git~1") && self.0.iter().any(|denied| denied == ".git");
            is_short || self.0.iter().any(|denied| denied.eq_ignore_ascii_case(name))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::Denied;

    #[test]
    fn names_match_at_any_depth_and_in_any_spelling_that_leads_to_them() {
        let mut denied = Denied::default();
        let is = |denied: &Denied, path: &str| denied.matches(Path::new(path));
        for path in [
            ".git/hooks/pre-commit",
            ".git",
            "a/b/.git/config",
            ".GIT/config",
            ".git./config",
            ".git /config",
            ".git::$INDEX_ALLOCATION/config",
            "GIT~1/config",
            "x/../.envrc",
            ".ENVRC",
            "sub/.vscode/tasks.json",
        ] {
            assert!(is(&denied, path), "{path}");
        }
        for path in ["", ".", "git", ".gitignore", ".github/workflows/ci.yml", "envrc", "a.git", "src/.env"] {
            assert!(!is(&denied, path), "{path}");
        }
        denied.add(["Makefile"]);
        assert!(is(&denied, "sub/makefile"));
        assert!(!is(&Denied::none(), ".git/config") && !is(&Denied::none(), "git~1"));
    }
}
