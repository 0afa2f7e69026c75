//! A cheap request whose echo shows where the numbering of the server stands.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::Core;
use crate::{
    Error,
    outbound::{Draft, Exchange, RequestOptions},
    rpc::Outgoing,
};

/// How often a probe that got no response is repeated, after which pause, and how long each may take. They bound how
/// long a restart behind a silent stream stays unknown; none decides what is true.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(500);
const TIMEOUT: Duration = Duration::from_secs(3);

/// Probes the server, unless a probe is under way or none is configured. The stream, not the response, says what
/// follows: an echo at a number that is not above the last one proves a restart.
pub(crate) fn probe(core: &Arc<Core>) {
    let Some((method, params)) = core.options.probe.clone() else { return };
    if core.probing.swap(true, Ordering::AcqRel) {
        return;
    }
    let core = core.clone();
    core.clone().tasks.spawn(async move {
        for _ in 0..ATTEMPTS {
            match attempt(&core, &method, &params).await {
                Ok(()) => break,
                Err(error) => tracing::debug!(%error, "the probe failed"),
            }
            tokio::time::sleep(PAUSE).await;
        }
        core.probing.store(false, Ordering::Release);
    });
}

async fn attempt(core: &Arc<Core>, method: &str, params: &serde_json::Value) -> Result<(), Error> {
    let number = core.ids.next();
    let Outgoing { body, .. } = Outgoing::request(&core.ids, number, method, params)
        .map_err(|source| Error::Encode { method: method.to_owned(), source: Arc::new(source) })?;
    let draft = Draft { number, method: method.into(), session: None, body };
    let options = RequestOptions::new().timeout(TIMEOUT).ordered(true);
    let settled = Exchange::run(core.clone(), draft, options).await?;
    // An error response says as much: it has a position too.
    drop(settled.outcome);
    Ok(())
}
