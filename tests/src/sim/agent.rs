//! What agents do with a turn and with the other calls about a session.

use std::sync::{Arc, atomic::Ordering};

use serde_json::json;
use tokio::time::{Duration, Instant};

use super::server::{Caller, Running, Server};

/// How long an agent waits for an answer before it continues without.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

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
        if random.per_mille(if long { 10 } else { 100 }) {
            ask(server, session, running).await;
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

/// Asks for permission and waits for the answer, a cancel, or long enough.
async fn ask(server: &Arc<Server>, session: &str, running: &Running) {
    let tag = server.ask(session, "write", false);
    let until = Instant::now() + ANSWER_TIMEOUT;
    while Instant::now() < until && !running.cancelled.load(Ordering::Relaxed) {
        if running.answers.lock().unwrap().contains(&tag) {
            return;
        }
        let _ = tokio::time::timeout_at(until, running.wake.notified()).await;
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
