//! Appends and patches: what is written to a session.

use serde_json::{Map, Value};

use super::limits::check_key;
use super::{AgentSession, Fence, NewEvent, ScannedTo, SessionRecord, StoreError, StreamPosition};
use crate::TerminationInfo;
use crate::session::Timestamp;
use crate::sessions::status::{SessionStatus, StatusEvent, UserAction};

/// One change of a member of a record.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Change<T> {
    /// The member stays as it is.
    #[default]
    Keep,
    /// The member gets a value.
    Set(T),
    /// The member is removed.
    Clear,
}

impl<T: Clone> Change<T> {
    fn apply(&self, member: &mut Option<T>) {
        match self {
            Self::Keep => {}
            Self::Set(value) => *member = Some(value.clone()),
            Self::Clear => *member = None,
        }
    }
}

/// A partial change of a record.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct RecordPatch {
    /// What happens to the status. The store refuses what [`SessionStatus::after`](crate::sessions::SessionStatus::after) refuses.
    pub status: Option<StatusEvent>,
    /// The last activity, if it is later than the stored one.
    pub last_active_at: Option<Timestamp>,
    /// The server's endpoint.
    pub endpoint: Option<String>,
    /// The agent's session. The one before is added to the earlier ones; a binding of the same id to another stored
    /// session, on the same endpoint and incarnation, ends.
    pub agent_session: Change<AgentSession>,
    /// The agent has caught up with the server's stream: see [`SessionRecord::caught_up`].
    pub caught_up: bool,
    /// The application's key.
    pub user_key: Change<String>,
    /// The title.
    pub title: Change<String>,
    /// Whether the agent can resume or load sessions.
    pub supports_resume: Option<bool>,
    /// The session's options.
    pub config_options: Option<Value>,
    /// The session's modes.
    pub modes: Option<Value>,
    /// The current mode: the member `currentModeId` of the modes.
    pub current_mode: Option<String>,
    /// The session's models.
    pub models: Option<Value>,
    /// The current model: the member `currentModelId` of the models.
    pub current_model: Option<String>,
    /// How the agent ended.
    pub termination_info: Change<TerminationInfo>,
    /// Whether the agent gets the history as text with the next prompt.
    pub replay_pending: Option<bool>,
    /// Metadata that is set, or removed if the value is `null`.
    pub metadata: Map<String, Value>,
}

impl RecordPatch {
    /// A patch of the status alone.
    #[must_use]
    pub fn status(event: StatusEvent) -> Self {
        Self { status: Some(event), ..Self::default() }
    }

    /// Returns whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Applies the patch, and increments the revision. For implementors of stores.
    ///
    /// # Errors
    /// [`StoreError::Status`] if the status does not allow it, [`StoreError::Invalid`] if not every store can hold the
    /// result. The record is then to be discarded.
    pub fn apply(&self, record: &mut SessionRecord) -> Result<(), StoreError> {
        if let Some(event) = self.status {
            record.status = record.status.after(event)?;
        }
        if let Some(moment) = self.last_active_at {
            record.last_active_at = record.last_active_at.max(moment);
        }
        if self.endpoint.is_some() {
            record.endpoint.clone_from(&self.endpoint);
        }
        match &self.agent_session {
            Change::Keep => {}
            Change::Set(session) => record.bind(Some(session.clone())),
            Change::Clear => record.bind(None),
        }
        record.caught_up |= self.caught_up;
        self.user_key.apply(&mut record.user_key);
        let details = &mut record.details;
        self.title.apply(&mut details.title);
        details.supports_resume = self.supports_resume.unwrap_or(details.supports_resume);
        details.replay_pending = self.replay_pending.unwrap_or(details.replay_pending);
        self.termination_info.apply(&mut details.termination_info);
        if self.config_options.is_some() {
            details.config_options.clone_from(&self.config_options);
        }
        patch_choice(&mut details.modes, self.modes.as_ref(), "currentModeId", self.current_mode.as_deref());
        patch_choice(
            &mut details.models,
            self.models.as_ref(),
            "currentModelId",
            self.current_model.as_deref(),
        );
        for (name, value) in &self.metadata {
            match value {
                Value::Null => drop(details.metadata.remove(name)),
                value => drop(details.metadata.insert(name.clone(), value.clone())),
            }
        }
        record.revision += 1;
        record.check()
    }
}

/// Replaces a choice that an agent offers, or the member that says which is current.
fn patch_choice(choice: &mut Option<Value>, whole: Option<&Value>, member: &str, current: Option<&str>) {
    if let Some(whole) = whole {
        *choice = Some(whole.clone());
    }
    if let Some(current) = current {
        let choice = choice.get_or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(members) = choice {
            members.insert(member.to_owned(), current.into());
        }
    }
}

/// One transaction on a session.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "an append does nothing until it is given to a store"]
#[non_exhaustive]
pub struct Append {
    /// The session.
    pub session_id: String,
    /// The proof of ownership. Without one anyone may write, as when a user archives a session or edits its title.
    pub fence: Option<Fence>,
    /// What the session's status has to allow.
    pub action: Option<UserAction>,
    /// The events, in their order.
    pub events: Vec<NewEvent>,
    /// The change of the record.
    pub patch: RecordPatch,
    /// Up to where the server's stream is stored for this session now. It only moves forward.
    pub position: Option<StreamPosition>,
    /// How far the owner has read the stream of the endpoint now. It only moves forward.
    pub scanned_to: Option<ScannedTo>,
}

impl Append {
    /// An append by anyone.
    pub fn to(session_id: impl Into<String>) -> Self {
        Self {
            session_id: session_id.into(),
            fence: None,
            action: None,
            events: Vec::new(),
            patch: RecordPatch::default(),
            position: None,
            scanned_to: None,
        }
    }

    /// Adds events.
    pub fn events(mut self, events: impl IntoIterator<Item = NewEvent>) -> Self {
        self.events.extend(events);
        self
    }

    /// Returns whether every store can hold it. For implementors of stores.
    ///
    /// # Errors
    /// [`StoreError::Invalid`].
    pub fn check(&self) -> Result<(), StoreError> {
        check_key("the id of a session", &self.session_id)?;
        self.events.iter().try_for_each(|event| event.check().map(drop))?;
        self.position.map_or(Ok(()), StreamPosition::check)?;
        self.scanned_to.as_ref().map_or(Ok(()), ScannedTo::check)
    }

    /// Returns whether the session, as it is stored, accepts this append. For implementors of stores.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::OwnershipLost`], [`StoreError::NotAllowed`].
    pub fn admit(&self, current: Fence, status: SessionStatus) -> Result<(), StoreError> {
        let id = &self.session_id;
        self.fence.map_or(Ok(()), |fence| fence.check(id, current))?;
        match self.action {
            Some(action) if !status.allows(action) => {
                Err(StoreError::NotAllowed { id: id.clone(), action, status })
            }
            _ => Ok(()),
        }
    }
}

setters! { Append:
    /// Only if the fence is of the session's epoch.
    fence(fence: Fence) => fence = Some(fence);
    /// Only if the session's status allows this.
    action(action: UserAction) => action = Some(action);
    /// Sets the change of the record.
    patch(patch: RecordPatch) => patch = patch;
    /// Sets the session's position.
    position(position: StreamPosition) => position = Some(position);
    /// Sets how far the owner has read.
    scanned_to(scanned_to: ScannedTo) => scanned_to = Some(scanned_to);
}

/// What an append did.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Appended {
    /// The index of each event, in the order of the append. An event that was stored before keeps its index.
    pub indexes: Vec<u64>,
    /// The record after the patch; `None` if the patch was empty.
    pub record: Option<SessionRecord>,
}

impl Appended {
    /// What an append did. For implementors of stores.
    #[must_use]
    pub fn new(indexes: Vec<u64>, record: Option<SessionRecord>) -> Self {
        Self { indexes, record }
    }
}
