//! Permissions that were decided without a deciding reader.

use super::Hub;
use crate::requests::{DecidedBy, PermissionDecided};
use crate::{Event, PermissionRequest};

impl Hub {
    /// Drops a permission request whose holder does not decide. If nothing else decides it, it is refused.
    pub(in crate::client) fn refuse(&self, request: PermissionRequest) {
        let refused = request.observed();
        if !request.release() {
            return;
        }
        self.decided(&refused, DecidedBy::Default);
        if let Some(session) = refused.session_id()
            && self.warn_of(session) == Some(true)
        {
            warn_undecided(Some(session));
        }
    }

    /// Reports how a permission was decided.
    pub(in crate::client) fn decided(&self, request: &PermissionRequest, by: DecidedBy) {
        if request.outcome().is_some() {
            self.publish(&Event::PermissionDecided(PermissionDecided::new(request.observed(), by)));
        }
    }
}

/// Logs that nothing decides the requests of a session.
pub(in crate::client) fn warn_undecided(session: Option<&str>) {
    tracing::warn!(
        session,
        "the requests of this session are rejected because nothing decides them: set a permission handler or a policy, or read its events as a deciding subscription"
    );
}
