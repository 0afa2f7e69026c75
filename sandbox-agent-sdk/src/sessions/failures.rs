//! What failures mean for a stored session.

use crate::Error;
use crate::error::is_unknown_session;

/// Whether a prompt did not run because the session, the agent or the connection had ended.
pub(super) fn is_lost_unsent(error: &Error) -> bool {
    match error {
        Error::AgentEnded(_) | Error::ConnectionEnded { .. } => !error.maybe_executed(),
        Error::NotConnected | Error::Unreachable(_) => true,
        error => is_unknown_session(error),
    }
}
