//! What a seed stands for where programs share sessions.

use sandbox_agent_sdk::sessions::Durability;

use crate::sim::{
    plan::{Asking, Faults, Memory, Model, Plan},
    random::Random,
};

/// What happens in a run, besides prompts, kills, restarts and failures of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Extent {
    /// Agents ask for permission at most, which each program grants at once. The network only takes time.
    Text,
    /// Agents have files written, too. Programs decide permissions slowly, several acquire a session in one moment,
    /// and loads take time.
    Requests,
    /// The same, and programs disconnect during turns and connect again.
    Disconnects,
    /// The same as `Requests`, and streams break and messages are lost.
    Network,
}

/// How often a call of the store fails in one way, in a thousand.
#[derive(Debug, Clone, Default)]
pub(super) struct StoreFaults {
    /// It is refused, and nothing is stored.
    pub(super) refuse: u64,
    /// It is stored, and the response is lost.
    pub(super) lose: u64,
    /// It takes seconds.
    pub(super) slow: u64,
    /// It never ends.
    pub(super) stall: u64,
}

/// Everything that is decided before a run begins, besides the plan of the network.
#[derive(Debug, Clone)]
pub(super) struct Sharing {
    pub(super) programs: u64,
    pub(super) sessions: u64,
    /// How many things each program does.
    pub(super) actions: u64,
    /// How many programs are killed.
    pub(super) kills: u64,
    /// How often a program disconnects before it does something, in a thousand.
    pub(super) disconnects: u64,
    pub(super) store: StoreFaults,
    pub(super) durability: Durability,
    /// The moments, in milliseconds, at which every program acquires the session with this number.
    pub(super) meetings: Vec<(u64, u64)>,
}

impl Sharing {
    /// Whether no call of the store fails or takes long.
    pub(super) fn is_store_calm(&self) -> bool {
        let StoreFaults { refuse, lose, slow, stall } = &self.store;
        refuse + lose + slow + stall == 0
    }

    /// Whether the server has everything that happens, so that nothing can be lost.
    pub(super) fn is_whole(&self, plan: &Plan) -> bool {
        plan.calm && plan.restarts == 0 && self.is_store_calm()
    }

    pub(super) fn new(seed: u64, extent: Extent) -> (Plan, Self) {
        let mut plan = Plan::new(seed, Some(Model::Rpc));
        let mut random = Random::labelled(seed, "sharing");
        let (loads, resumes) = (random.per_mille(500), random.per_mille(300));
        // An agent that forgets its sessions gives their ids out again. If it could resume them, nothing would tell a
        // session from another program's new one.
        let remembers = loads || resumes || random.per_mille(500);
        plan.memory = Some(Memory { loads, resumes, remembers });
        if !plan.calm {
            plan.restarts = random.pick(&[0, 0, 1, 2, 4]);
        }
        if extent != Extent::Network {
            plan.faults = Faults::default();
            // A stream that takes long to bring its backlog is a fault, too: responses are not in order then.
            plan.latency = plan.latency.min(3);
        }
        if extent == Extent::Network {
            // A backlog of hundreds of events, each of which is late, takes longer than a reader waits.
            plan.latency = plan.latency.min(20);
        }
        // A subscriber that is too slow is another matter.
        plan.subscriber = 64 << 20;
        let store_is_calm = plan.calm || random.per_mille(400);
        let mut rate = |often: &[u64]| {
            if !store_is_calm && random.per_mille(500) { random.pick(often) } else { 0 }
        };
        let store = StoreFaults {
            refuse: rate(&[10, 50, 200]),
            lose: rate(&[10, 50, 200]),
            slow: rate(&[20, 100]),
            stall: rate(&[2, 10]),
        };
        let durability =
            if random.per_mille(400) { Durability::BeforeDelivery } else { Durability::Background };
        let sharing = Self {
            programs: random.between(1, 3),
            sessions: random.between(1, 3),
            actions: random.between(2, 10),
            kills: random.pick(&[0, 1, 1, 2, 4]),
            store,
            durability,
            meetings: Vec::new(),
            disconnects: if extent == Extent::Disconnects { 400 } else { 0 },
        };
        if extent == Extent::Text { (plan, sharing) } else { sharing.serving(seed, plan) }
    }

    /// The same with requests that programs serve.
    fn serving(mut self, seed: u64, mut plan: Plan) -> (Plan, Self) {
        let mut random = Random::labelled(seed, "serving");
        plan.asking = Some(Asking {
            permissions: random.pick(&[0, 60, 150, 300]),
            writes: random.pick(&[0, 100, 200, 500]),
            load: random.pick(&[0, 0, 20, 400, 3_000]),
        });
        for _ in 0..random.pick(&[0, 0, 1, 2, 4]) {
            self.meetings.push((random.below(60_000), random.below(self.sessions)));
        }
        self.meetings.sort_unstable();
        (plan, self)
    }
}
