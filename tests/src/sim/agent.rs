//! What agents do with a turn and with the other calls about a session.

use std::sync::{Arc, atomic::Ordering};

use serde_json::json;
use tokio::time::{Duration, Instant};

use super::{
    ledger::GivenUp,
    plan::Asking,
    random::Random,
    server::{Caller, Replay, Running, Server, Wanted},
};

/// How long an agent waits for an answer before it continues without.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// How long it waits where programs serve every request.
const LONG_ANSWER_TIMEOUT: Duration = Duration::from_secs(600);

/// Runs one turn.
pub(super) fn run_turn(server: Arc<Server>, session: String, running: Arc<Running>, caller: Caller) {
    tokio::spawn(async move {
        let finished = turn(&server, &session, &running, &caller).await;
        let Some(stop_reason) = finished.filter(|_| server.is_alive(caller.incarnation)) else { return };
        {
            let mut ledger = server.world.ledger();
            let sent = ledger.emitted.len();
            let record = ledger.turns.entry(running.tag.clone()).or_default();
            record.responded = Some(sent);
            record.stop_reason = Some(stop_reason);
        }
        server.world.note(|| format!("server: {} ends with {stop_reason}", running.tag));
        // The turn is over before its response is sent.
        let mut random = server.world.random(&format!("late {}", running.tag));
        server.respond(&caller, &Ok(json!({ "stopReason": stop_reason, "_meta": { "tag": running.tag } })));
        server.end_turn(&session);
        if random.per_mille(30) {
            tokio::time::sleep(random.millis(150)).await;
            if server.is_alive(caller.incarnation) {
                server.update(&session, None);
            }
        }
    });
}

async fn turn(
    server: &Arc<Server>,
    session: &str,
    running: &Running,
    caller: &Caller,
) -> Option<&'static str> {
    let mut random = server.world.random(&format!("turn {}", running.tag));
    let mut asking = server.world.random(&format!("asking {}", running.tag));
    let long = running.tag.ends_with('L');
    let (count, pause) =
        if long { (60, 500) } else { (random.between(0, 6), random.pick(&[0, 1, 10, 100, 400])) };
    for _ in 0..count {
        let pause = if long { Duration::from_millis(pause) } else { random.millis(pause) };
        let until = Instant::now() + pause;
        sleep_until(running, until).await;
        if !server.is_alive(caller.incarnation) {
            return None;
        }
        if running.cancelled.load(Ordering::Relaxed) {
            break;
        }
        say(server, session, running);
        let asks = random.per_mille(if long { 10 } else { 100 });
        match server.world.plan.asking {
            Some(rates) => ask_for(server, session, running, &mut asking, rates).await,
            None if asks => ask(server, session, running, &[Wanted::Permission("write")]).await,
            None => {}
        }
    }
    if !server.is_alive(caller.incarnation) {
        return None;
    }
    if !running.cancelled.load(Ordering::Relaxed) {
        return Some("end_turn");
    }
    for _ in 0..random.below(3) {
        say(server, session, running);
    }
    Some("cancelled")
}

/// Sends an update of a turn.
fn say(server: &Server, session: &str, running: &Running) {
    let index = server.update(session, None);
    server.world.ledger().emitted[index].turn = Some(running.tag.clone());
    server.save(session, "agent_message_chunk", &format!("u{index} "));
}

/// Asks for what a turn needs: permission, or a file or two.
async fn ask_for(
    server: &Arc<Server>,
    session: &str,
    running: &Running,
    random: &mut Random,
    Asking { permissions, writes, .. }: Asking,
) {
    let rare = if running.tag.ends_with('L') { 6 } else { 1 };
    if random.per_mille(permissions / rare) {
        ask(server, session, running, &[Wanted::Permission("write")]).await;
    }
    if random.per_mille(writes / rare) {
        let count = random.pick(&[1, 1, 2]);
        ask(server, session, running, &[Wanted::Write; 2][..count]).await;
    }
}

/// Sends requests and waits for the answers, a cancel, or long enough.
async fn ask(server: &Arc<Server>, session: &str, running: &Running, wanted: &[Wanted<'_>]) {
    if !server.is_alive(running.caller.incarnation) {
        // The server was stopped while the agent waited for an earlier request, and the agent has ended with it.
        return;
    }
    let send = |wanted: &Wanted<'_>| server.ask(session, *wanted, Some(&running.tag));
    let tags: Vec<String> = wanted.iter().map(send).collect();
    let is_served = server.world.plan.asking.is_some();
    let until = Instant::now() + if is_served { LONG_ANSWER_TIMEOUT } else { ANSWER_TIMEOUT };
    while Instant::now() < until && !running.cancelled.load(Ordering::Relaxed) {
        let is_answered = |tag: &String| running.answers.lock().unwrap().contains(tag);
        if tags.iter().all(is_answered) {
            return;
        }
        let _ = tokio::time::timeout_at(until, running.wake.notified()).await;
    }
    if is_served {
        let is_cancelled = running.cancelled.load(Ordering::Relaxed);
        let why = if is_cancelled { GivenUp::Cancelled } else { GivenUp::TimedOut };
        tags.iter().for_each(|tag| server.give_up(tag, why));
    }
}

async fn sleep_until(running: &Running, until: Instant) {
    while Instant::now() < until && !running.cancelled.load(Ordering::Relaxed) {
        let _ = tokio::time::timeout_at(until, running.wake.notified()).await;
    }
}

/// A new session says what it offers.
pub(super) fn greet(server: Arc<Server>, session: String, incarnation: u32) {
    let mut random = server.world.random(&format!("greet {session}"));
    if random.per_mille(500) {
        return;
    }
    tokio::spawn(async move {
        tokio::time::sleep(random.millis(200)).await;
        if server.is_alive(incarnation) {
            server.report(&session);
        }
    });
}

/// The report of a new mode comes before the response.
pub(super) fn set_mode(server: Arc<Server>, caller: Caller, tag: String) {
    tokio::spawn(async move {
        let mut random = server.world.random(&format!("mode {tag}"));
        tokio::time::sleep(random.millis(50)).await;
        if !server.is_alive(caller.incarnation) {
            return;
        }
        server.report(caller.session.as_deref().unwrap_or_default());
        let sent = server.world.ledger().emitted.len();
        server.world.ledger().calls.entry(tag).or_default().responded = Some(sent);
        server.respond(&caller, &Ok(json!({})));
    });
}

/// The history of a session comes before the response.
pub(super) fn load(server: Arc<Server>, caller: Caller, call: Option<u64>) {
    tokio::spawn(async move {
        let session = caller.session.clone().unwrap_or_default();
        let mut random = server.world.random(&format!("load {session}"));
        for _ in 0..random.below(5) {
            if !server.is_alive(caller.incarnation) {
                return;
            }
            server.update(&session, call);
            tokio::time::sleep(random.millis(5)).await;
        }
        server.respond(&caller, &Ok(json!({})));
    });
}

/// Has the agent continue a session that it has stored, step by step.
pub(super) fn replay(server: Arc<Server>, caller: Caller, replay: Replay, history: Vec<String>, step: u64) {
    tokio::spawn(async move {
        let mut random = server.world.random(&format!("replay {}", replay.session));
        for message in history {
            tokio::time::sleep(random.millis(step)).await;
            if !server.is_alive(caller.incarnation) {
                return;
            }
            server.replay(&replay.session, message);
            server.check_owner(&replay);
        }
        tokio::time::sleep(random.millis(step)).await;
        if server.is_alive(caller.incarnation) {
            server.check_owner(&replay);
            server.respond(&caller, &Ok(json!({})));
        }
    });
}
