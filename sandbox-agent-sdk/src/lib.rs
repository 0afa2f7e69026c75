//! Drive coding agents that run in a sandbox: sessions, turns, files, and what became of the agent.

mod fields;
mod metadata;
mod open_enum;
mod plain_text;
mod termination;
mod timestamp;

pub use metadata::{MetadataKey, MetadataPlaceError, SessionMetadata};
pub use termination::{EndReason, StderrOutput, TerminatedBy, TerminationInfo, TerminationReport};
pub use timestamp::Timestamp;
