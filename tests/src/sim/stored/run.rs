//! One run, from its seed to its report.

use std::sync::{Arc, atomic::AtomicU64, atomic::Ordering};

use sandbox_agent_sdk::sessions::{MemoryStore, SessionStore, StoredSession};
use tokio::{
    task::{AbortHandle, JoinSet},
    time::Duration,
};

use super::{
    check,
    plan::{Extent, Sharing},
    program::{Life, Program, Shared},
};
use crate::sim::{
    plan::Model,
    run::{Report, chaos},
    server::Server,
    world::World,
};

/// How long everything has to settle once faults are over.
const SETTLE: Duration = Duration::from_secs(300);
/// How long the requests of one turn take at most, once they are served.
const SERVED: Duration = Duration::from_secs(3_000);
/// More than a run has.
const EVENTS: usize = 100_000;

/// Runs one seed of programs that share stored sessions.
///
/// # Panics
/// When no runtime can be made.
pub fn run_stored(seed: u64, extent: Extent, traced: bool) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O needs nothing");
    sandbox_agent_sdk::fuzzing::seed_randomness(seed);
    runtime.block_on(simulate(seed, extent, traced))
}

async fn simulate(seed: u64, extent: Extent, traced: bool) -> Report {
    let (plan, sharing) = Sharing::new(seed, extent);
    let world = Arc::new(World::new(plan, traced));
    world.note(|| format!("{:?}\n{sharing:?}", world.plan));
    let server = Server::new(world.clone());
    server.fill_backlog();
    let shared = Arc::new(Shared {
        world: world.clone(),
        server: server.clone(),
        store: Arc::new(MemoryStore::with_bounds(64, EVENTS)),
        sharing,
        turns: AtomicU64::new(0),
        calls: AtomicU64::new(0),
    });
    let mut background = JoinSet::new();
    let chaos = background.spawn(chaos(world.clone(), server.clone()));
    use_programs(&shared).await;
    chaos.abort();
    world.end_faults();
    if !server.is_up() {
        server.start();
    }
    tokio::time::sleep(SETTLE).await;
    world.note(|| "faults are over".to_owned());
    finish(&shared).await;
    check::check(&shared).await;
    Report {
        seed,
        model: Model::Rpc,
        turns: shared.turns.load(Ordering::Relaxed),
        calls: shared.calls.load(Ordering::Relaxed),
        violations: world.violations(),
        trace: world.take_trace(),
    }
}

/// Runs the programs, and kills some.
async fn use_programs(shared: &Arc<Shared>) {
    let mut running = JoinSet::new();
    let mut programs: Vec<(Life, AbortHandle)> = Vec::new();
    let start = |number: usize, running: &mut JoinSet<()>| {
        let program = Program::start(shared, &format!("program {number}"));
        let life = program.life.clone();
        (life, running.spawn(Arc::new(program).run()))
    };
    for number in 0..usize::try_from(shared.sharing.programs).unwrap_or(1) {
        programs.push(start(number, &mut running));
    }
    let mut random = shared.world.random("kills");
    let mut kills = shared.sharing.kills;
    loop {
        let kill = tokio::time::sleep(random.millis(30_000));
        tokio::select! {
            biased;
            ended = running.join_next() => match ended {
                None => break,
                Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                Some(_) => {}
            },
            () = kill, if kills > 0 => {
                kills -= 1;
                let (life, handle) = &programs[random.index(programs.len())];
                shared.world.note(|| format!("{}: is killed", life.name));
                life.end(&shared.world);
                handle.abort();
                let next = programs.len();
                programs.push(start(next, &mut running));
            }
        }
    }
    // What is left of them does not disturb the last one.
    programs.iter().for_each(|(life, _)| life.end(&shared.world));
}

/// The last program continues every session.
async fn finish(shared: &Arc<Shared>) {
    let program = Program::start(shared, "last");
    for number in 0..shared.sharing.sessions {
        let id = format!("m{number}");
        if shared.store.get(&id).await.expect("the store is in memory").is_none() {
            continue;
        }
        let session = program.client.session(&id);
        match program.calling(&id, "resume", session.resume()).await {
            Ok(restored) => program.note(&format!("resumed {id}: {restored:?}")),
            Err(error) => {
                shared.world.fail(format!("{id} cannot be resumed after everything settled: {error}"));
                continue;
            }
        }
        await_open_turn(shared, &session).await;
        let tag = format!("p{:04}", shared.turns.fetch_add(1, Ordering::Relaxed));
        match program.calling(&id, "prompt", session.prompt(tag.clone())).await {
            Ok(mut turn) => {
                program.read(&id, &tag, &mut turn).await;
                if let Err(error) = turn.outcome().await {
                    shared.world.fail(format!("{tag} of {id} failed after everything settled: {error}"));
                }
            }
            Err(error) => {
                shared.world.fail(format!("{id} cannot be prompted after everything settled: {error}"));
            }
        }
    }
    // What agents say late.
    tokio::time::sleep(Duration::from_secs(60)).await;
    if let Err(error) = program.bounded("flush", program.client.flush()).await {
        shared.world.fail(format!("the last flush failed: {error}"));
    }
    program.life.end(&shared.world);
}

/// A turn that another program began ends: what its agent waits for is served.
async fn await_open_turn(shared: &Shared, session: &StoredSession) {
    if shared.world.plan.asking.is_none()
        || tokio::time::timeout(SERVED, session.open_turn_ended()).await.is_ok()
    {
        return;
    }
    let agent_session = session.agent_session().map(|session| session.id().to_owned()).unwrap_or_default();
    if let Some((running, open)) = shared.server.waiting(&agent_session).filter(|(_, open)| !open.is_empty())
    {
        shared.world.fail(format!("{} waits for {open:?}, and the last program owns it", running.tag));
    }
}
