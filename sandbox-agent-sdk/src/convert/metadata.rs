//! What is known about a session beside the conversation itself.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::TerminationInfo;
use crate::session::Timestamp;

mod key;
#[cfg(test)]
mod tests;

pub use key::MetadataKey;

/// The namespace that this crate reads and writes inside `_meta`.
pub(crate) const NAMESPACE: &str = "sandboxagent.dev";
const META: &str = "_meta";

/// A session's metadata: the keys a server knows, and any others the application wants to keep with the
/// session.
///
/// The getters give the keys that have a meaning in their type. Nothing is ever dropped: a key nobody
/// knows, or a known key that holds a value of another type, stays where it is, is seen by
/// [`get`](Self::get) and travels on.
///
/// As a patch for an existing session, a key that is absent leaves the stored value alone, while a key that
/// is [`null`](Self::with_null) replaces it: the server stores the `null`, and for the model and the
/// mode that means "back to the agent's own choice".
///
/// ```
/// use sandbox_agent_sdk::session::{MetadataKey, SessionMetadata};
///
/// let patch = SessionMetadata::new()
///     .with_title("fix the build")
///     .with("ticket", 4711)
///     .with_null(MetadataKey::Model);
/// assert_eq!(patch.title(), Some("fix the build"));
/// assert!(patch.is_null(MetadataKey::Model));
/// assert!(!patch.contains(MetadataKey::Mode));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionMetadata {
    /// The metadata object itself. The getters are views on it, so a round trip cannot change anything.
    entries: Map<String, Value>,
}

impl SessionMetadata {
    /// Metadata without any key.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The title people see.
    #[must_use]
    pub fn title(&self) -> Option<&str> {
        self.text(MetadataKey::Title)
    }

    /// The model that was asked for or is in use.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        self.text(MetadataKey::Model)
    }

    /// The mode that was asked for or is in use.
    #[must_use]
    pub fn mode(&self) -> Option<&str> {
        self.text(MetadataKey::Mode)
    }

    /// The variant of the model.
    #[must_use]
    pub fn variant(&self) -> Option<&str> {
        self.text(MetadataKey::Variant)
    }

    /// The session id the application would have liked.
    #[must_use]
    pub fn requested_session_id(&self) -> Option<&str> {
        self.text(MetadataKey::RequestedSessionId)
    }

    /// How permissions are dealt with.
    #[must_use]
    pub fn permission_mode(&self) -> Option<&str> {
        self.text(MetadataKey::PermissionMode)
    }

    /// The skills the session was given. Servers pass the value through without looking at it, so it has no
    /// one shape; `null` counts as none.
    #[must_use]
    pub fn skills(&self) -> Option<&Value> {
        self.typed(MetadataKey::Skills, Some)
    }

    /// The version of the agent that was asked for.
    #[must_use]
    pub fn agent_version_requested(&self) -> Option<&str> {
        self.text(MetadataKey::AgentVersionRequested)
    }

    /// The agent behind the session.
    #[must_use]
    pub fn agent(&self) -> Option<&str> {
        self.text(MetadataKey::Agent)
    }

    /// When the session was made, by the server's clock.
    #[must_use]
    pub fn created_at(&self) -> Option<Timestamp> {
        self.typed(MetadataKey::CreatedAt, Value::as_u64).map(Timestamp::from_millis)
    }

    /// When the session last changed, by the server's clock.
    #[must_use]
    pub fn updated_at(&self) -> Option<Timestamp> {
        self.typed(MetadataKey::UpdatedAt, Value::as_u64).map(Timestamp::from_millis)
    }

    /// Whether the session has ended; `None` when the server does not say.
    #[must_use]
    pub fn ended(&self) -> Option<bool> {
        self.typed(MetadataKey::Ended, Value::as_bool)
    }

    /// How many events the session has had.
    #[must_use]
    pub fn event_count(&self) -> Option<u64> {
        self.typed(MetadataKey::EventCount, Value::as_u64)
    }

    /// How the session ended.
    #[must_use]
    pub fn termination_info(&self) -> Option<TerminationInfo> {
        self.typed(MetadataKey::TerminationInfo, TerminationInfo::from_value)
    }

    /// Sets the title.
    #[must_use]
    pub fn with_title(self, title: impl Into<String>) -> Self {
        self.with(MetadataKey::Title, title.into())
    }

    /// Sets the model.
    #[must_use]
    pub fn with_model(self, model: impl Into<String>) -> Self {
        self.with(MetadataKey::Model, model.into())
    }

    /// Sets the mode.
    #[must_use]
    pub fn with_mode(self, mode: impl Into<String>) -> Self {
        self.with(MetadataKey::Mode, mode.into())
    }

    /// Sets the variant of the model.
    #[must_use]
    pub fn with_variant(self, variant: impl Into<String>) -> Self {
        self.with(MetadataKey::Variant, variant.into())
    }

    /// Asks for a session id. The server keeps the wish but chooses the id itself.
    #[must_use]
    pub fn with_requested_session_id(self, id: impl Into<String>) -> Self {
        self.with(MetadataKey::RequestedSessionId, id.into())
    }

    /// Sets how permissions are dealt with.
    #[must_use]
    pub fn with_permission_mode(self, mode: impl Into<String>) -> Self {
        self.with(MetadataKey::PermissionMode, mode.into())
    }

    /// Sets the skills.
    #[must_use]
    pub fn with_skills(self, skills: impl Into<Value>) -> Self {
        self.with(MetadataKey::Skills, skills)
    }

    /// Asks for a version of the agent.
    #[must_use]
    pub fn with_agent_version_requested(self, version: impl Into<String>) -> Self {
        self.with(MetadataKey::AgentVersionRequested, version.into())
    }

    /// Chooses the agent.
    #[must_use]
    pub fn with_agent(self, agent: impl Into<String>) -> Self {
        self.with(MetadataKey::Agent, agent.into())
    }

    /// Sets any key to any value.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.set(key, value);
        self
    }

    /// Sets a key to `null`, which the server stores as `null`. See the type's description.
    #[must_use]
    pub fn with_null(self, key: impl Into<String>) -> Self {
        self.with(key, Value::Null)
    }

    /// Sets any key to any value and returns what was there.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) -> Option<Value> {
        self.entries.insert(key.into(), value.into())
    }

    /// Takes a key out, so that it is unset.
    pub fn remove(&mut self, key: impl AsRef<str>) -> Option<Value> {
        self.entries.shift_remove(key.as_ref())
    }

    /// The value of a key as it is, whatever its type; `None` only when the key is unset.
    #[must_use]
    pub fn get(&self, key: impl AsRef<str>) -> Option<&Value> {
        self.entries.get(key.as_ref())
    }

    /// Whether the key is set, be it to `null`.
    #[must_use]
    pub fn contains(&self, key: impl AsRef<str>) -> bool {
        self.entries.contains_key(key.as_ref())
    }

    /// Whether the key is set to `null`.
    #[must_use]
    pub fn is_null(&self, key: impl AsRef<str>) -> bool {
        self.get(key).is_some_and(Value::is_null)
    }

    /// Whether no key is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All keys and values, in the order they came.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The keys this crate has no name for.
    pub fn unknown(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.iter().filter(|(key, _)| MetadataKey::ALL.iter().all(|known| !known.spellings().contains(key)))
    }

    /// Sets every key of `patch` here, as the server does: key by key, without looking inside the values.
    pub fn merge(&mut self, patch: Self) {
        self.entries.extend(patch.entries);
    }

    /// The metadata as one JSON object.
    #[must_use]
    pub fn into_map(self) -> Map<String, Value> {
        self.entries
    }

    /// Reads the metadata out of a message's parameters or result.
    ///
    /// `None` when there is none: the message is not an object, has no `_meta`, or either `_meta` or the
    /// namespace in it is something other than an object. A message with odd metadata is still a good
    /// message.
    #[must_use]
    pub fn read_from(message: &Value) -> Option<Self> {
        Self::read_from_meta(message.get(META)?.as_object()?)
    }

    /// Reads the metadata out of the content of a `_meta` member.
    #[must_use]
    pub fn read_from_meta(meta: &Map<String, Value>) -> Option<Self> {
        Some(Self { entries: meta.get(NAMESPACE)?.as_object()?.clone() })
    }

    /// Writes the metadata into a message's parameters, key by key, and touches nothing else in them.
    ///
    /// Objects that are missing on the way (or `null`) are made. Without any key nothing is written at all.
    ///
    /// # Errors
    ///
    /// When the message, its `_meta` or the namespace in it is there but is no object, there is no place
    /// for the metadata that would not destroy something of the caller's. The message is then left as it
    /// was.
    pub fn write_into(&self, message: &mut Value) -> Result<(), MetadataPlaceError> {
        if self.is_empty() {
            return Ok(());
        }
        match message {
            Value::Null => {
                let mut params = Map::new();
                self.write_into_members(&mut params)?;
                *message = Value::Object(params);
                Ok(())
            }
            Value::Object(members) => self.write_into_members(members),
            _ => Err(MetadataPlaceError { place: "the message" }),
        }
    }

    /// Writes the metadata into the content of a `_meta` member; otherwise like
    /// [`write_into`](Self::write_into).
    ///
    /// # Errors
    ///
    /// When the namespace is there but is no object. The content is then left as it was.
    pub fn write_into_meta(&self, meta: &mut Map<String, Value>) -> Result<(), MetadataPlaceError> {
        if self.is_empty() {
            return Ok(());
        }
        let namespace = object_at(meta, NAMESPACE).ok_or(MetadataPlaceError { place: "its namespace" })?;
        namespace.extend(self.entries.clone());
        Ok(())
    }

    fn write_into_members(&self, members: &mut Map<String, Value>) -> Result<(), MetadataPlaceError> {
        let meta = object_at(members, META).ok_or(MetadataPlaceError { place: "`_meta`" })?;
        self.write_into_meta(meta)
    }

    fn text(&self, key: MetadataKey) -> Option<&str> {
        self.typed(key, Value::as_str)
    }

    /// The value under the wire's spelling, or else under the snake case one, if it has the right type.
    fn typed<'a, T>(&'a self, key: MetadataKey, read: impl Fn(&'a Value) -> Option<T>) -> Option<T> {
        key.spellings()
            .into_iter()
            .find_map(|name| self.get(name).filter(|value| !value.is_null()).and_then(&read))
    }
}

impl From<Map<String, Value>> for SessionMetadata {
    fn from(entries: Map<String, Value>) -> Self {
        Self { entries }
    }
}

impl<K: Into<String>, V: Into<Value>> FromIterator<(K, V)> for SessionMetadata {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        Self { entries: entries.into_iter().map(|(key, value)| (key.into(), value.into())).collect() }
    }
}

/// Metadata could not be written into a message, because something that is no object stands in its place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the metadata has no place: {place} is not an object")]
#[non_exhaustive]
pub struct MetadataPlaceError {
    place: &'static str,
}

/// The object under a name, made when it is missing or `null`; `None` when something else is there.
fn object_at<'a>(members: &'a mut Map<String, Value>, name: &str) -> Option<&'a mut Map<String, Value>> {
    let slot = members.entry(name).or_insert(Value::Null);
    if slot.is_null() {
        *slot = Value::Object(Map::new());
    }
    slot.as_object_mut()
}
