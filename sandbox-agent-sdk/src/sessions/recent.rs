//! What was stored last of a session, by whoever had it.

use std::collections::HashSet;

use crate::Update;
use crate::sessions::{StoredEvent, StoredEventKind};
use crate::store::{life_of, number_of, place_of};

/// What was stored last of a session, where every program sees the same stream.
#[derive(Debug)]
pub(super) struct Recent {
    pub(super) ids: Vec<String>,
    /// Up to which number what is behind the last place is stored as a gap.
    gap_to: Option<u64>,
    /// Whether a turn was begun whose end is not stored.
    pub(super) has_open_turn: bool,
    /// Whether the session has ended, as somebody has stored who did not know the place of that.
    pub(super) is_ended: bool,
    /// The last place up to which everything is stored, as far as whoever had the session last has seen to that.
    pub(super) last: Option<String>,
    /// What was said.
    said: String,
    /// Whether there is more before this.
    has_more: bool,
    /// The life of the server that it is of.
    life: String,
    /// The last taking up of which it is stored how it ended. What an agent tells while it loads a session is no news,
    /// and nobody else could tell it from news.
    epoch: u64,
}

impl Default for Recent {
    fn default() -> Self {
        Self::behind(0, None)
    }
}

impl Recent {
    /// Everything that is stored behind this index is to be taken in, of a session that was taken up in this place last.
    pub(super) fn behind(index: u64, taken_at: Option<&str>) -> Self {
        // The prompt of a long turn is further back.
        let has_open_turn = index > 0;
        let (ids, said, life) = (Vec::new(), String::new(), String::new());
        // Whoever makes a session takes it up by that, and it begins there.
        let last = taken_at.filter(|_| index == 0).map(str::to_owned);
        Self {
            ids,
            gap_to: None,
            has_open_turn,
            is_ended: false,
            last,
            said,
            has_more: index > 0,
            life,
            epoch: 1,
        }
    }

    pub(super) fn take_in(&mut self, event: StoredEvent) {
        match event.kind {
            StoredEventKind::Prompt => (self.has_open_turn, self.is_ended) = (true, false),
            StoredEventKind::TurnEnded => self.has_open_turn = false,
            StoredEventKind::Ended => {
                (self.has_open_turn, self.is_ended) = (false, number_of(place_of(&event.id)).is_none());
            }
            StoredEventKind::Restored => self.is_ended = false,
            StoredEventKind::Gap => {
                self.gap_to = self.gap_to.max(event.payload["to"].as_u64());
                // Whoever took the session up has said what is missing of the turn.
                self.has_open_turn &= event.payload["by"] != "restore";
            }
            _ => {}
        }
        if event.payload["sessionUpdate"] == "agent_message_chunk" {
            self.said.push_str(event.payload["content"]["text"].as_str().unwrap_or_default());
        }
        let life = life_of(&event.id).unwrap_or_default();
        let epoch = life.split_once('.').and_then(|(epoch, _)| epoch.parse().ok()).unwrap_or(self.epoch);
        if self.has_more && self.ids.is_empty() {
            // How it was taken up then is further back.
            self.epoch = epoch;
        }
        if matches!(event.kind, StoredEventKind::Restored | StoredEventKind::Detached) {
            // Whoever leaves a session has it counted as one that was taken up.
            self.epoch = epoch.saturating_add(u64::from(event.kind == StoredEventKind::Detached));
            self.last = event.payload.get("at").and_then(|at| at.as_str()).map(str::to_owned);
            self.gap_to = None;
            life.clone_into(&mut self.life);
        } else if let Some(number) = number_of(place_of(&event.id)) {
            // Late events of somebody who had the session before come in between.
            let is_further = number_of(self.last.as_deref().unwrap_or_default()) < Some(number);
            if is_further || life != self.life {
                self.last = Some(place_of(&event.id).to_owned());
                life.clone_into(&mut self.life);
            }
        }
        self.ids.push(event.id);
    }

    /// Whether everything that an agent told of the conversation is known, or the end of it where not all of it is here.
    pub(super) fn explains(&self, history: &[Update]) -> bool {
        let mut told = history.iter().filter_map(Update::message_text);
        let is_known = |text: &str| self.said.contains(text);
        if self.has_more { told.next_back().is_none_or(is_known) } else { told.all(is_known) }
    }

    /// Whether it is stored how the session was taken up this time.
    pub(super) fn is_accounted(&self, epoch: u64) -> bool {
        self.epoch == epoch
    }

    /// The number up to which everything is stored, or is known to be missing, if the last place was read here.
    pub(super) fn stored_to(&self, has_read: impl Fn(&str) -> bool) -> Option<u64> {
        let last = self.last.as_deref().filter(|place| has_read(place)).and_then(number_of)?;
        Some(self.gap_to.unwrap_or(0).max(last))
    }

    /// The places that are stored.
    pub(super) fn places(&self) -> HashSet<String> {
        self.ids.iter().map(|id| place_of(id).to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Recent;
    use crate::session::Timestamp;
    use crate::sessions::{NewEvent, StoredEventKind};

    fn recent(events: &[(&str, StoredEventKind, Option<&str>)]) -> Recent {
        let mut recent = Recent::behind(0, Some("2-w"));
        for (index, (id, kind, at)) in (1..).zip(events) {
            let event = NewEvent::new(*id, "s", Timestamp::from_millis(1), kind.clone(), json!({ "at": at }));
            recent.take_in(event.at(index));
        }
        recent
    }

    #[test]
    fn the_last_place_is_that_of_whoever_had_the_session_last() {
        use StoredEventKind::{Detached, Prompt, Restored, TurnEnded, Update};
        let made = [("1.0:a", Prompt, None), ("1.0:3-x", Update, None), ("1.0:5-y", Update, None)];
        let last = |events: &[_]| recent(events).last;
        assert_eq!(last(&made).as_deref(), Some("5-y"));
        assert!(recent(&made).is_accounted(1) && !recent(&made).is_accounted(2), "nobody came to store how");
        assert!(recent(&made).has_open_turn);
        assert_eq!(recent(&made).stored_to(|place| place == "5-y"), Some(5));
        assert_eq!(recent(&made).stored_to(|_| false), None, "it is of another life");
        let mut loaded = made.to_vec();
        loaded.extend([("1.0:4-late", Update, None), ("2.0:b", Restored, Some("9-z"))]);
        assert_eq!(last(&loaded).as_deref(), Some("9-z"), "what was told until then is no news");
        assert!(recent(&loaded).is_accounted(2));
        loaded.extend([("2.0:12-x", Update, None), ("2.0:c", TurnEnded, None)]);
        assert_eq!(last(&loaded).as_deref(), Some("12-x"));
        assert!(!recent(&loaded).has_open_turn);
        loaded.push(("2.1:2-x", Update, None));
        assert_eq!(last(&loaded).as_deref(), Some("2-x"), "the server began anew");
        loaded.push(("2.1:d", Detached, Some("8-x")));
        assert!(recent(&loaded).is_accounted(3), "it was left");
        assert_eq!(last(&loaded).as_deref(), Some("8-x"));
        let mut long = Recent::behind(5, None);
        let event = NewEvent::new("4.0:9-x", "s", Timestamp::from_millis(1), Update, ());
        long.take_in(event.at(6));
        assert!(long.is_accounted(4), "how it was taken up is further back");
        assert_eq!(last(&[]).as_deref(), Some("2-w"), "where it was made");
    }
}
