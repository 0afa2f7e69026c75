//! Files and terminals of this machine for agents.
//!
//! # Files
//!
//! [`ClientOptions::files`](crate::ClientOptions::files) lets agents read and write text files. These come from your
//! own [`TextFiles`], such as the buffers of an editor, or, with the feature `files`, from some directories:
//!
//! ```no_run
//! # #[cfg(all(feature = "files", feature = "terminals", unix))]
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use sandbox_agent_sdk::SandboxAgentClient;
//! use sandbox_agent_sdk::tools::{ConfinedFiles, Roots, Sandbox, TerminalOptions};
//!
//! // `/work` is the name of the directory inside the sandbox.
//! let roots = Roots::new().and_as("/work", "/home/ada/project");
//! let client = SandboxAgentClient::builder("http://127.0.0.1:2468")
//!     .agent("claude")
//!     .files(ConfinedFiles::open(roots.clone())?)
//!     .terminals(TerminalOptions::new(roots).sandbox(Sandbox::detect()?)) // no network, read-only outside the roots
//!     .build()?;
//! # Ok(()) }
//! ```
//!
//! `ConfinedFiles` holds the directories open and resolves every path beneath them. It returns
//!
//! - [`FileError::Outside`] if a path leaves the directories, by `..`, by a link, or as another absolute path, even
//!   if a directory is replaced by a link at the same time;
//! - [`FileError::NotAFile`] for devices, pipes and directories;
//! - [`FileError::NotText`] if the file is not valid UTF-8;
//! - [`FileError::Protected`] for writes to files that make other programs run code (`.git`, `.envrc`, startup files
//!   of shells, settings of editors), unless an option allows them.
//!
//! Writes are atomic, preserve the owner and the permissions without setuid bits, and create missing directories. File
//! sizes and the work of one request are limited.
//!
//! # Terminals
//!
//! `ClientOptions::terminals` (feature `terminals`, Unix only) lets agents run commands on this machine with the rights
//! of this program. A command starts in one of the roots, inherits a few harmless environment variables, and belongs to
//! its session. These options restrict commands:
//!
//! | option | what it restricts | what it does not restrict |
//! |---|---|---|
//! | `sandbox` (Linux, bubblewrap) | no network; a file system that is read-only outside the roots; empty home and temporary directories; no capabilities; no access to other processes; every process ends with the terminal | memory and processor time; reading other files (see `hide`); exploits of kernel bugs; running the files that a command wrote |
//! | `allow_only`, `allow_if` | which program starts, looked up in the `PATH` of this program and not in the roots; which environment variables the agent sets (only those in `allow_variables`) | what the program does: shells, interpreters, `cargo`, `make` and `git` (`git -c alias.x='!sh' x`) run anything. With `shell`, a command is a script |
//! | none of these | nothing | everything: a command can do what this program can do |
//!
//! | aspect | behaviour |
//! |---|---|
//! | output | both streams share one pipe, as in a terminal, which preserves the order of writing |
//! | output limit | the last bytes are buffered, starting with a complete character, and marked as truncated; the process never waits for a reader |
//! | exit | the real exit code or signal; children that hold the output open do not delay it |
//! | kill | kills the command and its process tree |
//! | release, drop, end of the session, agent or connection | kills the command and its process tree, and removes the terminal |
//! | start during such an end | the command is not started, or is killed |
//! | limits | `max_terminals` per connection, `max_session_terminals` per session, [`max_tool_calls`](crate::ClientOptions::max_tool_calls) concurrent requests; beyond a limit the agent receives an error that names it |
//!
//! In a sandbox every process of a command ends with its terminal, even if this program is killed by SIGKILL.
//!
//! Without a sandbox, on Linux, the process tree is found in `/proc`, including daemons, stopped processes, and
//! processes without a parent or an environment. A process survives if it changes its session, parent, environment and
//! resource limits, if it runs as another user (`sudo`), or if a service manager or a container engine started it. On
//! other systems, and in a container with the `/proc` of another PID namespace, only the process group ends.
//!
//! [`AgentTools`] serves files and terminals without this crate's client.

mod agent_tools;
mod client_options;
mod files;
mod options;
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

#[cfg(all(feature = "terminals", unix))]
pub use crate::trust::PathProblem;
