//! The names of methods.

pub(super) const AUTHENTICATE: &str = "authenticate";
pub(super) const CLOSE: &str = "session/close";
pub(super) const DELETE: &str = "session/delete";
pub(super) const FORK: &str = "session/fork";
pub(super) const LIST: &str = "session/list";
pub(super) const LOGOUT: &str = "logout";
pub(super) const LOAD: &str = "session/load";
pub(super) const NEW: &str = "session/new";
pub(super) const PROMPT: &str = "session/prompt";
/// A method that no agent implements. The agent's error response follows everything that it sent before.
pub(super) const REPLAYED: &str = "_replayed";
pub(super) const RESUME: &str = "session/resume";
pub(super) const SESSION_UPDATE: &str = "session/update";
pub(super) const SET_MODE: &str = "session/set_mode";
pub(super) const SET_MODEL: &str = "session/set_model";
pub(super) const SET_OPTION: &str = "session/set_config_option";
/// The notification of a released server, or of the adapter, that the agent of an endpoint has ended.
pub(crate) const AGENT_EXITED: &str = "_adapter/agent_exited";
pub(super) const DETACH: &str = "_sandboxagent/session/detach";
pub(super) const EXTENDED_GET: &str = "_sandboxagent/session/get";
pub(super) const EXTENDED_LIST: &str = "_sandboxagent/session/list";
pub(super) const LIST_MODELS: &str = "_sandboxagent/session/list_models";
pub(super) const SET_METADATA: &str = "_sandboxagent/session/set_metadata";
pub(super) const TERMINATE: &str = "_sandboxagent/session/terminate";

/// The prefix of the methods that the server handles itself.
const SERVER_PREFIX: &str = "_sandboxagent/";

/// Whether the agent executes a method, so that it may send requests to the client meanwhile.
pub(super) fn is_answered_by_agent(method: &str) -> bool {
    !method.starts_with(SERVER_PREFIX)
}
