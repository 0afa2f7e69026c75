//! What a program may want to know before it offers something to its users.

use crate::extensions::Extension;

/// Something that not every server, or not every agent, can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Feature {
    /// Load a session with its history.
    LoadSession,
    /// Resume a session, without its history or else with it.
    ResumeSession,
    /// Make a copy of a session.
    ForkSession,
    /// List the sessions.
    ListSessions,
    /// Leave a session without ending it.
    DetachSession,
    /// End a session.
    TerminateSession,
    /// Delete a session from the agent's list.
    DeleteSession,
    /// Give a session directories besides the one it works in.
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
    /// Recordings in prompts.
    Audio,
    /// Embedded resources in prompts.
    EmbeddedResources,
    /// An ability that servers tell of by name.
    Extension(Extension),
}

impl From<Extension> for Feature {
    fn from(extension: Extension) -> Self {
        Self::Extension(extension)
    }
}

/// Whether something can be done, as far as is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Support {
    /// It was said that it can be done, or it has been done.
    Yes,
    /// It was said that it cannot be done, or it was tried in vain.
    No,
    /// Nothing was said. The first try will tell.
    Unknown,
}

impl Support {
    /// Whether it is worth a try: a user interface offers what this says of.
    #[must_use]
    pub fn is_possible(self) -> bool {
        self != Self::No
    }

    /// What was said about it.
    pub(crate) fn said(yes: bool) -> Self {
        if yes { Self::Yes } else { Self::No }
    }

    /// What was said where silence means nothing.
    pub(crate) fn hinted(yes: bool) -> Self {
        if yes { Self::Yes } else { Self::Unknown }
    }

    /// What becomes of it if there is another way to do it.
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
