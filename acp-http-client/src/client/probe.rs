//! A cheap request whose echo shows where the numbering of the server stands.

use std::sync::{Arc, atomic::Ordering};

use super::Core;
use crate::{
    outbound::{Draft, Exchange, RequestOptions},
    rpc::Outgoing,
};

/// Probes the server, unless a probe is under way or none is configured. The stream, not the response, says what
/// follows: an echo at a number that is not above the last one proves a restart.
pub(crate) fn probe(core: &Arc<Core>) {
    let Some((method, params)) = core.options.probe.clone() else { return };
    if core.probing.swap(true, Ordering::AcqRel) {
        return;
    }
    let number = core.ids.next();
    let Ok(body) = Outgoing::request(&core.ids.id(number), &method, &params) else { return };
    let draft = Draft { number, method: method.into(), session: None, body };
    let options = RequestOptions::new().timeout(core.options.timeouts.headers).ordered(true);
    let probing = core.clone();
    core.tasks.spawn(async move {
        if let Err(error) = Exchange::run(probing.clone(), draft, options).await {
            tracing::debug!(%error, "the probe failed");
        }
        probing.probing.store(false, Ordering::Release);
    });
}
