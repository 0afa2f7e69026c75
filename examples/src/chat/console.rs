//! The chat in a terminal.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use crossterm::event::{Event as Input, EventStream, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use futures::StreamExt;
use futures::future::BoxFuture;
use sandbox_agent_sdk::{ConnectionState, Error, Event, Events, Origin, StopReason, Turn, TurnOutcome};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::args::Args;
use super::ask::{Asks, Pressed};
use super::card;
use super::command::{COMMANDS, Command};
use super::editor::{Edited, Editor};
use super::exit::Exit;
use super::host::Host;
use super::line::{Line, Paint, Style};
use super::screen::{Picture, Screen};
use super::signals::Signals;
use super::talk::{Done, Errand, Talk};
use super::view::View;

/// How often the spinner turns.
const TICK: Duration = Duration::from_millis(120);
/// After how long the time is shown beside it.
const LONG: u64 = 2;
/// How many events are taken before the screen is drawn.
const BATCH: usize = 512;
/// How many lines may wait for the agent to be done.
const QUEUE: usize = 16;
/// How many rows a request of the agent takes at most, besides the user's line.
const CARD_ROWS: usize = 20;

const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

/// The chat in a terminal.
pub(super) struct Console {
    talk: Talk,
    screen: Screen,
    editor: Editor,
    view: View,
    asks: Asks,
    events: Option<Events>,
    turn: Option<Turn>,
    cancelling: Option<BoxFuture<'static, Result<(), Error>>>,
    errand: Option<Errand>,
    /// What waits for the agent to be done.
    queue: VecDeque<String>,
    /// Whether the next Ctrl-C leaves.
    armed: bool,
    /// Something the user should know for the moment.
    notice: Option<Line>,
    busy_since: Instant,
    ticks: usize,
    leave: Option<Exit>,
}

/// What can happen.
enum Happened {
    Input(Option<io::Result<Input>>),
    Event(Option<Event>),
    TurnOver(Result<TurnOutcome, Error>),
    Cancelled(Result<(), Error>),
    ErrandOver(Result<Done, Error>),
    Tick,
    Signal(Exit),
}

impl Console {
    /// Runs the chat to its end.
    pub(super) async fn run(args: &Args, host: &Host, paint: Paint) -> io::Result<Exit> {
        let mut signals = Signals::listen()?;
        let talk = Talk::new(host);
        let errand = match &args.resume {
            Some(id) => talk.resume(id.clone()),
            None => talk.begin(),
        };
        let mut console = Self {
            talk,
            screen: Screen::open(paint)?,
            editor: Editor::default(),
            view: View::default(),
            asks: Asks::default(),
            events: None,
            turn: None,
            cancelling: None,
            errand: Some(errand),
            queue: VecDeque::new(),
            armed: false,
            notice: None,
            busy_since: Instant::now(),
            ticks: 0,
            leave: None,
        };
        let exit = console.talk_on(&mut signals).await;
        let talk = console.talk;
        // The terminal is given back before the server is told, which may take a moment.
        drop(console.screen);
        talk.leave().await;
        exit
    }

    async fn talk_on(&mut self, signals: &mut Signals) -> io::Result<Exit> {
        let mut input = EventStream::new();
        let mut ticker = interval(TICK);
        ticker.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            self.draw()?;
            if let Some(exit) = self.leave {
                return Ok(exit);
            }
            match self.wait(&mut input, &mut ticker, signals).await {
                Happened::Input(Some(input)) => self.input(input?),
                Happened::Input(None) => self.leave = Some(Exit::HungUp),
                Happened::Event(Some(event)) => self.events_from(event),
                Happened::Event(None) => self.events = None,
                Happened::TurnOver(outcome) => self.turn_over(outcome),
                Happened::Cancelled(outcome) => self.cancelled(outcome),
                Happened::ErrandOver(outcome) => self.errand_over(outcome),
                Happened::Tick => self.ticks += 1,
                Happened::Signal(exit) => self.leave = Some(exit),
            }
        }
    }

    async fn wait(
        &mut self,
        input: &mut EventStream,
        ticker: &mut Interval,
        signals: &mut Signals,
    ) -> Happened {
        let busy = self.is_busy();
        tokio::select! {
            input = input.next() => Happened::Input(input),
            event = next_event(&mut self.events) => Happened::Event(event),
            outcome = end_of(&mut self.turn) => Happened::TurnOver(outcome),
            outcome = finish(&mut self.cancelling) => Happened::Cancelled(outcome),
            outcome = finish_errand(&mut self.errand) => Happened::ErrandOver(outcome),
            exit = signals.next() => Happened::Signal(exit),
            _ = ticker.tick(), if busy => Happened::Tick,
        }
    }

    fn is_busy(&self) -> bool {
        self.turn.is_some() || self.errand.is_some()
    }

    fn input(&mut self, input: Input) {
        match input {
            Input::Key(key) if key.kind != KeyEventKind::Release => self.key(key),
            Input::Paste(text) => {
                if !self.asks.paste(&text) {
                    self.editor.insert(&text);
                }
            }
            Input::Resize(..) => self.screen.measure(),
            _ => {}
        }
    }

    fn key(&mut self, key: KeyEvent) {
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return self.interrupt();
        }
        self.armed = false;
        match self.asks.key(key) {
            Pressed::NotMine => {}
            Pressed::Taken => return,
            Pressed::Settled(line) => return self.view.put([line]),
        }
        match self.editor.key(key) {
            Edited::Here => {}
            Edited::Line(line) => self.submit(&line),
            Edited::End => self.leave = Some(Exit::Done),
        }
    }

    /// Ctrl-C: cancels what goes on, and leaves when it comes once more.
    fn interrupt(&mut self) {
        if self.armed {
            self.leave = Some(Exit::Interrupted);
            return;
        }
        self.armed = true;
        if self.turn.is_some() {
            self.asks.cancel();
            self.cancelling = self.talk.cancel();
            if !self.queue.is_empty() {
                self.queue.clear();
                self.view.put([Line::new(Style::Dim, "– what waited for the agent is dropped")]);
            }
        } else if let Some(errand) = self.errand.take() {
            self.view.put([Line::new(Style::Dim, &format!("– gave up {}", errand.what))]);
            if self.talk.session_id().is_none() {
                self.leave = Some(Exit::Interrupted);
            }
        } else {
            self.editor.clear();
        }
    }

    fn submit(&mut self, line: &str) {
        let command = Command::parse(line);
        match command {
            Command::Nothing => {}
            Command::Quit => self.leave = Some(Exit::Done),
            Command::Help => {
                self.echo(line);
                self.help();
            }
            _ if self.is_busy() => {
                if self.queue.len() < QUEUE {
                    self.queue.push_back(line.to_owned());
                }
            }
            command => {
                self.echo(line);
                self.perform(command);
            }
        }
    }

    fn echo(&mut self, line: &str) {
        let mut lines = Line::all(Style::Normal, line);
        if let Some(first) = lines.first_mut() {
            *first = first.clone().behind(Style::User, "› ");
        }
        self.view.put([Line::default()]);
        self.view.put(lines);
    }

    fn perform(&mut self, command: Command) {
        match command {
            Command::Prompt(text) => self.prompt(text),
            Command::Other { name, line } if self.talk.agent_knows(&name) => self.prompt(line),
            Command::Other { name, .. } => {
                let told = format!(
                    "! There is no command /{name}. /help lists them; //{name} sends it to the agent."
                );
                self.view.put([Line::new(Style::Warn, &told)]);
            }
            command => match self.talk.errand(command) {
                Ok(errand) => self.start(errand),
                Err(lines) => self.view.put(lines),
            },
        }
    }

    fn prompt(&mut self, text: String) {
        if self.talk.dead {
            // The message is sent as soon as there is somebody to read it.
            self.queue.push_front(text);
            return self.perform(Command::Restart);
        }
        self.turn = self.talk.prompt(&text);
        self.busy_since = Instant::now();
    }

    fn start(&mut self, errand: Errand) {
        self.errand = Some(errand);
        self.busy_since = Instant::now();
    }

    fn help(&mut self) {
        let names = COMMANDS.iter().map(|(name, about)| (format!("  {name:<20}"), *about));
        let mut lines: Vec<Line> =
            names.map(|(name, about)| Line::new(Style::Accent, &name).with(Style::Normal, about)).collect();
        for command in &self.talk.settings.commands {
            let name = format!(
                "  {:<20}",
                format!("/{} {}", command.name, command.hint.as_deref().unwrap_or_default())
            );
            lines.push(Line::new(Style::Accent, &name).with(Style::Dim, &command.description));
        }
        lines.push(Line::new(
            Style::Dim,
            "  Ctrl-C cancels, twice leaves; Ctrl-D leaves; Alt-Enter breaks the line.",
        ));
        self.view.put(lines);
    }

    fn events_from(&mut self, first: Event) {
        self.event(first);
        for _ in 0..BATCH {
            let Some(event) = self.events.as_mut().and_then(Events::try_next) else { return };
            self.event(event);
        }
    }

    fn event(&mut self, event: Event) {
        let note = |text: String| [Line::new(Style::Warn, &format!("! {text}"))];
        let writing = !self.editor.is_empty();
        match event {
            Event::Update(update) if update.origin() != Origin::History => {
                self.talk.settings.take(&update);
                self.view.take(&update, self.screen.width() - 2);
            }
            Event::Permission(request) => self.asks.permission(request, writing),
            Event::Question(request) => self.asks.question(request, writing),
            // During a turn, its outcome tells the same after the last words of the agent.
            Event::SessionEnded(ended) if self.turn.is_none() && !self.talk.dead => {
                self.talk.dead = true;
                self.view.put(card::crash(&ended.termination));
            }
            Event::Connection(ConnectionState::Connected) | Event::Reconnected { .. } => self.notice = None,
            Event::Connection(state @ ConnectionState::Reconnecting { .. }) => {
                self.notice = Some(Line::new(Style::Warn, &format!("! the connection is {state}")));
            }
            Event::ServerRestarted => self.view.put(note("the server was restarted".to_owned())),
            Event::Gap(gap) => self.view.put(note(format!("{} events are lost here", gap.count()))),
            Event::Lagged(count) => self.view.put(note(format!("{count} events were skipped here"))),
            Event::AgentUnparsed { unparsed, .. } => {
                self.view.put([Line::new(Style::Dim, &format!("the agent printed: {}", unparsed.raw))]);
            }
            Event::Malformed { reason, .. } => {
                self.view.put(note(format!("something unreadable came: {reason}")))
            }
            Event::AnswerLost { error, .. } => {
                self.view.put(card::failure("your answer was not delivered", &error))
            }
            _ => {}
        }
    }

    fn turn_over(&mut self, outcome: Result<TurnOutcome, Error>) {
        // What came before the end of the turn has been delivered by now, and is shown before it.
        while let Some(event) = self.events.as_mut().and_then(Events::try_next) {
            self.event(event);
        }
        self.turn = None;
        self.cancelling = None;
        self.asks.cancel();
        self.view.end();
        match outcome {
            Ok(outcome) => match outcome.stop_reason {
                StopReason::EndTurn => {}
                StopReason::Cancelled => self.view.put([Line::new(Style::Dim, "– cancelled")]),
                other => self.view.put([Line::new(Style::Warn, &format!("– stopped: {other}"))]),
            },
            Err(error) => match error.termination() {
                Some(end) => {
                    self.talk.dead = true;
                    self.queue.clear();
                    self.view.put(card::crash(end));
                }
                None => {
                    self.talk.dead = error.is_terminal();
                    self.queue.clear();
                    self.view.put(card::failure("the turn failed", &error));
                }
            },
        }
        self.next_in_queue();
    }

    fn cancelled(&mut self, outcome: Result<(), Error>) {
        self.cancelling = None;
        if let Err(error) = outcome {
            self.view.put(card::failure("the agent does not stop", &error));
        }
    }

    fn errand_over(&mut self, outcome: Result<Done, Error>) {
        let what = self.errand.take().map(|errand| errand.what).unwrap_or_default();
        match outcome {
            Ok(done) => {
                let first = self.talk.session_id().is_none();
                let shown = self.talk.finish(done);
                for update in &shown.history {
                    self.view.take(update, self.screen.width() - 2);
                }
                self.view.end();
                self.events = shown.events.or(self.events.take());
                self.view.put(shown.lines);
                if first {
                    self.view.put([Line::new(Style::Dim, "/help lists the commands, Ctrl-D leaves.")]);
                }
            }
            Err(error) => {
                self.view.put(card::failure(&what, &error));
                self.queue.clear();
                match (error.termination(), self.talk.session_id()) {
                    (Some(end), None) => self.view.put(card::crash(end)),
                    (Some(_), Some(_)) => self.talk.dead = true,
                    _ => {}
                }
                if self.talk.session_id().is_none() {
                    self.leave = Some(Exit::NotStarted);
                }
            }
        }
        self.next_in_queue();
    }

    fn next_in_queue(&mut self) {
        while !self.is_busy() && self.leave.is_none() {
            let Some(line) = self.queue.pop_front() else { return };
            self.submit(&line);
        }
    }

    fn draw(&mut self) -> io::Result<()> {
        let width = self.screen.width();
        let spinner = SPINNER[self.ticks % SPINNER.len()];
        let mut rows = self.view.moving(spinner);
        let asked = self.asks.card();
        rows.extend(asked.iter().flat_map(|line| line.wrapped(width - 1)).take(CARD_ROWS));
        rows.extend(self.status(spinner));
        rows.extend(self.queue.iter().map(|line| Line::new(Style::Dim, &format!("  then: {line}"))));
        let (line, column) = self.asks.input(width).unwrap_or_else(|| self.editor.view("› ", width));
        rows.push(line);
        self.screen.draw(&self.view.settled(), &Picture { rows, column })
    }

    /// One line about what goes on.
    fn status(&self, spinner: &str) -> Option<Line> {
        if self.armed && !self.is_busy() {
            return Some(Line::new(Style::Warn, "Ctrl-C again leaves"));
        }
        if let Some(notice) = &self.notice {
            return Some(notice.clone());
        }
        if !self.asks.is_empty() && self.cancelling.is_none() {
            return None;
        }
        let what = match (&self.errand, &self.turn, &self.cancelling) {
            (_, Some(_), Some(_)) => "cancelling",
            (_, Some(_), None) => "working",
            (Some(errand), None, _) => &errand.what,
            (None, None, _) => return None,
        };
        let seconds = self.busy_since.elapsed().as_secs();
        let time = if seconds >= LONG { format!(" {seconds}s") } else { String::new() };
        let hint = if self.armed { "Ctrl-C again leaves" } else { "Ctrl-C cancels" };
        let line = Line::new(Style::Accent, spinner).with(Style::Normal, &format!(" {what}{time}"));
        Some(line.with(Style::Dim, &format!("  {hint}")))
    }
}

async fn next_event(events: &mut Option<Events>) -> Option<Event> {
    match events {
        Some(events) => events.next().await,
        None => std::future::pending().await,
    }
}

/// Waits for the end of the turn. Its reports come as events too, in order with all else.
async fn end_of(turn: &mut Option<Turn>) -> Result<TurnOutcome, Error> {
    let Some(turn) = turn else { return std::future::pending().await };
    while turn.next().await.is_some() {}
    turn.outcome().await
}

async fn finish(cancelling: &mut Option<BoxFuture<'static, Result<(), Error>>>) -> Result<(), Error> {
    match cancelling {
        Some(cancelling) => cancelling.await,
        None => std::future::pending().await,
    }
}

async fn finish_errand(errand: &mut Option<Errand>) -> Result<Done, Error> {
    match errand {
        Some(errand) => (&mut errand.work).await,
        None => std::future::pending().await,
    }
}
