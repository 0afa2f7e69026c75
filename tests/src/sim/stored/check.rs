//! What the store has to hold at the end.

use std::collections::{BTreeMap, BTreeSet};

use sandbox_agent_sdk::sessions::{EventQuery, SessionStore, StoredEvent, StoredEventKind};

use super::program::Shared;

/// The events of a session as they are checked.
pub(super) struct History<'a> {
    pub(super) shared: &'a Shared,
    pub(super) id: &'a str,
    pub(super) events: Vec<StoredEvent>,
    /// The turns by the tags of their prompts.
    pub(super) turns: BTreeMap<String, String>,
    /// The agent's session at the end.
    pub(super) agent_session: Option<String>,
}

/// Compares what is stored with what happened.
pub(super) async fn check(shared: &Shared) {
    for number in 0..shared.sharing.sessions {
        let id = format!("m{number}");
        let record = shared.store.get(&id).await.expect("the store is in memory");
        let Some(record) = record else { continue };
        let mut events = Vec::new();
        let mut query = EventQuery::of(&id).limit(1000);
        loop {
            let page = shared.store.events(&query).await.expect("the store is in memory");
            events.extend(page.events);
            match page.next {
                Some(next) => query = query.after(next),
                None => break,
            }
        }
        let earlier = record.details.earlier_agent_sessions.iter().chain(&record.agent_session);
        let bound: BTreeSet<String> = earlier.map(|session| session.id.clone()).collect();
        let agent_session = record.agent_session.as_ref().map(|session| session.id.clone());
        let mut history = History { shared, id: &id, events, turns: BTreeMap::new(), agent_session };
        history.describe();
        history.check_turns();
        history.check_words(&bound);
        history.check_whole();
        if shared.world.plan.asking.is_some() {
            history.check_requests();
        }
        let open = shared.store.open(&id).await.expect("the store is in memory");
        if !open.is_empty() {
            shared.world.fail(format!("{id}: {open:?} is open at the end"));
        }
    }
    let ledger = shared.world.ledger();
    let twice: Vec<_> =
        ledger.turns.iter().filter(|(_, turn)| turn.executed > 1).map(|(tag, _)| tag).collect();
    let twice = format!("{twice:?}");
    drop(ledger);
    if twice != "[]" {
        shared.world.fail(format!("prompts were executed twice: {twice}"));
    }
}

impl History<'_> {
    pub(super) fn fail(&self, what: impl std::fmt::Display) {
        self.shared.world.fail(format!("{}: {what}", self.id));
    }

    fn describe(&self) {
        for event in &self.events {
            self.shared.world.note(|| {
                let mut payload = event.payload.clone();
                // A fingerprint is of ids that differ from run to run.
                payload.as_object_mut().and_then(|payload| payload.remove("at"));
                let payload: String = payload.to_string().chars().take(120).collect();
                let turn = event.turn_id.as_deref().unwrap_or("-");
                format!("stored {} {}: {} of {turn:.6} {payload}", self.id, event.index, event.kind.as_str())
            });
        }
    }

    /// Each prompt is stored once, and each turn has one end, behind its prompt.
    fn check_turns(&mut self) {
        let mut ended = BTreeSet::new();
        let (mut turns, mut failures) = (BTreeMap::new(), Vec::new());
        for event in &self.events {
            let turn = event.turn_id.clone().unwrap_or_default();
            match event.kind {
                StoredEventKind::Prompt => {
                    let blocks = event.payload["prompt"].as_array();
                    let text = blocks.and_then(|blocks| blocks.last()?["text"].as_str()).unwrap_or_default();
                    if turns.insert(text.to_owned(), turn).is_some() {
                        failures.push(format!("{text} is stored twice"));
                    }
                }
                StoredEventKind::TurnEnded => {
                    if !turns.values().any(|known| *known == turn) {
                        failures.push(format!("the end {} is of no turn", event.index));
                    }
                    if !ended.insert(turn) {
                        failures.push(format!("the end {} is the second of its turn", event.index));
                    }
                }
                _ => {}
            }
        }
        for (tag, turn) in &turns {
            if !ended.contains(turn) {
                failures.push(format!("the turn {tag} has no end"));
            }
        }
        self.turns = turns;
        failures.into_iter().for_each(|failure| self.fail(failure));
    }

    /// The turns that count as interrupted, and may still run.
    pub(super) fn interrupted(&self) -> BTreeSet<&String> {
        let is_interrupted = |event: &&StoredEvent| {
            event.turn_end().is_some_and(|end| end.error.is_some_and(|error| error.maybe_executed))
        };
        self.events.iter().filter(is_interrupted).filter_map(|end| end.turn_id.as_ref()).collect()
    }

    /// Each word of the agent is stored once, in order, in its session and its turn, or a gap stands in its place.
    fn check_words(&self, bound: &BTreeSet<String>) {
        let ledger = self.shared.world.ledger();
        let mut failures = Vec::new();
        let interrupted = self.interrupted();
        // The indexes of words, in the order of the store, with `None` for each mark of a loss.
        let mut stored: Vec<Option<usize>> = Vec::new();
        for event in &self.events {
            match event.kind {
                StoredEventKind::Gap | StoredEventKind::Lost => stored.push(None),
                StoredEventKind::Update => {
                    let Some((index, load)) = word(event) else { continue };
                    if let Some(load) = load {
                        // What an agent replays for a program that has lost the session cannot be distinguished from what is new.
                        if ledger.loads.get(load) == Some(&true) {
                            failures
                                .push(format!("u{index} is stored as new and was replayed by load {load}"));
                        }
                        continue;
                    }
                    stored.push(Some(index));
                    let emitted = &ledger.emitted[index];
                    let session = emitted.session.clone().unwrap_or_default();
                    let directory = ledger.directories.get(&(emitted.generation, session));
                    if directory != Some(&format!("/{}", self.id)) {
                        failures.push(format!("u{index} is of {directory:?}"));
                    }
                    let turn = emitted.turn.as_ref().and_then(|tag| self.turns.get(tag));
                    let is_in_another =
                        event.turn_id.is_some() && emitted.turn.is_some() && event.turn_id.as_ref() != turn;
                    // Where a turn counts as interrupted, what it still says may be in the next one.
                    if is_in_another && !turn.is_some_and(|turn| interrupted.contains(turn)) {
                        failures.push(format!("u{index} of {:?} is in another turn", emitted.turn));
                    }
                }
                _ => {}
            }
        }
        let words: Vec<usize> = stored.iter().flatten().copied().collect();
        for pair in words.windows(2) {
            match pair[0].cmp(&pair[1]) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => failures.push(format!("u{} is stored twice", pair[0])),
                std::cmp::Ordering::Greater => {
                    failures.push(format!("u{} is stored behind u{}", pair[1], pair[0]));
                }
            }
        }
        // A gap without an end is in a turn whose session was replaced: nothing more of the turn is seen.
        let is_endless =
            |event: &&StoredEvent| event.kind == StoredEventKind::Gap && event.payload["to"].is_null();
        let endless: BTreeSet<_> =
            self.events.iter().filter(is_endless).filter_map(|gap| gap.turn_id.as_ref()).collect();
        for (index, emitted) in ledger.emitted.iter().enumerate() {
            let Some(session) = &emitted.session else { continue };
            let directory = ledger.directories.get(&(emitted.generation, session.clone()));
            // What an agent says outside of turns in a session that was replaced belongs to no program.
            let is_ours = directory == Some(&format!("/{}", self.id))
                && bound.contains(session)
                && emitted.turn.is_some();
            let turn = emitted.turn.as_ref().and_then(|tag| self.turns.get(tag));
            let is_marked = is_marked(&stored, index) || turn.is_some_and(|turn| endless.contains(turn));
            if is_ours && emitted.history.is_none() && !words.contains(&index) && !is_marked {
                failures.push(format!("u{index} of {:?} is lost without a mark", emitted.turn));
            }
        }
        drop(ledger);
        failures.into_iter().for_each(|failure| self.fail(failure));
    }

    /// Where nothing can be lost, nothing counts as lost.
    fn check_whole(&self) {
        let plan = &self.shared.world.plan;
        // Nobody reads for a session that was released: what the server drops meanwhile may have been of it.
        let is_dropped = self.shared.world.ledger().emitted.len() > plan.buffer;
        if !self.shared.sharing.is_whole(plan) || is_dropped {
            return;
        }
        // What an agent replays cannot be distinguished from what is new if its load was interrupted.
        let mut is_restoring = false;
        for event in &self.events {
            match event.kind.as_str() {
                "restoring" => is_restoring = true,
                "restored" => is_restoring = false,
                "gap" | "lost" if !is_restoring => {
                    self.fail(format!(
                        "event {} is a {} and nothing was lost",
                        event.index,
                        event.kind.as_str()
                    ));
                }
                _ => {}
            }
        }
    }
}

/// The index of a word of the agent, and the load that replayed it.
fn word(event: &StoredEvent) -> Option<(usize, Option<usize>)> {
    let text = event.update()?.to_string();
    let mut parts = text.split(' ');
    let index = parts.next()?.strip_prefix('u')?.parse().ok()?;
    Some((index, parts.next().and_then(|load| load.strip_prefix('h')?.parse().ok())))
}

/// Whether a mark of a loss stands between the words around a missing one.
fn is_marked(stored: &[Option<usize>], missing: usize) -> bool {
    let first =
        stored.iter().rposition(|word| word.is_some_and(|word| word < missing)).map_or(0, |at| at + 1);
    let behind = stored[first..].iter().position(|word| word.is_some_and(|word| word > missing));
    let last = behind.map_or(stored.len(), |at| first + at);
    stored[first..last].iter().any(Option::is_none)
}
