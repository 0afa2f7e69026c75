//! The ids of sessions.

use std::{borrow::Borrow, fmt, ops::Deref, sync::Arc};

use agent_client_protocol_schema::v1 as schema;
use serde::{Deserialize, Serialize};

use crate::printable::Printable;

/// The id of a session. It is cheap to clone and dereferences to `str`.
///
/// `Display` is safe to print; [`as_str`](Self::as_str) returns the original id.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(Arc<str>);

impl SessionId {
    /// Returns the id as the agent sent it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn as_shared(&self) -> &Arc<str> {
        &self.0
    }
}

impl Deref for SessionId {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for SessionId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for SessionId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl PartialEq<str> for SessionId {
    fn eq(&self, other: &str) -> bool {
        *self.0 == *other
    }
}

impl PartialEq<&str> for SessionId {
    fn eq(&self, other: &&str) -> bool {
        *self.0 == **other
    }
}

impl From<&SessionId> for SessionId {
    fn from(id: &SessionId) -> Self {
        id.clone()
    }
}

impl From<&schema::SessionId> for SessionId {
    fn from(id: &schema::SessionId) -> Self {
        Self(id.0.clone())
    }
}

impl From<&str> for SessionId {
    fn from(id: &str) -> Self {
        Self(id.into())
    }
}

impl From<String> for SessionId {
    fn from(id: String) -> Self {
        Self(id.into())
    }
}

impl From<Arc<str>> for SessionId {
    fn from(id: Arc<str>) -> Self {
        Self(id)
    }
}

impl From<SessionId> for Arc<str> {
    fn from(id: SessionId) -> Self {
        id.0
    }
}

impl From<schema::SessionId> for SessionId {
    fn from(id: schema::SessionId) -> Self {
        Self(id.0)
    }
}

impl From<SessionId> for schema::SessionId {
    fn from(id: SessionId) -> Self {
        Self::new(id.0)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Printable(&*self.0), f)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn an_id_is_text_and_safe_to_print() {
        let id = SessionId::from("s\u{1b}[2J");
        assert_eq!(format!("{id} {id:?}"), r#"s\u{1b}[2J "s\u{1b}[2J""#);
        assert_eq!(id.as_str(), "s\u{1b}[2J");
        assert_eq!(HashMap::from([(id.clone(), 1)]).get("s\u{1b}[2J"), Some(&1));
        let text = serde_json::to_string(&id).unwrap();
        assert_eq!(serde_json::from_str::<SessionId>(&text).unwrap(), id);
        assert_eq!(SessionId::from(schema::SessionId::from(id.clone())), id);
    }
}
