//! Cancels of requests whose futures were dropped.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use agent_client_protocol_schema::v1::{AGENT_METHOD_NAMES, CancelNotification, PROTOCOL_LEVEL_METHOD_NAMES};
use bytes::Bytes;
use futures::{StreamExt, stream::FuturesUnordered};
use serde::Serialize;
use serde_json::json;
use tokio::sync::Notify;

use super::{Waiter, cancel::cancel_turns, ticket::Posting};
use crate::{
    Error,
    client::Core,
    printable::OneLine,
    rpc::Outgoing,
    transport::{Handover, Post, PostFailure, Sent},
};

/// How many cancels may wait. They are best-effort: beyond this the oldest are dropped.
const QUEUE: usize = 16 * 1024;
/// How many are sent at once.
const CONCURRENT: usize = 16;
/// How long the cancel of a request may take. It is best-effort.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A queue of cancels, filled from `Drop`, where nothing can be awaited.
#[derive(Default)]
pub(crate) struct Notices {
    /// Guards the queue; held for a push or a pop.
    queue: Mutex<VecDeque<Notice>>,
    notify: Notify,
}

struct Notice {
    number: u64,
    /// The POST of the turn, whose end is the end of the turn.
    posting: Option<Posting>,
    /// The session whose turn it was.
    turn: Option<Arc<str>>,
}

impl Notices {
    pub(super) fn cancel(&self, number: u64, waiter: Waiter, posting: Option<Posting>) {
        let prompt = waiter.is_turn();
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.len() == QUEUE {
            queue.pop_front();
        }
        let turn = waiter.session.filter(|_| prompt);
        queue.push_back(Notice { number, posting: posting.filter(|_| turn.is_some()), turn });
        drop(queue);
        self.notify.notify_one();
    }

    async fn next(&self) -> Notice {
        loop {
            let notice = self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            match notice {
                Some(notice) => return notice,
                None => self.notify.notified().await,
            }
        }
    }
}

/// Sends cancels until the connection ends.
pub(crate) async fn run(core: Arc<Core>) {
    let mut sending = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            notice = core.notices.next(), if sending.len() < CONCURRENT => {
                sending.push(send(core.clone(), notice));
            }
            Some(()) = sending.next(), if !sending.is_empty() => {}
        }
    }
}

async fn send(core: Arc<Core>, mut notice: Notice) {
    let (number, session) = (notice.number, notice.turn.clone());
    let posting = notice.posting.take();
    let delivering = deliver(&core, notice);
    let Some(posting) = posting else { return delivering.await };
    let ending = tokio::time::timeout(core.options.timeouts.cancel, posting);
    let (_, ended) = tokio::join!(delivering, ending);
    let link = core.links.get(&core, session.as_ref());
    let Ok(outcome) = ended else { return link.input(|core, now| core.doubt(now, number)) };
    if let Err(PostFailure::Unknown(_) | PostFailure::Unsaid(_)) = outcome {
        // The turn may run, or even begin: the cancel is repeated as often as any other.
        tokio::time::sleep(time_of_repeats(&core)).await;
    }
    core.outbox.end_turn(number);
    link.core().forget(number);
}

/// The maximum sum of the pauses between the repetitions of a cancel.
fn time_of_repeats(core: &Core) -> Duration {
    let times = &core.options.timeouts;
    let doublings = 1_u32.checked_shl(core.options.cancel_repeats).unwrap_or(u32::MAX);
    times.cancel_repeat.saturating_mul(doublings).min(times.cancel)
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Notices")
    }
}

async fn deliver(core: &Arc<Core>, Notice { number, turn, .. }: Notice) {
    // The cancel of a turn counts until it has its status: until then the next prompt waits.
    let request =
        async { tokio::time::timeout(TIMEOUT, cancel_request(core, number)).await.unwrap_or(Ok(())) };
    let (request, turn) = tokio::join!(request, cancel_turn(core, number, turn));
    for error in [request.err(), turn.err()].into_iter().flatten() {
        tracing::debug!(error = %OneLine(&error), "a cancel was not delivered");
    }
}

/// Cancels the request by its id, which few agents understand.
async fn cancel_request(core: &Arc<Core>, number: u64) -> Result<(), Error> {
    let method = PROTOCOL_LEVEL_METHOD_NAMES.cancel_request;
    let params = json!({ "requestId": core.ids.id(number) });
    let body = encode(method, &params)?;
    core.tap_outbound(&body);
    let post = Post {
        what: method.into(),
        body,
        session: None,
        bootstrap: false,
        kind: Sent::OneWay,
        handover: Handover::default(),
    };
    core.transport.post(&post).await.map(drop).map_err(PostFailure::into_error)
}

/// Cancels the turn with `session/cancel`, the protocol's message for turns.
async fn cancel_turn(core: &Arc<Core>, number: u64, turn: Option<Arc<str>>) -> Result<(), Error> {
    let Some(session) = turn else { return Ok(()) };
    let Some(cancelling) = core.outbox.cancel_again(&session, &[number]) else { return Ok(()) };
    let notification = CancelNotification::new(session.clone());
    let body = encode(AGENT_METHOD_NAMES.session_cancel, &notification)?;
    cancel_turns(core, session, body, vec![number], cancelling).await
}

fn encode(method: &str, params: &impl Serialize) -> Result<Bytes, Error> {
    Outgoing::notification(method, params)
        .map(|message| message.body)
        .map_err(|source| Error::Encode { method: method.to_owned(), source: Arc::new(source) })
}
