//! Client options for files and terminals.

use std::sync::Arc;

use super::files::{FileAccess, TextFiles};
use super::options::ToolOptions;
#[cfg(all(feature = "terminals", unix))]
use super::terminals::TerminalOptions;
use crate::ClientOptions;

impl ClientOptions {
    /// Lets agents read and write these files. Off by default.
    ///
    /// Use `ConfinedFiles` for the files below some directories, or your own [`TextFiles`].
    pub fn files(mut self, files: impl TextFiles) -> Self {
        self.parts.change(|tools: &mut ToolOptions| tools.files = Some(Arc::new(files)));
        self
    }

    /// Sets a function that chooses the file access to advertise, by the agent's name.
    ///
    /// Access that the files do not allow is never advertised. The default is [`FileAccess::advertised_to`].
    pub fn advertised_file_access(
        mut self,
        choose: impl Fn(&str) -> FileAccess + Send + Sync + 'static,
    ) -> Self {
        self.parts.change(|tools: &mut ToolOptions| tools.advertised = Some(Arc::new(choose)));
        self
    }

    /// Lets agents run commands on this machine. Off by default.
    ///
    /// Each connection has its own terminals, which end with it.
    #[cfg(all(feature = "terminals", unix))]
    pub fn terminals(mut self, terminals: TerminalOptions) -> Self {
        self.parts.change(|tools: &mut ToolOptions| tools.terminals = Some(terminals));
        self
    }

    /// Sets how many requests for files and terminals one connection serves concurrently.
    ///
    /// See [`AgentTools::max_calls`](crate::tools::AgentTools::max_calls).
    pub fn max_tool_calls(mut self, count: usize) -> Self {
        self.parts.change(|tools: &mut ToolOptions| tools.max_calls = Some(count));
        self
    }
}
