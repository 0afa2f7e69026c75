//! Cancelling turns.

use std::{sync::Arc, time::Duration};

use agent_client_protocol_schema::v1::AGENT_METHOD_NAMES;
use bytes::Bytes;

use super::send_one_way;
use crate::{Error, client::Core, inbound::LinkState, transport::PostFailure};

/// How long a cancel waits for the message before it to be handed over. It is repeated anyway.
const BEHIND_PROMPT: Duration = Duration::from_secs(2);

/// Cancels the turn of a session: prompts that were not sent are withdrawn; a turn that runs is cancelled on the server.
///
/// A server may handle the cancel before the prompt, although the prompt was sent first: the two travel on two
/// connections. So the cancel is repeated, a bounded number of times and with growing pauses, for as long as the turn
/// runs and its stream is open. Agents ignore a cancel without a turn.
pub(crate) async fn cancel(core: &Arc<Core>, session: Arc<str>, body: Bytes) -> Result<(), Error> {
    core.check_alive()?;
    // What the agent waits for is answered as cancelled. Responses that cannot be delivered do not delay the cancel:
    // they are sent by tasks of their own.
    let answers = core.calls.cancel(|asking| asking == Some(&*session));
    let _ = tokio::time::timeout(core.options.timeouts.cancel_repeat, answers).await;
    let cancelled = core.outbox.cancel(&session);
    for number in &cancelled.withdrawn {
        let waiter = core.pending().take(*number);
        if let Some(waiter) = waiter {
            let method = waiter.method.to_string();
            waiter.settle(Err(Error::Withdrawn { method }));
        }
    }
    if cancelled.running.is_empty() && !cancelled.withdrawn.is_empty() {
        return Ok(());
    }
    cancel_turns(core, session, body, cancelled.running).await
}

/// Cancels turns that were marked as cancelled before: nothing that was sent later is touched.
pub(super) async fn cancel_turns(
    core: &Arc<Core>,
    session: Arc<str>,
    body: Bytes,
    running: Vec<u64>,
) -> Result<(), Error> {
    core.tap_outbound(&body);
    let sent = send(core, &session, &body).await;
    if !running.is_empty() {
        core.tasks.spawn(repeat(core.clone(), session, body, running));
    }
    sent.map_err(PostFailure::into_error)
}

async fn send(core: &Arc<Core>, session: &Arc<str>, body: &Bytes) -> Result<(), PostFailure> {
    let _cancelling = core.outbox.cancelling(session);
    // Behind the prompt; a prompt whose POST hangs must not delay its cancel.
    let _slot =
        tokio::time::timeout(core.options.timeouts.headers.min(BEHIND_PROMPT), core.outbox.enter(session))
            .await;
    send_one_way(core, AGENT_METHOD_NAMES.session_cancel, body.clone(), Some(session.clone())).await
}

async fn repeat(core: Arc<Core>, session: Arc<str>, body: Bytes, turns: Vec<u64>) {
    let times = &core.options.timeouts;
    let mut pause = times.cancel_repeat;
    for _ in 0..core.options.cancel_repeats {
        tokio::time::sleep(pause).await;
        pause *= 2;
        let runs = turns.iter().any(|number| core.outbox.is_running(*number));
        if !runs {
            return;
        }
        if core.links.get(&core, Some(&session)).state() == LinkState::Live
            && let Err(failure) = send(&core, &session, &body).await
        {
            tracing::debug!(error = %failure.into_error(), "a repeated cancel was not delivered");
        }
    }
}
