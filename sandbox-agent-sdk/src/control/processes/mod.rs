//! Processes on the server's machine.
//!
//! ```text
//! calls       the requests
//! request     types of requests: CreateProcess, RunProcess, LogQuery
//! info        types of responses: ProcessInfo, RunOutput, LogEntry
//! follow      output as it is written, across lost connections
//! log_stream  the server's event stream that `follow` reads, and its decoder
//! text        bytes to text, across chunk boundaries
//! ```

mod calls;
mod follow;
mod info;
mod log_stream;
mod request;
mod text;

pub use calls::Processes;
pub use follow::{Follow, FollowEvent, FollowFrom, FollowOptions};
pub use info::{
    LogEntry, LogStream, ProcessConfig, ProcessExit, ProcessInfo, ProcessOwner, ProcessStatus, RunOutput,
};
pub use request::{CreateProcess, LogQuery, RunProcess};
pub use text::LossyText;

pub(super) use follow::PTY_END;
