//! Requests of the agent to the client: permissions, questions and, on shared endpoints, unclaimed requests.
//!
//! # Permissions
//!
//! A [`PermissionRequest`] has everything the agent sent: its [options](PermissionRequest::options), the
//! [tool call](PermissionRequest::tool_call) with its input and files, and the [raw](PermissionRequest::raw) request. It is
//! answered once: [`allow_once`](PermissionRequest::allow_once), `allow_always`, `reject_once`, `reject_always`,
//! [`cancel`](PermissionRequest::cancel), or [`choose`](PermissionRequest::choose) an option by its id. A later answer is
//! [`ReplyError::Stale`]. Dropping a request cancels it.
//!
//! | [policy](crate::ClientOptions::permissions) | allows | leaves to the application | rejects |
//! |---|---|---|---|
//! | [`Ask`](PermissionPolicy::Ask), the default | | everything | |
//! | [`BypassPermissions`](PermissionPolicy::BypassPermissions) | everything the agent offers to allow | requests without such an option | |
//! | [`AcceptEdits`](PermissionPolicy::AcceptEdits) | changes of files (kind `edit`) | everything else, including deletes and moves | |
//! | [`Deny`](PermissionPolicy::Deny) | | | everything |
//! | [a function](PermissionPolicy::function) | its choice | its choice | its choice, and everything if it panics |
//!
//! The application decides with a [handler](crate::ClientOptions::permission_handler), with
//! [`Turn::next_event`](crate::Turn::next_event) or with [`Events::deciding`](crate::Events::deciding). Without one of them
//! a request is rejected, and one warning per session says so. Time never approves anything. When the turn is cancelled, the
//! agent ends or the client disconnects, every open request is cancelled. A request that was answered never appears again
//! after a reconnect.
//!
//! On a shared endpoint a request belongs to this client only while a call of this client about its session is pending.
//! Every other request is [`Event::UnclaimedRequest`](crate::Event::UnclaimedRequest).
//!
//! # Questions
//!
//! [`Event::Question`](crate::Event::Question) has a [form](QuestionKind::Form) with typed fields, a [page](QuestionKind::Url)
//! to open, or [choices](QuestionKind::Choice). An answer that does not fit the form is [`ReplyError::Unfit`] and leaves the
//! question open. [`ClientOptions::questions`](crate::ClientOptions::questions) advertises that the application answers
//! questions.

mod agent_request;
mod form;
mod handler;
mod option;
mod params;
mod permission;
mod policy;
mod question;
mod reply;
mod unclaimed;

pub use agent_request::{AgentRequest, Registration, RequestHandler, Requests, Response};
pub(crate) use agent_request::{ConnectionHandlers, Fallback};
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
pub(crate) use reply::{Held, Responder};
pub use unclaimed::{ClaimedRequest, OtherRequest, UnclaimedRequest, UnclaimedSummary};
pub(crate) use unclaimed::{Open, REQUEST_PERMISSION, WeakUnclaimed};
