//! Requests of the agent to the client: permissions, questions and, on shared endpoints, unclaimed requests.

pub use crate::ask::{ClaimedRequest, OtherRequest, UnclaimedRequest, UnclaimedSummary};
