//! Sorting the entries that were read from a stream.                                                             (pure)

use super::catch_up::{CaughtUp, Running};
use super::{OpenTurn, TurnEnd, ended_by, interrupted};
use crate::sessions::entry::{Entry, text_of_rpc_id};
use crate::sessions::scan::Scan;
use crate::sessions::store::{NewEvent, OpenEvents, StoredEventKind, StreamPosition};
use crate::thread::ResultRules;

/// Sorts the scanned entries: what to store, which turns ended, and which turn runs.
pub(super) fn sort(
    scan: Scan,
    (open, newest, claimed_at): (&OpenEvents, Option<&str>, u64),
    position: StreamPosition,
    (incarnation, own_turn): (u64, Option<&str>),
    (is_ambiguous, was_seen, was_heard, had_ended): (bool, bool, bool, bool),
    rules: &ResultRules,
) -> CaughtUp {
    let Scan { is_proven, is_other, entries, responses, may_miss_response, end, requests, reader, .. } = scan;
    let is_same = !is_other;
    let entries = if is_same { entries } else { Vec::new() };
    let has_ended = had_ended || entries.iter().any(|entry| entry.kind == StoredEventKind::Ended);
    let is_reported = entries.iter().any(|entry| entry.kind == StoredEventKind::Update);
    let is_heard = entries.iter().rev().take_while(|entry| !entry.is_loss()).any(Entry::is_of_a_turn);
    let has_losses = entries.iter().any(Entry::is_loss);
    // The turn that these reports belong to.
    let mut turns = open.turns.iter().filter(|turn| turn.prompt.turn_id.as_deref() != own_turn);
    let turn = turns.clone().next_back().filter(|turn| turn.prompt.turn_id.as_deref() == newest);
    if turn.is_some() {
        turns.next_back();
    }
    let turn_id = turn.and_then(|turn| turn.prompt.turn_id.clone());
    let ids: Vec<String> = turn.iter().flat_map(|turn| &turn.rpc_ids).map(|id| text_of_rpc_id(id)).collect();
    let response_to = |turn: &crate::sessions::store::OpenTurn| {
        turn.rpc_ids.iter().rev().find_map(|id| responses.get(&text_of_rpc_id(id))).filter(|_| is_same)
    };
    let response = turn.and_then(response_to);
    let mut events = Vec::new();
    let is_missing = !is_same && (turn.is_some() || !was_seen);
    if is_missing || is_ambiguous && is_same && is_reported {
        let to = end.filter(|_| is_same).map(|end| end.offset);
        let gap = Entry::gap(Some(position.offset + 1), to);
        events.push(gap.into_event(incarnation, turn_id.as_deref()));
    }
    let cut = response.map_or(usize::MAX, |(before, _)| *before);
    let mut end_of_turn = response.map(|(_, response)| ended_by(response, rules));
    let mut patch = end_of_turn.as_ref().map(TurnEnd::status_patch).unwrap_or_default();
    for (n, entry) in entries.into_iter().enumerate() {
        if n == cut {
            events.extend(end_event(&turn_id, end_of_turn.take(), incarnation));
        }
        if is_ambiguous && entry.kind == StoredEventKind::Update {
            continue;
        }
        entry.patch(&mut patch);
        let turn = turn_id.as_deref().filter(|_| n < cut);
        events.push(entry.into_event(incarnation, turn));
    }
    events.extend(end_event(&turn_id, end_of_turn, incarnation));
    let running = match (turn, response) {
        (None, _) | (_, Some(_)) => None,
        (Some(turn), None) if is_same && !has_ended => {
            let turn = OpenTurn {
                turn_id: turn_id.clone().unwrap_or_default(),
                prompt: turn.prompt.payload["prompt"].clone(),
                since: turn.prompt.recorded_at,
            };
            // Reports before a loss do not prove that the turn runs after it.
            let is_heard = is_heard || was_heard && !has_losses;
            Some(Running { turn, is_heard, is_confirmed: !may_miss_response, undecided: 0 })
        }
        (Some(_), None) => {
            events.extend(end_event(&turn_id, Some(interrupted()), incarnation));
            None
        }
    };
    // An earlier turn no longer runs. Its end could not be stored, or was not observed.
    for turn in turns {
        let end = response_to(turn).map_or_else(interrupted, |(_, response)| ended_by(response, rules));
        events.extend(end_event(&turn.prompt.turn_id, Some(end), incarnation));
    }
    let is_there = is_same && is_proven && !has_ended;
    let (reader, prompts) = (Some(reader), ids);
    let is_early = |at: &Option<u64>| at.is_none_or(|at| at <= claimed_at);
    let offers = requests.iter().filter(|(_, at)| is_early(at)).map(|(id, _)| id.clone()).collect();
    let requests = requests.into_iter().map(|(id, _)| id).collect();
    CaughtUp {
        events,
        patch,
        end,
        is_there,
        is_same,
        is_other,
        running,
        requests,
        offers,
        reader,
        prompts,
        ..CaughtUp::default()
    }
}

fn end_event(turn_id: &Option<String>, end: Option<TurnEnd>, incarnation: u64) -> Option<NewEvent> {
    Some(Entry::turn_ended(&end?).into_event(incarnation, turn_id.as_deref()))
}

/// Ends the open turns and requests of a session of which nothing more is stored.
pub(in crate::sessions) fn abandoned(open: &OpenEvents, position: Option<StreamPosition>) -> Vec<NewEvent> {
    let incarnation = position.map_or(1, |position| position.incarnation);
    let turn = open.turns.last().and_then(|turn| turn.prompt.turn_id.as_deref());
    let gap = Entry::gap(position.map(|position| position.offset + 1), None);
    let gap = turn.map(|turn| gap.into_event(incarnation, Some(turn)));
    gap.into_iter().chain(closing(open, None, incarnation)).collect()
}

/// Ends the open turns and requests of a session whose agent is gone.
pub(super) fn closing(open: &OpenEvents, own_turn: Option<&str>, incarnation: u64) -> Vec<NewEvent> {
    let turns = open.turns.iter().filter(|turn| turn.prompt.turn_id.as_deref() != own_turn);
    let ends = turns.filter_map(|turn| end_event(&turn.prompt.turn_id, Some(interrupted()), incarnation));
    let requests = open.requests.iter().map(|stored| {
        let closed = Entry::request_closed(stored.request.rpc_id.clone(), "expired");
        closed.into_event(incarnation, stored.request.turn_id.as_deref())
    });
    requests.chain(ends).collect()
}
