//! The clients under test, behind one interface.

use std::{fmt, time::Duration};

use acp_http_client::{
    AcpHttpClient, CloseOutcome, Dialect, ReconnectPolicy, Timeouts,
    schema::v1::{
        CancelNotification, ContentBlock, LoadSessionRequest, NewSessionRequest, PromptRequest,
        ResumeSessionRequest, TextContent,
    },
};
use futures::future::BoxFuture;
use sandbox_agent_sdk::update::Missed;
use sandbox_agent_sdk::{
    ClientOptions, ClientTimeouts, NewSession, OpenSession, PermissionDecision, SandboxAgentClient,
    ServerKind, UpdateKind,
};
use sdk_tests::{Proxy, within};
use serde_json::json;
use tokio::task::JoinSet;

use super::{
    failure::Failure,
    server::{Kind, Layout, Server},
    watch::Watch,
};

/// The client under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Via {
    /// `SandboxAgentClient`.
    Sdk,
    /// `AcpHttpClient`.
    Protocol,
}

/// How long to wait for a server to confirm a close. Some never do.
pub(crate) const CLOSE: Duration = Duration::from_millis(400);

/// A client of a server.
pub(crate) struct Peer {
    client: Client,
}

enum Client {
    Sdk(SandboxAgentClient),
    Protocol {
        client: AcpHttpClient,
        /// The name that the agent reports.
        agent: String,
        /// Responds to agent requests.
        _asked: JoinSet<()>,
    },
}

/// Settings of a client that differ from its server's defaults.
#[derive(Debug, Clone, Default)]
pub(crate) struct Knobs {
    /// The URL, instead of the server's.
    pub(crate) url: Option<String>,
    /// The token, instead of the server's.
    pub(crate) token: Option<&'static str>,
    /// The server id in the path, on servers that have one.
    pub(crate) server_id: Option<&'static str>,
}

/// The result of a turn.
#[derive(Debug)]
pub(crate) struct Reply {
    /// The texts of the agent's message, chunk by chunk.
    pub(crate) texts: Vec<String>,
    /// The events that the client reports as missing.
    pub(crate) missed: Vec<Missing>,
    /// The ids of the events with these texts, if the client reports them.
    pub(crate) ids: Vec<u64>,
    /// The stop reason, or the error.
    pub(crate) outcome: Result<String, Failure>,
}

/// Events that the client reports as missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// How many texts were received before.
    pub(crate) at: usize,
}

impl Missing {
    pub(crate) fn count(&self) -> u64 {
        self.to - self.from + 1
    }
}

impl Reply {
    /// Returns the error of the turn.
    pub(crate) fn failure(&self) -> &Failure {
        match &self.outcome {
            Err(failure) => failure,
            Ok(reason) => panic!("the turn did not fail: {reason}"),
        }
    }

    /// Checks the stop reason of the turn.
    pub(crate) fn ended(&self, reason: &str) {
        match &self.outcome {
            Ok(stopped) => assert_eq!(stopped, reason),
            Err(failure) => panic!("the turn failed: {failure:?}"),
        }
    }
}

impl Peer {
    /// Connects and performs the handshake.
    pub(crate) async fn connect(server: &Server, via: Via) -> Self {
        Self::try_connect(server, via, Knobs::default()).await.expect("the handshake succeeds")
    }

    pub(crate) async fn try_connect(server: &Server, via: Via, knobs: Knobs) -> Result<Self, Failure> {
        let client = match via {
            Via::Sdk => sdk(server, &knobs).await?,
            Via::Protocol => protocol(server, &knobs).await?,
        };
        Ok(Self { client })
    }

    /// Connects through a recording proxy, or directly if the proxy does not support the server.
    pub(crate) async fn recorded(server: &Server, via: Via) -> (Self, Option<Proxy>) {
        // The proxy supports HTTP/1.1 only.
        if server.kind() == Kind::OfficialHttp2 {
            return (Self::connect(server, via).await, None);
        }
        let proxy = Proxy::recording(server.url()).await;
        let knobs = Knobs { url: Some(proxy.url()), ..Knobs::default() };
        let peer = Self::try_connect(server, via, knobs).await.expect("the handshake succeeds");
        (peer, Some(proxy))
    }

    pub(crate) fn via(&self) -> Via {
        match &self.client {
            Client::Sdk(_) => Via::Sdk,
            Client::Protocol { .. } => Via::Protocol,
        }
    }

    /// Returns the name that the agent reports.
    pub(crate) fn agent_name(&self) -> String {
        match &self.client {
            Client::Sdk(client) => {
                client.capabilities().and_then(|known| known.agent_name.clone()).unwrap_or_default()
            }
            Client::Protocol { agent, .. } => agent.clone(),
        }
    }

    pub(crate) fn sdk(&self) -> Option<&SandboxAgentClient> {
        match &self.client {
            Client::Sdk(client) => Some(client),
            Client::Protocol { .. } => None,
        }
    }

    pub(crate) async fn session(&self) -> String {
        within("session/new", self.new_session()).await.expect("a session")
    }

    pub(crate) async fn new_session(&self) -> Result<String, Failure> {
        match &self.client {
            Client::Sdk(client) => Ok(client.new_session(NewSession::in_dir("/")).await?.id().to_owned()),
            Client::Protocol { client, .. } => {
                Ok(client.new_session(NewSessionRequest::new("/")).await?.session_id.to_string())
            }
        }
    }

    /// Starts a turn and runs it to its end on a separate task.
    pub(crate) fn prompt(&self, session: &str, text: &str) -> BoxFuture<'static, Reply> {
        let text = text.to_owned();
        let session = session.to_owned();
        let turn = match &self.client {
            Client::Sdk(client) => tokio::spawn(sdk_turn(client.clone(), session, text)),
            Client::Protocol { client, .. } => tokio::spawn(protocol_turn(client.clone(), session, text)),
        };
        Box::pin(async move { within("the turn", turn).await.expect("the turn's task does not panic") })
    }

    pub(crate) async fn cancel(&self, session: &str) -> Result<(), Failure> {
        match &self.client {
            Client::Sdk(client) => Ok(client.cancel(session).await?),
            Client::Protocol { client, .. } => {
                Ok(client.cancel(CancelNotification::new(session.to_owned())).await?)
            }
        }
    }

    /// Loads a session.
    pub(crate) async fn load(&self, session: &str) -> Result<(), Failure> {
        match &self.client {
            Client::Sdk(client) => {
                Ok(client.load_session(session, OpenSession::in_dir("/")).await.map(drop)?)
            }
            Client::Protocol { client, .. } => {
                let request = LoadSessionRequest::new(session.to_owned(), "/");
                Ok(client.load_session(request).await.map(drop)?)
            }
        }
    }

    /// Resumes a session.
    pub(crate) async fn resume(&self, session: &str) -> Result<(), Failure> {
        match &self.client {
            Client::Sdk(client) => {
                Ok(client.resume_session(session, OpenSession::in_dir("/")).await.map(drop)?)
            }
            Client::Protocol { client, .. } => {
                let request = ResumeSessionRequest::new(session.to_owned(), "/");
                Ok(client.resume_session(request).await.map(drop)?)
            }
        }
    }

    /// Subscribes to the events from now on.
    pub(crate) fn watch(&self) -> Watch {
        match &self.client {
            Client::Sdk(client) => Watch::Sdk(client.events()),
            Client::Protocol { client, .. } => Watch::Protocol(client.events()),
        }
    }

    /// Closes the connection. Returns whether the server confirmed it, if the client reports that.
    pub(crate) async fn close(&self) -> Option<bool> {
        match &self.client {
            Client::Sdk(client) => {
                client.disconnect().await.expect("disconnecting does not fail");
                None
            }
            Client::Protocol { client, .. } => Some(matches!(client.close().await, CloseOutcome::Confirmed)),
        }
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer").field("via", &self.via()).finish_non_exhaustive()
    }
}

/// Returns a policy that is fast enough for a test and long enough for a server restart.
fn reconnect() -> ReconnectPolicy {
    ReconnectPolicy::default()
}

/// Returns the options of the SDK's client for a server.
pub(crate) fn options(server: &Server, knobs: &Knobs) -> ClientOptions {
    let timeouts = ClientTimeouts::default().disconnect(CLOSE);
    let url = knobs.url.clone().unwrap_or_else(|| server.url());
    let mut options = SandboxAgentClient::builder(url)
        .agent(server.agent())
        .auto_connect(false)
        .timeouts(timeouts)
        .reconnect(reconnect())
        .permission_policy(|_| PermissionDecision::Option("allow".to_owned()));
    if let Some(token) = knobs.token.map(str::to_owned).or_else(|| server.token()) {
        options = options.token(token);
    }
    if server.kind() == Kind::MockReleased {
        // The mock server has all endpoints, so the kind is set. Other servers are detected.
        options = options.server(ServerKind::PerAgent);
    }
    options
}

async fn sdk(server: &Server, knobs: &Knobs) -> Result<Client, Failure> {
    let client = options(server, knobs).build()?;
    within("connect", client.connect()).await?;
    Ok(Client::Sdk(client))
}

async fn protocol(server: &Server, knobs: &Knobs) -> Result<Client, Failure> {
    let url = knobs.url.clone().unwrap_or_else(|| server.url());
    let mut timeouts = Timeouts::default();
    timeouts.close = CLOSE;
    let mut builder = AcpHttpClient::builder(url).timeouts(timeouts).reconnect(reconnect());
    builder = match server.layout() {
        // As the wrapper has it.
        Layout::Shared => builder.dialect(Dialect::RPC).probe("session/list", serde_json::json!({})),
        Layout::PerAgent => builder
            .dialect(Dialect::RELEASED)
            .path(format!("/v1/acp/{}", knobs.server_id.unwrap_or("suite")))
            .bootstrap_query("agent", server.agent()),
        Layout::Official => builder.dialect(Dialect::OFFICIAL),
    };
    if server.kind() == Kind::OfficialHttp2 && knobs.url.is_none() {
        builder = builder.http2_prior_knowledge();
    }
    if let Some(token) = knobs.token.map(str::to_owned).or_else(|| server.token()) {
        builder = builder.token(token);
    }
    let (builder, mut requests) = builder.agent_requests();
    let client = builder.build()?;
    let mut asked = JoinSet::new();
    asked.spawn(async move {
        while let Some((request, responder)) = requests.next().await {
            if request.method() == "session/request_permission" {
                responder.respond(&json!({ "outcome": { "outcome": "selected", "optionId": "allow" } }));
            }
        }
    });
    let answer = within("initialize", client.initialize(AcpHttpClient::initialize_request())).await?;
    let agent = answer.agent_info.map(|info| info.name).unwrap_or_default();
    Ok(Client::Protocol { client, agent, _asked: asked })
}

async fn sdk_turn(client: SandboxAgentClient, session: String, text: String) -> Reply {
    let (mut texts, mut missed) = (Vec::new(), Vec::new());
    let mut turn = client.prompt(session, text);
    while let Some(update) = turn.next().await {
        match update.kind() {
            UpdateKind::Missed(Missed::Gap(gap)) => {
                missed.push(Missing { from: gap.from, to: gap.to, at: texts.len() });
            }
            UpdateKind::Missed(other) => panic!("the turn was read and still missed updates: {other:?}"),
            _ => texts.extend(update.message_text().map(str::to_owned)),
        }
    }
    let outcome = turn.outcome().await;
    let outcome = outcome.map(|outcome| outcome.stop_reason.to_string()).map_err(Failure::from);
    Reply { texts, missed, ids: Vec::new(), outcome }
}

async fn protocol_turn(client: AcpHttpClient, session: String, text: String) -> Reply {
    let mut watch = client.events();
    let prompt = vec![ContentBlock::Text(TextContent::new(text))];
    let outcome = client.prompt(PromptRequest::new(session.clone(), prompt)).await;
    let outcome = outcome.map_err(Failure::from).map(|response| {
        response.raw().to_value().unwrap()["stopReason"].as_str().unwrap_or_default().to_owned()
    });
    let (mut texts, mut missed, mut ids) = (Vec::new(), Vec::new(), Vec::new());
    while let Some(event) = watch.try_recv() {
        match event {
            acp_http_client::Event::Update(update) if update.session_id().as_deref() == Some(&session) => {
                ids.extend(update.meta.event_id.as_ref().and_then(|id| id.to_string().parse::<u64>().ok()));
                texts.extend(update.message_text().map(str::to_owned));
            }
            acp_http_client::Event::Gap { from, to, .. } => {
                missed.push(Missing { from, to, at: texts.len() });
            }
            acp_http_client::Event::Lagged(count) => panic!("the budget is too small: {count}"),
            _ => {}
        }
    }
    Reply { texts, missed, ids, outcome }
}
