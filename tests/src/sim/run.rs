//! One run, from its seed to its report.

use std::sync::{Arc, atomic::AtomicU64, atomic::Ordering};

use acp_http_client::{AcpHttpClient, Barrier, Limits, Order, ReconnectPolicy, Timeouts};
use tokio::{task::JoinSet, time::Duration};

use super::{
    application::Application,
    network::Network,
    observer::Observer,
    plan::{Model, Plan},
    server::Server,
    world::World,
};

/// How long everything has to settle once faults are over: hung connections break, pauses between attempts pass.
const SETTLE: Duration = Duration::from_secs(300);

/// How long an unconfirmed request waits in all where ids identify nothing; less than the bound of a call.
const CONFIRMATION_LIMIT: Duration = Duration::from_secs(600);

/// What a run brought.
#[derive(Debug)]
#[non_exhaustive]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// The kind of server.
    pub model: Model,
    /// How many prompts the application made.
    pub turns: u64,
    /// How many calls it made in all.
    pub calls: u64,
    /// The invariants that did not hold, the first one first.
    pub violations: Vec<String>,
    /// What happened, line by line, if that was asked for.
    pub trace: Vec<String>,
}

/// Runs one seed, with every kind of server or with one.
///
/// # Panics
/// When no runtime can be made.
pub fn run(seed: u64, model: Option<Model>, traced: bool) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O needs nothing");
    runtime.block_on(simulate(Plan::new(seed, model), traced))
}

async fn simulate(plan: Plan, traced: bool) -> Report {
    let world = Arc::new(World::new(plan, traced));
    world.note(|| format!("{:?}", world.plan));
    let server = Server::new(world.clone());
    server.fill_backlog();
    let mut tasks = JoinSet::new();
    let application = connect(&world, &server, &mut tasks);
    let model = world.plan.model;
    if handshake(&application).await {
        let mut sessions = JoinSet::new();
        for number in 0..world.plan.sessions {
            sessions.spawn(application.clone().use_sessions(number));
        }
        let chaos = tasks.spawn(chaos(world.clone(), server.clone()));
        while let Some(outcome) = sessions.join_next().await {
            outcome.expect("the application does not panic");
        }
        chaos.abort();
        settle(&application, &server).await;
    }
    finish(&application).await;
    Report {
        seed: world.plan.seed,
        model,
        turns: application.turns.load(Ordering::Relaxed),
        calls: application.calls.load(Ordering::Relaxed),
        violations: world.violations(),
        trace: world.take_trace(),
    }
}

fn connect(world: &Arc<World>, server: &Arc<Server>, tasks: &mut JoinSet<()>) -> Arc<Application> {
    let mut reconnect = ReconnectPolicy::default().max_attempts(100).cap(Duration::from_secs(5));
    // Delays are the same in each run of a seed.
    reconnect.jitter = 0.0;
    let mut limits = Limits::default();
    limits.subscriber = world.plan.subscriber;
    let mut timeouts = Timeouts::default();
    timeouts.confirmation_limit = Some(CONFIRMATION_LIMIT);
    let mut builder = AcpHttpClient::builder("http://model")
        .dialect(world.plan.model.dialect())
        .http_sender(Network::new(server.clone()))
        .reconnect(reconnect)
        .limits(limits)
        .timeouts(timeouts)
        .all_agent_requests(true)
        .probe("_ping", serde_json::json!({}));
    if world.plan.model == Model::Released {
        builder = builder.bootstrap_query("agent", "model");
    }
    let (builder, requests) = builder.agent_requests();
    let client = builder.build().expect("the settings are valid");
    tasks.spawn(Application::answer(world.clone(), requests));
    let observer = Observer::new(world.clone(), client.events());
    tasks.spawn(observer.clone().run());
    Arc::new(Application {
        world: world.clone(),
        client,
        observer,
        turns: AtomicU64::new(0),
        calls: AtomicU64::new(0),
    })
}

/// Initializes, and again until that succeeds.
async fn handshake(application: &Application) -> bool {
    for _ in 0..20 {
        let request = application.client.initialize(AcpHttpClient::initialize_request());
        match application.bounded("initialize", async { request.await }).await {
            Some(Ok(_)) => return true,
            Some(Err(error)) => application.world.note(|| format!("application: initialize failed: {error}")),
            None => return false,
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    false
}

/// Restarts and bursts at random moments.
pub(super) async fn chaos(world: Arc<World>, server: Arc<Server>) {
    let mut random = world.random("chaos");
    let mut left = (world.plan.restarts, world.plan.bursts);
    while left != (0, 0) {
        tokio::time::sleep(random.millis(30_000)).await;
        if left.0 > 0 && random.per_mille(500) {
            left.0 -= 1;
            server.stop(random.per_mille(400));
            tokio::time::sleep(random.millis(random.clone().pick(&[0, 500, 5_000]))).await;
            server.start();
        } else if left.1 > 0 {
            left.1 -= 1;
            let count = random.between(1, 3 * world.plan.buffer.min(100) as u64);
            server.burst(count);
        }
    }
}

/// Ends the faults and checks what has to hold when everything is quiet.
async fn settle(application: &Application, server: &Server) {
    let world = &application.world;
    world.end_faults();
    if !server.is_up() {
        server.start();
    }
    tokio::time::sleep(SETTLE).await;
    world.note(|| "faults are over".to_owned());
    application.observer.drain();
    // The first call may be the one that shows a restart.
    for last in [false, true] {
        if application.client.state().is_terminated() {
            break;
        }
        let ping = application.client.request_raw("_ping", &serde_json::json!({})).ordered(true);
        match application.bounded("_ping", ping.with_order()).await {
            Some(Ok((_, order))) => {
                let echoes = world.plan.model.dialect().barrier == Barrier::Echo;
                if last && echoes && order == Order::Unverified && !application.client.state().is_terminated()
                {
                    world.fail("a call after everything settled is unverified");
                }
            }
            Some(Err(error)) if last && !application.client.state().is_terminated() => {
                world.fail(format!("a call after everything settled failed: {error}"));
            }
            _ => {}
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
        application.observer.drain();
    }
    check_ledger(application);
    let diagnostics = application.client.diagnostics();
    if !diagnostics.pending.is_empty() {
        world.fail(format!("requests are pending at the end: {:?}", diagnostics.pending));
    }
    if let Some(stream) = diagnostics.streams.iter().find(|stream| stream.deferred + stream.waiting > 0) {
        world.fail(format!("responses are awaited at the end: {stream:?}"));
    }
    if diagnostics.outboxes > 0 {
        world.fail(format!("{} outboxes are not empty at the end", diagnostics.outboxes));
    }
    if !diagnostics.open_agent_requests.is_empty() {
        world.fail(format!("agent requests are open at the end: {:?}", diagnostics.open_agent_requests));
    }
}

fn check_ledger(application: &Application) {
    let world = &application.world;
    let ledger = world.ledger();
    let missing = ledger.missing(None, ledger.emitted.len());
    let twice = ledger.turns.iter().chain(&ledger.calls).find(|(_, record)| record.executed > 1);
    let twice = twice.map(|(tag, record)| format!("{tag} was executed {} times", record.executed));
    let unexpected = ledger.not_executed.iter().find(|tag| {
        let record = ledger.turns.get(*tag).or_else(|| ledger.calls.get(*tag));
        record.is_some_and(|record| record.executed > 0)
    });
    let unexpected = unexpected.map(|tag| format!("{tag} was executed although its error denies it"));
    let uncancelled = ledger.turns.iter().find(|(tag, record)| {
        let delivered = tag.split('.').next().is_some_and(|session| !ledger.lost_cancels.contains(session));
        world.plan.delivers_cancels()
            && delivered
            && tag.ends_with('L')
            && record.cancelled
            && record.stop_reason == Some("end_turn")
    });
    let uncancelled = uncancelled.map(|(tag, _)| format!("{tag} was cancelled and ran to its end"));
    let lost = missing.map(|index| format!("u{index} was neither delivered nor reported as missing"));
    let violations: Vec<String> = [lost, twice, unexpected, uncancelled].into_iter().flatten().collect();
    drop(ledger);
    for violation in violations {
        world.fail(violation);
    }
}

/// Closes the connection. Nothing of it stays.
async fn finish(application: &Application) {
    application.bounded("close", application.client.close()).await;
    let diagnostics = application.client.diagnostics();
    if diagnostics.tasks > 0 || !diagnostics.pending.is_empty() {
        application.world.fail(format!("{} tasks run after the close", diagnostics.tasks));
    }
}
