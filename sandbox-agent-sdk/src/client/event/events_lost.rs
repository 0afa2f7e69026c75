//! Events that could not be stored.

use serde::{Serialize, Serializer};

use crate::error::Cause;

/// Events of a session that were not stored.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct EventsLost {
    /// The id of the stored session.
    pub session_id: String,
    /// The number of lost events.
    pub count: u64,
    /// The error of the store, a `StoreError`; `None` if the queue of waiting events was full.
    #[serde(serialize_with = "as_text", skip_serializing_if = "Option::is_none")]
    pub error: Option<Cause>,
}

fn as_text<S: Serializer>(error: &Option<Cause>, serializer: S) -> Result<S::Ok, S::Error> {
    error.as_ref().map(ToString::to_string).serialize(serializer)
}
