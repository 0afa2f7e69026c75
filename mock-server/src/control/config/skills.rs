//! The format of skills.

use serde::{Deserialize, Serialize};

/// The sources of skills.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Skills {
    sources: Vec<Source>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Source {
    #[serde(rename = "type")]
    kind: String,
    source: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    skills: Option<Vec<String>>,
    #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
    reference: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    subpath: Option<String>,
}
