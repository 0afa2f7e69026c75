//! How a session was restored.

use std::fmt;

use serde::Serialize;

/// How an agent continues a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum RestoredBy {
    /// The agent still has the session; nothing was asked of it.
    Attach,
    /// The agent resumed it.
    Resume,
    /// The agent loaded it from its own history.
    Load,
    /// The agent has a new session, and gets the recent history with the next prompt.
    Replay,
}

impl RestoredBy {
    /// Its name, as it is stored.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Attach => "attach",
            Self::Resume => "resume",
            Self::Load => "load",
            Self::Replay => "replay",
        }
    }
}

impl fmt::Display for RestoredBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A session that was restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Restored {
    /// How.
    pub by: RestoredBy,
    /// How many stored prompts the agent no longer knows, by the history that it replayed; `None` if it replayed none
    /// before its response, so that there is nothing to compare.
    pub unknown_prompts: Option<u64>,
}
