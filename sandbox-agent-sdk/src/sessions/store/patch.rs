//! Appends and patches: changes of a stored session.

use serde_json::{Map, Value};

use super::limits::check_key;
use super::{AgentSession, Fence, NewEvent, ScannedTo, SessionRecord, StoreError, StreamPosition};
use crate::TerminationInfo;
use crate::session::Timestamp;
use crate::sessions::status::{SessionStatus, StatusEvent, UserAction};

/// A change of one field of a record.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Change<T> {
    /// Keeps the current value.
    #[default]
    Keep,
    /// Sets a new value.
    Set(T),
    /// Removes the value.
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
    /// The status event. The store rejects it if [`SessionStatus::after`](crate::sessions::SessionStatus::after)
    /// returns an error. A final status ends the ownership and increments the epoch.
    pub status: Option<StatusEvent>,
    /// The time of the last activity. It is ignored if the stored time is later.
    pub last_active_at: Option<Timestamp>,
    /// The server's endpoint.
    pub endpoint: Option<String>,
    /// The agent's session. The previous one, unless it has the same id, moves to
    /// [`earlier_agent_sessions`](super::SessionDetails::earlier_agent_sessions). If another stored session is
    /// bound to the same id on the same endpoint and incarnation, that binding ends.
    pub agent_session: Change<AgentSession>,
    /// Whether the owner has caught up with the server's stream and follows it. See [`SessionRecord::caught_up`].
    pub caught_up: Option<bool>,
    /// The application's key for the session.
    pub user_key: Change<String>,
    /// The display title.
    pub title: Change<String>,
    /// Whether the agent can resume or load sessions.
    pub supports_resume: Option<bool>,
    /// The options of the session, as JSON.
    pub config_options: Option<Value>,
    /// The modes of the session, as JSON.
    pub modes: Option<Value>,
    /// The current mode, stored as `currentModeId` in the modes.
    pub current_mode: Option<String>,
    /// The models of the session, as JSON.
    pub models: Option<Value>,
    /// The current model, stored as `currentModelId` in the models.
    pub current_model: Option<String>,
    /// How the agent ended.
    pub termination_info: Change<TerminationInfo>,
    /// Whether the next prompt sends the history as text (transcript replay).
    pub replay_pending: Option<bool>,
    /// Metadata to set. A `null` value removes the key.
    pub metadata: Map<String, Value>,
}

impl RecordPatch {
    /// Creates a patch that only changes the status.
    #[must_use]
    pub fn status(event: StatusEvent) -> Self {
        Self { status: Some(event), ..Self::default() }
    }

    /// Returns whether the patch changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Applies the patch and increments the revision. For implementors of stores.
    ///
    /// # Errors
    /// [`StoreError::Status`] if the status does not allow the change, [`StoreError::Invalid`] if the result exceeds
    /// a limit. Discard the record after an error.
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
        record.caught_up = self.caught_up.unwrap_or(record.caught_up);
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
        if self.status.is_some() && record.status.is_terminal() {
            // The session has ended. Later writes of an owner that does not know this are rejected.
            record.end_ownership(None);
        }
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

/// One transaction that writes to a session.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "an append does nothing until it is passed to a store"]
#[non_exhaustive]
pub struct Append {
    /// The id of the session.
    pub session_id: String,
    /// The fence of the owner. Without a fence any process may write, for example to archive a session or change its
    /// title.
    pub fence: Option<Fence>,
    /// The action that the session's status must allow.
    pub action: Option<UserAction>,
    /// The events, in order.
    pub events: Vec<NewEvent>,
    /// The changes of the record.
    pub patch: RecordPatch,
    /// The position up to which the server's stream is stored for this session. It only moves forward.
    pub position: Option<StreamPosition>,
    /// The owner's read position in the stream of the endpoint. It only moves forward.
    pub scanned_to: Option<ScannedTo>,
}

impl Append {
    /// Creates an append without a fence.
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

    /// Checks the append against the limits of all stores. For implementors of stores.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if a value is invalid.
    pub fn check(&self) -> Result<(), StoreError> {
        check_key("the id of a session", &self.session_id)?;
        self.events.iter().try_for_each(|event| event.check().map(drop))?;
        self.position.map_or(Ok(()), StreamPosition::check)?;
        self.scanned_to.as_ref().map_or(Ok(()), ScannedTo::check)
    }

    /// Checks whether the stored session accepts this append. For implementors of stores.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] or [`StoreError::OwnershipLost`] if the fence is not current,
    /// [`StoreError::NotAllowed`] if the status does not allow the action.
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
    /// Sets the fence. The append fails if it is not the session's current fence.
    fence(fence: Fence) => fence = Some(fence);
    /// Sets the action that the session's status must allow.
    action(action: UserAction) => action = Some(action);
    /// Sets the changes of the record.
    patch(patch: RecordPatch) => patch = patch;
    /// Sets the session's position.
    position(position: StreamPosition) => position = Some(position);
    /// Sets the owner's read position.
    scanned_to(scanned_to: ScannedTo) => scanned_to = Some(scanned_to);
}

/// The result of an append.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Appended {
    /// The index of each event, in the order of the append. An event that was already stored keeps its index.
    pub indexes: Vec<u64>,
    /// How many of the events were added. The others were already stored.
    pub added: usize,
    /// The record after the patch; `None` if the patch was empty.
    pub record: Option<SessionRecord>,
}

impl Appended {
    /// Creates the result of an append. For implementors of stores.
    #[must_use]
    pub fn new(indexes: Vec<u64>, added: usize, record: Option<SessionRecord>) -> Self {
        Self { indexes, added, record }
    }
}
