//! The agent requests that are open when a session is acquired.

use super::catch_up::CaughtUp;
use crate::requests::REQUEST_PERMISSION;
use crate::sessions::entry::{Entry, rpc_id_of, text_of_rpc_id};
use crate::sessions::store::{OpenEvents, OpenRequest, StoredEventKind, opens_request};
use crate::stream::StreamReader;

/// Settles the agent requests that were stored before and those that were read. While a turn runs, its stored answers
/// are sent again, and what is undecided is offered again: nothing is closed before the agent ends the turn, because
/// this process may be killed before the agent has a response. Without a turn, all requests are closed.
pub(super) fn settle(open: &OpenEvents, caught_up: &mut CaughtUp, incarnation: u64) {
    let Some(turn_id) = caught_up.running.as_ref().map(|running| running.turn.turn_id.clone()) else {
        let read = caught_up.events.iter().filter(|event| opens_request(&event.kind));
        let read = read.map(|event| (event.rpc_id.clone(), event.turn_id.clone(), "expired"));
        let stored = open.requests.iter().map(|stored| {
            let reason = if stored.answer.is_some() { "delivered" } else { "expired" };
            (stored.request.rpc_id.clone(), stored.request.turn_id.clone(), reason)
        });
        let requests = stored.chain(read).filter(|(rpc_id, ..)| rpc_id.is_some());
        let closed: Vec<_> = requests
            .map(|(rpc_id, turn, reason)| {
                Entry::request_closed(rpc_id, reason).into_event(incarnation, turn.as_deref())
            })
            .collect();
        caught_up.events.extend(closed);
        caught_up.requests.clear();
        caught_up.offers.clear();
        return;
    };
    add_dropped(open, &turn_id, caught_up);
    for stored in &open.requests {
        let Some(id) = stored.request.rpc_id.as_deref().map(text_of_rpc_id) else { continue };
        let is_decided = stored.answer.is_some() || stored.request.kind == StoredEventKind::AgentRequest;
        let Some(n) = caught_up.requests.iter().position(|asked| *asked == id && is_decided) else {
            continue;
        };
        caught_up.requests.remove(n);
        let Some(reader) = &mut caught_up.reader else { continue };
        match stored.answer.as_ref().and_then(|answer| answer.payload.get("result")) {
            // The agent uses the first response, if it already received one.
            Some(result) => _ = reader.respond(&id, result),
            // A request without a response may have been executed, and is never executed again.
            None => reader.cancel_request(&id),
        }
    }
    let requests = &caught_up.requests;
    caught_up.offers.retain(|offered| requests.contains(offered));
    let stored = open.requests.iter().filter_map(|stored| stored.request.rpc_id.as_deref());
    let read = caught_up.events.iter().filter(|event| opens_request(&event.kind));
    let decidable = stored.chain(read.filter_map(|event| event.rpc_id.as_deref())).map(text_of_rpc_id);
    let undecided = decidable.filter(|id| requests.contains(id)).count();
    if let Some(running) = &mut caught_up.running {
        running.undecided = undecided;
    }
}

/// Adds the stored requests of the running turn that the server has dropped: the agent waits nevertheless.
fn add_dropped(open: &OpenEvents, turn_id: &str, caught_up: &mut CaughtUp) {
    let Some(reader) = &mut caught_up.reader else { return };
    for stored in open.requests.iter().filter(|stored| stored.request.turn_id.as_deref() == Some(turn_id)) {
        let is_read = |asked: &String| stored.request.rpc_id == Some(rpc_id_of(asked));
        if !caught_up.requests.iter().any(is_read) {
            let added = add_stored(reader, stored);
            caught_up.offers.extend(added.clone());
            caught_up.requests.extend(added);
        }
    }
}

/// Adds a stored agent request to a reader that has not read it. Returns its id. Only a response says which method a
/// question has, and of other requests only the method is stored, which is enough to cancel them.
fn add_stored(reader: &mut StreamReader, stored: &OpenRequest) -> Option<String> {
    let OpenRequest { request, answer } = stored;
    let id = text_of_rpc_id(request.rpc_id.as_deref()?);
    let method = match request.kind {
        StoredEventKind::Permission => REQUEST_PERMISSION,
        StoredEventKind::Question => answer.as_ref()?.payload["method"].as_str()?,
        _ => request.payload["method"].as_str()?,
    };
    reader.add_request(&id, method, &request.payload).then_some(id)
}
