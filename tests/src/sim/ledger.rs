//! What the server has sent and done, and what the application knows of it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tokio::time::{Duration, Instant};

/// How long a cancel may take after the responses to the requests of its turn.
const CANCELLING: Duration = Duration::from_secs(10);

/// A stream: of the connection, or of a session.
pub(super) type StreamKey = Option<String>;

/// One event that the server put on a stream. Its index in the ledger is in its text.
#[derive(Debug)]
pub(super) struct Emitted {
    pub(super) stream: StreamKey,
    pub(super) number: u64,
    /// How many restarts without memory came before it.
    pub(super) generation: u32,
    /// The session of an update; `None` for everything else.
    pub(super) session: Option<String>,
    /// The call of `session/load` whose history it is.
    pub(super) history: Option<u64>,
    /// The tag of the turn that it belongs to.
    pub(super) turn: Option<String>,
    pub(super) at: Instant,
    /// When the network had brought it to the client whole.
    pub(super) brought: Option<Instant>,
    /// How often the client delivered it.
    pub(super) delivered: u32,
    /// Whether the client has reported that it is missing.
    pub(super) reported: bool,
}

/// One prompt, by its tag.
#[derive(Debug, Default)]
pub(super) struct TurnRecord {
    /// How often the server took the prompt.
    pub(super) executed: u32,
    /// How many events there were when it took it.
    pub(super) taken: usize,
    /// How many events there were when its response was sent.
    pub(super) responded: Option<usize>,
    pub(super) stop_reason: Option<&'static str>,
    /// Whether the application has cancelled it.
    pub(super) cancelled: bool,
    /// Whether the application knows that it has lost sight of it.
    pub(super) abandoned: bool,
    /// When a restart without memory ended it.
    pub(super) killed: Option<Instant>,
}

/// One agent request, by its tag.
#[derive(Debug, Default)]
pub(super) struct RequestRecord {
    pub(super) backlog: bool,
    /// Whether the client has reported it as replayed.
    pub(super) replayed: bool,
    pub(super) dispatched: u32,
    pub(super) answered: u32,
    /// The tag of the turn that it belongs to.
    pub(super) turn: Option<String>,
    /// The session of the agent, and its directory.
    pub(super) session: String,
    pub(super) directory: Option<String>,
    /// Whether it has a file written; otherwise it asks for permission.
    pub(super) writes: bool,
    /// The programs that have executed it.
    pub(super) executed: Vec<String>,
    /// What the agent took as the response, and from which program.
    pub(super) taken: Option<(String, Value)>,
    pub(super) taken_at: Option<Instant>,
    /// Whether a cancel of its session followed the response, as where a turn is cancelled with its requests.
    pub(super) is_cancelled: bool,
    /// The programs that decided it while they had a call about its session under way: they do not store that first.
    pub(super) decided_early: BTreeSet<String>,
    /// How the agent stopped waiting, if it did so without a response.
    pub(super) given_up: Option<GivenUp>,
    /// The program that owned the session for a long time while the agent waited without a response.
    pub(super) left_by: Option<String>,
}

impl RequestRecord {
    /// The id of the stored session, which names the directory of the agent's session.
    pub(super) fn stored_session(&self) -> Option<String> {
        Some(self.directory.as_deref()?.trim_start_matches('/').to_owned())
    }
}

/// Why an agent does not wait for the response to its request any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GivenUp {
    Cancelled,
    TimedOut,
    Restarted,
}

/// Who owns a stored session.
#[derive(Debug)]
pub(super) struct Owner {
    /// `None` after a release or a disconnect: the requests of its agent wait for the next owner.
    pub(super) program: Option<String>,
    pub(super) since: Instant,
    /// How often the session was acquired.
    pub(super) acquired: u32,
}

/// What a run has brought so far.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) emitted: Vec<Emitted>,
    pub(super) turns: BTreeMap<String, TurnRecord>,
    pub(super) calls: BTreeMap<String, TurnRecord>,
    /// The sessions of which a cancel was refused or lost.
    pub(super) lost_cancels: BTreeSet<String>,
    pub(super) requests: BTreeMap<String, RequestRecord>,
    pub(super) generation: u32,
    /// The directory that each session was created in, by the generation and its id: programs name it by the stored session.
    pub(super) directories: BTreeMap<(u32, String), String>,
    /// The program that owns each stored session.
    pub(super) owners: BTreeMap<String, Owner>,
    /// The calls about stored sessions that programs have under way.
    pub(super) under_way: BTreeMap<(String, String), u32>,
    /// The programs that have ended.
    pub(super) ended_programs: BTreeSet<String>,
    /// For each load, whether its program owned the stored session when the agent loaded it.
    pub(super) loads: Vec<bool>,
    /// The first event that each stream can bring to this client.
    pub(super) floors: BTreeMap<StreamKey, usize>,
    /// Streams of which an event was sent whole.
    pub(super) begun: BTreeSet<StreamKey>,
    /// Up to which event a loss or a repeat is excused: nothing identifies the events, and the client said so or could
    /// not know.
    excused: BTreeMap<StreamKey, usize>,
    /// The restarts of which the client has reported the last.
    known: BTreeMap<StreamKey, u32>,
    /// The last event of each session that was delivered.
    last: BTreeMap<String, usize>,
    /// The sessions that are being loaded: by which call, and whether no gap was reported since.
    pub(super) loading: BTreeMap<String, (u64, bool)>,
    /// History that was delivered as live, by session: wrong if the load succeeds.
    pub(super) live_history: BTreeMap<String, usize>,
    /// How many restarts there were when a stream was last opened.
    pub(super) opened_in: BTreeMap<StreamKey, u32>,
    /// How many restarts there were when a stream last brought an event whole.
    pub(super) brought_in: BTreeMap<StreamKey, u32>,
    /// When a stream was opened that cannot show a restart: the numbers of the new incarnation are ahead.
    pub(super) hidden_at: Option<Instant>,
    /// Calls that failed as never executed.
    pub(super) not_executed: Vec<String>,
    /// Whether the subscriber was too slow, or the connection has ended.
    pub(super) lagged: bool,
    pub(super) ended: bool,
}

impl Ledger {
    /// Everything that is on this stream up to now may be lost or come again.
    pub(super) fn excuse(&mut self, stream: &StreamKey) {
        self.excused.insert(stream.clone(), self.emitted.len());
    }

    fn is_excused(&self, index: usize) -> bool {
        let stream = &self.emitted[index].stream;
        self.excused.get(stream).is_some_and(|end| index < *end)
    }

    /// The client reported a gap.
    pub(super) fn gap(&mut self, stream: &StreamKey, from: u64, to: u64) {
        // A restart cannot be seen where the numbers continue behind a gap: the gap covers what the old incarnation
        // still had to send, and what the new one sent before.
        let (known, current) = (self.known.get(stream).copied().unwrap_or(0), self.generation);
        for event in self.emitted.iter_mut().filter(|event| event.stream == *stream) {
            event.reported |= (from..=to).contains(&event.number)
                || (known < current && (event.generation < current || event.number <= to));
        }
        self.loading.values_mut().for_each(|(_, whole)| *whole = false);
    }

    /// The client reported a restart.
    pub(super) fn restarted(&mut self, stream: &StreamKey) {
        let generation = self.generation;
        for event in self.emitted.iter_mut().filter(|event| event.stream == *stream) {
            event.reported |= event.generation < generation;
        }
        self.known.insert(stream.clone(), generation);
        self.loading.values_mut().for_each(|(_, whole)| *whole = false);
    }

    /// A stream is opened that begins behind the last event that the client knows. If the server restarted since,
    /// nothing shows that.
    pub(super) fn opened_ahead(&mut self, stream: &StreamKey, position: u64) {
        let generation = self.generation;
        if self.known.get(stream).copied().unwrap_or(0) == generation {
            return;
        }
        self.hidden_at = Some(Instant::now());
        for event in self.emitted.iter_mut().filter(|event| event.stream == *stream) {
            event.reported |= event.generation < generation || event.number < position;
        }
    }

    /// Whether the client has seen that the incarnation which took this prompt lived on after it.
    pub(super) fn outlived(&self, turn: &TurnRecord) -> bool {
        let later = &self.emitted[turn.taken..];
        let generation = later.first().map(|event| event.generation);
        later.iter().any(|event| event.brought.is_some() && Some(event.generation) == generation)
    }

    /// Who owns a stored session, since when, and how often the session was acquired, unless the program has ended.
    pub(super) fn owner(&self, session: &str) -> Option<&Owner> {
        let has_ended =
            |owner: &Owner| owner.program.as_ref().is_some_and(|p| self.ended_programs.contains(p));
        self.owners.get(session).filter(|owner| !has_ended(owner))
    }

    /// A program owns a stored session from now on, or none does.
    pub(super) fn own(&mut self, session: &str, program: Option<&str>) {
        let acquired = self.owners.get(session).map_or(0, |owner| owner.acquired) + 1;
        let owner = Owner { program: program.map(str::to_owned), since: Instant::now(), acquired };
        self.owners.insert(session.to_owned(), owner);
    }

    /// The agent got a cancel of a session: the responses before it belong to the cancel.
    pub(super) fn cancel_requests(&mut self, session: &str) {
        let requests = self.requests.values_mut().filter(|request| request.session == session);
        for request in requests {
            request.is_cancelled |= request.taken_at.is_some_and(|taken| taken.elapsed() <= CANCELLING);
        }
    }

    /// A program serves none of its stored sessions until it acquires them again.
    pub(super) fn disconnected(&mut self, program: &str) {
        self.owners
            .values_mut()
            .filter(|owner| owner.program.as_deref() == Some(program))
            .for_each(|owner| owner.program = None);
    }

    /// The client lost a stream for good, and said so.
    pub(super) fn stream_lost(&mut self, stream: &StreamKey) {
        for event in self.emitted.iter_mut().filter(|event| event.stream == *stream) {
            event.reported = true;
        }
    }

    /// The client delivered an update.
    pub(super) fn deliver(&mut self, index: usize) -> Result<(), String> {
        let excused = self.is_excused(index);
        let Some(event) = self.emitted.get_mut(index) else {
            return Err(format!("u{index} was delivered and never sent"));
        };
        event.delivered += 1;
        if event.delivered > 1 && !excused {
            return Err(format!("u{index} was delivered {} times", event.delivered));
        }
        let late = excused || event.reported;
        let session = event.session.clone().unwrap_or_default();
        let last = self.last.entry(session.clone()).or_insert(index);
        if index < *last && !late {
            return Err(format!("u{index} of {session} was delivered behind u{last}"));
        }
        *last = index.max(*last);
        Ok(())
    }

    /// An update of the session before `end` that was not delivered and whose loss was not reported.
    pub(super) fn missing(&self, session: Option<&str>, end: usize) -> Option<usize> {
        if self.lagged || self.ended {
            return None;
        }
        self.emitted[..end].iter().enumerate().position(|(index, event)| {
            event.session.is_some()
                && (session.is_none() || event.session.as_deref() == session)
                && event.delivered == 0
                && !event.reported
                && self.floors.get(&event.stream).is_some_and(|floor| index >= *floor)
                && !self.is_excused(index)
        })
    }
}
