//! Conversion between wire formats and types. Pure: no network, no clock, no runtime.
//!
//! ```text
//! update, content, tool_calls, model   session updates
//! metadata, session_info, extensions   server extensions: `_meta`, lists, extension methods
//! termination, thread                  how an agent ended, and how to show it
//! mcp, skills                          configuration
//! claude, gemini                       what single agents report beyond the protocol, or in their own way
//! lenient, fields, open_enum,          parsing JSON that differs between servers
//! partial_json
//! text, plain_text                     text that is safe to print
//! decoded                              the memory of decoded JSON
//! ```

pub(crate) mod claude;
pub mod content;
pub(crate) mod decoded;
pub mod extensions;
pub(crate) mod fields;
pub(crate) mod gemini;
pub(crate) mod lenient;
pub(crate) mod mcp;
pub(crate) mod metadata;
pub(crate) mod model;
pub(crate) mod open_enum;
pub(crate) mod partial_json;
pub(crate) mod plain_text;
#[cfg(test)]
mod schema_walk;
pub(crate) mod session_info;
pub(crate) mod skills;
pub mod termination;
pub mod text;
pub mod thread;
pub(crate) mod timestamp;
pub(crate) mod tool_calls;
pub(crate) mod unparsed;
pub mod update;

pub use content::{Content, Prompt};
pub use mcp::{
    LocalMcpServer, McpCommand, McpOAuth, McpOAuthSettings, McpServerConfig, McpTransport, OtherMcpServer,
    RemoteMcpServer,
};
pub use metadata::{MetadataKey, MetadataPlaceError, SessionMetadata};
pub use model::{Model, ModelList};
pub use session_info::{SessionInfo, SessionPage, TerminateResult};
pub use skills::{SkillSource, SkillSourceKind, SkillsConfig};
pub use termination::TerminationInfo;
pub use timestamp::Timestamp;
pub use update::{Update, UpdateKind};
