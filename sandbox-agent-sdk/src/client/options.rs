//! The options of a client.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use acp_http_client::{ReconnectPolicy, Token, TokenError, TokenProvider, TokenUse};
use futures::future::BoxFuture;

use crate::client::limits::Limits;
use crate::client::parts::Parts;
use crate::client::secret::Secret;
use crate::requests::PermissionHandler;
use crate::requests::QuestionSupport;
use crate::usage::Budget;
use crate::{Error, PermissionDecision, PermissionPolicy, PermissionRequest, SandboxAgentClient};

/// A token provider that the connection and the control plane share.
pub(crate) type SharedProvider =
    Arc<dyn Fn(TokenUse) -> BoxFuture<'static, Result<Token, TokenError>> + Send + Sync>;

/// The kinds of servers. A client detects the kind of its server by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ServerKind {
    /// A server with one shared endpoint, `/v1/rpc`, for all agents and clients. Sessions outlive the connection.
    Shared,
    /// A released server: each connection has its own endpoint and agent process. The agent and its sessions end with
    /// the connection.
    PerAgent,
    /// An early server, which assigns a connection id. Sessions outlive the connection.
    ConnectionId,
}

impl fmt::Display for ServerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shared => "shared endpoint",
            Self::PerAgent => "endpoint per agent",
            Self::ConnectionId => "connection id",
        })
    }
}

/// What happens to a running turn when its [`Turn`](crate::Turn) is dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DropPolicy {
    /// Cancels the turn.
    #[default]
    Cancel,
    /// Lets the turn continue. Subscribers of the session's events receive its updates.
    Detach,
}

/// The timeouts of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientTimeouts {
    /// How long connecting waits for a server that is not up yet. Default 30 s.
    pub start: Duration,
    /// How long the agent may take to start, including its installation. Default 180 s.
    pub initialize: Duration,
    /// The timeout of every other request except prompts. Default 60 s.
    pub request: Duration,
    /// How long creating or loading a session may take. Default 300 s.
    pub session: Duration,
    /// How long a cancelled turn may take to stop. Default 10 s.
    pub cancel: Duration,
    /// How long the next prompt waits until the agent has stopped working on a cancelled prompt. Default 2.5 s, and at
    /// most half of `cancel`.
    ///
    /// Some agents continue to send text after the response to a cancelled prompt, and report when they have stopped.
    /// The client waits for this report. If the report does not arrive in time, later text of the cancelled prompt is
    /// in the next turn. If in addition the stop reason is `cancelled` and the agent has never sent such a report in
    /// this session, the client does not wait again until the agent sends one.
    pub run_end: Duration,
    /// How long an agent may take to confirm that it has replayed a loaded session. Default 5 s. The client requests
    /// the confirmation only if the conversation does not end with a message of the agent.
    pub replay: Duration,
    /// How long an agent request may wait in a turn that is not read yet. Default 60 s. Then the request is rejected, and
    /// so are later ones until [`Turn::next_event`](crate::Turn::next_event) is called.
    pub unread_request: Duration,
    /// How long the server may take to confirm that the connection is closed. Default 2 s. Released servers do not
    /// confirm it while their agent runs, so the client does not wait for them.
    pub disconnect: Duration,
    /// How long a failed call waits for details about the agent's end. Default 500 ms.
    pub termination: Duration,
    /// How long the client waits for further details after the calls have failed. Default 180 s. Released servers
    /// report stderr output only when their own timeout for the pending request expires, after 120 s by default. The
    /// client publishes the details as [`Event::TerminationDetails`](crate::Event::TerminationDetails).
    pub late_details: Duration,
    /// How long to wait for late updates after the notification that the agent has ended. Default 50 ms. Servers send
    /// updates and the notification concurrently, and nothing in the stream shows which update is the last.
    pub trailing: Duration,
}

impl Default for ClientTimeouts {
    fn default() -> Self {
        Self {
            start: Duration::from_secs(30),
            initialize: Duration::from_secs(180),
            request: Duration::from_secs(60),
            session: Duration::from_secs(300),
            cancel: Duration::from_secs(10),
            run_end: Duration::from_millis(2500),
            replay: Duration::from_secs(5),
            unread_request: Duration::from_secs(60),
            disconnect: Duration::from_secs(2),
            termination: Duration::from_millis(500),
            late_details: Duration::from_secs(180),
            trailing: Duration::from_millis(50),
        }
    }
}

/// Gives each timeout a setter of the same name.
macro_rules! setters {
    ($($name:ident: $what:literal,)*) => {
        impl ClientTimeouts {
            $(
                #[doc = concat!("Sets how long to wait for ", $what, ".")]
                #[must_use]
                pub fn $name(mut self, time: Duration) -> Self {
                    self.$name = time;
                    self
                }
            )*
        }
    };
}

setters! {
    start: "a server that is not up yet",
    initialize: "the agent to be ready",
    request: "the response to any other request except a prompt",
    session: "a session to be created or loaded",
    cancel: "a cancelled turn to stop",
    run_end: "the agent to report that it has stopped working on a cancelled prompt",
    replay: "an agent to confirm that it has replayed a conversation",
    unread_request: "a turn with an agent request to be read",
    disconnect: "the server to confirm that the connection is closed",
    termination: "the details of an agent's end",
    late_details: "the details of an agent's end after the pending calls have failed",
    trailing: "updates that follow the notification of the agent's end",
}

/// The options of a [`SandboxAgentClient`]. [`build`](Self::build) reports invalid settings.
#[derive(Clone)]
#[must_use = "options do nothing until a client is built from them"]
pub struct ClientOptions {
    pub(crate) base_url: String,
    pub(crate) agent: Option<String>,
    pub(crate) auto_connect: bool,
    pub(crate) server: Option<ServerKind>,
    pub(crate) token: Option<Secret>,
    pub(crate) provider: Option<SharedProvider>,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) http: Option<reqwest::Client>,
    #[cfg(feature = "fuzzing")]
    pub(crate) sender: Option<Arc<dyn acp_http_client::HttpSender>>,
    pub(crate) timeouts: ClientTimeouts,
    pub(crate) reconnect: ReconnectPolicy,
    pub(crate) drop_policy: DropPolicy,
    pub(crate) reload_incomplete: bool,
    pub(crate) event_budget: usize,
    pub(crate) limits: Limits,
    pub(crate) permissions: PermissionPolicy,
    pub(crate) permission_handler: Option<PermissionHandler>,
    pub(crate) questions: QuestionSupport,
    pub(crate) parts: Parts,
    pub(crate) client_info: (String, String),
    pub(crate) auto_authenticate: bool,
    pub(crate) budget: Option<Budget>,
    pub(crate) notices: bool,
    pub(crate) terminal_logins: bool,
}

impl ClientOptions {
    /// Creates options for the server at this URL.
    pub fn new(base_url: impl Into<String>) -> Self {
        Self {
            base_url: base_url.into(),
            agent: None,
            auto_connect: true,
            server: None,
            token: None,
            provider: None,
            headers: Vec::new(),
            http: None,
            #[cfg(feature = "fuzzing")]
            sender: None,
            timeouts: ClientTimeouts::default(),
            reconnect: ReconnectPolicy::default(),
            drop_policy: DropPolicy::default(),
            reload_incomplete: false,
            event_budget: 64 << 20,
            limits: Limits::default(),
            permissions: PermissionPolicy::Ask,
            permission_handler: None,
            questions: QuestionSupport::Off,
            parts: Parts::default(),
            client_info: (env!("CARGO_PKG_NAME").to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
            auto_authenticate: true,
            budget: None,
            notices: true,
            terminal_logins: false,
        }
    }

    /// Sets the name of the agent, such as `claude`.
    pub fn agent(mut self, agent: impl Into<String>) -> Self {
        self.agent = Some(agent.into());
        self
    }

    /// Sets whether the client connects in the background when it is built. Default true.
    pub fn auto_connect(mut self, auto: bool) -> Self {
        self.auto_connect = auto;
        self
    }

    /// Sets whether the client logs in to the agent without a user. Default true.
    ///
    /// The client logs in after connecting, with the login methods that read a key from variables of the agent's
    /// environment ([`LoginKind::Variables`](crate::login::LoginKind::Variables)). It tries them in the agent's order
    /// until one succeeds. A failed login does not fail the connection, because not every agent needs one. Turn this
    /// off for an agent whose stored login must not be replaced by a key.
    ///
    /// On a shared endpoint ([`ServerKind::Shared`](crate::ServerKind::Shared)) other clients use the same agent, and
    /// may have chosen another login. There the client logs in only when the agent responds that a login is required.
    /// It then repeats a call that opens or lists sessions. It does not send a prompt again, because the agent may have
    /// executed it, but the agent is logged in for the next prompt.
    pub fn auto_authenticate(mut self, auto: bool) -> Self {
        self.auto_authenticate = auto;
        self
    }

    /// Sets the kind of server and skips its detection.
    pub fn server(mut self, kind: ServerKind) -> Self {
        self.server = Some(kind);
        self
    }

    /// Sets the bearer token of every request.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into().into());
        self.provider = None;
        self
    }

    /// Sets a provider that returns the token for every request.
    ///
    /// If the server rejects a token, the provider is called once more.
    pub fn token_provider(mut self, provider: impl TokenProvider) -> Self {
        let provider = Arc::new(provider);
        self.provider = Some(Arc::new(move |reason| {
            let provider = Arc::clone(&provider);
            Box::pin(async move { provider.token(reason).await })
        }));
        self.token = None;
        self
    }

    /// Adds a header to every request.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sets the HTTP client. It should neither follow redirects nor have a total timeout.
    pub fn http_client(mut self, http: reqwest::Client) -> Self {
        self.http = Some(http);
        self
    }

    /// Sends the messages of connections through `sender`. For tests of this project only.
    #[cfg(feature = "fuzzing")]
    #[doc(hidden)]
    pub fn http_sender(mut self, sender: impl acp_http_client::HttpSender) -> Self {
        self.sender = Some(Arc::new(sender));
        self
    }

    /// Sets the timeouts.
    pub fn timeouts(mut self, timeouts: ClientTimeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// Sets how a lost event stream is reopened.
    pub fn reconnect(mut self, policy: ReconnectPolicy) -> Self {
        self.reconnect = policy;
        self
    }

    /// Sets what happens to a running turn that is dropped. Default [`DropPolicy::Cancel`].
    pub fn on_turn_drop(mut self, policy: DropPolicy) -> Self {
        self.drop_policy = policy;
        self
    }

    /// Sets whether incomplete turns are completed from the agent's own history. Default false.
    ///
    /// If it is true and updates are missing, [`Turn::text`](crate::Turn::text) and
    /// [`Turn::collect`](crate::Turn::collect) load the session again, if the agent can load sessions and no other
    /// turn of this client runs in the session. The turn stays incomplete in these cases:
    ///
    /// - The last user message of the history is not the prompt of the turn.
    /// - The history lacks text or tool calls that were received, or contains nothing that was received.
    /// - The history may end with an earlier turn with the same prompt. This is ruled out if the history contains the
    ///   id of a received message, or if this client has created the session and the history has more messages with
    ///   this text than were sent before.
    ///
    /// If the history lacks only thoughts, file changes or other parts of tool calls, the client adds those that it
    /// received.
    pub fn reload_incomplete_turns(mut self, reload: bool) -> Self {
        self.reload_incomplete = reload;
        self
    }

    /// Sets how many bytes of updates may wait for one subscriber or turn. Default 64 MiB.
    ///
    /// Further updates are dropped and counted. Agent requests, [unclaimed](crate::Event::UnclaimedRequest) requests
    /// and rare events, such as the end of a turn or session and a change of the connection, have separate budgets of
    /// the same size (at least 1 MiB), so that many updates do not displace them.
    pub fn event_budget(mut self, bytes: usize) -> Self {
        self.event_budget = bytes;
        self
    }

    /// Sets the limits on data from the server.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the policy that decides permission requests first.
    ///
    /// By default the policy decides nothing. The [handler](Self::permission_handler),
    /// [deciding](crate::Events::deciding) subscriptions and turns that are read with
    /// [`next_event`](crate::Turn::next_event) decide instead. Without any of these, requests are rejected.
    pub fn permissions(mut self, policy: PermissionPolicy) -> Self {
        self.permissions = policy;
        self
    }

    /// Sets an asynchronous function that decides the requests that the policy leaves open.
    ///
    /// Each request runs the function in its own task, so it may wait, for example for a user. The request contains
    /// the tool call with everything that the agent has reported about it. The future is dropped if the request ends
    /// in another way: the turn is cancelled or the agent exits. A function that decides through the request, for example
    /// with [`allow_once`](crate::PermissionRequest::allow_once), runs to its end or until the connection ends; what it
    /// returns then has no effect. If the function decides nothing and returns [`PermissionDecision::Ask`]
    /// or panics, the request is rejected. While a handler is set, turns and subscriptions receive requests but cannot
    /// decide them.
    ///
    /// # Examples
    /// ```
    /// use sandbox_agent_sdk::{PermissionDecision, SandboxAgentClient};
    /// use sandbox_agent_sdk::requests::PermissionReply;
    /// use sandbox_agent_sdk::update::ToolKind;
    ///
    /// let options = SandboxAgentClient::builder("http://127.0.0.1:2468").permission_handler(|request| async move {
    ///     match request.tool_call().and_then(|call| call.kind.clone()) {
    ///         Some(ToolKind::Read | ToolKind::Search) => PermissionDecision::Reply(PermissionReply::Once),
    ///         _ => PermissionDecision::Refuse,
    ///     }
    /// });
    /// # drop(options);
    /// ```
    pub fn permission_handler<F, D>(mut self, handler: F) -> Self
    where
        F: Fn(PermissionRequest) -> D + Send + Sync + 'static,
        D: Future<Output = PermissionDecision> + Send + 'static,
    {
        self.permission_handler = Some(PermissionHandler::new(handler));
        self
    }

    /// Sets a function as the policy. See [`PermissionPolicy::function`].
    pub fn permission_policy(
        self,
        policy: impl Fn(&PermissionRequest) -> PermissionDecision + Send + Sync + 'static,
    ) -> Self {
        self.permissions(PermissionPolicy::function(policy))
    }

    /// Sets which questions are advertised to agents. They arrive as [`Event::Question`](crate::Event::Question).
    ///
    /// By default none are advertised.
    pub fn questions(mut self, support: QuestionSupport) -> Self {
        self.questions = support;
        self
    }

    /// Sets whether support for [notices](crate::UpdateKind::Notice) is advertised to agents. Default true.
    ///
    /// If it is not advertised, agents write such information into their messages.
    pub fn notices(mut self, shown: bool) -> Self {
        self.notices = shown;
        self
    }

    /// Sets whether [terminal logins](crate::client::login::LoginKind::Terminal) are advertised to agents. Default false.
    ///
    /// Agents offer such logins only to clients that advertise support.
    pub fn terminal_logins(mut self, possible: bool) -> Self {
        self.terminal_logins = possible;
        self
    }

    /// Sets one budget for all sessions of the client.
    pub fn budget(mut self, budget: Budget) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Sets the application's name and version, which are sent to agents.
    pub fn client_info(mut self, name: impl Into<String>, version: impl Into<String>) -> Self {
        self.client_info = (name.into(), version.into());
        self
    }

    /// Builds the client. See [`SandboxAgentClient::new`].
    ///
    /// # Errors
    /// [`Error::Config`] if a setting is invalid.
    pub fn build(self) -> Result<SandboxAgentClient, Error> {
        SandboxAgentClient::new(self)
    }
}

/// The token, the headers and the URL may contain secrets.
impl fmt::Debug for ClientOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientOptions")
            .field("agent", &self.agent)
            .field("auto_connect", &self.auto_connect)
            .field("server", &self.server)
            .field("headers", &self.headers.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .field("timeouts", &self.timeouts)
            .field("drop_policy", &self.drop_policy)
            .field("permissions", &self.permissions)
            .field("parts", &self.parts)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::ClientOptions;

    #[test]
    fn secrets_do_not_show() {
        let options = ClientOptions::new("http://h/?t=secret").token("secret").header("x-key", "secret");
        assert!(!format!("{options:?}").contains("secret"));
    }
}
