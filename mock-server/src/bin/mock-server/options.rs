use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use mock_server::{ProcessAgent, Scenario};

/// What the command line asks for.
#[derive(Debug)]
pub(crate) enum Command {
    Serve(Box<Options>),
    ListScenarios,
    Help,
}

/// The options of the server.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) address: SocketAddr,
    pub(crate) token: Option<String>,
    pub(crate) scenario: Scenario,
    pub(crate) agent_command: Option<ProcessAgent>,
    pub(crate) agent_name: String,
    pub(crate) files: Option<PathBuf>,
    pub(crate) processes: bool,
}

impl Options {
    /// Parses the arguments after the program's name. The error is one line of text.
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Command, String> {
        let mut arguments = arguments;
        let mut address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 2468);
        let (mut token, mut agent_command, mut files, mut processes) = (None, None, None, false);
        let mut scenario = find("default")?;
        let mut agent_name = "mock".to_owned();
        while let Some(argument) = arguments.next() {
            let (flag, attached) = match argument.split_once('=') {
                Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
                None => (argument, None),
            };
            let mut value = || {
                attached.clone().or_else(|| arguments.next()).ok_or_else(|| format!("{flag} needs a value"))
            };
            match flag.as_str() {
                "--help" | "-h" => return Ok(Command::Help),
                "--list-scenarios" => return Ok(Command::ListScenarios),
                "--port" => {
                    let text = value()?;
                    address.set_port(text.parse().map_err(|_| format!("'{text}' is not a port"))?);
                }
                "--host" => {
                    let text = value()?;
                    address.set_ip(text.parse().map_err(|_| format!("'{text}' is not an IP address"))?);
                }
                "--token" => token = Some(value()?),
                "--scenario" => scenario = find(&value()?)?,
                "--agent-command" => {
                    let text = value()?;
                    let command = ProcessAgent::from_command_line(&text);
                    agent_command = Some(command.map_err(|error| format!("'{text}': {error}"))?);
                }
                "--agent-name" => agent_name = value()?,
                "--files" => files = Some(PathBuf::from(value()?)),
                "--processes" => processes = true,
                _ => return Err(format!("unknown option '{flag}'")),
            }
        }
        if token.is_none() && !address.ip().is_loopback() {
            return Err(format!(
                "--host {} needs --token, because other machines can reach it",
                address.ip()
            ));
        }
        let options = Self { address, token, scenario, agent_command, agent_name, files, processes };
        Ok(Command::Serve(Box::new(options)))
    }
}

fn find(name: &str) -> Result<Scenario, String> {
    Scenario::named(name).ok_or_else(|| format!("unknown scenario '{name}', try --list-scenarios"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Command, String> {
        Options::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_are_read_in_both_forms() {
        let Ok(Command::Serve(options)) = parse("--port 0 --token=T --scenario crash --agent-command sh")
        else {
            panic!("options");
        };
        assert_eq!((options.address.port(), options.token.as_deref()), (0, Some("T")));
        assert_eq!(options.scenario.name(), "crash");
        assert!(options.agent_command.is_some() && !options.processes);
        assert!(parse("--host ::1").is_ok() && parse("--host 0.0.0.0 --token T --processes").is_ok());
    }

    #[test]
    fn invalid_options_are_reported_individually() {
        for (line, expected) in [
            ("--port", "--port needs a value"),
            ("--port x", "'x' is not a port"),
            ("--host nowhere", "'nowhere' is not an IP address"),
            ("--scenario nope", "unknown scenario 'nope', try --list-scenarios"),
            ("--nope", "unknown option '--nope'"),
            ("--host 0.0.0.0", "--host 0.0.0.0 needs --token, because other machines can reach it"),
            ("--host ::", "--host :: needs --token, because other machines can reach it"),
        ] {
            assert_eq!(parse(line).err().as_deref(), Some(expected), "{line}");
        }
        assert!(parse("--agent-command=").is_err());
    }
}
