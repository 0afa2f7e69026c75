//! Drive coding agents that run in a sandbox: sessions, turns, files, and what became of the agent.

mod agent;
mod control;
#[allow(dead_code, reason = "used by the client and the control plane")]
mod error;
mod extensions;
mod fields;
mod files;
mod install;
mod mcp;
mod metadata;
mod model;
mod open_enum;
mod plain_text;
mod session_info;
mod skills;
mod status;
mod termination;
mod thread;
mod timestamp;
mod unparsed;

pub use agent::{AgentCapabilities, AgentInfo, AgentList, AgentMode, AgentServerState, AgentServerStatus};
pub use control::{
    AgentDetail, Agents, Configuration, ControlPlane, ControlPlaneBuilder, ControlTimeouts, FileReader,
    Files, Health, HealthCheck, HealthWait, InstallEvent, Installation, RELEASED_BODY_LIMIT, StartPhase,
    Upload,
};
pub use error::{AgentEnded, Error, HttpError, LostReason, Phase, Problem, RpcError, Timeout};
pub use extensions::{Extension, Extensions};
pub use fields::MissingMember;
pub use files::{FsEntries, FsEntry, FsEntryType, FsMove, FsMoved, FsPath, FsStat, FsUploaded, FsWritten};
pub use install::{ArtifactKind, ArtifactSource, InstallOptions, InstallResult, InstalledArtifact};
pub use mcp::{
    LocalMcpServer, McpCommand, McpOAuth, McpOAuthSettings, McpServerConfig, McpTransport, OtherMcpServer,
    RemoteMcpServer,
};
pub use metadata::{MetadataKey, MetadataPlaceError, SessionMetadata};
pub use model::{Model, ModelList};
pub use session_info::{SessionInfo, SessionPage, TerminateResult};
pub use skills::{SkillSource, SkillSourceKind, SkillsConfig};
pub use status::{
    ArchivedSessions, ResumeRequirement, ResumeSupport, RetentionPolicy, SessionStatus, StatusEvent,
    TransitionError, UnknownStatus, UserAction,
};
pub use termination::{EndReason, StderrOutput, TerminatedBy, TerminationInfo, TerminationReport};
pub use thread::{AgentResult, ResultRules, Severity, ThreadEntry, ThreadEntryKind, TurnFailure};
pub use timestamp::Timestamp;
pub use unparsed::AgentUnparsed;
