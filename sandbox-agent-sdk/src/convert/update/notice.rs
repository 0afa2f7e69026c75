//! Information for the user beside the conversation.

use serde::Serialize;
use serde_json::Value;

use super::{meta, text};
use crate::convert::open_enum::open_enum;

open_enum! {
    /// How serious a notice is.
    pub enum NoticeSeverity {
        /// For information.
        Info = "info",
        /// A warning.
        Warning = "warning",
        /// An error.
        Error = "error",
    }
}

/// Information for the user that is not part of the conversation, such as "the model is overloaded, retrying".
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Notice {
    /// How serious it is.
    pub severity: NoticeSeverity,
    /// The title, which can stand alone.
    pub title: String,
    /// Details or guidance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The member `_meta`.
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
