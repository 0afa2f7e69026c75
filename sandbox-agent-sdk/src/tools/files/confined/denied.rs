//! Protected names.

use std::ffi::OsStr;
use std::path::{Component, Path};

use super::repository::{HEAD, PARTS, is_head};

/// Files and directories that make the user's programs run code, and directories with keys.
///
/// Version control, shells, editors and build tools read these files when the user runs them later.
pub(super) const DEFAULT: &[&str] = &[
    ".git",
    ".gitconfig",
    ".gitmodules",
    ".pre-commit-config.yaml",
    ".hg",
    ".hgrc",
    ".svn",
    ".jj",
    ".husky",
    ".githooks",
    "lefthook.yml",
    ".lefthook.yml",
    "lefthook.yaml",
    ".lefthook.yaml",
    "lefthook.toml",
    ".lefthook.toml",
    "lefthook.json",
    ".lefthook.json",
    "lefthook-local.yml",
    ".lefthook-local.yml",
    "lefthook-local.yaml",
    "lefthook-local.toml",
    "lefthook-local.json",
    ".overcommit.yml",
    ".envrc",
    ".direnv",
    ".direnvrc",
    ".ssh",
    ".gnupg",
    ".netrc",
    ".pgpass",
    ".aws",
    ".kube",
    ".docker",
    ".vscode",
    "*.code-workspace",
    ".idea",
    ".zed",
    ".helix",
    ".fleet",
    ".vim",
    ".vimrc",
    ".gvimrc",
    ".ideavimrc",
    ".exrc",
    ".nvimrc",
    ".nvim.lua",
    ".lazy.lua",
    ".emacs",
    ".emacs.d",
    ".dir-locals.el",
    ".gdbinit",
    ".pdbrc",
    ".ipython",
    ".ghci",
    ".irbrc",
    ".pryrc",
    ".psqlrc",
    ".sqliterc",
    ".curlrc",
    ".wgetrc",
    ".bazelrc",
    ".lldbinit",
    ".devcontainer",
    ".cargo",
    ".gradle",
    ".mvn",
    ".npmrc",
    ".yarnrc",
    ".yarnrc.yml",
    ".yarn",
    ".pnpmfile.cjs",
    ".pnp.cjs",
    ".pnp.loader.mjs",
    "bunfig.toml",
    ".pypirc",
    ".mcp.json",
    ".claude",
    ".claude.json",
    ".codex",
    ".cursor",
    ".gemini",
    ".opencode",
    "opencode.json",
    "opencode.jsonc",
    ".qwen",
    ".amp",
    ".pi",
    ".factory",
    ".continue",
    "crush.json",
    ".crush.json",
    ".aider.conf.yml",
    ".windsurf",
    ".kiro",
    ".profile",
    ".bashrc",
    ".bash_profile",
    ".bash_login",
    ".bash_logout",
    ".bash_aliases",
    ".bash_completion",
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
    ".config/Code",
    ".config/direnv",
    ".config/emacs",
    ".config/environment.d",
    ".config/fish",
    ".config/git",
    ".config/helix",
    ".config/i3",
    ".config/mise",
    ".config/mise.toml",
    ".config/nushell",
    ".config/nvim",
    ".config/opencode",
    ".config/sway",
    ".config/systemd",
    ".config/tmux",
    ".config/wezterm",
    ".config/zed",
    ".mise",
    ".mise.toml",
    "mise.toml",
    "mise.local.toml",
    ".mise.local.toml",
    "mise/config.toml",
    ".local/bin",
    ".local/share/applications",
    ".Rprofile",
    ".inputrc",
    ".xinitrc",
    ".xprofile",
    ".xsession",
    ".xsessionrc",
    ".pam_environment",
    ".screenrc",
    ".tmux.conf",
    ".wezterm.lua",
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
    /// slashes. A name that starts with `*` stands for every name with that end.
    ///
    /// The comparison ignores letter case and invisible characters, as some file systems do. It also ignores trailing
    /// dots and spaces and the name of a stream, and accepts short names of six characters, as Windows does.
    pub(super) fn matches(&self, path: &Path) -> bool {
        let names = path.components().filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_string_lossy()),
            _ => None,
        });
        let names: Vec<_> = names.map(|name| stored(&name)).collect();
        self.0.iter().any(|denied| {
            let denied: Vec<_> = denied.split('/').map(folded).collect();
            let is = |(name, denied): (&String, &String)| match denied.strip_prefix('*') {
                Some(end) => name.ends_with(end),
                None => name == denied || is_short_for(name, denied),
            };
            names.windows(denied.len()).any(|names| names.iter().zip(&denied).all(is))
        })
    }

    /// Whether git repositories are protected.
    pub(super) fn protects_git(&self) -> bool {
        self.0.iter().any(|denied| denied == ".git")
    }

    /// Whether a file or directory of this name is a part of a git repository that makes it one.
    pub(super) fn is_part(name: &OsStr) -> bool {
        let name = stored(&name.to_string_lossy());
        PARTS.iter().any(|part| name == folded(part))
    }

    /// Whether a file of this name and content makes its directory a git repository.
    pub(super) fn is_repository(&self, name: &OsStr, content: &str) -> bool {
        self.protects_git() && is_head(content.as_bytes()) && stored(&name.to_string_lossy()) == folded(HEAD)
    }
}

/// The name under which Windows stores a file, folded: without the name of a stream, trailing dots and spaces.
fn stored(name: &str) -> String {
    let name = folded(name.split(':').next().unwrap_or_default());
    name.trim_end_matches(['.', ' ']).to_owned()
}

/// A name in the form that case-insensitive file systems compare.
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
    fn a_head_of_git_is_recognised_in_every_equivalent_spelling() {
        let denied = Denied::default();
        for name in ["HEAD", "head", "HEAD.", "HEAD ", "HEAD::$DATA", "H\u{200c}EAD"] {
            assert!(denied.is_repository(name.as_ref(), "ref: refs/heads/main\n"), "{name}");
            assert!(!denied.is_repository(name.as_ref(), "the head of a list"), "{name}");
        }
        assert!(!denied.is_repository("HEADER".as_ref(), "ref: refs/heads/main\n"));
        assert!(!Denied::none().is_repository("HEAD".as_ref(), "ref: refs/heads/main\n"));
    }

    #[test]
    fn files_that_agents_shells_build_tools_and_desktops_run_code_from_are_protected() {
        let denied = Denied::default();
        for path in [
            ".claude.json",
            ".claude/settings.json",
            ".codex/config.toml",
            ".gemini/settings.json",
            ".qwen/settings.json",
            "opencode.json",
            "opencode.jsonc",
            ".config/opencode/opencode.json",
            ".direnvrc",
            ".config/direnv/direnvrc",
            ".mvn/extensions.xml",
            ".gradle/init.gradle",
            ".ipython/profile_default/startup/run.py",
            ".local/share/applications/run.desktop",
            ".wezterm.lua",
            ".config/wezterm/wezterm.lua",
            ".amp/settings.json",
            ".pi/extensions/run.ts",
            ".factory/settings.json",
            ".continue/config.yaml",
            "crush.json",
            ".aider.conf.yml",
            ".lazy.lua",
            ".config/nushell/config.nu",
            ".config/sway/config",
            ".config/i3/config",
        ] {
            assert!(denied.matches(Path::new(path)), "{path}");
            assert!(denied.matches(&Path::new("home/user").join(path)), "{path}");
        }
        for path in
            ["opencode.md", "claude.json", ".local/share/data", ".config/other/file", "gradle/wrapper"]
        {
            assert!(!denied.matches(Path::new(path)), "{path}");
        }
    }

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
