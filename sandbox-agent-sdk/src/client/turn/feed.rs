//! Turns whose events come from a stream instead of the connection.

use std::pin::pin;

use futures::future::OptionFuture;
use futures::{FutureExt, Stream, StreamExt};
use tokio::sync::{oneshot, watch};

use super::limits::{self, TurnLimits, reached};
use super::reload::missed_in;
use super::{Current, Outcome, Reading, Turn, TurnEvent, TurnItem};
use crate::Error;
use crate::client::event::Queue;
use crate::client::hub::Hub;
use crate::client::session::Session;

/// How many missing parts the turn lists.
const MISSED: usize = 64;

impl Turn {
    /// Creates a turn of a session whose events come from this stream, up to [`TurnEvent::Ended`].
    ///
    /// Use it in layers that publish the events of a turn after processing them, such as a store that publishes events
    /// once they are stored. Such a layer reads the turn of [`Session::prompt`] with [`next_event`](Self::next_event)
    /// or the [log](crate::SandboxAgentClient::events_from), and yields each event when the application may see it.
    /// The stream is dropped with the turn. An agent request that the reader does not decide is rejected, as in any
    /// turn.
    pub fn from_events(session: Session, events: impl Stream<Item = TurnEvent> + Send + 'static) -> Self {
        let inner = session.client().inner();
        let queue = inner.hub.turn_queue();
        let (held, dropped) = oneshot::channel();
        let (sender, outcome) = watch::channel(None);
        let (limits, limited) = watch::channel(TurnLimits::default());
        let feed = {
            let (session, queue) = (session.clone(), std::sync::Arc::clone(&queue));
            async move {
                let outcome = tokio::select! {
                    biased;
                    _ = dropped => return,
                    outcome = feed(&session, &queue, events, limited) => outcome,
                };
                queue.end();
                sender.send_replace(Some(outcome));
            }
        };
        if !inner.spawn(feed) {
            queue.end();
        }
        let current = Current::new(session.id());
        Self {
            session,
            current,
            queue,
            outcome,
            limits,
            reading: Reading::NotYet,
            is_fed: true,
            reload: None,
            _held: held,
        }
    }
}

/// Passes the events on until the turn ends or reaches a limit.
async fn feed(
    session: &Session,
    queue: &Queue<TurnItem>,
    events: impl Stream<Item = TurnEvent>,
    mut limited: watch::Receiver<TurnLimits>,
) -> Outcome {
    let mut events = pin!(events);
    let progress = session.client().inner().hub.watch_progress(session.id());
    let mut limit = pin!(reached(&mut limited, progress.clone()).fuse());
    let unread_request = session.client().inner().options.timeouts.unread_request;
    let mut late = None;
    let mut seen = Vec::new();
    let mut cancelling: OptionFuture<_> = None.into();
    loop {
        tokio::select! {
            biased;
            event = events.next() => match event {
                Some(TurnEvent::Ended(outcome)) => return late.map_or(outcome, Err).map(|mut outcome| {
                    // The end of the turn may not list what its updates report as missing.
                    if outcome.missing.is_empty() {
                        outcome.missing = seen;
                    }
                    outcome.missing.extend(queue.missed());
                    outcome
                }),
                Some(event) => {
                    if let TurnEvent::Update(update) = &event
                        && seen.len() < MISSED
                    {
                        seen.extend(missed_in(update));
                    }
                    pass_on(&session.client().inner().hub, session.id(), queue, event);
                }
                None => return Err(late.unwrap_or_else(|| {
                    Error::config("the stream of events ended before the end of the turn")
                })),
            },
            () = limits::unread(progress.clone(), unread_request) => {
                session.client().inner().hub.refuse_unread(session.id(), queue);
            }
            (phase, within) = &mut limit, if late.is_none() => {
                late = Some(limits::late(phase, within, true));
                cancelling = Some(session.cancel().fuse()).into();
            }
            Some(cancelled) = &mut cancelling => {
                // The reader does not wait for an agent that does not stop.
                if let (Err(_), Some(late)) = (cancelled, late.clone()) {
                    return Err(late);
                }
            }
        }
    }
}

fn pass_on(hub: &Hub, session: &str, queue: &Queue<TurnItem>, event: TurnEvent) {
    let is_request = matches!(event, TurnEvent::Permission(_) | TurnEvent::Question(_));
    if is_request && queue.is_deciding() && !queue.is_committed() {
        hub.request_unread(session);
    }
    match event {
        TurnEvent::Update(update) => queue.push(TurnItem::Update(update)),
        TurnEvent::Permission(request) if queue.is_deciding() => queue.push(TurnItem::Permission(request)),
        TurnEvent::Question(request) if queue.is_deciding() => queue.push(TurnItem::Question(request)),
        TurnEvent::Permission(request) => hub.refuse(request),
        TurnEvent::Question(_) | TurnEvent::Ended(_) => {}
    }
}
