//! The chat in a terminal.

mod draw;
mod keys;
mod news;

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use crossterm::event::{Event as Input, EventStream};
use futures::StreamExt;
use futures::future::BoxFuture;
use sandbox_agent_sdk::{Error, Event, Events, Turn, TurnOutcome};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::args::Args;
use super::ask::Asks;
use super::editor::Editor;
use super::exit::Exit;
use super::host::Host;
use super::line::{Line, Paint};
use super::screen::Screen;
use super::signals::Signals;
use super::talk::{Done, Talk, Task};
use super::view::View;

/// How often the spinner turns.
const TICK: Duration = Duration::from_millis(120);

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
    task: Option<Task>,
    /// Lines to send when the agent has finished its turn.
    queue: VecDeque<String>,
    /// The line to send when the agent has been restarted, or after a login.
    resend: Option<String>,
    /// Whether the next Ctrl-C ends the chat.
    armed: bool,
    /// A temporary notice for the user.
    notice: Option<Line>,
    /// When the agent last sent something, or when the turn or the task began.
    last_update: Instant,
    ticks: usize,
    leave: Option<Exit>,
}

/// An event of the main loop.
enum Happened {
    Input(Option<io::Result<Input>>),
    Event(Option<Event>),
    TurnOver(Result<TurnOutcome, Error>),
    Cancelled(Result<(), Error>),
    TaskEnded(Result<Done, Error>),
    Tick,
    Signal(Exit),
}

impl Console {
    /// Runs the chat to its end.
    pub(super) async fn run(args: &Args, host: &Host, paint: Paint) -> io::Result<Exit> {
        let mut signals = Signals::listen()?;
        let talk = Talk::new(host);
        let task = match &args.resume {
            Some(id) => talk.resume(id.clone(), None),
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
            task: Some(task),
            queue: VecDeque::new(),
            resend: None,
            armed: false,
            notice: None,
            last_update: Instant::now(),
            ticks: 0,
            leave: None,
        };
        let exit = console.talk_on(&mut signals).await;
        let talk = console.talk;
        // The terminal is restored before the client disconnects, which may take a moment.
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
                Happened::TaskEnded(outcome) => self.task_ended(outcome),
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
        let busy = self.is_busy() || !self.asks.is_empty();
        tokio::select! {
            input = input.next() => Happened::Input(input),
            event = next_event(&mut self.events) => Happened::Event(event),
            outcome = end_of(&mut self.turn) => Happened::TurnOver(outcome),
            outcome = finish(&mut self.cancelling) => Happened::Cancelled(outcome),
            outcome = finish_task(&mut self.task) => Happened::TaskEnded(outcome),
            exit = signals.next() => Happened::Signal(exit),
            _ = ticker.tick(), if busy => Happened::Tick,
        }
    }

    fn is_busy(&self) -> bool {
        self.turn.is_some() || self.task.is_some()
    }
}

async fn next_event(events: &mut Option<Events>) -> Option<Event> {
    match events {
        Some(events) => events.next().await,
        None => std::future::pending().await,
    }
}

/// Waits for the end of the turn. Its updates also arrive as events, in order with other events.
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

async fn finish_task(task: &mut Option<Task>) -> Result<Done, Error> {
    match task {
        Some(task) => (&mut task.work).await,
        None => std::future::pending().await,
    }
}
