//! What a seed stands for where programs share sessions.

use sandbox_agent_sdk::sessions::Durability;

use crate::sim::{
    plan::{Faults, Memory, Model, Plan},
    random::Random,
};

/// Whether the network fails, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NetworkFaults {
    /// It only takes time. Programs, servers and the store fail.
    None,
    /// Streams break and messages are lost.
    All,
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
    pub(super) store: StoreFaults,
    pub(super) durability: Durability,
}

impl Sharing {
    /// Whether the server has everything that happens, so that nothing can be lost.
    pub(super) fn is_whole(&self, plan: &Plan) -> bool {
        let StoreFaults { refuse, lose, slow, stall } = &self.store;
        plan.calm && plan.restarts == 0 && refuse + lose + slow + stall == 0
    }

    pub(super) fn new(seed: u64, network: NetworkFaults) -> (Plan, Self) {
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
        if network == NetworkFaults::None {
            plan.faults = Faults::default();
            // A stream that takes long to bring its backlog is a fault, too: responses are not in order then.
            plan.latency = plan.latency.min(3);
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
        };
        (plan, sharing)
    }
}
