//! Drive coding agents that run in a sandbox: sessions, turns, files, and what became of the agent.

mod fields;
mod metadata;
mod open_enum;
mod plain_text;
mod status;
mod termination;
mod thread;
mod timestamp;

pub use metadata::{MetadataKey, MetadataPlaceError, SessionMetadata};
pub use status::{
    ArchivedSessions, ResumeRequirement, ResumeSupport, RetentionPolicy, SessionStatus, StatusEvent,
    TransitionError, UnknownStatus, UserAction,
};
pub use termination::{EndReason, StderrOutput, TerminatedBy, TerminationInfo, TerminationReport};
pub use thread::{AgentResult, ResultRules, Severity, ThreadEntry, ThreadEntryKind, TurnFailure};
pub use timestamp::Timestamp;
