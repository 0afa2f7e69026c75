//! Session metadata.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::TerminationInfo;
use crate::session::Timestamp;

mod key;
#[cfg(test)]
mod tests;

pub use key::MetadataKey;

/// The namespace of this crate's metadata inside `_meta`.
pub(crate) const NAMESPACE: &str = "sandboxagent.dev";
pub(crate) const META: &str = "_meta";

/// The metadata of a session: well-known keys and the application's own keys.
///
/// The getters return well-known keys with their types. Nothing is dropped: unknown keys, and well-known keys
/// with a value of another type, are preserved and available through [`get`](Self::get).
///
/// In a patch for an existing session, an absent key leaves the stored value unchanged. A
/// [`null`](Self::with_null) key replaces it: the server stores the `null`. For the model and the mode,
/// `null` restores the agent's default.
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
    /// The raw metadata. The getters are views of it, so a round trip changes nothing.
    entries: Map<String, Value>,
}

impl SessionMetadata {
    /// Creates empty metadata.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the display title.
    #[must_use]
    pub fn title(&self) -> Option<&str> {
        self.text(MetadataKey::Title)
    }

    /// Returns the requested or current model.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        self.text(MetadataKey::Model)
    }

    /// Returns the requested or current mode.
    #[must_use]
    pub fn mode(&self) -> Option<&str> {
        self.text(MetadataKey::Mode)
    }

    /// Returns the variant of the model.
    #[must_use]
    pub fn variant(&self) -> Option<&str> {
        self.text(MetadataKey::Variant)
    }

    /// Returns the requested session id.
    #[must_use]
    pub fn requested_session_id(&self) -> Option<&str> {
        self.text(MetadataKey::RequestedSessionId)
    }

    /// Returns the permission mode.
    #[must_use]
    pub fn permission_mode(&self) -> Option<&str> {
        self.text(MetadataKey::PermissionMode)
    }

    /// Returns the skills of the session; `None` if they are `null`.
    ///
    /// Servers pass the value through, so it has no fixed format.
    #[must_use]
    pub fn skills(&self) -> Option<&Value> {
        self.typed(MetadataKey::Skills, Some)
    }

    /// Returns the requested version of the agent.
    #[must_use]
    pub fn agent_version_requested(&self) -> Option<&str> {
        self.text(MetadataKey::AgentVersionRequested)
    }

    /// Returns the agent of the session.
    #[must_use]
    pub fn agent(&self) -> Option<&str> {
        self.text(MetadataKey::Agent)
    }

    /// Returns when the session was created, by the server's clock.
    #[must_use]
    pub fn created_at(&self) -> Option<Timestamp> {
        self.typed(MetadataKey::CreatedAt, Value::as_u64).map(Timestamp::from_millis)
    }

    /// Returns when the session last changed, by the server's clock.
    #[must_use]
    pub fn updated_at(&self) -> Option<Timestamp> {
        self.typed(MetadataKey::UpdatedAt, Value::as_u64).map(Timestamp::from_millis)
    }

    /// Returns whether the session has ended; `None` if the server does not report it.
    #[must_use]
    pub fn ended(&self) -> Option<bool> {
        self.typed(MetadataKey::Ended, Value::as_bool)
    }

    /// Returns the number of events in the session.
    #[must_use]
    pub fn event_count(&self) -> Option<u64> {
        self.typed(MetadataKey::EventCount, Value::as_u64)
    }

    /// Returns how the session ended.
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

    /// Requests a session id. The server stores the request but assigns its own id.
    #[must_use]
    pub fn with_requested_session_id(self, id: impl Into<String>) -> Self {
        self.with(MetadataKey::RequestedSessionId, id.into())
    }

    /// Sets the permission mode.
    #[must_use]
    pub fn with_permission_mode(self, mode: impl Into<String>) -> Self {
        self.with(MetadataKey::PermissionMode, mode.into())
    }

    /// Sets the skills.
    #[must_use]
    pub fn with_skills(self, skills: impl Into<Value>) -> Self {
        self.with(MetadataKey::Skills, skills)
    }

    /// Requests a version of the agent.
    #[must_use]
    pub fn with_agent_version_requested(self, version: impl Into<String>) -> Self {
        self.with(MetadataKey::AgentVersionRequested, version.into())
    }

    /// Selects the agent.
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

    /// Sets a key to `null`, which the server stores. See [`SessionMetadata`].
    #[must_use]
    pub fn with_null(self, key: impl Into<String>) -> Self {
        self.with(key, Value::Null)
    }

    /// Sets any key to any value and returns the previous value.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) -> Option<Value> {
        self.entries.insert(key.into(), value.into())
    }

    /// Removes a key.
    pub fn remove(&mut self, key: impl AsRef<str>) -> Option<Value> {
        self.entries.shift_remove(key.as_ref())
    }

    /// Returns the raw value of a key; `None` only if the key is not set.
    #[must_use]
    pub fn get(&self, key: impl AsRef<str>) -> Option<&Value> {
        self.entries.get(key.as_ref())
    }

    /// Returns whether the key is set, including to `null`.
    #[must_use]
    pub fn contains(&self, key: impl AsRef<str>) -> bool {
        self.entries.contains_key(key.as_ref())
    }

    /// Returns whether the key is set to `null`.
    #[must_use]
    pub fn is_null(&self, key: impl AsRef<str>) -> bool {
        self.get(key).is_some_and(Value::is_null)
    }

    /// Returns whether no key is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Iterates over all keys and values, in order of insertion.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Iterates over the keys that this version does not know.
    pub fn unknown(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.iter().filter(|(key, _)| MetadataKey::ALL.iter().all(|known| !known.spellings().contains(key)))
    }

    /// Sets every key of `patch`, like the server: key by key, without merging nested objects.
    pub fn merge(&mut self, patch: Self) {
        self.entries.extend(patch.entries);
    }

    /// Returns the metadata as a JSON object.
    #[must_use]
    pub fn into_map(self) -> Map<String, Value> {
        self.entries
    }

    /// Reads the metadata from the parameters or the result of a message.
    ///
    /// Returns `None` if the message, its `_meta` or the namespace in it is missing or not an object. Invalid
    /// metadata does not make the message invalid.
    #[must_use]
    pub fn read_from(message: &Value) -> Option<Self> {
        Self::read_from_meta(message.get(META)?.as_object()?)
    }

    /// Reads the metadata from the contents of a `_meta` field.
    #[must_use]
    pub fn read_from_meta(meta: &Map<String, Value>) -> Option<Self> {
        Some(Self { entries: meta.get(NAMESPACE)?.as_object()?.clone() })
    }

    /// Writes the metadata into the parameters of a message, key by key, without other changes.
    ///
    /// Creates missing (or `null`) parent objects. Writes nothing if the metadata is empty.
    ///
    /// # Errors
    ///
    /// [`MetadataPlaceError`] if the message, its `_meta` or the namespace in it exists but is not an object.
    /// Writing would destroy the caller's data, so the message is left unchanged.
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

    /// Writes the metadata into the contents of a `_meta` field. See [`write_into`](Self::write_into).
    ///
    /// # Errors
    ///
    /// [`MetadataPlaceError`] if the namespace exists but is not an object. The contents are left unchanged.
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

    /// Returns the value under the canonical spelling, or under the snake-case one, if it has the right type.
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

/// The error of writing metadata into a message whose `_meta` or namespace is not an object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("metadata cannot be written: {place} is not an object")]
#[non_exhaustive]
pub struct MetadataPlaceError {
    place: &'static str,
}

/// Returns the object with a name. Creates it if it is missing or `null`; returns `None` if the value has
/// another type.
fn object_at<'a>(members: &'a mut Map<String, Value>, name: &str) -> Option<&'a mut Map<String, Value>> {
    let slot = members.entry(name).or_insert(Value::Null);
    if slot.is_null() {
        *slot = Value::Object(Map::new());
    }
    slot.as_object_mut()
}
