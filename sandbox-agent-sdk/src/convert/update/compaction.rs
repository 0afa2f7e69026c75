//! Compaction of the conversation, which frees space in the model's context.

use serde::{Serialize, Serializer};
use serde_json::Value;

use super::{meta, text};
use crate::Content;
use crate::convert::open_enum::open_enum;

open_enum! {
    /// The status of a compaction.
    pub enum CompactionStatus {
        /// The compaction is running.
        InProgress = "in_progress",
        /// The compaction is complete.
        Completed = "completed",
        /// The compaction failed.
        Failed = "failed",
        /// The compaction was cancelled.
        Cancelled = "cancelled",
    }
}

/// A field of a patch: absent, cleared, or set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Patched<T> {
    /// The field is absent: its value is unchanged.
    #[default]
    Unchanged,
    /// The field is `null`: its value is cleared.
    Cleared,
    /// The field has this new value.
    Set(T),
}

impl<T> Patched<T> {
    fn read(value: &Value, member: &str, read: impl FnOnce(&Value) -> Option<T>) -> Self {
        match value.get(member) {
            None => Self::Unchanged,
            Some(Value::Null) => Self::Cleared,
            Some(value) => read(value).map_or(Self::Unchanged, Self::Set),
        }
    }

    /// Returns the new value, if there is one.
    #[must_use]
    pub fn set(&self) -> Option<&T> {
        match self {
            Self::Set(value) => Some(value),
            _ => None,
        }
    }

    fn is_unchanged(&self) -> bool {
        matches!(self, Self::Unchanged)
    }
}

impl<T: Serialize> Serialize for Patched<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.set().serialize(serializer)
    }
}

/// A compaction of the conversation, or an update of one with the same id.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Compaction {
    /// The id within the session.
    pub id: String,
    /// The status.
    pub status: CompactionStatus,
    /// The complete summary that replaces the compacted part.
    #[serde(skip_serializing_if = "Patched::is_unchanged")]
    pub summary: Patched<Vec<Content>>,
    /// Why the compaction failed.
    #[serde(skip_serializing_if = "Patched::is_unchanged")]
    pub error: Patched<String>,
    /// The `_meta` field.
    #[serde(rename = "_meta", skip_serializing_if = "Patched::is_unchanged")]
    pub meta: Patched<Value>,
}

impl Compaction {
    pub(super) fn read(update: &Value) -> Option<Self> {
        let contents = |summary: &Value| -> Option<Vec<Content>> {
            Some(summary.as_array()?.iter().cloned().map(Content::from_value).collect())
        };
        Some(Self {
            id: text(update, "compactionId")?,
            status: CompactionStatus::from(text(update, "status")?),
            summary: Patched::read(update, "summary", contents),
            error: Patched::read(update, "error", |error| error.as_str().map(str::to_owned)),
            meta: Patched::read(update, "_meta", |meta| Some(meta.clone())),
        })
    }
}

/// A chunk of a compaction's summary, to be appended to earlier chunks.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CompactionSummary {
    /// The id of the compaction.
    pub id: String,
    /// The content of the chunk.
    pub content: Content,
    /// The `_meta` field.
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    pub meta: Option<Value>,
}

impl CompactionSummary {
    pub(super) fn read(update: &Value) -> Option<Self> {
        let content = Content::from_value(update.get("content")?.clone());
        Some(Self { id: text(update, "compactionId")?, content, meta: meta(update) })
    }
}
