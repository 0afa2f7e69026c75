//! What the client reports, checked against what the server did.

use std::{
    future::poll_fn,
    sync::{Arc, Mutex},
    task::Poll,
};

use acp_http_client::{ConnectionState, Continuity, EndReason, Event, Events, Origin, Update};
use futures::StreamExt;

use super::{network::stream_key, plan::Model, world::World};

/// Reads the client's events as they come.
#[derive(Debug)]
pub(super) struct Observer {
    world: Arc<World>,
    events: Mutex<Events>,
}

impl Observer {
    pub(super) fn new(world: Arc<World>, events: Events) -> Arc<Self> {
        Arc::new(Self { world, events: Mutex::new(events) })
    }

    /// Reads until the connection ends.
    pub(super) async fn run(self: Arc<Self>) {
        poll_fn(|context| {
            loop {
                let event = self.events.lock().unwrap().poll_next_unpin(context);
                match event {
                    Poll::Ready(Some(event)) => self.take(event),
                    Poll::Ready(None) => return Poll::Ready(()),
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await;
    }

    /// Reads what was published up to now.
    pub(super) fn drain(&self) {
        loop {
            let event = self.events.lock().unwrap().try_recv();
            match event {
                Some(event) => self.take(event),
                None => return,
            }
        }
    }

    fn take(&self, event: Event) {
        let world = &self.world;
        match event {
            Event::Update(update) => self.update(&update),
            Event::Gap { stream, from, to } => {
                world.note(|| format!("client: gap {from} to {to} on {stream}"));
                self.disturbance("gap");
                if !world.plan.is_numbered() {
                    world.fail("a gap was reported where ids are not numbers");
                }
                world.ledger().gap(&stream_key(&stream), from, to);
            }
            Event::Restarted { stream } => {
                world.note(|| format!("client: restart on {stream}"));
                self.disturbance("restart");
                if world.ledger().generation == 0 {
                    world.fail("a restart was reported that never happened");
                }
                world.ledger().restarted(&stream_key(&stream));
            }
            Event::Reconnected { stream, continuity } => {
                world.note(|| format!("client: {stream} reconnected, {continuity:?}"));
                self.disturbance("reconnect");
                if continuity == Continuity::Unverified {
                    if world.plan.is_numbered() && world.ledger().begun.contains(&stream_key(&stream)) {
                        world.fail("a numbered stream was reopened unverified");
                    }
                    world.ledger().excuse(&stream_key(&stream));
                }
            }
            Event::StreamLost { stream, error } => {
                world.note(|| format!("client: {stream} lost: {error}"));
                self.disturbance("lost stream");
                world.ledger().stream_lost(&stream_key(&stream));
            }
            Event::Lagged(count) => {
                world.note(|| format!("client: {count} events were dropped"));
                world.ledger().lagged = true;
            }
            Event::State(state) => self.state(&state),
            Event::Malformed(malformed) => world.fail(format!("malformed: {malformed:?}")),
            Event::TooLarge { error } => world.fail(format!("{error}")),
            Event::AgentRequest { id, request } => {
                world.note(|| format!("client: agent request {id}, {:?}", request.meta.origin));
                let live = request.meta.origin == Origin::Live;
                let replayed = {
                    let mut ledger = world.ledger();
                    let record = ledger.requests.entry(format!("a{id}")).or_default();
                    record.replayed |= !live;
                    record.replayed
                };
                if live && replayed {
                    world.fail(format!("a{id} was replayed first, and is live now"));
                }
            }
            Event::ResponseLost { id, error, .. } => {
                world.note(|| format!("client: the answer to {id} was lost: {error}"));
                self.disturbance("lost answer");
            }
            _ => {}
        }
    }

    fn update(&self, update: &Update) {
        let world = &self.world;
        let index = update
            .message_text()
            .and_then(|text| text.split(' ').next()?.strip_prefix('u')?.parse::<usize>().ok());
        let Some(index) = index else { return world.fail(format!("an update was changed: {update:?}")) };
        world.note(|| format!("client: u{index} {:?}", update.meta.origin));
        let mut ledger = world.ledger();
        ledger.begun.insert(stream_key(&update.meta.stream));
        let mut outcome = ledger.deliver(index);
        if let Some(event) = ledger.emitted.get(index) {
            let session = event.session.clone().unwrap_or_default();
            let loading = ledger.loading.get(&session);
            if outcome.is_ok()
                && event.history.is_some()
                && loading.is_some_and(|(call, whole)| *whole && event.history == Some(*call))
                && update.meta.origin == Origin::Live
            {
                ledger.live_history.insert(session, index);
                return;
            }
            if update.meta.origin == Origin::History && event.history.is_none() && loading.is_none() {
                outcome = outcome.and(Err(format!("u{index} is live and was delivered as history")));
            }
        }
        drop(ledger);
        if let Err(what) = outcome {
            world.fail(what);
        }
    }

    fn state(&self, state: &ConnectionState) {
        self.world.note(|| format!("client: {state}"));
        let Some(reason) = state.end_reason() else { return };
        self.world.ledger().ended = true;
        let model = self.world.plan.model;
        let forgets = matches!(model, Model::Released | Model::Early | Model::Official);
        let expected = match reason {
            EndReason::Closed => true,
            EndReason::ServerGone(_) => forgets && self.world.ledger().generation > 0,
            EndReason::RetriesExhausted { .. } => !self.world.plan.calm,
            _ => false,
        };
        if !expected {
            self.world.fail(format!("the connection ended: {reason}"));
        }
    }

    /// Without faults nothing of the kind happens.
    fn disturbance(&self, what: &str) {
        if self.world.plan.calm {
            self.world.fail(format!("{what} without a fault"));
        }
    }
}
