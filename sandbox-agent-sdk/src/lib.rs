#![doc = include_str!("../README.md")]

mod agent;
mod ask;
mod capabilities;
mod client;
pub mod content;
pub mod control;
mod decoded;
mod error;
mod event;
mod extensions;
mod feature;
mod fields;
mod files;
mod install;
pub mod limits;
#[cfg(unix)]
pub mod local;
pub mod login;
mod mcp;
mod metadata;
mod model;
mod network;
mod new_session;
mod open_enum;
mod options;
mod partial_json;
mod plain_text;
#[cfg(unix)]
mod process_tree;
#[cfg(all(feature = "providers", unix))]
pub mod provider;
mod random;
pub mod requests;
mod running;
#[cfg(test)]
mod schema_walk;
mod secret;
mod session_info;
pub mod sessions;
mod skills;
mod snapshot;
mod state;
mod status;
mod store;
mod termination;
pub mod text;
mod thread;
mod timestamp;
mod tool_calls;
pub mod tools;
pub mod turns;
mod unparsed;
mod update;
pub mod usage;

#[doc(inline)]
pub use acp_http_client::{
    ReconnectPolicy, Token, TokenError, TokenProvider, TokenUse, http_client_builder,
    http_client_builder_trusting,
};
pub use agent::{AgentCapabilities, AgentInfo, AgentList, AgentMode, AgentServerState, AgentServerStatus};
pub use ask::{
    FieldKind, FormChoice, FormField, PermissionDecision, PermissionFunction, PermissionKind,
    PermissionOption, PermissionPolicy, PermissionReply, PermissionRequest, QuestionForm, QuestionKind,
    QuestionRequest, QuestionSupport, ReplyError, TextFormat,
};
pub use capabilities::Capabilities;
pub use client::{SandboxAgentClient, Session, SessionList, StopReason, Turn, TurnOutcome, TurnState};
#[doc(inline)]
pub use content::{Content, Prompt};
pub use control::{
    AgentDetail, Agents, Configuration, ControlPlane, ControlPlaneBuilder, ControlTimeouts, FileReader,
    Files, Health, HealthCheck, HealthWait, InstallEvent, Installation, RELEASED_BODY_LIMIT, StartPhase,
    Upload,
};
pub use error::{AgentEnded, Error, HttpError, LostReason, Phase, Problem, RpcError, Timeout};
pub use event::{Event, Events, Gap, Origin, SessionEnded};
pub use extensions::{Extension, Extensions};
pub use feature::{Feature, Support};
pub use fields::MissingMember;
pub use files::{FsEntries, FsEntry, FsEntryType, FsMove, FsMoved, FsPath, FsStat, FsUploaded, FsWritten};
pub use install::{ArtifactKind, ArtifactSource, InstallOptions, InstallResult, InstalledArtifact};
#[cfg(unix)]
pub use local::{LocalError, LocalExit, LocalLog, LocalOptions, LocalServer};
pub use mcp::{
    LocalMcpServer, McpCommand, McpOAuth, McpOAuthSettings, McpServerConfig, McpTransport, OtherMcpServer,
    RemoteMcpServer,
};
pub use metadata::{MetadataKey, MetadataPlaceError, SessionMetadata};
pub use model::{Model, ModelList};
pub use new_session::{ListSessions, NewSession, OpenSession};
pub use options::{ClientOptions, ClientTimeouts, DropPolicy, ServerKind};
pub use running::RunningAgent;
pub use session_info::{SessionInfo, SessionPage, TerminateResult};
pub use sessions::{Attachment, ReplayLimits, Restored, Sessions, StoredSession, Suspend};
pub use skills::{SkillSource, SkillSourceKind, SkillsConfig};
pub use snapshot::{SessionSnapshot, Tool};
pub use state::ConnectionState;
pub use status::{
    ArchivedSessions, ResumeRequirement, ResumeSupport, RetentionPolicy, SessionStatus, StatusEvent,
    TransitionError, UnknownStatus, UserAction,
};
pub use store::{
    Cursor, EventPage, EventQuery, InactiveQuery, MAX_DEPTH, MAX_KEY_BYTES, MAX_PAGE, MemoryStore, NewEvent,
    RecordPage, RecordQuery, Recorder, RecorderOptions, SessionRecord, SessionStore, StoreError, StoredEvent,
    StoredEventKind, Unrecorded,
};
#[cfg(feature = "postgres")]
pub use store::{PostgresOptions, PostgresStore, PostgresTls};
#[cfg(feature = "sqlite")]
pub use store::{SqliteOptions, SqliteStore, SqliteSync};
pub use termination::{EndReason, StderrOutput, TerminatedBy, TerminationInfo, TerminationReport};
pub use thread::{AgentResult, ResultRules, Severity, ThreadEntry, ThreadEntryKind, TurnFailure};
pub use timestamp::Timestamp;
#[cfg(feature = "files")]
pub use tools::ConfinedFiles;
pub use tools::{AgentTools, FileAccess, FileError, LineRange, ReadText, Roots, TextFiles, WriteText};
#[cfg(all(feature = "terminals", unix))]
pub use tools::{TerminalCommand, TerminalError, TerminalExit, TerminalOptions, TerminalOutput, Terminals};
pub use unparsed::AgentUnparsed;
pub use update::{
    Chunk, Command, Compaction, CompactionStatus, CompactionSummary, ConfigKind, ConfigOption, ConfigValue,
    Missed, Notice, NoticeSeverity, Patched, PlanEntry, ToolCall, ToolKind, ToolLocation, ToolStatus, Update,
    UpdateKind,
};
