//! Collects the events of a subscriber.

use acp_http_client::{Event, Events};

use crate::within;

/// Events in the order of their arrival.
#[derive(Debug, Default)]
pub struct Collected {
    /// All events.
    pub events: Vec<Event>,
}

impl Collected {
    /// Takes all events delivered so far.
    pub fn drain(&mut self, events: &mut Events) {
        while let Some(event) = events.try_recv() {
            self.events.push(event);
        }
    }

    /// Returns the texts of the agent's message chunks.
    pub fn texts(&self) -> Vec<String> {
        let texts = self.events.iter().filter_map(|event| match event {
            Event::Update(update) => update.message_text().map(str::to_owned),
            _ => None,
        });
        texts.collect()
    }
}

/// Returns the texts delivered so far.
pub fn texts(events: &mut Events) -> Vec<String> {
    let mut collected = Collected::default();
    collected.drain(events);
    collected.texts()
}

/// Reads up to and including the first matching event. Returns all events.
///
/// # Panics
/// If the stream ends first or the timeout expires.
pub async fn collect_until(
    events: &mut Events,
    what: &str,
    mut done: impl FnMut(&Event) -> bool,
) -> Collected {
    let mut collected = Collected::default();
    within(what, async {
        loop {
            let event = events.recv().await.unwrap_or_else(|| panic!("the events ended before {what}"));
            let last = done(&event);
            collected.events.push(event);
            if last {
                return;
            }
        }
    })
    .await;
    collected
}
