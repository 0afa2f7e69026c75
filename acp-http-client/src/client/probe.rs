//! A cheap request whose echo shows the current event number of the server.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::Core;
use crate::{
    Error,
    outbound::{Draft, Exchange, RequestOptions},
    printable::OneLine,
    rpc::Outgoing,
};

/// How often a probe without a response is repeated, the pause between attempts, and the timeout of each. They bound
/// how long a restart stays undetected while the stream is silent.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(500);
const TIMEOUT: Duration = Duration::from_secs(3);

/// Probes the server, if a probe is configured. The result is the position of the echo on the stream: an echo whose
/// number is not above the last one proves a restart, and every response that was sent before the probe precedes its
/// echo. A probe that is requested while another is running follows it.
pub(crate) fn probe(core: &Arc<Core>) {
    let Some((method, params)) = core.options.probe.clone() else { return };
    if core.probes.fetch_add(1, Ordering::AcqRel) > 0 {
        return;
    }
    let core = core.clone();
    core.clone().tasks.spawn(async move {
        loop {
            let asked = core.probes.load(Ordering::Acquire);
            for _ in 0..ATTEMPTS {
                match attempt(&core, &method, &params).await {
                    Ok(()) => break,
                    Err(error) => tracing::debug!(error = %OneLine(&error), "the probe failed"),
                }
                tokio::time::sleep(PAUSE).await;
            }
            if core.probes.compare_exchange(asked, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return;
            }
        }
    });
}

async fn attempt(core: &Arc<Core>, method: &str, params: &serde_json::Value) -> Result<(), Error> {
    let number = core.ids.next();
    let Outgoing { body, .. } = Outgoing::request(&core.ids, number, method, params)
        .map_err(|source| Error::Encode { method: method.to_owned(), source: Arc::new(source) })?;
    let draft = Draft { number, method: method.into(), session: None, body, subscriber: None };
    let options = RequestOptions::new().timeout(TIMEOUT).ordered(true);
    let settled = Exchange::run(core.clone(), draft, options).await?;
    // An error response has a position too, so it serves as well.
    drop(settled.outcome);
    Ok(())
}
