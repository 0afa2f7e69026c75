//! One program: a client with stored sessions, and what it does with them.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use acp_http_client::{HttpSendError, HttpSender, ReconnectPolicy};
use futures::future::BoxFuture;
use reqwest::{Request, Response};
use sandbox_agent_sdk::{
    DropPolicy, Error, NewSession, PermissionPolicy, SandboxAgentClient, ServerKind, Turn,
    sessions::{Durability, EventQuery, MemoryStore, SessionStore, StoreOptions, StoredClient},
};
use tokio::time::Duration;

use super::{plan::Sharing, requests, store::ProgramStore};
use crate::sim::{
    network::{Network, PROGRAM},
    random::Random,
    server::Server,
    world::World,
};

/// No call takes longer than this, whatever happens.
const BOUND: Duration = Duration::from_secs(3_600);
/// How long a store that fails is tried again.
const RETRY_FOR: Duration = Duration::from_secs(10);

/// Whether a program runs.
#[derive(Debug, Clone)]
pub(super) struct Life {
    pub(super) name: Arc<str>,
    is_over: Arc<AtomicBool>,
}

impl Life {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.into(), is_over: Arc::default() }
    }

    /// The program does nothing any more, and hears of nothing.
    pub(super) fn end(&self, world: &World) {
        self.is_over.store(true, Ordering::Relaxed);
        world.ledger().ended_programs.insert(self.name.to_string());
    }

    pub(super) async fn wait_if_over(&self) {
        if self.is_over.load(Ordering::Relaxed) {
            std::future::pending().await
        }
    }
}

/// The network as one program sees it.
#[derive(Debug)]
struct Line {
    network: Network,
    life: Life,
}

impl HttpSender for Line {
    fn send(&self, mut request: Request) -> BoxFuture<'static, Result<Response, HttpSendError>> {
        if let Ok(name) = self.life.name.parse() {
            request.headers_mut().insert(PROGRAM, name);
        }
        let (sent, life) = (self.network.send(request), self.life.clone());
        Box::pin(async move {
            life.wait_if_over().await;
            let response = sent.await;
            life.wait_if_over().await;
            response
        })
    }
}

/// What the programs share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) world: Arc<World>,
    pub(super) server: Arc<Server>,
    pub(super) store: Arc<MemoryStore>,
    pub(super) sharing: Sharing,
    pub(super) turns: AtomicU64,
    pub(super) calls: AtomicU64,
}

/// One program.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) shared: Arc<Shared>,
    pub(super) client: StoredClient,
    pub(super) life: Life,
}

impl Program {
    pub(super) fn start(shared: &Arc<Shared>, name: &str) -> Self {
        let life = Life::new(name);
        shared.world.note(|| format!("{name}: starts"));
        let line = Line { network: Network::new(shared.server.clone()), life: life.clone() };
        let mut reconnect = ReconnectPolicy::default().max_attempts(100).cap(Duration::from_secs(5));
        // Delays are the same in each run of a seed.
        reconnect.jitter = 0.0;
        let mut random = shared.world.random(&format!("program {name}"));
        let policy = if random.per_mille(500) { DropPolicy::Cancel } else { DropPolicy::Detach };
        let options = SandboxAgentClient::builder("http://model")
            .agent("model")
            .server(ServerKind::Shared)
            .http_sender(line)
            .reconnect(reconnect)
            .on_turn_drop(policy);
        let serves = shared.world.plan.asking.is_some();
        let options = match serves {
            true => options.permission_handler(requests::decide(shared, &life)),
            false => options.permissions(PermissionPolicy::BypassPermissions),
        };
        let client = options.build().expect("the settings are valid");
        if serves {
            requests::serve(shared, &life, &client);
        }
        let store = ProgramStore {
            world: shared.world.clone(),
            shared: shared.store.clone(),
            faults: shared.sharing.store.clone(),
            life: life.clone(),
        };
        let options = StoreOptions::new().retry_for(RETRY_FOR).durability(shared.sharing.durability);
        let client = client.with_store_options(Arc::new(store), options);
        Self { shared: shared.clone(), client, life }
    }

    /// Does one thing after the other, and acquires sessions in the same moment as other programs.
    pub(super) async fn run(self: Arc<Self>) {
        tokio::join!(self.act_on(), self.meet());
        self.note("is done");
        self.shared.world.ledger().ended_programs.insert(self.life.name.to_string());
    }

    /// Acquires sessions at moments that all programs have in common.
    async fn meet(&self) {
        let mut random = self.shared.world.random(&format!("meetings {}", self.life.name));
        for (at, number) in &self.shared.sharing.meetings {
            let at = Duration::from_millis(*at);
            let Some(left) = at.checked_sub(self.shared.world.now()) else { continue };
            tokio::time::sleep(left).await;
            let id = format!("m{number}");
            if random.per_mille(500) {
                self.prompt(&mut random, &id, "").await;
            } else {
                let resumed = self.calling(&id, "resume", self.client.session(&id).resume()).await;
                self.note(&format!("resumed {id} with the others: {resumed:?}"));
            }
        }
    }

    async fn act_on(&self) {
        let mut random = self.shared.world.random(&format!("actions {}", self.life.name));
        let mut disconnecting = self.shared.world.random(&format!("disconnects {}", self.life.name));
        for _ in 0..self.shared.sharing.actions {
            let pause = random.pick(&[0, 0, 5, 300, 2_000, 20_000]);
            tokio::time::sleep(random.millis(pause)).await;
            let id = format!("m{}", random.below(self.shared.sharing.sessions));
            if disconnecting.per_mille(self.shared.sharing.disconnects) {
                self.reconnect(&mut disconnecting).await;
            }
            self.act(&mut random, &id).await;
        }
    }

    /// Disconnects, also during turns, and connects again. Until then it serves no session.
    async fn reconnect(&self, random: &mut Random) {
        let disconnected = self.bounded("disconnect", self.client.disconnect()).await;
        self.note(&format!("disconnected: {disconnected:?}"));
        self.shared.world.ledger().disconnected(&self.life.name);
        tokio::time::sleep(random.millis(5_000)).await;
        let connected = self.bounded("connect", self.client.client().connect()).await;
        self.note(&format!("connected: {:?}", connected.map(drop)));
    }

    async fn act(&self, random: &mut Random, id: &str) {
        let session = self.client.session(id);
        match random.below(10) {
            0 => {
                let released = self.calling(id, "release", session.release()).await;
                self.note(&format!("released {id}: {:?}", released.map(drop).err()));
            }
            1 => {
                let resumed = self.calling(id, "resume", session.resume()).await;
                self.note(&format!("resumed {id}: {resumed:?}"));
            }
            2 => {
                let cancelled = self.calling(id, "cancel", session.cancel()).await;
                self.note(&format!("cancelled {id}: {cancelled:?}"));
            }
            3 => {
                let flushed = self.bounded("flush", self.client.flush()).await;
                self.note(&format!("flushed: {flushed:?}"));
            }
            _ => {
                let suffix = if random.per_mille(400) { "L" } else { "" };
                self.prompt(random, id, suffix).await;
            }
        }
    }

    /// Prompts a session, and reads the turn to its end or leaves it.
    async fn prompt(&self, random: &mut Random, id: &str, suffix: &str) {
        let number = self.shared.turns.fetch_add(1, Ordering::Relaxed);
        let tag = format!("p{number:04}{suffix}");
        self.note(&format!("prompts {id} with {tag}"));
        let directory = NewSession::in_dir(format!("/{id}"));
        let session = match self.calling(id, "open", self.client.resume_or_create(id, directory)).await {
            Ok(session) => session,
            Err(error) => return self.note(&format!("cannot open {id}: {error}")),
        };
        let mut turn = match self.calling(id, "prompt", session.prompt(tag.clone())).await {
            Ok(turn) => turn,
            Err(error) => return self.note(&format!("cannot prompt {id} with {tag}: {error}")),
        };
        let leaves = random.per_mille(250).then(|| random.millis(5_000));
        let reading = self.read(id, &tag, &mut turn);
        match leaves {
            None => reading.await,
            Some(after) => {
                let _ = tokio::time::timeout(after, reading).await;
                if random.per_mille(400) {
                    let released = self.calling(id, "release", session.release()).await;
                    self.note(&format!("released {id}: {:?}", released.map(drop).err()));
                }
                self.note(&format!("leaves {tag}"));
            }
        }
    }

    /// Reads a turn to its end.
    pub(super) async fn read(&self, id: &str, tag: &str, turn: &mut Turn) {
        while let Ok(Some(update)) = self.bounded("next", async { Ok(turn.next().await) }).await {
            let text = update.to_string();
            self.note(&format!("{tag} says {text:.12}"));
            // No program stores what an agent replays for another program that loads the session meanwhile.
            let is_new = text.starts_with('u') && !text.contains(" h");
            if self.shared.sharing.durability == Durability::BeforeDelivery && is_new {
                self.check_stored(id, &text).await;
            }
        }
        let outcome = self.bounded("outcome", turn.outcome()).await;
        self.note(&format!("{tag} ended: {:?}", outcome.map(|outcome| outcome.stop_reason)));
    }

    /// What the application got is in the store.
    async fn check_stored(&self, id: &str, text: &str) {
        let query = EventQuery::of(id).newest_first().limit(1000);
        let stored = self.shared.store.events(&query).await.expect("the store is in memory");
        let is_it = |event: &sandbox_agent_sdk::sessions::StoredEvent| {
            event.update().is_some_and(|update| update.to_string() == *text)
        };
        if !stored.events.iter().any(is_it) {
            self.shared.world.fail(format!("{id}: {text:.12} was delivered and is not stored"));
        }
    }

    /// Waits for a call about a session, which has an end.
    pub(super) async fn calling<T>(
        &self,
        id: &str,
        what: &str,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let key = (self.life.name.to_string(), id.to_owned());
        *self.shared.world.ledger().under_way.entry(key.clone()).or_default() += 1;
        let result = self.bounded(what, call).await;
        *self.shared.world.ledger().under_way.entry(key).or_default() -= 1;
        result
    }

    /// Waits for a call, which has an end.
    pub(super) async fn bounded<T>(
        &self,
        what: &str,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        self.shared.calls.fetch_add(1, Ordering::Relaxed);
        match tokio::time::timeout(BOUND, call).await {
            Ok(result) => result,
            Err(_) => {
                self.shared.world.fail(format!("{}: {what} has no end", self.life.name));
                Err(Error::NotConnected)
            }
        }
    }

    pub(super) fn note(&self, what: &str) {
        self.shared.world.note(|| format!("{}: {what}", self.life.name));
    }
}
