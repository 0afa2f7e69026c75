//! Logs in to the agent with a key, or shows how the user logs in.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use sandbox_agent_sdk::login::{LoginKind, LoginMethod, LoginRequired};
use sandbox_agent_sdk::{Error, SandboxAgentClient, Session};

use super::line::{Line, Style};
use crate::agents::{KnownAgent, is_set, key_logins, key_variable, typed};

/// What is known about logging in to an agent.
#[derive(Debug, Clone)]
pub(super) struct LoginHelp {
    /// The words that start the agent's program in a terminal.
    words: Vec<String>,
    /// How to log in if the agent offers no login method.
    otherwise: Option<String>,
}

impl LoginHelp {
    /// For an agent on a server that this program did not start.
    pub(super) fn of_name(agent: &str) -> Self {
        Self { words: vec![agent.to_owned()], otherwise: None }
    }

    /// For an agent that was given as a command.
    pub(super) fn of_command<'w>(words: impl Iterator<Item = &'w OsStr>) -> Self {
        Self { words: words.map(|word| word.to_string_lossy().into_owned()).collect(), otherwise: None }
    }

    /// For a known agent whose program was found.
    pub(super) fn of_known(agent: &KnownAgent, program: &Path) -> Self {
        let program = typed(program);
        let otherwise = Some(agent.login.replace("{}", &program));
        Self { words: vec![program], otherwise }
    }

    /// Shows the login methods of the agent, or what else the user can do.
    pub(super) fn lines(&self, required: &LoginRequired) -> Vec<Line> {
        let line = |text: &str| Line::new(Style::Dim, &format!("  {text}"));
        if required.methods.is_empty() {
            let otherwise = self.otherwise.clone();
            let otherwise =
                otherwise.unwrap_or_else(|| format!("Log in with its program, `{}`.", self.program()));
            return vec![line("The agent requires a login, and offers no method."), line(&otherwise)];
        }
        let methods = required.methods.iter().map(|method| line(&format!("· {}", self.hint(method))));
        [line("The agent requires a login. Its methods are:")].into_iter().chain(methods).collect()
    }

    /// Returns how to log in with a method: by a key in a variable, by a command, or as the agent describes it.
    fn hint(&self, method: &LoginMethod) -> String {
        let name = &method.name;
        let set = |variables: &[&str]| {
            let (all, missing) = (variables.join(", "), variables.iter().filter(|name| !is_set(name)));
            match missing.copied().collect::<Vec<_>>()[..] {
                [] => format!("{name}: {all} is set, but the agent still requires a login"),
                ref missing => format!("{name}: set {} and start the chat again", missing.join(", ")),
            }
        };
        match &method.kind {
            LoginKind::Variables { variables, .. } => {
                let required = variables.iter().filter(|variable| !variable.optional);
                set(&required.map(|variable| variable.name.as_str()).collect::<Vec<_>>())
            }
            LoginKind::Terminal { program, args, env, .. } => {
                let words = program.as_ref().map_or(self.words.as_slice(), std::slice::from_ref);
                let mut command = Command::new(words.first().map_or("", String::as_str));
                command.args(words.iter().skip(1)).args(args).envs(env);
                format!("{name}: run {command:?} in a terminal")
            }
            _ => match (key_variable(&method.id), &method.description) {
                (Some(variable), _) => set(&[variable]),
                (None, Some(description)) => format!("{name}: {description} (program: `{}`)", self.program()),
                (None, None) => format!("{name}: by the agent's own program, `{}`", self.program()),
            },
        }
    }

    fn program(&self) -> String {
        self.words.join(" ")
    }
}

/// Makes a call, and repeats it after a login if the agent requires one.
///
/// If the call fails because a login is required, and the environment has keys for some of the login methods, logs in
/// with one key after the other until the call succeeds. A login that is not required could replace one that the user has stored.
pub(super) async fn logged_in<C: Future<Output = Result<Session, Error>>>(
    client: &SandboxAgentClient,
    call: impl Fn() -> C,
) -> Result<Session, Error> {
    let refused = match call().await {
        Err(error) if error.is_login_required() => error,
        made => return made,
    };
    let offered = client.capabilities().map(|can| can.auth_methods.clone()).unwrap_or_default();
    let mut failure = refused;
    for login in key_logins(&offered) {
        match client.authenticate(login).await {
            Ok(_) => match call().await {
                Err(error) if error.is_login_required() => failure = error,
                made => return made,
            },
            // The agent refuses this key. Another may work.
            Err(error) if error.is_login_required() || error.rpc_error().is_some() => failure = error,
            Err(error) => return Err(error),
        }
    }
    Err(failure)
}
