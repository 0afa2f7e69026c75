//! Protected names.

use std::ffi::OsStr;
use std::path::{Component, Path};

/// The file that, with `config`, `objects` and `refs`, makes its directory a git repository.
///
/// The name of the directory does not matter, and git runs the programs that `config` names.
const HEAD: &str = "HEAD";

/// Files and directories that make the user's programs run code, and directories with keys.
///
/// Version control, shells, editors and build tools read these files when the user runs them later.
pub(super) const DEFAULT: &[&str] = &[
    ".git",
    ".gitconfig",
    ".gitmodules",
    ".pre-commit-config.yaml",
    ".hg",
    ".svn",
    ".jj",
    ".husky",
    ".envrc",
    ".direnv",
    ".ssh",
    ".gnupg",
    ".netrc",
    ".pgpass",
    ".aws",
    ".kube",
    ".docker",
    ".vscode",
    ".idea",
    ".zed",
    ".vim",
    ".vimrc",
    ".exrc",
    ".nvimrc",
    ".nvim.lua",
    ".emacs",
    ".emacs.d",
    ".dir-locals.el",
    ".gdbinit",
    ".lldbinit",
    ".devcontainer",
    ".cargo",
    ".npmrc",
    ".yarnrc",
    ".yarnrc.yml",
    ".pypirc",
    ".mcp.json",
    ".claude",
    ".codex",
    ".cursor",
    ".gemini",
    ".opencode",
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
    ".kshrc",
    ".cshrc",
    ".tcshrc",
    ".login",
    ".config/autostart",
    ".config/fish",
    ".config/git",
    ".config/mise",
    ".config/nvim",
    ".config/systemd",
    ".mise.toml",
    "mise.toml",
    ".Rprofile",
    ".inputrc",
    ".xinitrc",
    ".xprofile",
    ".tmux.conf",
];

/// The names of protected files and directories, at any depth.
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

    /// Returns whether a component of this path has one of the names, or successive ones have the parts of a name with
    /// slashes.
    ///
    /// The comparison ignores letter case and invisible characters, as some file systems do. It also ignores trailing
    /// dots and spaces and the name of a stream, and accepts short names of six characters, as Windows does.
    pub(super) fn matches(&self, path: &Path) -> bool {
        let names = path.components().filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_string_lossy()),
            _ => None,
        });
        let names: Vec<_> = names
            .map(|name| {
                let name = folded(name.split(':').next().unwrap_or_default());
                name.trim_end_matches(['.', ' ']).to_owned()
            })
            .collect();
        self.0.iter().any(|denied| {
            let denied: Vec<_> = denied.split('/').map(folded).collect();
            let is = |(name, denied): (&String, &String)| name == denied || is_short_for(name, denied);
            names.windows(denied.len()).any(|names| names.iter().zip(&denied).all(is))
        })
    }

    /// Whether a file of this name and content makes its directory a git repository.
    pub(super) fn is_repository(&self, name: &OsStr, content: &str) -> bool {
        let protects_git = self.0.iter().any(|denied| denied == ".git");
        let content = content.trim_ascii().as_bytes();
        // A reference, or the id of a commit. Git ignores what follows the id.
        let is_id = content.get(..40).is_some_and(|id| id.iter().all(u8::is_ascii_hexdigit));
        let is_head = is_id || content.starts_with(b"ref:");
        protects_git && is_head && folded(&name.to_string_lossy()) == folded(HEAD)
    }
}

/// A name in the form by which file systems that ignore case compare names.
fn folded(name: &str) -> String {
    // Through upper case, which also unites letters such as `ſ` and `s`, or the Kelvin sign and `k`.
    let visible = name.chars().filter(|character| !is_ignored(*character));
    visible.flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect()
}

/// Whether file systems that ignore case ignore this character too (Unicode, `Default_Ignorable_Code_Point`).
fn is_ignored(character: char) -> bool {
    matches!(
        character,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fff8}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

/// Whether Windows may give this short name to a file, such as `git~1` to `.git`.
fn is_short_for(short: &str, name: &str) -> bool {
    let Some((start, number)) = short.split_once('~') else { return false };
    let number = number.split('.').next().unwrap_or_default();
    // Leading dots are left out, and the rest up to the next one is cut off.
    let base = name.trim_start_matches('.').split('.').next().unwrap_or_default();
    let start_of_base: String = base.chars().take(6).collect();
    name.starts_with('.')
        && start == start_of_base
        && !number.is_empty()
        && number.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::Denied;

    #[test]
    fn names_match_at_any_depth_and_in_every_equivalent_spelling() {
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
            "git~12",
            "vscode~1",
            "yarnrc~2.yml",
            ".g\u{200c}it/config",
            ".\u{17f}sh",
            "x/../.envrc",
            ".ENVRC",
            "sub/.vscode/tasks.json",
        ] {
            assert!(is(&denied, path), "{path}");
        }
        for path in [
            "",
            ".",
            "git",
            ".gitignore",
            ".github/workflows/ci.yml",
            "envrc",
            "a.git",
            "src/.env",
            "a~1",
            "git~x",
            "git~",
        ] {
            assert!(!is(&denied, path), "{path}");
        }
        denied.add(["Makefile"]);
        assert!(is(&denied, "sub/makefile"));
        assert!(!is(&Denied::none(), ".git/config") && !is(&Denied::none(), "git~1"));
    }
}
