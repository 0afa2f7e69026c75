//! The agents, and where their programs are.

use std::{
    fmt,
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use crate::npm::{Unavailable, installed};

/// A coding agent that speaks the protocol on its standard streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RealAgent {
    /// `opencode acp`.
    OpenCode,
    /// Codex, by `codex-acp`.
    Codex,
    /// Claude Code, by `claude-agent-acp`.
    Claude,
    /// `gemini --experimental-acp`.
    Gemini,
    /// `qwen --acp`.
    Qwen,
}

impl RealAgent {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::OpenCode, Self::Codex, Self::Claude, Self::Gemini, Self::Qwen];

    /// Its short name.
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenCode => "opencode",
            Self::Codex => "codex",
            Self::Claude => "claude",
            Self::Gemini => "gemini",
            Self::Qwen => "qwen",
        }
    }

    /// The agent of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|agent| agent.name() == name)
    }

    /// Its package on npm.
    pub fn package(self) -> &'static str {
        match self {
            Self::OpenCode => "opencode-ai",
            Self::Codex => "@zed-industries/codex-acp",
            Self::Claude => "@agentclientprotocol/claude-agent-acp",
            Self::Gemini => "@google/gemini-cli",
            Self::Qwen => "@qwen-code/qwen-code",
        }
    }

    /// The version that the suite runs.
    pub fn version(self) -> &'static str {
        match self {
            Self::OpenCode => "1.18.33",
            Self::Codex => "0.16.0",
            Self::Claude => "0.49.0",
            Self::Gemini => "0.61.0",
            Self::Qwen => "0.15.10",
        }
    }

    /// Fetches it into a folder below `folder`, unless it is there.
    ///
    /// # Errors
    /// Says what is missing: npm, the network, or a package for this platform.
    pub async fn fetch(self, folder: &Path) -> Result<PathBuf, Unavailable> {
        let package = format!("{}@{}", self.package(), self.version());
        let prepare = |home: &Path| match self.native(home) {
            Some(program) => fs::set_permissions(program, Permissions::from_mode(0o755)),
            None if self.script().is_none() => Err(io::Error::other("there is no program for this platform")),
            None => Ok(()),
        };
        installed(folder, &format!("{}-{}", self.name(), self.version()), &package, prepare).await
    }

    /// The command that starts it, from the folder that [`fetch`](Self::fetch) gives.
    ///
    /// # Panics
    /// When the folder does not hold it.
    pub fn command(self, home: &Path) -> Vec<String> {
        let program = match (self.native(home), self.script()) {
            (Some(program), _) => vec![program.display().to_string()],
            (None, Some(script)) => vec!["node".to_owned(), home.join(script).display().to_string()],
            (None, None) => panic!("{self} has no program in {}", home.display()),
        };
        [program, self.arguments().iter().map(|argument| (*argument).to_owned()).collect()].concat()
    }

    /// The arguments that make it speak the protocol.
    pub fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::OpenCode => &["acp"],
            Self::Codex | Self::Claude => &[],
            Self::Gemini => &["--experimental-acp"],
            Self::Qwen => &["--acp"],
        }
    }

    /// The program of the platform's package. The packages' own starters need scripts that are not run.
    fn native(self, home: &Path) -> Option<PathBuf> {
        let arch = match std::env::consts::ARCH {
            "aarch64" => "arm64",
            _ => "x64",
        };
        let os = match std::env::consts::OS {
            "macos" => "darwin",
            os => os,
        };
        let program = match self {
            Self::OpenCode => format!("opencode-{os}-{arch}/bin/opencode"),
            Self::Codex => format!("@zed-industries/codex-acp-{os}-{arch}/bin/codex-acp"),
            Self::Claude | Self::Gemini | Self::Qwen => return None,
        };
        Some(home.join("node_modules").join(program)).filter(|program| program.exists())
    }

    /// What node runs.
    fn script(self) -> Option<&'static str> {
        match self {
            Self::OpenCode | Self::Codex => None,
            Self::Claude => Some("node_modules/.bin/claude-agent-acp"),
            Self::Gemini => Some("node_modules/.bin/gemini"),
            Self::Qwen => Some("node_modules/.bin/qwen"),
        }
    }
}

impl fmt::Display for RealAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
