//! The names of well-known metadata.

/// A well-known metadata key. The application's own keys are plain strings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MetadataKey {
    /// The display title. The server uses it as the session's title.
    Title,
    /// The model to use. The server treats it as a hint; `null` clears the hint.
    Model,
    /// The mode to work in. The server treats it as a hint; `null` clears the hint.
    Mode,
    /// The variant of the model.
    Variant,
    /// The session id that the application requested.
    RequestedSessionId,
    /// The permission mode.
    PermissionMode,
    /// The skills of the session.
    Skills,
    /// The requested version of the agent.
    AgentVersionRequested,
    /// The agent of the session. Selects the agent in requests; set by the server in responses.
    Agent,
    /// When the session was created. Set by the server.
    CreatedAt,
    /// When the session last changed. Set by the server.
    UpdatedAt,
    /// Whether the session has ended. Set by the server.
    Ended,
    /// The number of events in the session. Set by the server.
    EventCount,
    /// How the session ended. Set by the server.
    TerminationInfo,
}

impl MetadataKey {
    /// All keys, in the order of the enum.
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

    /// Returns the wire name of the key.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.spellings()[0]
    }

    /// Returns the canonical spelling and the snake-case one. Servers accept the latter for some keys, so
    /// they may store it.
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
