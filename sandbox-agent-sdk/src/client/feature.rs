//! Optional features of servers and agents.

use crate::extensions::Extension;

/// A feature that not every server or agent has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Feature {
    /// Load a session with its history.
    LoadSession,
    /// Resume a session, with or without its history.
    ResumeSession,
    /// Fork a session.
    ForkSession,
    /// List the sessions.
    ListSessions,
    /// Detach from a session without ending it.
    DetachSession,
    /// End a session.
    TerminateSession,
    /// Delete a session from the agent's list.
    DeleteSession,
    /// Give a session additional directories.
    AdditionalDirectories,
    /// Log out of the agent.
    Logout,
    /// Change the mode of a session.
    SetMode,
    /// Change the model of a session.
    SetModel,
    /// Change an option of a session.
    SetConfigOption,
    /// List the models.
    ListModels,
    /// Change the metadata of a session.
    SetMetadata,
    /// Images in prompts.
    Images,
    /// Audio in prompts.
    Audio,
    /// Embedded resources in prompts.
    EmbeddedResources,
    /// An extension that servers advertise by name.
    Extension(Extension),
}

impl From<Extension> for Feature {
    fn from(extension: Extension) -> Self {
        Self::Extension(extension)
    }
}

/// Whether a feature is supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Support {
    /// The feature is advertised, or a call has succeeded.
    Yes,
    /// The feature is advertised as missing, or a call failed with "method not found".
    No,
    /// Nothing is advertised. The first call shows whether the feature is supported.
    Unknown,
}

impl Support {
    /// Returns whether the feature may work. Use it to decide whether a user interface offers the feature.
    #[must_use]
    pub fn is_possible(self) -> bool {
        self != Self::No
    }

    /// Converts an explicit advertisement.
    pub(crate) fn said(yes: bool) -> Self {
        if yes { Self::Yes } else { Self::No }
    }

    /// Converts an advertisement whose absence means nothing.
    pub(crate) fn hinted(yes: bool) -> Self {
        if yes { Self::Yes } else { Self::Unknown }
    }

    /// Combines the support of two ways to do the same.
    pub(crate) fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Yes, _) | (_, Self::Yes) => Self::Yes,
            (Self::No, Self::No) => Self::No,
            _ => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Support::{self, No, Unknown, Yes};

    #[test]
    fn one_way_is_enough_and_none_is_known_only_if_all_are() {
        let table = [
            (Yes, No, Yes),
            (Yes, Unknown, Yes),
            (No, No, No),
            (No, Unknown, Unknown),
            (Unknown, Unknown, Unknown),
        ];
        for (one, two, both) in table {
            assert_eq!((one.or(two), two.or(one)), (both, both));
        }
        assert!(Yes.is_possible() && Unknown.is_possible() && !No.is_possible());
        assert_eq!((Support::said(false), Support::hinted(false)), (No, Unknown));
    }
}
