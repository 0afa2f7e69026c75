//! Requests of the agent to the client: permissions, questions and, on shared endpoints, unclaimed requests.

mod form;
mod handler;
mod option;
mod params;
mod permission;
mod policy;
mod question;
mod reply;
mod unclaimed;

pub use form::{FieldKind, FormChoice, FormField, QuestionForm, TextFormat};
pub(crate) use handler::PermissionHandler;
pub use handler::{DecidedBy, PermissionDecided};
pub use option::{PermissionKind, PermissionOption};
pub(crate) use params::{Admission, Params};
pub use permission::{PermissionOutcome, PermissionReply, PermissionRequest};
pub use policy::{PermissionDecision, PermissionFunction, PermissionPolicy};
pub(crate) use question::{ELICITATION, ELICITATION_COMPLETE, REQUEST_QUESTION};
pub use question::{QuestionKind, QuestionRequest, QuestionSupport};
pub use reply::ReplyError;
pub(crate) use reply::ReplyListener;
pub use unclaimed::{ClaimedRequest, OtherRequest, UnclaimedRequest, UnclaimedSummary};
pub(crate) use unclaimed::{Open, REQUEST_PERMISSION, WeakUnclaimed};
