//! The login methods of agents.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::process::Command;

use serde::Serialize;
use serde_json::Value;

use crate::error::RpcError;

/// A login method of an agent, to show to a user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LoginMethod {
    /// The id for [`SandboxAgentClient::authenticate`](crate::SandboxAgentClient::authenticate).
    pub id: String,
    /// The name to show.
    pub name: String,
    /// A description for the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// How the user logs in.
    pub kind: LoginKind,
    /// The `_meta` field.
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    pub meta: Option<Value>,
}

/// How a login works.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum LoginKind {
    /// The agent logs in when [`authenticate`](crate::SandboxAgentClient::authenticate) is called.
    Agent,
    /// The agent needs environment variables. Set them before the agent starts.
    #[non_exhaustive]
    Variables {
        /// The variables.
        variables: Vec<LoginVariable>,
        /// Where the user gets the values.
        link: Option<String>,
    },
    /// The user runs the agent's program in a terminal: [`LoginMethod::terminal_command`]. Do not pass this method to
    /// [`authenticate`](crate::SandboxAgentClient::authenticate).
    #[non_exhaustive]
    Terminal {
        /// The program, if it differs from the agent's own program.
        program: Option<String>,
        /// The arguments of the program.
        args: Vec<String>,
        /// The environment variables of the program.
        env: BTreeMap<String, String>,
    },
    /// A kind of login that this version does not know.
    #[non_exhaustive]
    Other {
        /// The name of the kind.
        name: String,
    },
}

/// An environment variable that a login needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LoginVariable {
    /// The name of the variable.
    pub name: String,
    /// The display name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Whether the value is a secret; `true` by default.
    pub secret: bool,
    /// Whether the variable is optional.
    pub optional: bool,
}

/// The error of a call that requires a login.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct LoginRequired {
    /// The login methods of the agent. Empty if the login is required by an agent other than the client's: the methods
    /// of other agents are not known.
    pub methods: Vec<LoginMethod>,
    /// The agent's error response.
    pub error: RpcError,
    /// Whether the agent may have acted before it failed, for example during a prompt.
    pub executed: bool,
}

/// The logins that need no user: the agent reads a key from its environment.
const KEY_LOGINS: [&str; 3] = ["codex-api-key", "openai-api-key", "anthropic-api-key"];
impl LoginMethod {
    /// Reads the `authMethods` of an agent.
    pub(crate) fn read_all(initialized: &Value) -> Vec<Self> {
        let methods = initialized.get("authMethods").and_then(Value::as_array);
        methods.into_iter().flatten().filter_map(Self::read).collect()
    }

    fn read(method: &Value) -> Option<Self> {
        let id = text(method, "id")?;
        let meta = method.get("_meta").filter(|meta| !meta.is_null()).cloned();
        Some(Self {
            name: text(method, "name").unwrap_or_else(|| id.clone()),
            description: text(method, "description"),
            kind: LoginKind::read(method, meta.as_ref()),
            id,
            meta,
        })
    }

    /// Returns the login command for a terminal; `None` for other kinds of login.
    ///
    /// `program` is the agent's program on the machine where the user logs in. The agent chooses the arguments and
    /// environment variables of the command, so show it to the user before running it:
    ///
    /// ```no_run
    /// # fn login(method: &sandbox_agent_sdk::login::LoginMethod) -> std::io::Result<()> {
    /// if let Some(mut command) = method.terminal_command("claude") {
    ///     println!("{command:?}");
    ///     command.status()?; // in this program's terminal
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn terminal_command(&self, program: impl AsRef<OsStr>) -> Option<Command> {
        let LoginKind::Terminal { program: own, args, env } = &self.kind else { return None };
        let mut command = match own {
            Some(own) => Command::new(own),
            None => Command::new(program),
        };
        command.args(args).envs(env);
        Some(command)
    }
}

impl LoginMethod {
    /// Returns whether the method needs no user, if the agent's environment has the variables.
    pub(crate) fn takes_a_key(&self) -> bool {
        KEY_LOGINS.contains(&self.id.as_str()) || matches!(self.kind, LoginKind::Variables { .. })
    }
}

impl LoginKind {
    fn read(method: &Value, meta: Option<&Value>) -> Self {
        // Older agents, without a type for terminal logins, declare them in their metadata.
        let early = meta.and_then(|meta| meta.get("terminal-auth"));
        match (method.get("type").and_then(Value::as_str), early) {
            (Some("terminal"), _) => Self::terminal(method, None),
            (None | Some("agent"), Some(early)) => Self::terminal(early, text(early, "command")),
            (None | Some("agent"), None) => Self::Agent,
            (Some("env_var"), _) => {
                let variables = method.get("vars").and_then(Value::as_array).into_iter().flatten();
                Self::Variables {
                    variables: variables.filter_map(LoginVariable::read).collect(),
                    link: text(method, "link"),
                }
            }
            (Some(name), _) => Self::Other { name: name.to_owned() },
        }
    }

    fn terminal(value: &Value, program: Option<String>) -> Self {
        let args = value.get("args").and_then(Value::as_array).into_iter().flatten();
        let env = value.get("env").and_then(Value::as_object).into_iter().flatten();
        Self::Terminal {
            program,
            args: args.filter_map(Value::as_str).map(str::to_owned).collect(),
            env: env.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect(),
        }
    }
}

impl LoginVariable {
    fn read(variable: &Value) -> Option<Self> {
        let flag = |name: &str| variable.get(name).and_then(Value::as_bool);
        Some(Self {
            name: text(variable, "name")?,
            label: text(variable, "label"),
            secret: flag("secret").unwrap_or(true),
            optional: flag("optional").unwrap_or(false),
        })
    }
}

fn text(value: &Value, member: &str) -> Option<String> {
    value.get(member).and_then(Value::as_str).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{LoginKind, LoginMethod};

    #[test]
    fn every_kind_of_login_is_read() {
        let methods = LoginMethod::read_all(&json!({"authMethods": [
            {"id": "web", "name": "Browser", "description": "Opens a page", "_meta": {"a": 1}},
            {"id": "key", "type": "env_var", "name": "Key", "link": "https://k", "vars": [
                {"name": "API_KEY", "label": "Key"}, {"name": "REGION", "secret": false, "optional": true}, {}]},
            {"id": "tty", "type": "terminal", "name": "Terminal", "args": ["login", 5], "env": {"MODE": "login"}},
            {"id": "old", "name": "Old", "_meta": {"terminal-auth": {"command": "claude", "args": ["/login"]}}},
            {"id": "new", "type": "telepathy"}, {"name": "no id"}, 5]}));
        let ids: Vec<_> = methods.iter().map(|method| method.id.as_str()).collect();
        assert_eq!(ids, ["web", "key", "tty", "old", "new"]);
        assert_eq!(
            (methods[0].kind.clone(), methods[0].description.as_deref()),
            (LoginKind::Agent, Some("Opens a page"))
        );
        let LoginKind::Variables { variables, link } = &methods[1].kind else { panic!("{:?}", methods[1]) };
        assert_eq!((variables.len(), link.as_deref()), (2, Some("https://k")));
        assert!(
            variables[0].secret && !variables[0].optional && !variables[1].secret && variables[1].optional
        );
        let command = methods[2].terminal_command("agent").unwrap();
        assert_eq!(command.get_program(), "agent");
        assert_eq!(command.get_args().collect::<Vec<_>>(), ["login"]);
        assert_eq!(command.get_envs().count(), 1);
        assert_eq!(methods[3].terminal_command("agent").unwrap().get_program(), "claude");
        assert!(methods[0].terminal_command("agent").is_none());
        assert_eq!(methods[4].kind, LoginKind::Other { name: "telepathy".into() });
        assert_eq!(methods[4].name, "new");
    }
}
