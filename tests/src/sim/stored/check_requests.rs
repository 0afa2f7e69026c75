//! What has become of the requests of agents at the end.

use std::collections::BTreeMap;

use sandbox_agent_sdk::{
    StopReason,
    sessions::{StoredEvent, StoredEventKind},
};
use serde_json::Value;

use super::{check::History, requests::number};
use crate::sim::ledger::{GivenUp, RequestRecord};

/// The code of the error for a cancelled request, as the protocol has it.
const CANCELLED: i64 = -32800;

/// What is stored of one request.
#[derive(Default)]
struct Stored<'a> {
    begun: Option<&'a StoredEvent>,
    answer: Option<&'a Value>,
}

impl History<'_> {
    /// Each request is stored under its turn, executed once at most, and has one answer, which is the stored one.
    pub(super) fn check_requests(&self) {
        let mut stored: BTreeMap<String, Stored<'_>> = BTreeMap::new();
        let mut failures = Vec::new();
        let mut newest = None;
        let ledger = self.shared.world.ledger();
        for event in &self.events {
            let tag = number(event.rpc_id.as_deref()).map(|number| format!("a{number}")).unwrap_or_default();
            match event.kind {
                StoredEventKind::Prompt => newest = event.turn_id.as_ref(),
                StoredEventKind::AgentRequest => {
                    let request = ledger.requests.get(&tag).filter(|request| !request.executed.is_empty());
                    let wrong = request.and_then(|request| self.wrong_turn(request, event, newest));
                    failures.extend(wrong.map(|what| format!("{tag} {what}")));
                    stored.entry(tag).or_default().begun = Some(event);
                }
                StoredEventKind::Answered => {
                    let answer = &mut stored.entry(tag.clone()).or_default().answer;
                    if answer.replace(&event.payload).is_some() {
                        failures.push(format!("two answers to {tag} are stored"));
                    }
                }
                _ => {}
            }
        }
        for (tag, request) in &ledger.requests {
            if request.stored_session().as_deref() == Some(self.id) {
                let stored = stored.remove(tag).unwrap_or_default();
                let wrong = match request.writes {
                    true => self.wrong_write(request, &stored),
                    false => self.wrong_answer(request, &stored),
                };
                let wrong = wrong.or_else(|| self.left_open(request));
                failures.extend(wrong.map(|what| format!("{tag} of {:?} {what}", request.turn)));
            }
        }
        drop(ledger);
        failures.into_iter().for_each(|failure| self.fail(failure));
    }

    /// What is wrong with the turn that a request was executed in, if anything is.
    fn wrong_turn(
        &self,
        request: &RequestRecord,
        begun: &StoredEvent,
        newest: Option<&String>,
    ) -> Option<&'static str> {
        let of_turn = request.turn.as_ref().and_then(|turn| self.turns.get(turn));
        match begun.turn_id.as_ref() {
            // Where a turn counts as interrupted, what it still asks for may be in the next one.
            _ if self.is_interrupted(request) => None,
            stored if stored != of_turn => Some("was executed in another turn"),
            stored if stored != newest => Some("was executed after a later turn had begun"),
            _ => None,
        }
    }

    /// Whether the turn of a request counts as interrupted, so that it may still run.
    fn is_interrupted(&self, request: &RequestRecord) -> bool {
        let turn = request.turn.as_ref().and_then(|turn| self.turns.get(turn));
        turn.is_some_and(|turn| self.interrupted().contains(turn))
    }

    /// What is wrong with a write, if anything is.
    fn wrong_write(&self, request: &RequestRecord, stored: &Stored<'_>) -> Option<String> {
        let is_executed = !request.executed.is_empty();
        match (&request.taken, request.given_up) {
            (Some((program, answer)), _) if answer.get("result").is_some() && !is_executed => {
                Some(format!("was not executed, and {program} says that it was"))
            }
            // The requests of a turn are cancelled with it, before the cancel itself is sent.
            (Some((_, answer)), _) if answer["error"]["code"] == CANCELLED && request.is_cancelled => None,
            (Some((program, answer)), _)
                if !is_executed && stored.begun.is_none() && self.shared.sharing.is_store_calm() =>
            {
                Some(format!("was refused by {program}: {answer}"))
            }
            (None, None) => self.open_at_end(request),
            (None, Some(GivenUp::Cancelled)) if !is_executed && !self.is_cut_short(request) => {
                Some("was not executed, and its turn ended as if it had been".to_owned())
            }
            _ => None,
        }
    }

    /// What is wrong with the answer to a permission request, if anything is.
    fn wrong_answer(&self, request: &RequestRecord, stored: &Stored<'_>) -> Option<String> {
        let Some((program, answer)) = &request.taken else {
            return self.open_at_end(request).filter(|_| request.given_up.is_none());
        };
        let taken = &answer["result"];
        // A response that is given while the session is acquired is sent before it is stored.
        let is_early = request.decided_early.contains(program);
        // The requests of a turn are cancelled with it.
        let is_cancelled = taken["outcome"]["outcome"] == "cancelled" && request.is_cancelled;
        if is_early || is_cancelled || self.is_interrupted(request) {
            return None;
        }
        match stored.answer {
            Some(payload) if payload["result"] == *taken => None,
            Some(payload) => Some(format!("was answered by {program}: {taken}, and stored is {payload}")),
            None => Some(format!("was answered by {program}: {taken}, and nothing is stored")),
        }
    }

    /// Nobody waits at the end. A turn that counts as interrupted may still run in a session of the agent that was
    /// replaced.
    fn open_at_end(&self, request: &RequestRecord) -> Option<String> {
        (self.agent_session.as_deref() == Some(&request.session)).then(|| "is open at the end".to_owned())
    }

    /// The program that owned the session for the whole time in which the agent waited without a response, if there is
    /// one.
    fn left_open(&self, request: &RequestRecord) -> Option<String> {
        let is_certain = self.shared.sharing.is_store_calm() && !self.is_interrupted(request);
        let left_by = request.left_by.as_ref().filter(|_| is_certain)?;
        Some(format!("was left open by {left_by}"))
    }

    /// Whether the stored end of a turn says that it was cancelled, interrupted or failed.
    fn is_cut_short(&self, request: &RequestRecord) -> bool {
        let turn = request.turn.as_ref().and_then(|tag| self.turns.get(tag));
        let of_turn = |event: &&StoredEvent| event.turn_id.as_ref() == turn;
        let end = self.events.iter().filter(of_turn).find_map(StoredEvent::turn_end);
        end.is_none_or(|end| end.error.is_some() || end.stop_reason == Some(StopReason::Cancelled))
    }
}
