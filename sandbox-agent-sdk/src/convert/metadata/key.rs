//! The names of the metadata this crate knows.

/// A metadata key with a meaning, as opposed to the application's own keys, which are plain strings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MetadataKey {
    /// The title people see. Acts: the server uses it as the session's title.
    Title,
    /// The model to use. Acts as a hint; a `null` clears the hint.
    Model,
    /// The mode to work in. Acts as a hint; a `null` clears the hint.
    Mode,
    /// The variant of the model.
    Variant,
    /// The session id the application would have liked.
    RequestedSessionId,
    /// How permissions are dealt with.
    PermissionMode,
    /// The skills the session was given.
    Skills,
    /// The version of the agent that was asked for.
    AgentVersionRequested,
    /// The agent behind the session. Chooses the agent on the way in, written by the server on the way out.
    Agent,
    /// When the session was made. Written by the server.
    CreatedAt,
    /// When the session last changed. Written by the server.
    UpdatedAt,
    /// Whether the session has ended. Written by the server.
    Ended,
    /// How many events the session has had. Written by the server.
    EventCount,
    /// How the session ended. Written by the server.
    TerminationInfo,
}

impl MetadataKey {
    /// Every key, in the order of the enum.
    pub const ALL: &'static [Self] = &[
        Self::Title,
        Self::Model,
        Self::Mode,
        Self::Variant,
        Self::RequestedSessionId,
        Self::PermissionMode,
        Self::Skills,
        Self::AgentVersionRequested,
        Self::Agent,
        Self::CreatedAt,
        Self::UpdatedAt,
        Self::Ended,
        Self::EventCount,
        Self::TerminationInfo,
    ];

    /// The key as it is written on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.spellings()[0]
    }

    /// The wire's spelling and the snake case one, which servers accept for some keys and therefore may
    /// hold.
    pub(crate) const fn spellings(self) -> [&'static str; 2] {
        match self {
            Self::Title => ["title", "title"],
            Self::Model => ["model", "model"],
            Self::Mode => ["mode", "mode"],
            Self::Variant => ["variant", "variant"],
            Self::RequestedSessionId => ["requestedSessionId", "requested_session_id"],
            Self::PermissionMode => ["permissionMode", "permission_mode"],
            Self::Skills => ["skills", "skills"],
            Self::AgentVersionRequested => ["agentVersionRequested", "agent_version_requested"],
            Self::Agent => ["agent", "agent"],
            Self::CreatedAt => ["createdAt", "created_at"],
            Self::UpdatedAt => ["updatedAt", "updated_at"],
            Self::Ended => ["ended", "ended"],
            Self::EventCount => ["eventCount", "event_count"],
            Self::TerminationInfo => ["terminationInfo", "termination_info"],
        }
    }
}

impl AsRef<str> for MetadataKey {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl From<MetadataKey> for String {
    fn from(key: MetadataKey) -> Self {
        key.as_str().to_owned()
    }
}
