//! How a client is set up.

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

/// A token provider that the connection and the plain requests share.
pub(crate) type SharedProvider =
    Arc<dyn Fn(TokenUse) -> BoxFuture<'static, Result<Token, TokenError>> + Send + Sync>;

/// The kinds of servers. A client finds out by itself which one it talks to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ServerKind {
    /// One endpoint, `/v1/rpc`, that all agents and all clients share. Sessions outlive the connection.
    Shared,
    /// The released servers: an endpoint and an agent process for each connection. The agent, and with it every
    /// session, ends with the connection.
    PerAgent,
    /// The early servers, which hand out a connection id. Sessions outlive the connection.
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

/// What happens to a turn when its [`Turn`](crate::Turn) is dropped before it is over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DropPolicy {
    /// It is cancelled.
    #[default]
    Cancel,
    /// It goes on, and its reports go to the subscribers of the session's events.
    Detach,
}

/// How long to wait for what.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientTimeouts {
    /// For a server that is not up yet, when a connection is made. Default 30 s.
    pub start: Duration,
    /// For the agent to be ready, which may include its installation. Default 180 s.
    pub initialize: Duration,
    /// For the answer to a call that is no turn. Default 60 s.
    pub request: Duration,
    /// For a session to be made or loaded. Default 300 s.
    pub session: Duration,
    /// For a turn to stop after it was cancelled. Default 10 s.
    pub cancel: Duration,
    /// For the server to confirm that the connection is closed. Default 2 s. Released servers never confirm it
    /// while their agent lives.
    pub disconnect: Duration,
    /// For what a server has to say about the end of an agent, after the first sign of it. Default 500 ms.
    pub termination: Duration,
}

impl Default for ClientTimeouts {
    fn default() -> Self {
        Self {
            start: Duration::from_secs(30),
            initialize: Duration::from_secs(180),
            request: Duration::from_secs(60),
            session: Duration::from_secs(300),
            cancel: Duration::from_secs(10),
            disconnect: Duration::from_secs(2),
            termination: Duration::from_millis(500),
        }
    }
}

/// Gives each time a setter of its name.
macro_rules! setters {
    ($($name:ident: $what:literal,)*) => {
        impl ClientTimeouts {
            $(
                #[doc = concat!("Sets the time for ", $what, ".")]
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
    request: "the answer to a call that is no turn",
    session: "a session to be made or loaded",
    cancel: "a turn to stop",
    disconnect: "the server to confirm that the connection is closed",
    termination: "the rest of the account of an agent's end",
}

/// How a [`SandboxAgentClient`] is set up. What is wrong with a setting is told when the client is made.
#[derive(Clone)]
#[must_use = "options do nothing until a client is made of them"]
pub struct ClientOptions {
    pub(crate) base_url: String,
    pub(crate) agent: Option<String>,
    pub(crate) auto_connect: bool,
    pub(crate) server: Option<ServerKind>,
    pub(crate) token: Option<Secret>,
    pub(crate) provider: Option<SharedProvider>,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) http: Option<reqwest::Client>,
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
    /// Options for the server at this URL.
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

    /// The agent to talk to, such as `claude`.
    pub fn agent(mut self, agent: impl Into<String>) -> Self {
        self.agent = Some(agent.into());
        self
    }

    /// Whether the client starts connecting as soon as it is made. It does by default.
    pub fn auto_connect(mut self, auto: bool) -> Self {
        self.auto_connect = auto;
        self
    }

    /// Whether the client logs in by itself, as soon as it is connected, to an agent that offers to take an API key
    /// from its environment (`codex-api-key`, `openai-api-key`, `anthropic-api-key`). It does by default. A login that
    /// fails does not fail the connection: not every agent needs one.
    pub fn auto_authenticate(mut self, auto: bool) -> Self {
        self.auto_authenticate = auto;
        self
    }

    /// The kind of server, so that it need not be found out.
    pub fn server(mut self, kind: ServerKind) -> Self {
        self.server = Some(kind);
        self
    }

    /// The bearer token to send with every request.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into().into());
        self.provider = None;
        self
    }

    /// Asks for a token before every request, and once more when the server refuses it.
    pub fn token_provider(mut self, provider: impl TokenProvider) -> Self {
        let provider = Arc::new(provider);
        self.provider = Some(Arc::new(move |reason| {
            let provider = Arc::clone(&provider);
            Box::pin(async move { provider.token(reason).await })
        }));
        self.token = None;
        self
    }

    /// A header to send with every request.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// An HTTP client of your own. Its settings are yours: it should neither follow redirects nor have a total
    /// timeout.
    pub fn http_client(mut self, http: reqwest::Client) -> Self {
        self.http = Some(http);
        self
    }

    /// How long to wait for what.
    pub fn timeouts(mut self, timeouts: ClientTimeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// How a lost event stream is opened again.
    pub fn reconnect(mut self, policy: ReconnectPolicy) -> Self {
        self.reconnect = policy;
        self
    }

    /// What happens to a turn that is dropped before it is over. By default it is cancelled.
    pub fn on_turn_drop(mut self, policy: DropPolicy) -> Self {
        self.drop_policy = policy;
        self
    }

    /// Whether [`Turn::text`](crate::Turn::text) and [`Turn::collect`](crate::Turn::collect) fill what is missing of a
    /// turn from the agent's own history, by loading the session again where the agent can. Off by default.
    pub fn reload_incomplete_turns(mut self, reload: bool) -> Self {
        self.reload_incomplete = reload;
        self
    }

    /// How many bytes may wait for one subscriber of events, or for one turn, before events are dropped and
    /// counted. Default 64 MiB. What the agent asks, and what happens to sessions and the connection, have budgets of
    /// the same size (and of 1 MiB at least) beside that, so that a flood of reports costs none of them.
    pub fn event_budget(mut self, bytes: usize) -> Self {
        self.event_budget = bytes;
        self
    }

    /// Bounds on what the client accepts over the wire.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The policy that decides about permissions first. By default it leaves every decision to the
    /// [handler](Self::permission_handler), to turns that are read by [`next_event`](crate::Turn::next_event) and to
    /// [deciding](crate::Events::deciding) subscriptions; without any of these, requests are refused.
    pub fn permissions(mut self, policy: PermissionPolicy) -> Self {
        self.permissions = policy;
        self
    }

    /// An asynchronous function that decides what the policy leaves open.
    ///
    /// It runs on a task of its own, one for each request, and may take its time: to ask a person, for example. The
    /// request has the tool call with everything the agent reported of it before. When the request ends in another way
    /// (the turn is cancelled, the agent dies), the future is dropped. If it returns [`PermissionDecision::Ask`] or
    /// panics, the request is refused. While there is a handler, turns and subscriptions only see requests.
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

    /// A function decides about permissions: [`PermissionPolicy::function`].
    pub fn permission_policy(
        self,
        policy: impl Fn(&PermissionRequest) -> PermissionDecision + Send + Sync + 'static,
    ) -> Self {
        self.permissions(PermissionPolicy::function(policy))
    }

    /// Tells agents which questions this program is ready for. They come as [`Event::Question`](crate::Event::Question).
    /// By default nothing is told.
    pub fn questions(mut self, support: QuestionSupport) -> Self {
        self.questions = support;
        self
    }

    /// Whether the program shows [notices](crate::UpdateKind::Notice) to its user. It does by default. Agents that are
    /// told otherwise write what the user should know into their messages.
    pub fn notices(mut self, shown: bool) -> Self {
        self.notices = shown;
        self
    }

    /// Whether the program can run a [login in a terminal](crate::client::login::LoginKind::Terminal). By default agents are
    /// told that it cannot, and do not offer such logins.
    pub fn terminal_logins(mut self, possible: bool) -> Self {
        self.terminal_logins = possible;
        self
    }

    /// Limits what all sessions of the client may use together.
    pub fn budget(mut self, budget: Budget) -> Self {
        self.budget = Some(budget);
        self
    }

    /// The name and version under which this program introduces itself to agents.
    pub fn client_info(mut self, name: impl Into<String>, version: impl Into<String>) -> Self {
        self.client_info = (name.into(), version.into());
        self
    }

    /// Makes the client: [`SandboxAgentClient::new`].
    ///
    /// # Errors
    /// [`Error::Config`] says which of the settings cannot be used.
    pub fn build(self) -> Result<SandboxAgentClient, Error> {
        SandboxAgentClient::new(self)
    }
}

/// Secrets may be in the token, in headers and in the URL.
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
