//! Requests from the agent to the client: permissions, questions, and unclaimed requests of shared endpoints.
//!
//! # Permissions
//!
//! A [`PermissionRequest`] contains everything the agent sent: the [options](PermissionRequest::options), the
//! [tool call](PermissionRequest::tool_call) with its input and files, and the [raw](PermissionRequest::raw)
//! parameters. It is decided once: by [`allow_once`](PermissionRequest::allow_once), `allow_always`,
//! `reject_once`, `reject_always`, [`cancel`](PermissionRequest::cancel), or [`choose`](PermissionRequest::choose)
//! with an option id. A later decision fails with [`ReplyError::Stale`]. Dropping a request cancels it.
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
//! [`Turn::next_event`](crate::Turn::next_event) or with [`Events::deciding`](crate::Events::deciding). Without any
//! of these the request is rejected, and one warning per session is logged. A timeout never allows a request. When
//! the turn is cancelled, the agent ends, or the client disconnects, all open requests are cancelled, except those of
//! stored sessions on a shared endpoint: a disconnect leaves these to the next owner. After a reconnect, a request
//! that was already decided does not appear again.
//!
//! On a shared endpoint a request is addressed to this client only while this client has a pending call for the same
//! session. Every other request arrives as [`Event::UnclaimedRequest`](crate::Event::UnclaimedRequest).
//!
//! # Questions
//!
//! [`Event::Question`](crate::Event::Question) asks the user to fill in a [form](QuestionKind::Form) with typed
//! fields, to open a [web page](QuestionKind::Url), or to [choose](QuestionKind::Choice). An answer that does not
//! match the form fails with [`ReplyError::Unfit`], and the question stays open.
//! [`ClientOptions::questions`](crate::ClientOptions::questions) advertises support for questions to the agent.

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
pub(crate) use params::{Admission, Admitted, Params};
pub use permission::{PermissionOutcome, PermissionReply, PermissionRequest};
pub use policy::{PermissionDecision, PermissionFunction, PermissionPolicy};
pub(crate) use question::{ELICITATION, ELICITATION_COMPLETE, REQUEST_QUESTION};
pub use question::{QuestionKind, QuestionRequest, QuestionSupport};
pub use reply::ReplyError;
pub(crate) use reply::{Held, Responder};
pub use unclaimed::{ClaimedRequest, OtherRequest, UnclaimedRequest, UnclaimedSummary};
pub(crate) use unclaimed::{Open, REQUEST_PERMISSION, WeakUnclaimed};
