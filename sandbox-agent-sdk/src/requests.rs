//! Requests of the agent to the client: permissions, questions and, on shared endpoints, unclaimed requests.

pub use crate::ask::{
    ClaimedRequest, DecidedBy, OtherRequest, PermissionDecided, PermissionOutcome, UnclaimedRequest,
    UnclaimedSummary,
};
