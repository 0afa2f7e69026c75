//! What an agent may use of the machine this program runs on: files and terminals.

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
#[cfg(all(feature = "terminals", unix))]
pub use terminals::{
    TerminalCommand, TerminalError, TerminalExit, TerminalOptions, TerminalOutput, Terminals,
};
