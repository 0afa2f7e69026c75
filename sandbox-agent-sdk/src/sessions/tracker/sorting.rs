//! Sorting the entries that were read from a stream.                                                             (pure)

use super::catch_up::{CaughtUp, Running, begun_at};
use super::{OpenTurn, TurnEnd, ended_by, interrupted};
use crate::sessions::entry::{Entry, text_of_rpc_id};
use crate::sessions::scan::Scan;
use crate::sessions::store::{NewEvent, OpenEvents, OpenTurn as StoredTurn, StoredEventKind, StreamPosition};
use crate::stream::StreamPosition as Position;
use crate::thread::ResultRules;

/// Where the entries of a turn lie among those that were read.
struct Span {
    /// The position of the stream when its prompt was about to be sent, if that is known.
    begun: Option<Position>,
    /// How many entries precede the response to its prompt, if that was found.
    responded: Option<usize>,
}

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
    let has_losses = entries.iter().any(Entry::is_loss);
    let turns: Vec<_> = open.turns.iter().filter(|turn| turn.prompt.turn_id.as_deref() != own_turn).collect();
    // An earlier turn no longer runs. Its end could not be stored, or was not observed.
    let turn = turns.last().copied().filter(|turn| turn.prompt.turn_id.as_deref() == newest);
    let turn_id = turn.and_then(|turn| turn.prompt.turn_id.clone());
    let ids: Vec<String> = turn.iter().flat_map(|turn| &turn.rpc_ids).map(|id| text_of_rpc_id(id)).collect();
    let response_to = |turn: &StoredTurn| {
        turn.rpc_ids.iter().rev().find_map(|id| responses.get(&text_of_rpc_id(id))).filter(|_| is_same)
    };
    let span = |turn: &&StoredTurn| Span {
        begun: begun_at(turn).filter(|begun| begun.incarnation == position.incarnation),
        responded: response_to(turn).map(|(before, _)| *before),
    };
    // If the newest turn has ended in the store, or is of this process, no entry is of an earlier one.
    let spans: Vec<Span> = turns.iter().filter(|_| turn.is_some()).map(span).collect();
    let turns_of = turns_of(&entries, &spans, position.offset);
    let newest_of = spans.len().checked_sub(1);
    let since_loss = entries.iter().zip(&turns_of).rev().take_while(|(entry, _)| !entry.is_loss());
    let is_heard = since_loss.into_iter().any(|(entry, of)| *of == newest_of && entry.is_of_a_turn());
    let mut events = Vec::new();
    let is_missing = !is_same && (turn.is_some() || !was_seen);
    if is_missing || is_ambiguous && is_same && is_reported {
        let to = end.filter(|_| is_same).map(|end| end.offset);
        let gap = Entry::gap(Some(position.offset + 1), to);
        events.push(gap.into_event(incarnation, turn_id.as_deref()));
    }
    let response = turn.and_then(response_to);
    let end_of_turn = response.map(|(_, response)| ended_by(response, rules));
    let mut patch = end_of_turn.as_ref().map(TurnEnd::status_patch).unwrap_or_default();
    let ended_before = |n: usize| {
        let ended = turns.iter().filter_map(|turn| Some((turn, response_to(turn)?)));
        let ended = ended.filter(move |(_, (before, _))| *before == n);
        ended.filter_map(|(turn, (_, response))| {
            end_event(&turn.prompt.turn_id, Some(ended_by(response, rules)), incarnation)
        })
    };
    let count = entries.len();
    for (n, (entry, of)) in entries.into_iter().zip(turns_of).enumerate() {
        events.extend(ended_before(n));
        if is_ambiguous && entry.kind == StoredEventKind::Update {
            continue;
        }
        entry.patch(&mut patch);
        let turn = of.and_then(|of| turns[of].prompt.turn_id.as_deref());
        events.push(entry.into_event(incarnation, turn));
    }
    events.extend(ended_before(count));
    let running = turn.filter(|_| response.is_none() && is_same && !has_ended).map(|turn| {
        let turn = OpenTurn {
            turn_id: turn_id.clone().unwrap_or_default(),
            prompt: turn.prompt.payload["prompt"].clone(),
            since: turn.prompt.recorded_at,
        };
        // Reports before a loss do not prove that the turn runs after it.
        let is_heard = is_heard || was_heard && !has_losses;
        Running { turn, is_heard, is_confirmed: !may_miss_response, undecided: 0 }
    });
    let unended = turns.iter().filter(|turn| response_to(turn).is_none());
    for turn in unended.filter(|turn| running.is_none() || turn.prompt.turn_id != turn_id) {
        events.extend(end_event(&turn.prompt.turn_id, Some(interrupted()), incarnation));
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

/// The turn that each entry belongs to: the first one whose response follows the entry, although a later one may have
/// begun. Without a response, it is of the turn that began last. `behind` is the offset before the first entry.
fn turns_of(entries: &[Entry], spans: &[Span], behind: u64) -> Vec<Option<usize>> {
    let mut offset = behind;
    let turn_of = |(n, entry): (usize, &Entry)| {
        // A loss has no position of its own: that of the entry before it applies.
        offset = entry.position.map_or(offset, |position| position.offset);
        let follows = |span: &Span| span.begun.is_none_or(|begun| offset > begun.offset);
        let is_of = |of: &usize| match spans[*of].responded {
            Some(responded) => n < responded,
            None => !spans[of + 1..].iter().any(follows),
        };
        (0..spans.len()).find(is_of).filter(|of| follows(&spans[*of]))
    };
    entries.iter().enumerate().map(turn_of).collect()
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Entry, Position, Span, StoredEventKind, turns_of};

    #[test]
    fn an_entry_is_of_the_turn_between_whose_beginning_and_response_it_lies() {
        let entry = |offset: &Option<u64>| Entry {
            position: offset.map(|offset| Position::new(1, offset, 0)),
            ..Entry::own(StoredEventKind::Update, json!({}))
        };
        let of = |offsets: &[Option<u64>], spans: &[(Option<u64>, Option<usize>)]| {
            let entries: Vec<_> = offsets.iter().map(entry).collect();
            let span = |&(begun, responded): &(Option<u64>, Option<usize>)| Span {
                begun: begun.map(|begun| Position::new(1, begun, 0)),
                responded,
            };
            turns_of(&entries, &spans.iter().map(span).collect::<Vec<_>>(), 10)
        };
        let late = [Some(11), Some(12), Some(14), Some(15)];
        let (first, second) = ((Some(10), Some(2)), (Some(14), None));
        assert_eq!(of(&late, &[first, second]), [Some(0), Some(0), None, Some(1)]);
        assert_eq!(of(&late, &[first, (None, None)]), [Some(0), Some(0), Some(1), Some(1)]);
        assert_eq!(of(&late, &[(None, Some(1)), (None, Some(3))]), [Some(0), Some(1), Some(1), None]);
        // The response to the first prompt is lost.
        assert_eq!(of(&[Some(11), None, Some(15)], &[(Some(10), None), second]), [Some(0), Some(0), Some(1)]);
        // Text of the first turn may follow the beginning of the second one, up to its response.
        assert_eq!(of(&late, &[(Some(10), Some(3)), (Some(12), None)]), [Some(0), Some(0), Some(0), Some(1)]);
        assert_eq!(of(&late, &[(None, None), (None, None)]), [Some(1); 4], "nothing tells them apart");
        assert_eq!(of(&late, &[]), [None; 4]);
    }
}
