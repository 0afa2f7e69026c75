//! The control plane of a server: health, agents, files, configuration, processes, terminals and the desktop.
//!
//! It uses plain HTTP requests and needs no connection to an agent.
//!
//! ```text
//! health, agents, files, config,
//! processes, terminal, desktop        what users call                 (public)
//! http                                token, timeouts, errors         (sends all requests)
//! route, upload, progress, incoming   URLs and bodies                 (no network access)
//! ```

pub(crate) mod agent;
mod agents;
mod builder;
mod config;
pub mod desktop;
pub(crate) mod entries;
mod file_reader;
mod files;
mod health;
mod http;
mod incoming;
pub(crate) mod install;
mod installation;
mod parts;
mod plane;
pub mod processes;
mod progress;
mod refusal;
mod route;
pub(crate) mod running;
pub mod terminal;
mod timeouts;
mod upload;

pub use agent::{AgentCapabilities, AgentInfo, AgentList, AgentMode, AgentServerState, AgentServerStatus};
pub use agents::{AgentDetail, Agents};
pub use builder::ControlPlaneBuilder;
pub use config::Configuration;
pub use entries::{FsEntries, FsEntry, FsEntryType, FsMove, FsMoved, FsPath, FsStat, FsUploaded, FsWritten};
pub use file_reader::FileReader;
pub use files::Files;
pub use health::{Health, HealthCheck, HealthWait, StartPhase};
pub use install::{ArtifactKind, ArtifactSource, InstallOptions, InstallResult, InstalledArtifact};
pub use installation::{InstallEvent, Installation};
pub use plane::ControlPlane;
pub use refusal::RELEASED_BODY_LIMIT;
pub use running::RunningAgent;
pub use timeouts::ControlTimeouts;
pub use upload::Upload;

pub(crate) use http::{Call, Http};
#[cfg(feature = "fuzzing")]
pub(crate) use http::{Privacy, decode};
pub(crate) use route::Route;
