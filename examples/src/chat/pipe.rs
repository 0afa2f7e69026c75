//! The chat without a terminal: lines in, text out.

use std::io::{self, Write};

use sandbox_agent_sdk::event::Origin;
use sandbox_agent_sdk::{Error, Event, Events, StopReason, Turn, TurnOutcome, Update, UpdateKind};
use tokio::io::{AsyncBufReadExt, BufReader, Stdin};

use super::args::Args;
use super::card;
use super::command::{COMMANDS, Command};
use super::exit::Exit;
use super::host::Host;
use super::line::{Line, Paint, Style};
use super::permission;
use super::plain::Plain;
use super::signals::Signals;
use super::talk::{Login, Talk, Task};
use super::view::View;

/// Output to a pipe is not wrapped.
const WIDTH: usize = usize::MAX;

/// The chat without a terminal. The agent's messages go to standard output, everything else to standard error.
pub(super) struct Pipe {
    talk: Talk,
    signals: Signals,
    events: Option<Events>,
    /// The output that goes to standard error.
    view: View,
    plain: Plain,
    /// Whether a line of the agent's text is unfinished.
    open_line: bool,
}

/// How a turn ended.
enum Ended {
    /// It is over. Contains a reason to end the chat, if there is one.
    Over(Option<Exit>),
    /// It requires a login, for which there is a key.
    Login(Login),
}

impl Pipe {
    /// Runs the chat to the end of its input.
    pub(super) async fn run(args: &Args, host: &Host) -> io::Result<Exit> {
        let talk = Talk::new(host);
        let task = match &args.resume {
            Some(id) => talk.resume(id.clone(), None),
            None => talk.begin(),
        };
        let mut pipe = Self {
            talk,
            signals: Signals::listen()?,
            events: None,
            view: View::default(),
            plain: Plain::default(),
            open_line: false,
        };
        let exit = match pipe.task(task).await? {
            Some(Exit::TurnFailed) => Exit::NotStarted,
            Some(exit) => exit,
            None => pipe.lines().await?,
        };
        pipe.talk.leave().await;
        Ok(exit)
    }

    async fn lines(&mut self) -> io::Result<Exit> {
        let mut input = BufReader::new(tokio::io::stdin());
        let mut worst = Exit::Done;
        loop {
            let line = tokio::select! {
                line = read_line(&mut input) => line?,
                exit = self.signals.next() => return Ok(exit),
            };
            let Some(line) = line else { return Ok(worst) };
            match self.line(&line).await? {
                None => {}
                Some(Exit::TurnFailed) => worst = Exit::TurnFailed,
                Some(Exit::Done) => return Ok(worst),
                Some(exit) => return Ok(exit),
            }
        }
    }

    /// Executes a line. Returns a reason to end the chat, if there is one.
    async fn line(&mut self, line: &str) -> io::Result<Option<Exit>> {
        let command = Command::parse(line);
        if command != Command::Nothing {
            self.tell([Line::new(Style::Normal, &format!("› {line}"))])?;
        }
        match command {
            Command::Nothing => Ok(None),
            Command::Quit => Ok(Some(Exit::Done)),
            Command::Help => {
                let lines = COMMANDS
                    .iter()
                    .map(|(name, about)| Line::new(Style::Normal, &format!("{name:<20}{about}")));
                self.tell(lines)?;
                Ok(None)
            }
            Command::Prompt(text) => self.prompt(&text).await,
            Command::Other { name, line } if self.talk.agent_knows(&name) => self.prompt(&line).await,
            Command::Other { name, .. } => {
                self.tell([Line::new(Style::Normal, &format!("! There is no command /{name}."))])?;
                Ok(Some(Exit::TurnFailed))
            }
            command => match self.talk.task(command) {
                Ok(task) => self.task(task).await,
                Err(lines) => self.tell(lines).map(|()| Some(Exit::TurnFailed)),
            },
        }
    }

    async fn task(&mut self, task: Task) -> io::Result<Option<Exit>> {
        let outcome = tokio::select! {
            outcome = task.work => outcome,
            exit = self.signals.next() => return Ok(Some(exit)),
        };
        match outcome {
            Ok(done) => {
                let shown = self.talk.finish(done);
                for update in &shown.history {
                    self.view.take(update, WIDTH);
                }
                self.view.end();
                self.events = shown.events.or(self.events.take());
                self.tell(shown.lines)?;
                Ok(None)
            }
            Err(error) => {
                self.tell(self.talk.failure(&task.what, &error))?;
                Ok(Some(Exit::TurnFailed))
            }
        }
    }

    /// Prompts, and again after each login by a key that the agent requires before it begins to work.
    async fn prompt(&mut self, text: &str) -> io::Result<Option<Exit>> {
        loop {
            match self.turn(text).await? {
                Ended::Over(exit) => return Ok(exit),
                Ended::Login(Login { task, failure, .. }) => {
                    let has_begun = !failure.is_empty();
                    self.tell(failure)?;
                    match self.task(task).await? {
                        // Another key may work.
                        None | Some(Exit::TurnFailed) if !has_begun => {}
                        exit => return Ok(exit.or(Some(Exit::TurnFailed))),
                    }
                }
            }
        }
    }

    async fn turn(&mut self, text: &str) -> io::Result<Ended> {
        let Some(mut turn) = self.talk.prompt(text) else { return Ok(Ended::Over(Some(Exit::NotStarted))) };
        let mut cancelled = false;
        let outcome = loop {
            tokio::select! {
                // Events before the end of the turn are written first.
                biased;
                exit = self.signals.next() => match self.talk.cancel() {
                    Some(cancel) if exit == Exit::Interrupted && !cancelled => {
                        cancelled = true;
                        // The outcome of the turn shows whether the cancel worked. A second signal does not wait for
                        // it.
                        tokio::spawn(cancel);
                    }
                    _ => return Ok(Ended::Over(Some(exit))),
                },
                event = next_event(&mut self.events) => self.event(event)?,
                outcome = end_of(&mut turn) => break outcome,
            }
        };
        while let Some(event) = self.events.as_mut().and_then(Events::try_next) {
            self.event(event)?;
        }
        self.view.end();
        self.tell([])?;
        match self.talk.turn_over(&outcome) {
            Some(login) => Ok(Ended::Login(login)),
            None => self.judge(outcome, cancelled).map(Ended::Over),
        }
    }

    fn judge(&mut self, outcome: Result<TurnOutcome, Error>, interrupted: bool) -> io::Result<Option<Exit>> {
        match outcome {
            Ok(outcome) if outcome.stop_reason == StopReason::EndTurn => Ok(None),
            Ok(outcome) => {
                self.tell([Line::new(Style::Normal, &format!("– stopped: {}", outcome.stop_reason))])?;
                Ok(Some(if interrupted { Exit::Interrupted } else { Exit::TurnFailed }))
            }
            Err(error) => match error.termination() {
                Some(end) => {
                    self.tell(card::end_of_agent(end))?;
                    Ok(Some(Exit::AgentDied))
                }
                None => {
                    self.tell(self.talk.failure("the turn failed", &error))?;
                    Ok(Some(Exit::TurnFailed))
                }
            },
        }
    }

    fn event(&mut self, event: Event) -> io::Result<()> {
        self.talk.observe(&event);
        match event {
            Event::Update(update) if update.origin() != Origin::History => self.update(&update),
            Event::Permission(request) => {
                let line = match permission::refuse(&request) {
                    Ok(line) => line.with(Style::Normal, ": the input is not a terminal, see --permissions"),
                    Err(error) => Line::new(Style::Normal, &format!("– {error}")),
                };
                self.tell([line])
            }
            Event::Question(request) => {
                let message = request.message().unwrap_or("a question").to_owned();
                // The agent may have cancelled the question already.
                let _ = request.decline();
                self.tell([Line::new(Style::Normal, &format!("✗ {message}  the input is not a terminal"))])
            }
            Event::Gap(gap) => {
                self.tell([Line::new(Style::Normal, &format!("! {} events are missing here", gap.count()))])
            }
            Event::Lagged(count) => {
                self.tell([Line::new(Style::Normal, &format!("! {count} events were skipped here"))])
            }
            _ => Ok(()),
        }
    }

    fn update(&mut self, update: &Update) -> io::Result<()> {
        if let UpdateKind::Message(chunk) = update.kind()
            && let Some(text) = chunk.text()
        {
            let mut plain = String::new();
            self.plain.push(text, &mut plain);
            if !plain.is_empty() {
                self.open_line = !plain.ends_with('\n');
            }
            let mut out = io::stdout().lock();
            out.write_all(plain.as_bytes())?;
            return out.flush();
        }
        self.view.take(update, WIDTH);
        let settled = self.view.settled();
        if settled.is_empty() { Ok(()) } else { self.tell(settled) }
    }

    /// Writes lines to standard error, after the agent's current output.
    fn tell(&mut self, lines: impl IntoIterator<Item = Line>) -> io::Result<()> {
        if std::mem::take(&mut self.open_line) {
            writeln!(io::stdout())?;
        }
        self.view.put([]);
        let mut err = io::stderr().lock();
        for line in self.view.settled().into_iter().chain(lines) {
            writeln!(err, "{}", line.painted(Paint::Never))?;
        }
        Ok(())
    }
}

async fn next_event(events: &mut Option<Events>) -> Event {
    if let Some(events) = events
        && let Some(event) = events.next().await
    {
        return event;
    }
    std::future::pending().await
}

async fn end_of(turn: &mut Turn) -> Result<TurnOutcome, Error> {
    while turn.next().await.is_some() {}
    turn.outcome().await
}

/// Returns the next line, which may contain any bytes; `None` at the end of the input.
async fn read_line(input: &mut BufReader<Stdin>) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    if input.read_until(b'\n', &mut line).await? == 0 {
        return Ok(None);
    }
    Ok(Some(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned()))
}
