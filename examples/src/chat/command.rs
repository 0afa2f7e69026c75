//! Parses the user's lines.

/// A line that the user entered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Command {
    /// An empty line.
    Nothing,
    /// A prompt for the agent.
    Prompt(String),
    /// Shows the help.
    Help,
    /// Ends the chat.
    Quit,
    /// Starts a new session.
    New,
    /// Resumes another session, or lists the sessions.
    Resume(Option<String>),
    /// Sets the mode, or lists the modes.
    Mode(Option<String>),
    /// Sets the model, or lists the models.
    Model(Option<String>),
    /// Lists a directory, or shows a file.
    Files(Option<String>),
    /// Restarts the agent.
    Restart,
    /// A command that the chat does not know. The agent may know it.
    Other {
        /// The name of the command.
        name: String,
        /// The whole line.
        line: String,
    },
}

/// The commands, for the help.
pub(super) const COMMANDS: [(&str, &str); 8] = [
    ("/resume [N or ID]", "continue another session, or list them"),
    ("/new", "start a new session"),
    ("/mode [N or ID]", "set the mode, or list them"),
    ("/model [N or ID]", "set the model, or list them"),
    ("/files [PATH]", "list a directory of the sandbox, or show a file"),
    ("/restart", "restart the agent"),
    ("/help", "this"),
    ("/quit", "leave"),
];

impl Command {
    pub(super) fn parse(line: &str) -> Self {
        let line = line.trim();
        if line.is_empty() {
            return Self::Nothing;
        }
        let Some(command) = line.strip_prefix('/') else { return Self::Prompt(line.to_owned()) };
        if command.starts_with('/') {
            return Self::Prompt(command.to_owned());
        }
        let (name, argument) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let argument = Some(argument.trim().to_owned()).filter(|argument| !argument.is_empty());
        match name {
            "help" | "?" => Self::Help,
            "quit" | "exit" | "q" => Self::Quit,
            "new" => Self::New,
            "resume" => Self::Resume(argument),
            "mode" => Self::Mode(argument),
            "model" => Self::Model(argument),
            "files" => Self::Files(argument),
            "restart" => Self::Restart,
            _ => Self::Other { name: name.to_owned(), line: line.to_owned() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Command;

    #[test]
    fn lines_are_prompts_or_commands() {
        for (line, command) in [
            ("  ", Command::Nothing),
            (" hello /quit ", Command::Prompt("hello /quit".to_owned())),
            ("//etc is a path", Command::Prompt("/etc is a path".to_owned())),
            ("/quit", Command::Quit),
            ("/mode", Command::Mode(None)),
            ("/mode  plan ", Command::Mode(Some("plan".to_owned()))),
            ("/files a b", Command::Files(Some("a b".to_owned()))),
            ("/web x", Command::Other { name: "web".to_owned(), line: "/web x".to_owned() }),
        ] {
            assert_eq!(Command::parse(line), command);
        }
    }
}
