//! `application/problem+json`.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Json, json, printable::Printable};

/// A problem report of a server (RFC 9457), with all its fields.
///
/// `Display` is safe to print. The fields hold the original text.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Problem {
    /// The kind of problem: a URI.
    #[serde(rename = "type", default = "about_blank")]
    pub kind: String,
    /// A short summary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The HTTP status, as stated in the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// A description of this occurrence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The URI of this occurrence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// All other fields.
    #[serde(flatten)]
    pub extensions: Map<String, Value>,
}

fn about_blank() -> String {
    "about:blank".to_owned()
}

impl Problem {
    /// Parses a problem report from a response body.
    ///
    /// Accepts any JSON object that has one of the standard fields and takes at most [`Json::DECODED_LIMIT`] bytes once
    /// decoded.
    pub fn from_json(body: &[u8]) -> Option<Self> {
        let Value::Object(mut object) = json::decode(body, Json::DECODED_LIMIT).ok()? else { return None };
        if !["type", "title", "status", "detail"].iter().any(|name| object.contains_key(*name)) {
            return None;
        }
        let mut text = |name: &str| match object.get(name) {
            Some(Value::String(text)) => {
                let text = text.clone();
                object.remove(name);
                Some(text)
            }
            _ => None,
        };
        let (kind, title) = (text("type"), text("title"));
        let (detail, instance) = (text("detail"), text("instance"));
        let status =
            object.get("status").and_then(Value::as_u64).and_then(|status| u16::try_from(status).ok());
        if status.is_some() {
            object.remove("status");
        }
        Some(Self {
            kind: kind.unwrap_or_else(about_blank),
            title,
            status,
            detail,
            instance,
            extensions: object,
        })
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = Printable(self.title.as_deref().unwrap_or(&self.kind));
        match &self.detail {
            Some(detail) => write!(f, "{title}: {}", Printable(detail.as_str())),
            None => fmt::Display::fmt(&title, f),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_member_survives() {
        let body =
            json!({"type": "urn:x", "title": "T", "status": 500, "detail": "d", "details": {"exitCode": 3}});
        let problem = Problem::from_json(body.to_string().as_bytes()).unwrap();
        assert_eq!((problem.kind.as_str(), problem.status), ("urn:x", Some(500)));
        assert_eq!(problem.extensions["details"]["exitCode"], 3);
        assert_eq!(serde_json::to_value(&problem).unwrap(), body);
    }

    #[test]
    fn members_of_a_wrong_type_are_kept_as_they_are() {
        let problem = Problem::from_json(br#"{"title":7,"status":"x"}"#).unwrap();
        assert_eq!(problem.kind, "about:blank");
        assert_eq!(problem.extensions["title"], 7);
        assert_eq!(problem.extensions["status"], "x");
    }

    #[test]
    fn a_problem_is_safe_to_print() {
        let problem = Problem::from_json(br#"{"title":"T\u001b[2J","detail":"d\u0007"}"#).unwrap();
        assert_eq!(problem.to_string(), "T\\u{1b}[2J: d\\u{7}");
        assert_eq!(Problem::default().to_string(), "");
    }

    #[test]
    fn other_bodies_are_no_problems() {
        for body in ["", "x", "[]", "{}", r#"{"jsonrpc":"2.0","id":1,"error":{}}"#] {
            assert_eq!(Problem::from_json(body.as_bytes()), None, "{body}");
        }
    }
}
