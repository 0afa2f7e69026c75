//! Notices for the user.

use serde::Serialize;
use serde_json::Value;

use super::{meta, text};
use crate::convert::open_enum::open_enum;

open_enum! {
    /// The severity of a notice.
    pub enum NoticeSeverity {
        /// An informational notice.
        Info = "info",
        /// A warning.
        Warning = "warning",
        /// An error.
        Error = "error",
    }
}

/// A notice for the user that is not part of the conversation.
///
/// An example is "the model is overloaded, retrying".
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Notice {
    /// The severity.
    pub severity: NoticeSeverity,
    /// The title. It is understandable without the description.
    pub title: String,
    /// Details or guidance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The `_meta` field.
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    pub meta: Option<Value>,
}

impl Notice {
    pub(super) fn read(update: &Value) -> Option<Self> {
        Some(Self {
            severity: NoticeSeverity::from(text(update, "severity")?),
            title: text(update, "title")?,
            description: text(update, "description"),
            meta: meta(update),
        })
    }
}
