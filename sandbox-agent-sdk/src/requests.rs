//! Requests of the agent to the client: permissions, questions and, on shared endpoints, unclaimed requests.

pub use crate::ask::{
    AgentRequest, ClaimedRequest, DecidedBy, OtherRequest, PermissionDecided, PermissionOutcome, Registration, RequestHandler, Requests,
    Response, UnclaimedRequest,
    UnclaimedSummary,
};
