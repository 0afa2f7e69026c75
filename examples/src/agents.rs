//! Coding agents that may be installed on this machine, and how to start them.

mod table;

use std::env;
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use mock_server::ProcessAgent;

pub use table::table;

/// A coding agent that speaks the Agent Client Protocol on its standard streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownAgent {
    /// The short name of the agent.
    pub name: &'static str,
    /// The name of the agent's program.
    pub program: &'static str,
    /// The arguments that make the program speak the protocol.
    pub arguments: &'static [&'static str],
    /// The npm package of the agent, with a version if newer ones need a newer Node.js than the tested one.
    pub package: &'static str,
    /// Environment variables that the agent is started with, unless the user has set them.
    pub defaults: &'static [(&'static str, &'static str)],
    /// The login methods that use a key, each with the environment variable of the key.
    pub key_logins: &'static [(&'static str, &'static str)],
    /// How a user logs in if the agent offers no login method. `{}` stands for the program.
    pub login: &'static str,
}

/// The agents that are known by name.
pub const KNOWN_AGENTS: [KnownAgent; 5] = [
    KnownAgent {
        name: "opencode",
        program: "opencode",
        arguments: &["acp"],
        package: "opencode-ai",
        // Without it, opencode edits files and runs commands without asking.
        defaults: &[("OPENCODE_PERMISSION", r#"{"edit":"ask","bash":"ask","webfetch":"ask"}"#)],
        key_logins: &[],
        login: "Run `{} auth login` in a terminal.",
    },
    KnownAgent {
        name: "codex",
        program: "codex-acp",
        arguments: &[],
        package: "@zed-industries/codex-acp",
        defaults: &[],
        key_logins: &[("codex-api-key", "CODEX_API_KEY"), ("openai-api-key", "OPENAI_API_KEY")],
        login: "Set OPENAI_API_KEY, or run `codex login` of the package @openai/codex in a terminal.",
    },
    KnownAgent {
        name: "claude",
        program: "claude-agent-acp",
        arguments: &[],
        package: "@agentclientprotocol/claude-agent-acp@0.49.0",
        defaults: &[],
        key_logins: &[("anthropic-api-key", "ANTHROPIC_API_KEY")],
        login: "Run `{} --cli` in a terminal and enter /login, or set ANTHROPIC_API_KEY.",
    },
    KnownAgent {
        name: "gemini",
        program: "gemini",
        arguments: &["--experimental-acp"],
        package: "@google/gemini-cli",
        defaults: &[],
        key_logins: &[("gemini-api-key", "GEMINI_API_KEY")],
        login: "Run `{}` in a terminal and enter /auth, or set GEMINI_API_KEY.",
    },
    KnownAgent {
        name: "qwen",
        program: "qwen",
        arguments: &["--acp"],
        package: "@qwen-code/qwen-code",
        defaults: &[],
        key_logins: &[("openai", "OPENAI_API_KEY")],
        login: "Run `{}` in a terminal and enter /auth, or set OPENAI_API_KEY.",
    },
];

/// Directories of programs below the user's home directory.
const BELOW_HOME: [&str; 4] = [".local/bin", ".npm-global/bin", ".opencode/bin", ".bun/bin"];

/// The error of an agent that is not installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotInstalled {
    /// No agent with this name is known.
    Unknown(String),
    /// The agent's program was not found in any of the usual places.
    Missing(KnownAgent),
}

impl fmt::Display for NotInstalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(name) => {
                let names: Vec<&str> = KNOWN_AGENTS.iter().map(|agent| agent.name).collect();
                write!(f, "there is no agent `{name}`; known are {}", names.join(", "))
            }
            Self::Missing(agent) => write!(
                f,
                "{} is not installed: `{}` is neither on the PATH, nor in ./node_modules/.bin, nor in ~/{}; \
                 install it with: {}",
                agent.name,
                agent.program,
                BELOW_HOME.join(", ~/"),
                agent.install_command()
            ),
        }
    }
}

impl std::error::Error for NotInstalled {}

impl KnownAgent {
    /// Returns the agent with this name.
    ///
    /// # Errors
    /// [`NotInstalled::Unknown`] if no agent has this name.
    pub fn named(name: &str) -> Result<Self, NotInstalled> {
        let found = KNOWN_AGENTS.into_iter().find(|agent| agent.name == name);
        found.ok_or_else(|| NotInstalled::Unknown(name.to_owned()))
    }

    /// Returns the command that installs the agent.
    #[must_use]
    pub fn install_command(&self) -> String {
        format!("npm install -g {}", self.package)
    }

    /// Finds the agent's program.
    ///
    /// Searches the `PATH`, `node_modules/.bin` of the current directory, and the usual directories for programs of
    /// one user.
    ///
    /// # Errors
    /// [`NotInstalled::Missing`] if the program is not found.
    pub fn find(&self) -> Result<PathBuf, NotInstalled> {
        let path = env::var_os("PATH").unwrap_or_default();
        let home = env::var_os("HOME").map(PathBuf::from);
        let below_home = home.iter().flat_map(|home| BELOW_HOME.map(|folder| home.join(folder)));
        let local = env::current_dir().ok().map(|folder| folder.join("node_modules/.bin"));
        let mut folders = env::split_paths(&path).chain(local).chain(below_home);
        let found =
            folders.find_map(|folder| Some(folder.join(self.program)).filter(|file| is_program(file)));
        found.ok_or(NotInstalled::Missing(*self))
    }

    /// Returns the agent as a process that a server can run.
    ///
    /// # Errors
    /// [`NotInstalled::Missing`] if the program is not found.
    pub fn process(&self) -> Result<ProcessAgent, NotInstalled> {
        let process = ProcessAgent::new(self.find()?).args(self.arguments.iter().copied());
        let unset = self.defaults.iter().filter(|(name, _)| !is_set(name));
        Ok(unset.fold(process, |process, (name, value)| process.env(name, value)))
    }
}

/// Returns the offered login methods for which the environment has a key.
#[must_use]
pub fn key_logins(offered: &[String]) -> Vec<&'static str> {
    let logins = KNOWN_AGENTS.iter().flat_map(|agent| agent.key_logins);
    let usable = logins.filter(|(login, variable)| offered.iter().any(|id| id == login) && is_set(variable));
    usable.map(|(login, _)| *login).collect()
}

/// Returns the environment variable of the key for a login method.
#[must_use]
pub fn key_variable(login: &str) -> Option<&'static str> {
    let mut logins = KNOWN_AGENTS.iter().flat_map(|agent| agent.key_logins);
    logins.find(|(id, _)| *id == login).map(|(_, variable)| *variable)
}

/// Returns a program as a user can type it in the current directory.
#[must_use]
pub fn typed(program: &Path) -> String {
    let path = env::var_os("PATH").unwrap_or_default();
    if let Some(name) = program.file_name() {
        let first = env::split_paths(&path).map(|folder| folder.join(name)).find(|file| is_program(file));
        if first.as_deref() == Some(program) {
            return name.to_string_lossy().into_owned();
        }
    }
    let folder = env::current_dir().unwrap_or_default();
    match program.strip_prefix(folder) {
        Ok(below) => format!("./{}", below.display()),
        Err(_) => program.display().to_string(),
    }
}

/// Returns whether a file can be executed.
fn is_program(file: &Path) -> bool {
    file.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// Returns whether an environment variable has a value.
pub(crate) fn is_set(variable: &str) -> bool {
    env::var_os(variable).is_some_and(|value| !value.is_empty())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]
mod tests {
    use super::{KnownAgent, NotInstalled};

    #[test]
    fn an_agent_that_is_not_there_says_how_to_install_it() {
        let gemini = KnownAgent::named("gemini").unwrap();
        assert_eq!(
            NotInstalled::Missing(gemini).to_string(),
            "gemini is not installed: `gemini` is neither on the PATH, nor in ./node_modules/.bin, nor in \
             ~/.local/bin, ~/.npm-global/bin, ~/.opencode/bin, ~/.bun/bin; install it with: \
             npm install -g @google/gemini-cli"
        );
        let unknown = KnownAgent::named("nobody").unwrap_err();
        assert_eq!(
            unknown.to_string(),
            "there is no agent `nobody`; known are opencode, codex, claude, gemini, qwen"
        );
    }
}
