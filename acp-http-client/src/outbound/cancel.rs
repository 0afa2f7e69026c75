//! Cancelling turns.

use std::{sync::Arc, time::Duration};

use agent_client_protocol_schema::v1::AGENT_METHOD_NAMES;
use bytes::Bytes;
use tokio::sync::oneshot;

use super::{
    outbox::{Cancelled, Cancelling},
    send_one_way,
};
use crate::{
    Error,
    client::Core,
    inbound::LinkState,
    printable::OneLine,
    tap::catch,
    transport::{Handover, PostFailure},
};

/// How long a cancel waits for the message before it to be handed over. It is repeated anyway.
const BEHIND_PROMPT: Duration = Duration::from_secs(2);

/// Cancels the turn of a session: prompts that were not sent are withdrawn; a turn that runs is cancelled on the server.
/// Its open agent requests get the response "cancelled" if `answers_requests` allows it then.
///
/// A server may handle the cancel before the prompt, although the prompt was sent first: the two travel on two
/// connections. So the cancel is repeated, a bounded number of times and with growing pauses, for as long as the turn
/// runs and its stream is open. A cancel that was not delivered is sent again when the stream is open again. Agents ignore
/// a cancel without a turn.
pub(crate) async fn cancel(
    core: &Arc<Core>,
    session: Arc<str>,
    body: Bytes,
    answers_requests: impl FnOnce() -> bool + Send + 'static,
) -> Result<(), Error> {
    core.check_alive()?;
    // At once, so that a prompt that follows waits for the cancel and is not cancelled by it.
    let Cancelled { mut withdrawn, mut running, cancelling } = core.outbox.cancel(&session);
    // A prompt that was not completely handed over cannot run.
    running.retain(|number| {
        let mut pending = core.pending();
        let handover = pending.get_mut(*number).and_then(|waiter| waiter.handover.as_ref());
        let unsent = handover.is_some_and(Handover::withdraw);
        drop(pending);
        if unsent {
            core.outbox.end_turn(*number);
            withdrawn.push(*number);
        }
        !unsent
    });
    for number in &withdrawn {
        withdraw(core, *number);
    }
    let needed = !running.is_empty() || withdrawn.is_empty();
    // In a separate task: the turns are marked, so the cancel is sent even if the caller is dropped.
    let (done, sent) = oneshot::channel();
    let connection = core.clone();
    core.tasks.spawn(async move {
        let core = connection;
        // The closure belongs to the application. If it panics, it allows nothing.
        if catch("cancel filter", answers_requests).unwrap_or(false) {
            // Responses that cannot be delivered do not delay the cancel: separate tasks send them.
            let answers = core.calls.cancel(|asking| asking == Some(&*session));
            let _ = tokio::time::timeout(core.options.timeouts.cancel_repeat, answers).await;
        }
        let sent = match needed {
            true => cancel_turns(&core, session, body, running, cancelling).await,
            false => Ok(()),
        };
        let _ = done.send(sent);
    });
    // The task ends early only with the connection.
    sent.await.unwrap_or_else(|_| core.check_alive())
}

/// Ends the wait for a prompt that was not sent.
fn withdraw(core: &Core, number: u64) {
    let waiter = core.pending().take(number);
    if let Some(waiter) = waiter {
        let method = waiter.method.to_string();
        waiter.settle(Err(Error::Withdrawn { method }));
    }
}

/// Cancels turns that are already marked as cancelled. Later turns are not affected.
pub(super) async fn cancel_turns(
    core: &Arc<Core>,
    session: Arc<str>,
    body: Bytes,
    running: Vec<u64>,
    cancelling: Cancelling,
) -> Result<(), Error> {
    core.tap_outbound(&body);
    let sent = send(core, &session, &body, cancelling).await;
    if !running.is_empty() {
        core.tasks.spawn(repeat(core.clone(), session, body, running, sent.is_ok()));
    }
    sent.map_err(PostFailure::into_error)
}

/// Sends a cancel. It counts until it has its status.
async fn send(
    core: &Arc<Core>,
    session: &Arc<str>,
    body: &Bytes,
    _cancelling: Cancelling,
) -> Result<(), PostFailure> {
    // After the prompt; a prompt whose POST hangs must not delay its cancel.
    let _slot =
        tokio::time::timeout(core.options.timeouts.headers.min(BEHIND_PROMPT), core.outbox.enter(session))
            .await;
    send_one_way(core, AGENT_METHOD_NAMES.session_cancel, body.clone(), Some(session.clone())).await
}

/// Repeats a cancel while one of its turns runs. While the stream is lost, the end of a turn is not seen, so that a
/// repetition waits for the stream. A cancel that the server has never confirmed is also sent after each reopening.
async fn repeat(core: Arc<Core>, session: Arc<str>, body: Bytes, turns: Vec<u64>, mut is_delivered: bool) {
    let mut stream = core.links.get(&core, Some(&session)).watch();
    let mut pause = core.options.timeouts.cancel_repeat;
    let mut left = core.options.cancel_repeats;
    while left > 0 || !is_delivered && core.options.cancel_repeats > 0 {
        let due = async {
            match left {
                0 => drop(stream.changed().await),
                _ => tokio::time::sleep(pause).await,
            }
            let open = stream.wait_for(|state| matches!(state, LinkState::Live | LinkState::Ended)).await;
            open.is_ok_and(|state| *state == LinkState::Live)
        };
        let is_live = tokio::select! {
            biased;
            () = core.outbox.ended(&session, &turns) => false,
            is_live = due => is_live,
        };
        let cancelling = is_live.then(|| core.outbox.cancel_again(&session, &turns)).flatten();
        let Some(cancelling) = cancelling else { return };
        pause = pause.saturating_mul(2);
        left = left.saturating_sub(1);
        stream.mark_unchanged();
        match send(&core, &session, &body, cancelling).await {
            Ok(()) => is_delivered = true,
            Err(failure) => {
                tracing::debug!(error = %OneLine(failure.into_error()), "a repeated cancel was not delivered");
            }
        }
    }
}
