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
/// Sessions do not complete: a user can always continue. The end of an agent is not the end of its session: neither an
/// agent's exit nor the clean-up of idle agents changes the status.
///
/// ```text
/// created ──▶ Active ──┬── shutdown ──▶ Suspended ── resume ──▶ Active
///                      ├── archive ───▶ Archived
///                      └── failure ───▶ Error
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SessionStatus {
    /// It accepts prompts. Its agent is running, or is started by the next prompt.
    #[default]
    Active,
    /// It was suspended when the program or the server shut down, and may be resumable.
    Suspended,
    /// Its user archived it. It can be viewed. This is final.
    Archived,
    /// A fatal error ended it. This is final.
    Error,
}

/// An event that may change the status of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StatusEvent {
    /// The agent's process exited. Changes nothing: the next prompt starts it again.
    AgentExited,
    /// The agent's process was ended because it was idle. Changes nothing.
    IdleCleanup,
    /// The program or the server shuts down. Suspends an active session and changes no other one.
    Shutdown,
    /// A manual clean-up. A suspended session stays suspended; expired ones are deleted instead, see
    /// [`RetentionPolicy`].
    ManualCleanup,
    /// The user archives the session. Only an active session can be archived, and only a user does it.
    Archive,
    /// The user cancels the session: its turn ends, and the session is archived. Cancelled sessions of the earlier model
    /// with five states are archived as well.
    Cancel,
    /// An error after which the session cannot continue. An agent's crash is not one.
    FatalError,
    /// The session is resumed, with what is there to resume it from.
    Resume(ResumeSupport),
}

/// An action of a user on a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UserAction {
    /// Send a prompt.
    Send,
    /// View its messages.
    View,
    /// Cancel it, or its turn.
    Cancel,
    /// Archive it.
    Archive,
    /// Resume it, where the agent supports that.
    Resume,
}

/// What is there to resume a suspended session. All of it is needed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ResumeSupport {
    /// The agent can resume sessions at all.
    pub by_agent: bool,
    /// The session's flag `supportsResume` is set.
    pub supports_resume: bool,
    /// There is valid `resumeData`: a session of the agent, or events for transcript replay.
    pub resume_data: bool,
}

impl ResumeSupport {
    /// Everything is there.
    pub const FULL: Self = Self { by_agent: true, supports_resume: true, resume_data: true };

    /// The first thing that is missing.
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

/// Something that a session needs to be resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResumeRequirement {
    /// An agent that can resume sessions.
    Agent,
    /// A session marked as one that can be resumed.
    Session,
    /// Valid data to resume it from.
    ResumeData,
}

/// Whether archived sessions are listed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum ArchivedSessions {
    /// They are left out.
    #[default]
    Hidden,
    /// They are listed with the others.
    Shown,
}

impl SessionStatus {
    /// Every status.
    pub const ALL: &'static [Self] = &[Self::Active, Self::Suspended, Self::Archived, Self::Error];

    /// The status after an event.
    ///
    /// # Errors
    ///
    /// When the event would lead to a status that cannot be reached from this one. The error names both.
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

    /// Returns whether a session may go from this status to another one. Staying is no transition.
    #[must_use]
    pub const fn can_become(self, to: Self) -> bool {
        matches!(
            (self, to),
            (Self::Active, Self::Suspended | Self::Archived | Self::Error) | (Self::Suspended, Self::Active)
        )
    }

    /// Returns whether a user may do this with the session. Resuming needs the agent's support besides.
    #[must_use]
    pub const fn allows(self, action: UserAction) -> bool {
        match action {
            UserAction::Send | UserAction::Cancel | UserAction::Archive => matches!(self, Self::Active),
            UserAction::View => !matches!(self, Self::Error),
            UserAction::Resume => matches!(self, Self::Suspended),
        }
    }

    /// Returns whether the session takes input.
    #[must_use]
    pub const fn accepts_input(self) -> bool {
        self.allows(UserAction::Send)
    }

    /// Returns whether the session is in the list of sessions.
    #[must_use]
    pub const fn is_listed(self, archived: ArchivedSessions) -> bool {
        match self {
            Self::Active | Self::Suspended => true,
            Self::Archived => matches!(archived, ArchivedSessions::Shown),
            Self::Error => false,
        }
    }

    /// Returns whether the session counts in the number shown on a badge.
    #[must_use]
    pub const fn is_counted(self) -> bool {
        matches!(self, Self::Active | Self::Suspended)
    }

    /// Returns whether there is no way out of this status.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Archived | Self::Error)
    }

    /// What to tell a user who looks at the session, if there is anything to tell.
    #[must_use]
    pub const fn notice(self) -> Option<&'static str> {
        match self {
            Self::Suspended => Some("may be resumable when agent supports it"),
            Self::Archived => Some("Session is archived"),
            Self::Active | Self::Error => None,
        }
    }

    /// The status as it is stored.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Suspended => "suspended",
            Self::Archived => "archived",
            Self::Error => "error",
        }
    }

    /// Reads a stored status, also one of the time when there were five: a `completed` session is active
    /// again, because sessions no longer complete, and a `cancelled` one is archived.
    ///
    /// # Errors
    ///
    /// When it is neither a status of today nor one of then.
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
            Self::ResumeData => "there is nothing valid to resume from",
        })
    }
}

/// A session cannot go from one status to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransitionError {
    /// There is no such transition.
    #[error("a session cannot go from {from} to {to}")]
    #[non_exhaustive]
    Forbidden {
        /// The status the session is in.
        from: SessionStatus,
        /// The status it was to have.
        to: SessionStatus,
    },
    /// The session could be resumed if something were not missing.
    #[error("a session cannot go from {from} to {to}: {missing}")]
    #[non_exhaustive]
    NotResumable {
        /// The status the session is in.
        from: SessionStatus,
        /// The status it was to have.
        to: SessionStatus,
        /// What is missing.
        missing: ResumeRequirement,
    },
}

impl TransitionError {
    /// The status the session is in.
    #[must_use]
    pub const fn from(&self) -> SessionStatus {
        match self {
            Self::Forbidden { from, .. } | Self::NotResumable { from, .. } => *from,
        }
    }

    /// The status it was to have.
    #[must_use]
    pub const fn to(&self) -> SessionStatus {
        match self {
            Self::Forbidden { to, .. } | Self::NotResumable { to, .. } => *to,
        }
    }
}

/// A stored status that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not the status of a session")]
#[non_exhaustive]
pub struct UnknownStatus {
    /// What was stored.
    pub text: String,
}
