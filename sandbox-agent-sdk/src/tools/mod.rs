//! Files and terminals of this machine for agents.

mod agent_tools;
mod files;
mod roots;
#[cfg(all(feature = "terminals", unix))]
mod terminals;

pub use agent_tools::AgentTools;
#[cfg(feature = "files")]
pub use files::ConfinedFiles;
pub use files::{FileAccess, FileError, LineRange, ReadText, TextFiles, WriteText};
pub use roots::Roots;
#[cfg(all(feature = "fuzzing", unix))]
pub(crate) use terminals::Tail;
#[cfg(all(feature = "terminals", unix))]
pub use terminals::{
    Sandbox, SandboxError, TerminalCommand, TerminalError, TerminalExit, TerminalOptions, TerminalOutput,
    Terminals,
};
