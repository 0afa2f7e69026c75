//! The options of a client that concern tools.

use std::sync::Arc;

use super::files::{FileAccess, TextFiles};
use super::options::ToolOptions;
#[cfg(all(feature = "terminals", unix))]
use super::terminals::TerminalOptions;
use crate::ClientOptions;

impl ClientOptions {
    /// Offers files to agents: `ConfinedFiles` for those of some directories, or your own. By default none are.
    pub fn files(mut self, files: impl TextFiles) -> Self {
        self.parts.change(|tools: &mut ToolOptions| tools.files = Some(Arc::new(files)));
        self
    }

    /// Which access to files is advertised to an agent of this name. It never exceeds what the files allow.
    ///
    /// By default it is [`FileAccess::advertised_to`] the agent.
    pub fn advertised_file_access(
        mut self,
        choose: impl Fn(&str) -> FileAccess + Send + Sync + 'static,
    ) -> Self {
        self.parts.change(|tools: &mut ToolOptions| tools.advertised = Some(Arc::new(choose)));
        self
    }

    /// Offers terminals to agents: they may run commands on this machine. By default they may not. Every connection has
    /// terminals of its own, which end with it.
    #[cfg(all(feature = "terminals", unix))]
    pub fn terminals(mut self, terminals: TerminalOptions) -> Self {
        self.parts.change(|tools: &mut ToolOptions| tools.terminals = Some(terminals));
        self
    }

    /// How many calls of files and terminals may work at once on one connection:
    /// [`AgentTools::max_calls`](crate::tools::AgentTools::max_calls).
    pub fn max_tool_calls(mut self, count: usize) -> Self {
        self.parts.change(|tools: &mut ToolOptions| tools.max_calls = Some(count));
        self
    }
}
