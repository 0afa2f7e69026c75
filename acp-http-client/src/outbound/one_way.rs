//! Messages that have no response.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use crate::{
    Error, Phase, Timeout,
    client::Core,
    transport::{Handover, Post, PostFailure, Sent},
};

/// Sends a message that has no response, and waits for its status.
pub(crate) async fn send_one_way(
    core: &Arc<Core>,
    what: &str,
    body: Bytes,
    session: Option<Arc<str>>,
) -> Result<(), PostFailure> {
    core.check_alive().map_err(PostFailure::NotTaken)?;
    let post = Post {
        what: what.into(),
        body,
        session,
        bootstrap: false,
        kind: Sent::OneWay,
        handover: Handover::default(),
    };
    let started = Instant::now();
    let limit = core.options.timeouts.headers;
    match tokio::time::timeout(limit, core.clone().post(post)).await {
        Ok(result) => result.map(drop),
        Err(_) => Err(PostFailure::Unknown(Error::Timeout(Box::new(Timeout {
            phase: Phase::Headers,
            what: what.to_owned(),
            elapsed: started.elapsed(),
            last_event_age: core.last_event_age(),
            state: core.state(),
            cause: None,
        })))),
    }
}
