//! The conversation: its session, and the commands that use the server.

use std::collections::HashMap;
use std::future::ready;
use std::sync::Arc;

use futures::future::BoxFuture;
use sandbox_agent_sdk::session::SessionSnapshot;
use sandbox_agent_sdk::{
    Error, Event, Events, NewSession, OpenSession, SandboxAgentClient, Session, TerminationInfo, Turn,
    TurnOutcome, Update, UpdateKind,
};
use serde_json::Value;

use super::card;
use super::choices::Choices;
use super::command::Command;
use super::files;
use super::host::Host;
use super::line::{Line, Style};
use super::login::{LoginHelp, logged_in};
use super::sessions::{Listed, list_sessions};
use crate::agents::key_logins;

/// How many characters of a prompt are used as a session's title.
const TITLE_CHARS: usize = 60;

/// The conversation.
pub(super) struct Talk {
    client: SandboxAgentClient,
    /// A client that lists the agent's own sessions.
    lister: Option<SandboxAgentClient>,
    /// The name to show until the agent has reported its own.
    agent: String,
    login: LoginHelp,
    /// The directory of new sessions.
    directory: String,
    session: Option<Session>,
    /// The directory of the current session.
    session_directory: String,
    /// The sessions in the last list.
    listed: Vec<Listed>,
    /// The first prompt of each session of this chat, for agents without session titles.
    begun_with: HashMap<String, String>,
    /// The text of the last prompt.
    last_prompt: String,
    /// Whether the agent has begun to work on the last prompt.
    has_begun: bool,
    /// The login methods that were tried because the current prompt requires a login.
    tried: Vec<&'static str>,
    /// Whether the agent has exited and was not restarted.
    pub(super) dead: bool,
}

/// A call in progress: its description and its result.
pub(super) struct Task {
    pub(super) what: String,
    pub(super) work: BoxFuture<'static, Result<Done, Error>>,
}

/// A login that a failed prompt requires.
pub(super) struct Login {
    pub(super) task: Task,
    /// The prompt to send after it.
    pub(super) prompt: String,
    /// The error to show if the prompt is not sent again, because the agent had begun to work on it; otherwise empty.
    pub(super) failure: Vec<Line>,
}

/// The result of a task.
pub(super) enum Done {
    /// Lines to show.
    Lines(Vec<Line>),
    /// The listed sessions.
    Sessions(Vec<Listed>),
    /// The conversation continues in this session.
    Session {
        session: Session,
        /// The directory of the session.
        directory: String,
        note: Line,
        past: Past,
    },
    /// The mode was set.
    Mode,
    /// The model was set.
    Model,
}

/// What the history of a session is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Past {
    /// There is none, or the agent does not replay it.
    Unknown,
    /// It is only checked: the user has seen it.
    Checked,
    /// It is shown.
    Shown,
}

/// What to show after a task.
#[derive(Default)]
pub(super) struct Shown {
    pub(super) lines: Vec<Line>,
    /// The history of the session that was resumed.
    pub(super) history: Vec<Update>,
    /// Events of the session that was resumed.
    pub(super) events: Option<Events>,
}

impl Talk {
    pub(super) fn new(host: &Host) -> Self {
        Self {
            client: host.client.clone(),
            lister: host.lister.clone(),
            agent: host.agent.clone(),
            login: host.login.clone(),
            directory: host.directory.clone(),
            session: None,
            session_directory: host.directory.clone(),
            listed: Vec::new(),
            begun_with: HashMap::new(),
            last_prompt: String::new(),
            has_begun: false,
            tried: Vec::new(),
            dead: false,
        }
    }

    pub(super) fn session_id(&self) -> Option<&str> {
        self.session.as_ref().map(Session::id)
    }

    pub(super) fn prompt(&mut self, text: &str) -> Option<Turn> {
        let session = self.session.as_ref()?;
        text.clone_into(&mut self.last_prompt);
        self.has_begun = false;
        let first = text.lines().next().unwrap_or_default();
        let first: String = first.chars().take(TITLE_CHARS).collect();
        self.begun_with.entry(session.id().to_owned()).or_insert(first);
        Some(session.prompt(text))
    }

    /// Notes what the agent does in a turn.
    pub(super) fn observe(&mut self, event: &Event) {
        use UpdateKind::{Message, Missed, ToolCall, ToolCallUpdate};
        self.has_begun |= match event {
            Event::Update(update) => {
                matches!(update.kind(), Message(_) | ToolCall(_) | ToolCallUpdate(_) | Missed(_))
            }
            Event::Permission(_) | Event::Question(_) | Event::Gap(_) | Event::Lagged(_) => true,
            _ => false,
        };
    }

    pub(super) fn cancel(&self) -> Option<BoxFuture<'static, Result<(), Error>>> {
        self.session.as_ref().map(Session::cancel)
    }

    /// Returns the current state of the session.
    pub(super) fn snapshot(&self) -> Arc<SessionSnapshot> {
        self.session.as_ref().map(Session::snapshot).unwrap_or_default()
    }

    /// Returns how the session ended; `None` while it is active.
    pub(super) fn termination(&self) -> Option<TerminationInfo> {
        self.session.as_ref()?.termination()
    }

    /// Returns whether the agent has advertised this command.
    pub(super) fn agent_knows(&self, name: &str) -> bool {
        self.snapshot().commands.iter().any(|command| command.name == name)
    }

    /// Returns the task for a command that needs the server. For other commands, returns the lines to show as the
    /// error.
    pub(super) fn task(&self, command: Command) -> Result<Task, Vec<Line>> {
        let Some(session) = self.session.clone() else {
            return Err(vec![Line::new(Style::Warn, "! There is no session yet.")]);
        };
        let (client, directory) = (self.client.clone(), self.session_directory.clone());
        let snapshot = session.snapshot();
        let (modes, models) = (Choices::modes(&snapshot), Choices::models(&snapshot));
        let lines =
            |lines| -> BoxFuture<'static, Result<Done, Error>> { Box::pin(ready(Ok(Done::Lines(lines)))) };
        let task =
            |what: &str, work: BoxFuture<'static, Result<Done, Error>>| Task { what: what.to_owned(), work };
        Ok(match command {
            Command::Resume(None) => {
                let (lister, titles) = (self.lister.clone(), self.begun_with.clone());
                let present = session.id().to_owned();
                task("listing the sessions", Box::pin(list_sessions(client, lister, present, titles)))
            }
            Command::Resume(Some(which)) => {
                let number = which.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
                let numbered = number.and_then(|index| self.listed.get(index));
                let listed = numbered.or_else(|| self.listed.iter().find(|session| session.id == which));
                match listed.cloned() {
                    Some(Listed { id, directory, .. }) => self.resume(id, directory),
                    None => self.resume(which, None),
                }
            }
            Command::New => self.begin(),
            Command::Restart => task("restarting the agent", Box::pin(restart(client, session, directory))),
            Command::Files(path) => {
                let path = files::path_in(&directory, path.as_deref());
                task(
                    "reading the files",
                    Box::pin(async move { files::show(&client, &path).await.map(Done::Lines) }),
                )
            }
            Command::Mode(None) => task("listing the modes", lines(modes.lines("mode"))),
            Command::Model(None) if !models.is_empty() => {
                task("listing the models", lines(models.lines("model")))
            }
            Command::Model(None) => task("listing the models", Box::pin(list_models(session))),
            Command::Mode(Some(wanted)) => {
                let mode = modes.pick(&wanted);
                // Some agents accept any mode.
                if !modes.knows(&mode) {
                    let mut lines = vec![Line::new(Style::Warn, &format!("! There is no mode {mode}."))];
                    lines.extend(modes.lines("mode"));
                    return Err(lines);
                }
                let set = session.set_mode(mode);
                task("setting the mode", Box::pin(async move { set.await.map(|()| Done::Mode) }))
            }
            Command::Model(Some(wanted)) => {
                let model = models.pick(&wanted);
                let set = session.set_model(model);
                task("setting the model", Box::pin(async move { set.await.map(|()| Done::Model) }))
            }
            _ => return Err(Vec::new()),
        })
    }

    /// Starts a new session.
    pub(super) fn begin(&self) -> Task {
        let (client, agent, directory) = (self.client.clone(), self.agent.clone(), self.directory.clone());
        let work = Box::pin(async move {
            let session = new_session(&client, &directory).await?;
            let name = title(&client).unwrap_or(agent);
            let note = Line::new(Style::Dim, &format!("A new session with {name}"));
            Ok(Done::Session { session, directory, note, past: Past::Unknown })
        });
        Task { what: format!("starting {}", self.agent), work }
    }

    /// Resumes a session, with its history if the agent can load it. Without a directory, it is the one of new sessions.
    pub(super) fn resume(&self, id: String, directory: Option<String>) -> Task {
        let (client, directory) = (self.client.clone(), directory.unwrap_or_else(|| self.directory.clone()));
        let note = Line::new(Style::Dim, &format!("Back in session {id}"));
        let work = Box::pin(async move {
            let (session, is_loaded) = reopen(&client, &id, &directory).await?;
            let past = if is_loaded { Past::Shown } else { Past::Unknown };
            Ok(Done::Session { session, directory, note, past })
        });
        Task { what: "loading the session".to_owned(), work }
    }

    /// Applies the result of a task and returns what to show.
    pub(super) fn finish(&mut self, done: Done) -> Shown {
        let lines = match done {
            Done::Lines(lines) => lines,
            Done::Sessions(sessions) => {
                let numbered = sessions.iter().enumerate();
                let lines = numbered.map(|(index, session)| {
                    session.line.clone().behind(Style::Accent, &format!("{:>4}  ", index + 1))
                });
                let mut lines: Vec<Line> = lines.collect();
                lines.push(Line::new(Style::Dim, "/resume NUMBER resumes one of them."));
                self.listed = sessions;
                lines
            }
            Done::Session { session, directory, note, past } => {
                self.session_directory = directory;
                return self.adopt(session, note, past);
            }
            Done::Mode => vec![set_line("mode", &Choices::modes(&self.snapshot()))],
            Done::Model => vec![set_line("model", &Choices::models(&self.snapshot()))],
        };
        Shown { lines, ..Shown::default() }
    }

    fn adopt(&mut self, session: Session, note: Line, past: Past) -> Shown {
        self.dead = false;
        // A restarted agent may require a login again.
        self.tried.clear();
        let snapshot = session.snapshot();
        let mut note = note;
        for (what, choices) in [("mode", Choices::modes(&snapshot)), ("model", Choices::models(&snapshot))] {
            if let Some(name) = choices.current_name() {
                note = note.with(Style::Dim, &format!(" · {what} {name}"));
            }
        }
        let history = if past == Past::Shown { session.history().to_vec() } else { Vec::new() };
        let mut lines = vec![note];
        if past != Past::Unknown && session.history().is_empty() {
            // Some agents open an empty session for an id that they do not know.
            let text =
                "! The agent replayed no history. The session is empty, or the agent does not have it.";
            lines.push(Line::new(Style::Warn, text));
        }
        let events = Some(session.events().deciding());
        self.session = Some(session);
        Shown { lines, history, events }
    }

    /// Ends a turn. Returns the login that its prompt requires, if there is a key for it that was not tried yet.
    pub(super) fn turn_over(&mut self, outcome: &Result<TurnOutcome, Error>) -> Option<Login> {
        let Err(error @ Error::LoginRequired(required)) = outcome else {
            // The agent is logged in. The login may expire, and the same key then works again.
            self.tried.clear();
            return None;
        };
        let offered: Vec<String> = required.methods.iter().map(|method| method.id.clone()).collect();
        let login = key_logins(&offered).into_iter().find(|login| !self.tried.contains(login))?;
        self.tried.push(login);
        let client = self.client.clone();
        let work = Box::pin(async move {
            client.authenticate(login).await?;
            Ok(Done::Lines(vec![Line::new(Style::Dim, &format!("Logged in by {login}"))]))
        });
        let mut failure = Vec::new();
        if self.has_begun {
            failure = card::failure("the turn failed", error);
            let note = "! The agent had begun to work, so the prompt is not sent again.";
            failure.push(Line::new(Style::Warn, note));
        }
        let task = Task { what: format!("logging in by {login}"), work };
        Some(Login { task, prompt: self.last_prompt.clone(), failure })
    }

    /// Shows a failure. If the agent requires a login, shows how to log in.
    pub(super) fn failure(&self, what: &str, error: &Error) -> Vec<Line> {
        let mut lines = card::failure(what, error);
        if let Error::LoginRequired(required) = error {
            lines.extend(self.login.lines(required));
        }
        lines
    }

    /// Disconnects, within a time limit.
    pub(super) async fn leave(&self) {
        // The program ends even if the server does not confirm.
        let _ = self.client.disconnect().await;
    }
}

/// Returns the display name of the agent.
fn title(client: &SandboxAgentClient) -> Option<String> {
    let capabilities = client.capabilities()?;
    let title = capabilities.raw.pointer("/agentInfo/title").and_then(Value::as_str);
    title.filter(|title| !title.is_empty()).map(str::to_owned).or_else(|| capabilities.agent_name.clone())
}

async fn new_session(client: &SandboxAgentClient, directory: &str) -> Result<Session, Error> {
    logged_in(client, || client.new_session(NewSession::in_dir(directory))).await
}

fn set_line(what: &str, choices: &Choices) -> Line {
    let name = choices.current_name().unwrap_or("the requested one");
    Line::new(Style::Good, "✔ ").with(Style::Normal, &format!("The {what} is {name} now."))
}

async fn list_models(session: Session) -> Result<Done, Error> {
    let list = session.list_models().await?;
    let lines = list.available.iter().map(|model| {
        let sign = if list.current.as_ref() == Some(&model.id) { "▸ " } else { "  " };
        Line::new(Style::Accent, sign)
            .with(Style::Normal, model.label())
            .with(Style::Dim, &format!("  {}", model.id))
    });
    Ok(Done::Lines(lines.collect()))
}

/// Opens a session of the agent, and returns whether it was loaded: the history of a loaded session shows whether the
/// agent still has it. Some agents open an empty session for an id that they do not know.
async fn reopen(client: &SandboxAgentClient, id: &str, directory: &str) -> Result<(Session, bool), Error> {
    let open = || OpenSession::in_dir(directory);
    match logged_in(client, || client.load_session(id, open())).await {
        Err(Error::Unsupported { .. }) => {
            Ok((logged_in(client, || client.resume_session(id, open())).await?, false))
        }
        loaded => Ok((loaded?, true)),
    }
}

/// Restarts the agent and opens the session again, or creates a new one if the agent has lost it.
async fn restart(client: SandboxAgentClient, session: Session, directory: String) -> Result<Done, Error> {
    match client.restart_agent().await {
        Err(Error::NotConnected) => drop(client.connect().await?),
        other => drop(other?),
    }
    match reopen(&client, session.id(), &directory).await {
        Ok((session, is_loaded)) => {
            let past = if is_loaded { Past::Checked } else { Past::Unknown };
            let is_lost = is_loaded && session.history().is_empty();
            let sign = if is_lost { Line::new(Style::Warn, "! ") } else { Line::new(Style::Good, "✔ ") };
            let note = sign.with(Style::Dim, "The agent runs again");
            Ok(Done::Session { session, directory, note, past })
        }
        Err(error @ (Error::Unsupported { .. } | Error::Rpc { .. })) => {
            let why = card::failure("the conversation could not be resumed", &error);
            let note = why.into_iter().next().unwrap_or_default();
            let session = new_session(&client, &directory).await?;
            Ok(Done::Session { session, directory, note, past: Past::Unknown })
        }
        Err(error) => Err(error),
    }
}
