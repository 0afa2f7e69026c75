//! The environment variables that a child process inherits.

use std::ffi::OsString;

use tokio::process::Command;

/// The variables that a child process inherits by default. None of them contains a secret.
const DEFAULT: [&str; 11] =
    ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TERM", "TMPDIR", "TZ"];

/// Which variables a child process inherits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Inherited {
    /// Variables with these names.
    Named(Vec<OsString>),
    /// The whole environment, including all secrets.
    Everything,
}

impl Inherited {
    /// Selects the default variables and these.
    pub(crate) fn with(names: &[&str]) -> Self {
        Self::Named(DEFAULT.iter().chain(names).map(OsString::from).collect())
    }

    /// Adds variables by their names.
    pub(crate) fn add(&mut self, names: impl IntoIterator<Item = impl Into<OsString>>) {
        if let Self::Named(named) = self {
            named.extend(names.into_iter().map(Into::into));
        }
    }

    /// Sets a command's environment to the inherited variables only.
    pub(crate) fn apply(&self, command: &mut Command) {
        if let Self::Named(names) = self {
            command.env_clear();
            command.envs(names.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        }
    }
}
