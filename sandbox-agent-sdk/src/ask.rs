//! What an agent asks of people.

mod permission;
mod question;
mod reply;

pub(crate) use permission::PermissionPolicy;
pub use permission::{
    PermissionDecision, PermissionKind, PermissionOption, PermissionReply, PermissionRequest,
};
pub use question::QuestionRequest;
pub(crate) use question::{ELICITATION, REQUEST_QUESTION};
pub use reply::ReplyError;
