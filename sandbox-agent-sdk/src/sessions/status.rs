//! The status of a session, and what changes it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

mod retention;
#[cfg(test)]
mod tests;

pub use retention::RetentionPolicy;

/// The status of a session.
///
/// An active session never completes: a user can always continue it. The end of an agent is not the end of its session.
/// Neither the exit of an agent nor the clean-up of idle agents changes the status.
///
/// ```text
/// created ──▶ Active ──┬── shutdown ──▶ Suspended ── resume ──▶ Active
///                      ├── archive ───▶ Archived
///                      └── failure ───▶ Error
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SessionStatus {
    /// The session accepts prompts. Its agent is running, or the next prompt starts it.
    #[default]
    Active,
    /// The session was suspended when the program or the server shut down. It may be resumable.
    Suspended,
    /// A user archived the session. It can still be viewed. This status is final.
    Archived,
    /// A fatal error ended the session. This status is final.
    Error,
}

/// An event that may change the status of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StatusEvent {
    /// The agent's process exited. The status does not change: the next prompt starts the agent again.
    AgentExited,
    /// The agent's process was ended because it was idle. The status does not change.
    IdleCleanup,
    /// The program or the server shuts down. An active session becomes suspended; other statuses do not change.
    Shutdown,
    /// A manual clean-up. The status does not change. Expired sessions are deleted instead; see [`RetentionPolicy`].
    ManualCleanup,
    /// A user archives the session. Only an active session can be archived.
    Archive,
    /// A user cancels the session: its turn ends, and the session is archived.
    Cancel,
    /// An error after which the session cannot continue. The crash of an agent is not such an error.
    FatalError,
    /// The session is resumed, if the requirements are met.
    Resume(ResumeSupport),
}

/// An action that a user can perform on a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UserAction {
    /// Sends a prompt.
    Send,
    /// Views the messages.
    View,
    /// Cancels the session or its turn.
    Cancel,
    /// Archives the session.
    Archive,
    /// Resumes the session, if the agent supports it.
    Resume,
}

/// The requirements for resuming a suspended session. All of them must be met.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ResumeSupport {
    /// Whether the agent can resume sessions.
    pub by_agent: bool,
    /// Whether the session's flag `supportsResume` is set.
    pub supports_resume: bool,
    /// Whether there is valid `resumeData`: a session of the agent, or events for transcript replay.
    pub resume_data: bool,
}

impl ResumeSupport {
    /// All requirements are met.
    pub const FULL: Self = Self { by_agent: true, supports_resume: true, resume_data: true };

    /// Returns the first requirement that is not met.
    #[must_use]
    pub const fn missing(self) -> Option<ResumeRequirement> {
        match self {
            Self { by_agent: false, .. } => Some(ResumeRequirement::Agent),
            Self { supports_resume: false, .. } => Some(ResumeRequirement::Session),
            Self { resume_data: false, .. } => Some(ResumeRequirement::ResumeData),
            _ => None,
        }
    }
}

/// A requirement for resuming a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResumeRequirement {
    /// The agent can resume sessions.
    Agent,
    /// The session is marked as resumable.
    Session,
    /// There is valid data to resume the session from.
    ResumeData,
}

/// Whether archived sessions are listed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ArchivedSessions {
    /// Archived sessions are omitted.
    #[default]
    Hidden,
    /// Archived sessions are listed with the others.
    Shown,
}

impl SessionStatus {
    /// All statuses.
    pub const ALL: &'static [Self] = &[Self::Active, Self::Suspended, Self::Archived, Self::Error];

    /// Returns the status after an event.
    ///
    /// # Errors
    ///
    /// [`TransitionError`] if the event leads to a status that cannot be reached from this one.
    pub fn after(self, event: StatusEvent) -> Result<Self, TransitionError> {
        match event {
            StatusEvent::AgentExited | StatusEvent::IdleCleanup | StatusEvent::ManualCleanup => Ok(self),
            StatusEvent::Shutdown if self == Self::Active => Ok(Self::Suspended),
            StatusEvent::Shutdown => Ok(self),
            StatusEvent::Archive | StatusEvent::Cancel => self.to(Self::Archived),
            StatusEvent::FatalError => self.to(Self::Error),
            StatusEvent::Resume(support) => {
                let to = self.to(Self::Active)?;
                match support.missing() {
                    Some(missing) => Err(TransitionError::NotResumable { from: self, to, missing }),
                    None => Ok(to),
                }
            }
        }
    }

    /// Returns whether a session can change from this status to another one. Staying in a status is not a change.
    #[must_use]
    pub const fn can_become(self, to: Self) -> bool {
        matches!(
            (self, to),
            (Self::Active, Self::Suspended | Self::Archived | Self::Error) | (Self::Suspended, Self::Active)
        )
    }

    /// Returns whether a user may perform this action. Resuming also needs support by the agent.
    #[must_use]
    pub const fn allows(self, action: UserAction) -> bool {
        match action {
            UserAction::Send | UserAction::Cancel | UserAction::Archive => matches!(self, Self::Active),
            UserAction::View => !matches!(self, Self::Error),
            UserAction::Resume => matches!(self, Self::Suspended),
        }
    }

    /// Returns whether the session accepts input.
    #[must_use]
    pub const fn accepts_input(self) -> bool {
        self.allows(UserAction::Send)
    }

    /// Returns whether the session appears in a list of sessions.
    #[must_use]
    pub const fn is_listed(self, archived: ArchivedSessions) -> bool {
        match self {
            Self::Active | Self::Suspended => true,
            Self::Archived => matches!(archived, ArchivedSessions::Shown),
            Self::Error => false,
        }
    }

    /// Returns whether the session counts towards the number on a badge.
    #[must_use]
    pub const fn is_counted(self) -> bool {
        matches!(self, Self::Active | Self::Suspended)
    }

    /// Returns whether this status is final.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Archived | Self::Error)
    }

    /// Returns a notice for users who view the session, if there is one.
    #[must_use]
    pub const fn notice(self) -> Option<&'static str> {
        match self {
            Self::Suspended => Some("may be resumable when agent supports it"),
            Self::Archived => Some("Session is archived"),
            Self::Active | Self::Error => None,
        }
    }

    /// Returns the name under which the status is stored.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Suspended => "suspended",
            Self::Archived => "archived",
            Self::Error => "error",
        }
    }

    /// Parses a stored status. Also accepts two names from an earlier version: `completed` becomes active, and
    /// `cancelled` becomes archived.
    ///
    /// # Errors
    ///
    /// [`UnknownStatus`] if the text is not the name of a status.
    pub fn from_stored(text: &str) -> Result<Self, UnknownStatus> {
        match text {
            "completed" => Ok(Self::Active),
            "cancelled" => Ok(Self::Archived),
            _ => text.parse(),
        }
    }

    const fn to(self, to: Self) -> Result<Self, TransitionError> {
        if self.can_become(to) { Ok(to) } else { Err(TransitionError::Forbidden { from: self, to }) }
    }
}

impl fmt::Display for SessionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for SessionStatus {
    type Err = UnknownStatus;

    fn from_str(text: &str) -> Result<Self, UnknownStatus> {
        let found = Self::ALL.iter().copied().find(|status| status.as_str() == text);
        found.ok_or_else(|| UnknownStatus { text: text.to_owned() })
    }
}

impl fmt::Display for ResumeRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Agent => "the agent cannot resume sessions",
            Self::Session => "the session was not marked as resumable",
            Self::ResumeData => "there is no valid data to resume from",
        })
    }
}

/// The error of an invalid status change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransitionError {
    /// The change is never allowed.
    #[error("a session cannot change from {from} to {to}")]
    #[non_exhaustive]
    Forbidden {
        /// The current status.
        from: SessionStatus,
        /// The requested status.
        to: SessionStatus,
    },
    /// The session cannot be resumed because a requirement is not met.
    #[error("a session cannot change from {from} to {to}: {missing}")]
    #[non_exhaustive]
    NotResumable {
        /// The current status.
        from: SessionStatus,
        /// The requested status.
        to: SessionStatus,
        /// The requirement that is not met.
        missing: ResumeRequirement,
    },
}

impl TransitionError {
    /// Returns the current status.
    #[must_use]
    pub const fn from(&self) -> SessionStatus {
        match self {
            Self::Forbidden { from, .. } | Self::NotResumable { from, .. } => *from,
        }
    }

    /// Returns the requested status.
    #[must_use]
    pub const fn to(&self) -> SessionStatus {
        match self {
            Self::Forbidden { to, .. } | Self::NotResumable { to, .. } => *to,
        }
    }
}

/// The error of parsing an unknown status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a session status")]
#[non_exhaustive]
pub struct UnknownStatus {
    /// The text that was parsed.
    pub text: String,
}
