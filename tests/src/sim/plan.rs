//! What a seed stands for.

use acp_http_client::{Barrier, Dialect};

use super::random::Random;

/// A kind of server that the model knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Model {
    /// [`Dialect::RPC`].
    Rpc,
    /// [`Dialect::RELEASED`].
    Released,
    /// [`Dialect::EARLY`].
    Early,
    /// [`Dialect::OFFICIAL`].
    Official,
    /// [`Dialect::AUTO`], with event ids of any kind.
    Auto,
}

impl Model {
    /// Every kind.
    pub const ALL: [Self; 5] = [Self::Rpc, Self::Released, Self::Early, Self::Official, Self::Auto];

    /// The name of the dialect.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rpc => "rpc",
            Self::Released => "released",
            Self::Early => "early",
            Self::Official => "official",
            Self::Auto => "auto",
        }
    }

    pub(super) fn dialect(self) -> Dialect {
        match self {
            Self::Rpc => Dialect::RPC,
            Self::Released => Dialect::RELEASED,
            Self::Early => Dialect::EARLY,
            Self::Official => Dialect::OFFICIAL,
            Self::Auto => Dialect::AUTO,
        }
    }
}

/// What ids the events have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventIds {
    Sequence,
    Zero,
    Constant,
    TimeStamps,
    Descending,
    Absent,
}

/// What a server with opaque ids replays after an id that it does not find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unknown {
    Everything,
    Nothing,
}

/// How often each fault happens, in a thousand.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults {
    /// The stream is cut within or behind an event.
    pub(super) cut: u64,
    /// The stream falls silent without an end.
    pub(super) stall: u64,
    /// An event takes seconds.
    pub(super) slow_event: u64,
    /// Opening the stream fails, hangs, or takes seconds.
    pub(super) open: u64,
    /// A reopened stream begins with events that were sent before.
    pub(super) repeat: u64,
    /// Two neighbours on the stream swap places.
    pub(super) swap: u64,
    /// A POST gets no response: it never arrives, or its response is lost.
    pub(super) post: u64,
    /// The body of a response is cut.
    pub(super) body: u64,
    /// A POST is refused with a status.
    pub(super) status: u64,
    /// A POST hangs, although the server has handled it.
    pub(super) hang: u64,
    /// A message takes seconds to arrive.
    pub(super) slow_post: u64,
    /// A request is accepted with 202; its response comes on the stream, if the server echoes.
    pub(super) accept: u64,
    /// The server swallows the response of a call that has a time limit.
    pub(super) swallow: u64,
}

/// What an agent does with sessions that it had before it, or its server, restarted.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Memory {
    pub(super) loads: bool,
    pub(super) resumes: bool,
    /// Whether it stores its sessions, so that they outlive a restart.
    pub(super) remembers: bool,
}

/// What agents ask for, and how long a load takes, where programs serve every request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asking {
    /// How often an agent asks for permission behind an update, in a thousand.
    pub(super) permissions: u64,
    /// How often it has files written.
    pub(super) writes: u64,
    /// The most that a step of a load takes, in milliseconds.
    pub(super) load: u64,
}

/// Everything that is decided before a run begins.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) model: Model,
    pub(super) ids: EventIds,
    pub(super) unknown: Unknown,
    /// Whether responses are echoed on the stream.
    pub(super) echo: bool,
    pub(super) sessions: u64,
    pub(super) turns: u64,
    /// How many events the replay buffer holds.
    pub(super) buffer: usize,
    pub(super) faults: Faults,
    /// Whether any fault happens at all; otherwise there are delays and races alone.
    pub(super) calm: bool,
    /// How often the server restarts.
    pub(super) restarts: u64,
    /// How often other clients fill the buffer.
    pub(super) bursts: u64,
    /// How many events are in the buffer before the client connects, where it is shared.
    pub(super) backlog: u64,
    /// The most that an event, a message or a body is late without a fault, in milliseconds.
    pub(super) latency: u64,
    /// How many bytes may wait for the subscriber.
    pub(super) subscriber: usize,
    /// What the agent does with sessions that it had before, where several programs share sessions.
    pub(super) memory: Option<Memory>,
    /// What agents ask for, where programs serve every request.
    pub(super) asking: Option<Asking>,
}

impl Plan {
    pub(super) fn new(seed: u64, only: Option<Model>) -> Self {
        let mut random = Random::labelled(seed, "plan");
        let drawn = random.pick(&[
            Model::Rpc,
            Model::Rpc,
            Model::Rpc,
            Model::Released,
            Model::Early,
            Model::Official,
            Model::Official,
            Model::Auto,
            Model::Auto,
        ]);
        let model = only.unwrap_or(drawn);
        let kinds = [
            EventIds::Sequence,
            EventIds::Zero,
            EventIds::Constant,
            EventIds::TimeStamps,
            EventIds::Descending,
            EventIds::Absent,
        ];
        let (kind, auto_echo) = (random.pick(&kinds), random.per_mille(500));
        let (ids, echo) = match model {
            Model::Rpc | Model::Released => (EventIds::Sequence, true),
            Model::Early => (EventIds::Sequence, false),
            Model::Official => (EventIds::Absent, false),
            Model::Auto => (kind, auto_echo),
        };
        let calm = random.per_mille(250);
        let shared = matches!(model, Model::Rpc | Model::Released | Model::Auto);
        let mut faults = if calm { Faults::default() } else { faults(&mut random) };
        if matches!(ids, EventIds::Zero | EventIds::Constant | EventIds::Absent) {
            // Each opening replays everything; one that is always cut before its end makes no progress.
            faults.cut = faults.cut.min(2);
        }
        Self {
            seed,
            model,
            ids,
            unknown: random.pick(&[Unknown::Everything, Unknown::Nothing]),
            echo,
            sessions: random.between(1, 3),
            turns: random.between(2, 8),
            buffer: if calm { 1024 } else { random.pick(&[6, 16, 64, 1024, 1024]) },
            faults,
            restarts: if calm { 0 } else { random.pick(&[0, 0, 0, 1, 2]) },
            bursts: if shared && !calm { random.pick(&[0, 0, 1, 3]) } else { 0 },
            backlog: if shared { random.pick(&[0, 1, 5, 30]) } else { 0 },
            latency: random.pick(&[0, 3, 20, 200, 600]),
            subscriber: if !calm && random.per_mille(60) { 2000 } else { 64 << 20 },
            calm,
            memory: None,
            asking: None,
        }
    }

    /// Whether the client can see where the backlog ends: by an echo that comes before it stops waiting for one.
    pub(super) fn shows_backlog(&self) -> bool {
        match self.model.dialect().barrier {
            Barrier::Echo => self.faults.stall == 0,
            // An unknown server has a moment to show that it echoes responses.
            Barrier::Learn => self.echo && self.calm && self.latency <= 3,
            _ => false,
        }
    }

    /// Whether a cancel that is not refused ends its turn: the stream stays open, and messages arrive in time.
    pub(super) fn delivers_cancels(&self) -> bool {
        let Faults { cut, stall, open, post, hang, slow_post, .. } = self.faults;
        self.restarts == 0 && cut + stall + open + post + hang + slow_post == 0
    }

    /// Whether event ids are numbers by which a loss can be seen.
    pub(super) fn is_numbered(&self) -> bool {
        !matches!(self.model, Model::Auto | Model::Official)
    }
}

fn faults(random: &mut Random) -> Faults {
    let mut rate = |often: &[u64]| if random.per_mille(400) { random.pick(often) } else { 0 };
    Faults {
        cut: rate(&[10, 40, 150, 300]),
        stall: rate(&[5, 20]),
        slow_event: rate(&[10, 50]),
        open: rate(&[50, 200, 500]),
        repeat: rate(&[200, 700]),
        swap: rate(&[50, 200]),
        post: rate(&[20, 100, 250]),
        body: rate(&[20, 100, 250]),
        status: rate(&[20, 100, 250]),
        hang: rate(&[20, 100]),
        slow_post: rate(&[20, 100]),
        accept: rate(&[20, 200]),
        swallow: rate(&[20, 100]),
    }
}
