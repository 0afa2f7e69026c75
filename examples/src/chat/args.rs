//! The options of the command line.

use std::path::PathBuf;

use mock_server::ProcessAgent;

/// How permission requests of the agent are decided.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Policy {
    /// The user decides.
    #[default]
    Ask,
    /// Everything is allowed.
    Allow,
    /// File changes are allowed, and the user decides about the rest.
    Edits,
    /// Everything is refused.
    Deny,
}

/// The options of the command line.
#[derive(Debug, Default)]
pub(super) struct Args {
    pub(super) agent_command: Option<ProcessAgent>,
    pub(super) agent: Option<String>,
    pub(super) dir: Option<PathBuf>,
    pub(super) resume: Option<String>,
    pub(super) policy: Policy,
    pub(super) help: bool,
}

impl Args {
    /// Parses the options. The error is a message for the user.
    pub(super) fn parse(args: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut parsed = Self::default();
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let (name, inline) = match arg.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (arg, None),
            };
            let mut value = || inline.clone().or_else(|| args.next()).ok_or(format!("{name} needs a value"));
            match name.as_str() {
                "--agent-command" => {
                    let command = ProcessAgent::from_command_line(&value()?);
                    parsed.agent_command = Some(command.map_err(|error| format!("{name}: {error}"))?);
                }
                "--agent" => parsed.agent = Some(value()?),
                "--dir" => parsed.dir = Some(value()?.into()),
                "--resume" => parsed.resume = Some(value()?),
                "--permissions" => parsed.policy = policy(&value()?)?,
                "--help" | "-h" => parsed.help = true,
                _ => return Err(format!("unknown option {name}")),
            }
        }
        Ok(parsed)
    }
}

fn policy(name: &str) -> Result<Policy, String> {
    match name {
        "ask" => Ok(Policy::Ask),
        "allow" => Ok(Policy::Allow),
        "edits" => Ok(Policy::Edits),
        "deny" => Ok(Policy::Deny),
        _ => Err(format!("--permissions must be ask, allow, edits or deny, not {name}")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]
mod tests {
    use super::{Args, Policy};

    fn parse(args: &[&str]) -> Result<Args, String> {
        Args::parse(args.iter().map(|arg| (*arg).to_owned()))
    }

    #[test]
    fn options_are_read() {
        let args =
            parse(&["--agent-command", "node 'my agent.js'", "--permissions=edits", "--dir", "/x"]).unwrap();
        assert_eq!(args.agent_command.unwrap().program(), "node");
        assert_eq!(args.policy, Policy::Edits);
        assert_eq!(args.dir.unwrap().to_str(), Some("/x"));
        assert!(parse(&["--help"]).unwrap().help);
    }

    #[test]
    fn an_option_that_cannot_be_used_is_an_error() {
        for (args, message) in [
            (&["--dir"][..], "--dir needs a value"),
            (&["--permissions", "maybe"], "--permissions must be ask, allow, edits or deny, not maybe"),
            (&["--agent-command", "'x"], "--agent-command: the command line has an unfinished quotation"),
            (&["--colour"], "unknown option --colour"),
        ] {
            assert_eq!(parse(args).unwrap_err(), message);
        }
    }
}
