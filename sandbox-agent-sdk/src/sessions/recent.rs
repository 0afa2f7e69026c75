//! What was stored last of a session, by whoever had it.

use crate::store::{life_of, number_of, place_of};
use crate::{StoredEvent, StoredEventKind, Update};

/// What was stored last of a session, where every program sees the same stream.
#[derive(Debug)]
pub(super) struct Recent {
    pub(super) ids: Vec<String>,
    /// Whether a turn was begun whose end is not stored.
    pub(super) has_open_turn: bool,
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
        Self::behind(0)
    }
}

impl Recent {
    /// Everything that is stored behind this index is to be taken in.
    pub(super) fn behind(index: u64) -> Self {
        // The prompt of a long turn is further back.
        let has_open_turn = index > 0;
        let (ids, said, life) = (Vec::new(), String::new(), String::new());
        // Whoever makes a session takes it up by that.
        Self { ids, has_open_turn, last: None, said, has_more: index > 0, life, epoch: 1 }
    }

    pub(super) fn take_in(&mut self, event: StoredEvent) {
        match event.kind {
            StoredEventKind::Prompt => self.has_open_turn = true,
            StoredEventKind::TurnEnded | StoredEventKind::Ended => self.has_open_turn = false,
            _ => {}
        }
        if event.payload["sessionUpdate"] == "agent_message_chunk" {
            self.said.push_str(event.payload["content"]["text"].as_str().unwrap_or_default());
        }
        let life = life_of(&event.id).unwrap_or_default();
        if event.kind == StoredEventKind::Restored {
            self.epoch = life.split_once('.').and_then(|(epoch, _)| epoch.parse().ok()).unwrap_or(self.epoch);
            self.last = event.payload.get("at").and_then(|at| at.as_str()).map(str::to_owned);
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

    /// The last place up to which everything is stored, if it was this taking up that saw to that.
    pub(super) fn last_place(&self, epoch: u64) -> Option<&str> {
        self.last.as_deref().filter(|_| self.epoch == epoch)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Recent;
    use crate::{NewEvent, StoredEventKind, Timestamp};

    fn recent(events: &[(&str, StoredEventKind, Option<&str>)]) -> Recent {
        let mut recent = Recent::behind(0);
        for (index, (id, kind, at)) in (1..).zip(events) {
            let event = NewEvent::new(*id, "s", Timestamp::from_millis(1), kind.clone(), json!({ "at": at }));
            recent.take_in(event.at(index));
        }
        recent
    }

    #[test]
    fn the_last_place_is_that_of_whoever_had_the_session_last() {
        use StoredEventKind::{Prompt, Restored, TurnEnded, Update};
        let made = [("1.0:a", Prompt, None), ("1.0:3-x", Update, None), ("1.0:5-y", Update, None)];
        assert_eq!(recent(&made).last_place(1), Some("5-y"));
        assert_eq!(recent(&made).last_place(2), None, "somebody took it up and did not come to store how");
        assert!(recent(&made).has_open_turn);
        let mut loaded = made.to_vec();
        loaded.extend([("1.0:4-late", Update, None), ("2.0:b", Restored, Some("9-z"))]);
        assert_eq!(recent(&loaded).last_place(2), Some("9-z"), "what was told until then is no news");
        loaded.extend([("2.0:12-x", Update, None), ("2.0:c", TurnEnded, None)]);
        assert_eq!(recent(&loaded).last_place(2), Some("12-x"));
        assert!(!recent(&loaded).has_open_turn);
        loaded.push(("2.1:2-x", Update, None));
        assert_eq!(recent(&loaded).last_place(2), Some("2-x"), "the server began anew");
        assert_eq!(recent(&[]).last_place(1), None);
    }
}
