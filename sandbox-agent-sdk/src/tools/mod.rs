//! Files and terminals of this machine for agents.
//!
//! # Files
//!
//! [`ClientOptions::files`](crate::ClientOptions::files) lets agents read and write text files: those of your own
//! [`TextFiles`], such as the buffers of an editor, or (feature `files`) those below some directories:
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
//!     .terminals(TerminalOptions::new(roots).sandbox(Sandbox::detect()?)) // no network, read-only outside of the roots
//!     .build()?;
//! # Ok(()) }
//! ```
//!
//! `ConfinedFiles` holds the directories open and resolves paths from there without leaving them. It returns
//! [`FileError::Outside`] for `..`, for links that lead out, for other absolute paths, and for directories that are replaced
//! by links meanwhile; [`FileError::NotAFile`] for devices, pipes and directories; [`FileError::NotText`] if the file is not
//! valid UTF-8. Writes are atomic, keep the permissions and the owner but no setuid bits, and create missing directories.
//! Files that make other programs run code (`.git`, `.envrc`, startup files of shells, settings of editors) are
//! [`FileError::Protected`] unless an option allows them. Sizes and the work of one request are bounded.
//!
//! # Terminals
//!
//! `ClientOptions::terminals` (feature `terminals`, Unix) lets agents run commands on this machine with the rights of this
//! program. Commands start in one of the directories, inherit a few harmless environment variables, and belong to their
//! session. These options restrict them:
//!
//! | option | what it does | what it does not do |
//! |---|---|---|
//! | `sandbox` (Linux, bubblewrap) | no network, a read-only file system outside of the roots, empty home and temporary directories, no capabilities, no view of other processes; everything ends with the terminal | limit memory and processor time, protect other readable files (`hide`), protect from defects of the kernel, or from running the files that commands wrote |
//! | `allow_only`, `allow_if` | decide which program starts, found in the `PATH` of this program; refuse the agent's environment variables unless `allow_variables` names them | restrict what the program does: shells, interpreters, `cargo`, `make` and `git` (`git -c alias.x='!sh' x`) run anything. With `shell`, a command is a script |
//! | nothing | | anything: a command can do what this program can do |
//!
//! | aspect | behaviour |
//! |---|---|
//! | output | both streams share one pipe, as in a terminal, and keep the order of writing |
//! | output limit | the last bytes are kept, from a whole character on, and marked as truncated; the process never waits for a reader |
//! | exit | the real code or signal; children that hold the output do not delay it |
//! | kill | kills the command and its process tree |
//! | release, drop, end of the session, agent or connection | kills, and removes the terminal |
//! | start that races such an end | starts nothing, or is killed |
//! | number | `max_terminals` per connection, `max_session_terminals` per session, [`max_tool_calls`](crate::ClientOptions::max_tool_calls) at once; beyond that the agent receives an error with the limit |
//!
//! In a sandbox every process of a command ends with its terminal, also if this program is killed by SIGKILL. Without one,
//! on Linux, the process tree is found in `/proc`, including daemons, stopped processes, and processes without a parent or
//! an environment. A process survives if it drops its session, its parent, its environment and its resource limits, runs as
//! another user (`sudo`), or was started by a service manager or a container engine. On other systems, and in a container
//! whose `/proc` is not its own, only the process group ends.
//!
//! [`AgentTools`] serves both behind the messages of an agent, for use without this crate's client.

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
