//! One line of a recording.

use serde_json::{Map, Value, json};

/// A message between a client and a server.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Milliseconds since the recording began.
    pub ms: u64,
    /// The number of its HTTP request, from 1.
    pub request: u64,
    /// The message.
    pub pass: Pass,
}

/// The content of a message.
#[derive(Debug, Clone, PartialEq)]
pub enum Pass {
    /// The client sent a request.
    Request {
        /// The HTTP verb.
        verb: String,
        /// The path with its query.
        path: String,
        /// The headers that the protocol uses.
        headers: Map<String, Value>,
        /// The body.
        message: Value,
    },
    /// The server sent a response with this status. The body is absent if events follow.
    Response {
        /// The status.
        status: u16,
        /// The headers that the protocol uses.
        headers: Map<String, Value>,
        /// The body.
        message: Value,
    },
    /// The server sent an event.
    Event {
        /// Its id.
        id: Option<String>,
        /// Its data.
        message: Value,
    },
    /// The server ended a stream of events.
    End,
}

impl Entry {
    /// Returns the entry as JSON.
    pub fn to_json(&self) -> Value {
        let mut line = json!({ "ms": self.ms, "request": self.request });
        let more = match &self.pass {
            Pass::Request { verb, path, headers, message } => {
                json!({ "to": "server", "verb": verb, "path": path, "headers": headers, "message": message })
            }
            Pass::Response { status, headers, message } => {
                json!({ "to": "client", "status": status, "headers": headers, "message": message })
            }
            Pass::Event { id, message } => json!({ "to": "client", "event": id, "message": message }),
            Pass::End => json!({ "to": "client", "end": true }),
        };
        if let (Value::Object(line), Value::Object(more)) = (&mut line, more) {
            line.extend(more);
        }
        line
    }

    /// Parses the output of [`Entry::to_json`]; `None` for anything else.
    pub fn from_json(line: &Value) -> Option<Self> {
        let headers = || line["headers"].as_object().cloned();
        let message = || line["message"].clone();
        let pass = match line["to"].as_str()? {
            "server" => Pass::Request {
                verb: line["verb"].as_str()?.to_owned(),
                path: line["path"].as_str()?.to_owned(),
                headers: headers()?,
                message: message(),
            },
            "client" if line["end"] == true => Pass::End,
            "client" if line.get("event").is_some() => {
                Pass::Event { id: line["event"].as_str().map(str::to_owned), message: message() }
            }
            "client" => Pass::Response {
                status: line["status"].as_u64()?.try_into().ok()?,
                headers: headers()?,
                message: message(),
            },
            _ => return None,
        };
        Some(Self { ms: line["ms"].as_u64()?, request: line["request"].as_u64()?, pass })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_round_trips() {
        let headers = json!({ "accept": "text/event-stream" }).as_object().cloned().unwrap();
        let message = json!({ "id": 1 });
        for pass in [
            Pass::Request {
                verb: "POST".into(),
                path: "/x?a=b".into(),
                headers: headers.clone(),
                message: message.clone(),
            },
            Pass::Response { status: 202, headers, message: Value::Null },
            Pass::Event { id: Some("7".into()), message: message.clone() },
            Pass::Event { id: None, message },
            Pass::End,
        ] {
            let entry = Entry { ms: 5, request: 2, pass };
            assert_eq!(Entry::from_json(&entry.to_json()), Some(entry));
        }
        assert_eq!(Entry::from_json(&json!({ "to": "moon" })), None);
    }
}
