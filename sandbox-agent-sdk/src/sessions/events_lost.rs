//! Events that could not be stored.

use serde::{Serialize, Serializer};

use super::store::StoreError;

/// Events of a session that were not stored.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct EventsLost {
    /// The stored session.
    pub session_id: String,
    /// How many.
    pub count: u64,
    /// Why the store did not take them; `None` if more events waited than may.
    #[serde(serialize_with = "as_text", skip_serializing_if = "Option::is_none")]
    pub error: Option<StoreError>,
}

fn as_text<S: Serializer>(error: &Option<StoreError>, serializer: S) -> Result<S::Ok, S::Error> {
    error.as_ref().map(ToString::to_string).serialize(serializer)
}
