//! Errors as `application/problem+json`, with the released server's types, titles and messages.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Map, Value, json};

/// The common prefix of all problem types.
const TYPE_PREFIX: &str = "urn:sandbox-agent:error:";

/// The media type of a problem.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// An error response: type, title, status, detail and extension fields.
///
/// The named constructors use the messages of the released server. [`Problem::new`] and [`Problem::with`]
/// create any other problem.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// The type without the common prefix, for example `invalid_request`.
    suffix: String,
    /// The short description of the type.
    title: String,
    /// The HTTP status, also a member of the body.
    status: StatusCode,
    /// The description of this occurrence.
    detail: Option<String>,
    /// Additional top-level members: `agent`, `sessionId`, `details` or any other.
    members: Box<Map<String, Value>>,
}

impl Problem {
    /// Creates a problem without detail and extension fields.
    pub fn new(status: StatusCode, suffix: impl Into<String>, title: impl Into<String>) -> Self {
        Self { suffix: suffix.into(), title: title.into(), status, detail: None, members: Box::default() }
    }

    /// Sets the detail.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Sets one extension field.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.members.insert(name.into(), value.into());
        self
    }

    /// Returns the HTTP status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the full `type`, including the prefix.
    pub fn type_uri(&self) -> String {
        format!("{TYPE_PREFIX}{}", self.suffix)
    }

    /// Returns the detail, if there is one.
    pub fn detail_text(&self) -> Option<&str> {
        self.detail.as_deref()
    }

    /// Creates a 400 response: the request is invalid.
    pub fn invalid_request(message: impl AsRef<str>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", "Invalid Request")
            .detail(format!("invalid request: {}", message.as_ref()))
    }

    /// Creates a 413 response: the input exceeds the limit of its endpoint.
    ///
    /// A body over the general limit is rejected in plain text before a handler sees it.
    pub fn too_large(message: impl AsRef<str>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request", "Payload Too Large")
            .detail(format!("invalid request: {}", message.as_ref()))
    }

    /// Creates a 404 response for an unknown path. Its type is `invalid_request`, as in the released server.
    pub fn unknown_endpoint() -> Self {
        Self::new(StatusCode::NOT_FOUND, "invalid_request", "Not Found").detail("endpoint not found")
    }

    /// Creates a 409 response: the request conflicts with the state of the server.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::classed(StatusCode::CONFLICT, "conflict", "Conflict", message.into())
    }

    /// Creates a 400 response: the agent is unknown.
    pub fn unsupported_agent(agent: impl Into<String>) -> Self {
        let agent = agent.into();
        Self::new(StatusCode::BAD_REQUEST, "unsupported_agent", "Unsupported Agent")
            .detail(format!("unsupported agent: {agent}"))
            .with("agent", agent)
    }

    /// Creates a 404 response: the agent is known but not installed.
    pub fn agent_not_installed(agent: impl Into<String>) -> Self {
        let agent = agent.into();
        Self::new(StatusCode::NOT_FOUND, "agent_not_installed", "Agent Not Installed")
            .detail(format!("agent not installed: {agent}"))
            .with("agent", agent)
    }

    /// Creates a 500 response: the installation of the agent failed. `stderr` is the installer's output.
    pub fn install_failed(agent: impl Into<String>, stderr: Option<String>) -> Self {
        let agent = agent.into();
        let problem = Self::new(StatusCode::INTERNAL_SERVER_ERROR, "install_failed", "Install Failed")
            .detail(format!("agent install failed: {agent}"))
            .with("agent", agent);
        match stderr {
            Some(stderr) => problem.with("details", json!({ "stderr": stderr })),
            None => problem,
        }
    }

    /// Creates a 500 response: the agent exited before it responded. An exit by a signal has no exit code.
    pub fn agent_process_exited(
        agent: impl Into<String>,
        exit_code: Option<i32>,
        stderr: Option<String>,
    ) -> Self {
        let agent = agent.into();
        let mut details = Map::new();
        if let Some(code) = exit_code {
            details.insert("exitCode".to_owned(), code.into());
        }
        if let Some(stderr) = stderr {
            details.insert("stderr".to_owned(), stderr.into());
        }
        let problem =
            Self::new(StatusCode::INTERNAL_SERVER_ERROR, "agent_process_exited", "Agent Process Exited")
                .detail(format!("agent process exited: {agent}"))
                .with("agent", agent);
        if details.is_empty() { problem } else { problem.with("details", details) }
    }

    /// Creates a 401 response: the bearer token is missing or wrong. The response does not distinguish the two.
    pub fn token_invalid() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "token_invalid", "Token Invalid")
            .detail("token invalid")
            .with("details", json!({ "message": "missing or invalid bearer token" }))
    }

    /// Creates a 403 response: the operation is not permitted.
    pub fn permission_denied(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "permission_denied", "Permission Denied")
            .detail("permission denied")
            .with("details", json!({ "message": message.into() }))
    }

    /// Creates a 406 response: the client's `Accept` header does not allow the response type.
    pub fn not_acceptable(message: impl Into<String>) -> Self {
        Self::classed(StatusCode::NOT_ACCEPTABLE, "not_acceptable", "Not Acceptable", message.into())
    }

    /// Creates a 415 response: the endpoint does not support the body's content type.
    pub fn unsupported_media_type(message: impl Into<String>) -> Self {
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        Self::classed(status, "unsupported_media_type", "Unsupported Media Type", message.into())
    }

    /// Creates a 404 response: the session, stream or named configuration is unknown.
    pub fn session_not_found(id: impl Into<String>) -> Self {
        let id = id.into();
        Self::new(StatusCode::NOT_FOUND, "session_not_found", "Session Not Found")
            .detail(format!("session not found: {id}"))
            .with("sessionId", id)
    }

    /// Creates a 404 response: the process or recording is unknown.
    pub fn not_found(resource: &str, id: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", "Not Found")
            .detail(format!("not found: {resource} {id}"))
            .with("details", json!({ "id": id, "resource": resource }))
    }

    /// Creates a 502 response: an I/O operation of the server failed.
    pub fn stream_error(message: impl Into<String>) -> Self {
        Self::classed(StatusCode::BAD_GATEWAY, "stream_error", "Stream Error", message.into())
    }

    /// Creates a 504 response: the agent did not respond within the timeout.
    pub fn timeout(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout", "Timeout")
            .detail("timeout")
            .with("details", json!({ "message": message.into() }))
    }

    /// Creates a problem whose detail is `<class>: <message>`, with the message repeated in `details`.
    fn classed(status: StatusCode, suffix: &str, title: &str, message: String) -> Self {
        let class = title.to_lowercase();
        Self::new(status, suffix, title)
            .detail(format!("{class}: {message}"))
            .with("details", json!({ "message": message }))
    }
}

impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("type", &self.type_uri())?;
        map.serialize_entry("title", &self.title)?;
        map.serialize_entry("status", &self.status.as_u16())?;
        if let Some(detail) = &self.detail {
            map.serialize_entry("detail", detail)?;
        }
        for (name, value) in self.members.iter() {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(&self)).into_response();
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_serialises_as_the_released_server_writes_it() {
        let table = [
            (
                Problem::invalid_request("path not found: /x"),
                r#"{"type":"urn:sandbox-agent:error:invalid_request","title":"Invalid Request","status":400,"detail":"invalid request: path not found: /x"}"#,
            ),
            (
                Problem::too_large("input payload exceeds maxInputBytesPerRequest (65536)"),
                r#"{"type":"urn:sandbox-agent:error:invalid_request","title":"Payload Too Large","status":413,"detail":"invalid request: input payload exceeds maxInputBytesPerRequest (65536)"}"#,
            ),
            (
                Problem::unknown_endpoint(),
                r#"{"type":"urn:sandbox-agent:error:invalid_request","title":"Not Found","status":404,"detail":"endpoint not found"}"#,
            ),
            (
                Problem::unsupported_agent("nope"),
                r#"{"type":"urn:sandbox-agent:error:unsupported_agent","title":"Unsupported Agent","status":400,"detail":"unsupported agent: nope","agent":"nope"}"#,
            ),
            (
                Problem::agent_not_installed("codex"),
                r#"{"type":"urn:sandbox-agent:error:agent_not_installed","title":"Agent Not Installed","status":404,"detail":"agent not installed: codex","agent":"codex"}"#,
            ),
            (
                Problem::token_invalid(),
                r#"{"type":"urn:sandbox-agent:error:token_invalid","title":"Token Invalid","status":401,"detail":"token invalid","details":{"message":"missing or invalid bearer token"}}"#,
            ),
            (
                Problem::not_acceptable("accept must allow application/json"),
                r#"{"type":"urn:sandbox-agent:error:not_acceptable","title":"Not Acceptable","status":406,"detail":"not acceptable: accept must allow application/json","details":{"message":"accept must allow application/json"}}"#,
            ),
            (
                Problem::unsupported_media_type("content-type must be application/json"),
                r#"{"type":"urn:sandbox-agent:error:unsupported_media_type","title":"Unsupported Media Type","status":415,"detail":"unsupported media type: content-type must be application/json","details":{"message":"content-type must be application/json"}}"#,
            ),
            (
                Problem::session_not_found("mcp:a"),
                r#"{"type":"urn:sandbox-agent:error:session_not_found","title":"Session Not Found","status":404,"detail":"session not found: mcp:a","sessionId":"mcp:a"}"#,
            ),
            (
                Problem::stream_error("File exists (os error 17)"),
                r#"{"type":"urn:sandbox-agent:error:stream_error","title":"Stream Error","status":502,"detail":"stream error: File exists (os error 17)","details":{"message":"File exists (os error 17)"}}"#,
            ),
            (
                Problem::conflict("taken"),
                r#"{"type":"urn:sandbox-agent:error:conflict","title":"Conflict","status":409,"detail":"conflict: taken","details":{"message":"taken"}}"#,
            ),
        ];
        for (problem, expected) in table {
            assert_eq!(serde_json::to_string(&problem).unwrap(), expected);
        }
    }

    #[test]
    fn an_exited_agent_has_only_known_details() {
        let by_code = serde_json::to_value(Problem::agent_process_exited("mock", Some(3), None)).unwrap();
        assert_eq!(by_code["details"], json!({ "exitCode": 3 }));
        let by_signal = serde_json::to_value(Problem::agent_process_exited("mock", None, None)).unwrap();
        assert_eq!(by_signal.get("details"), None);
    }

    #[test]
    fn the_response_has_the_problem_content_type_and_status() {
        let response = Problem::timeout("late").into_response();
        assert_eq!(response.status(), StatusCode::GATEWAY_TIMEOUT);
        assert_eq!(response.headers()[header::CONTENT_TYPE], PROBLEM_JSON);
    }
}
