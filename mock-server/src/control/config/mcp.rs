//! The format of MCP servers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

type Texts = BTreeMap<String, String>;

/// One MCP server. Other spellings are accepted, and written back in this one.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub(super) enum McpServer {
    /// A command that uses standard input and output.
    #[serde(alias = "stdio", rename_all = "camelCase")]
    Local {
        command: Command,
        #[serde(default)]
        args: Vec<String>,
        #[serde(default, alias = "environment", skip_serializing_if = "Option::is_none")]
        env: Option<Texts>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        enabled: Option<bool>,
        #[serde(default, alias = "timeout", skip_serializing_if = "Option::is_none")]
        timeout_ms: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cwd: Option<String>,
    },
    /// A server at a URL.
    #[serde(alias = "http", rename_all = "camelCase")]
    Remote {
        url: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        headers: Option<Texts>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bearer_token_env_var: Option<String>,
        #[serde(default, alias = "envHttpHeaders", skip_serializing_if = "Option::is_none")]
        env_headers: Option<Texts>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        oauth: Option<Oauth>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        enabled: Option<bool>,
        #[serde(default, alias = "timeout", skip_serializing_if = "Option::is_none")]
        timeout_ms: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        transport: Option<Transport>,
    },
}

/// A command as one text, or as a list of words.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Command {
    Text(String),
    Words(Vec<String>),
}

/// OAuth settings, or `false` to disable OAuth.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Oauth {
    Client(OauthClient),
    Switch(bool),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct OauthClient {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client_secret: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scope: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Transport {
    Http,
    Sse,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalised(text: &str) -> String {
        serde_json::to_string(&serde_json::from_str::<McpServer>(text).unwrap()).unwrap()
    }

    #[test]
    fn every_spelling_is_written_back_in_one() {
        let table = [
            (
                r#"{"type":"stdio","command":["npx","x"]}"#,
                r#"{"type":"local","command":["npx","x"],"args":[]}"#,
            ),
            (
                r#"{"type":"local","cwd":"/","timeout":5,"environment":{"A":"1"},"enabled":true,"command":"npx"}"#,
                r#"{"type":"local","command":"npx","args":[],"env":{"A":"1"},"enabled":true,"timeoutMs":5,"cwd":"/"}"#,
            ),
            (
                r#"{"type":"http","url":"http://x","headers":{"h":"v"},"oauth":false,"transport":"sse"}"#,
                r#"{"type":"remote","url":"http://x","headers":{"h":"v"},"oauth":false,"transport":"sse"}"#,
            ),
            (
                r#"{"type":"remote","url":"u","envHttpHeaders":{"a":"b"},"oauth":{"clientId":"c"},"bearerTokenEnvVar":"T"}"#,
                r#"{"type":"remote","url":"u","bearerTokenEnvVar":"T","envHeaders":{"a":"b"},"oauth":{"clientId":"c"}}"#,
            ),
        ];
        for (given, expected) in table {
            assert_eq!(normalised(given), expected);
        }
    }
}
