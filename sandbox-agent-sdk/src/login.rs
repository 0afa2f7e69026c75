//! Logging in to agents.

use serde_json::Value;

use crate::RpcError;

/// A way to log in that an agent offers.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LoginMethod {
    /// The id for [`authenticate`](crate::SandboxAgentClient::authenticate).
    pub id: String,
    /// The name to show.
    pub name: Option<String>,
    /// What it does.
    pub description: Option<String>,
    /// The kind, such as `env_var`; `None` if the agent does not say.
    pub kind: Option<String>,
    /// The environment variables of the agent that it takes credentials from.
    pub variables: Vec<LoginVariable>,
    /// The method as it came.
    pub raw: Value,
}

/// An environment variable that an agent takes a credential from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoginVariable {
    /// The name of the variable.
    pub name: String,
    /// What to show for it.
    pub label: Option<String>,
    /// Whether the login works without it.
    pub optional: bool,
}

/// The agent requires a login before it does what was asked.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct LoginRequired {
    /// The ways to log in that the agent offers.
    pub methods: Vec<LoginMethod>,
    /// What the agent answered.
    pub error: RpcError,
}

/// The logins for which no person has to be asked: the agent takes a key from its environment.
const KEY_LOGINS: [&str; 3] = ["codex-api-key", "openai-api-key", "anthropic-api-key"];
/// The kind of the logins that take credentials from the agent's environment.
const ENVIRONMENT: &str = "env_var";

impl LoginMethod {
    /// Reads the methods of an `initialize` response; what has no id cannot be used and is left out.
    pub(crate) fn read_all(initialized: &Value) -> Vec<Self> {
        let methods = initialized.get("authMethods").and_then(Value::as_array);
        methods.map(Vec::as_slice).unwrap_or_default().iter().filter_map(Self::read).collect()
    }

    fn read(raw: &Value) -> Option<Self> {
        let text = |value: &Value, name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
        let variables = raw.get("vars").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let variables = variables.iter().filter_map(|variable| {
            Some(LoginVariable {
                name: text(variable, "name").or_else(|| variable.as_str().map(str::to_owned))?,
                label: text(variable, "label"),
                optional: variable.get("optional").and_then(Value::as_bool).unwrap_or(false),
            })
        });
        Some(Self {
            id: text(raw, "id")?,
            name: text(raw, "name"),
            description: text(raw, "description"),
            kind: text(raw, "type"),
            variables: variables.collect(),
            raw: raw.clone(),
        })
    }

    /// Whether it works without a person, if the agent's environment has what it takes.
    pub(crate) fn takes_a_key(&self) -> bool {
        KEY_LOGINS.contains(&self.id.as_str()) || self.kind.as_deref() == Some(ENVIRONMENT)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::LoginMethod;

    #[test]
    fn methods_are_read_with_their_variables_and_odd_ones_are_left_out() {
        let variable = json!({"name": "API_KEY", "label": "Key", "secret": true});
        let methods = LoginMethod::read_all(&json!({"authMethods": [
            {"id": "key", "name": "Key", "description": "d", "type": "env_var", "vars": [variable, "OTHER", 5]},
            {"id": "browser"}, {"name": "no id"}, 5]}));
        let [key, browser] = &methods[..] else { panic!("{methods:?}") };
        let names: Vec<_> = key.variables.iter().map(|variable| variable.name.as_str()).collect();
        assert_eq!((names, key.name.as_deref()), (vec!["API_KEY", "OTHER"], Some("Key")));
        assert!(key.takes_a_key() && !browser.takes_a_key());
        assert!(LoginMethod::read_all(&json!(null)).is_empty());
    }
}
