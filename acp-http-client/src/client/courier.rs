//! Tells the agent about requests that nobody waits for any more.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use agent_client_protocol_schema::v1::PROTOCOL_LEVEL_METHOD_NAMES;
use serde_json::json;
use tokio::sync::Notify;

use super::Core;
use crate::{
    rpc::Outgoing,
    transport::{Post, Sent},
};

/// How many cancellations may wait; they are a courtesy, and beyond this the oldest are dropped.
const QUEUE: usize = 16 * 1024;
/// How long one of them may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// A queue of cancellations, filled from `Drop`, where nothing can be awaited.
#[derive(Debug, Default)]
pub(crate) struct Courier {
    /// Guards the queue; held for a push or a pop.
    queue: Mutex<VecDeque<u64>>,
    notify: Notify,
}

impl Courier {
    pub(crate) fn cancel(&self, number: u64) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.len() == QUEUE {
            queue.pop_front();
        }
        queue.push_back(number);
        drop(queue);
        self.notify.notify_one();
    }

    async fn next(&self) -> u64 {
        loop {
            let number = self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            match number {
                Some(number) => return number,
                None => self.notify.notified().await,
            }
        }
    }
}

/// Posts cancellations for as long as the connection lives.
pub(crate) async fn run(core: Arc<Core>) {
    loop {
        let number = core.courier.next().await;
        let method = PROTOCOL_LEVEL_METHOD_NAMES.cancel_request;
        let params = json!({ "requestId": core.ids.id(number) });
        let Ok(body) = Outgoing::notification(method, &params) else { continue };
        core.tap_outbound(&body);
        let post = Post { what: method.into(), body, session: None, bootstrap: false, kind: Sent::OneWay };
        match tokio::time::timeout(PATIENCE, core.transport.post(&post)).await {
            Ok(Ok(_)) => {}
            Ok(Err(failure)) => {
                tracing::debug!(error = %failure.into_error(), "a cancellation was not delivered")
            }
            Err(_) => tracing::debug!("a cancellation was not confirmed in time"),
        }
    }
}
