//! Connects to the server: an external one, or one inside this program.

use std::env;
use std::path::PathBuf;
use std::time::Duration;

use mock_server::{Builder, MockServer, ProcessAgent};
use sandbox_agent_sdk::{ClientOptions, Error, SandboxAgentClient, ServerKind};

use super::args::Args;
use super::permission;
use super::showcase::showcase;
use crate::agents::KnownAgent;
use crate::random_token;

/// The request timeout of the embedded server. A turn of a real agent may take long.
const TURN: Duration = Duration::from_secs(24 * 60 * 60);
/// The name of the demonstration agent.
const SHOWCASE: &str = "showcase";
/// How many events the replay buffer of the embedded server holds.
const REPLAY_BUFFER: usize = 16_384;

/// A client and its server.
pub(super) struct Host {
    pub(super) client: SandboxAgentClient,
    /// The directory in which sessions are started.
    pub(super) directory: String,
    /// The name of the agent until it has reported its own.
    pub(super) agent: String,
    /// The agent's program.
    pub(super) program: String,
    /// A client with a separate agent process that lists the agent's sessions, if the agent runs as a process here.
    /// The server's list contains only the sessions of this chat, without titles.
    pub(super) lister: Option<SandboxAgentClient>,
    /// The embedded server, which stops when it is dropped.
    _embedded: Option<MockServer>,
}

impl Host {
    /// Connects to the server or starts one. The error is a message for the user.
    pub(super) async fn find(args: &Args) -> Result<Self, String> {
        let policy = args.policy;
        let url = env::var("SANDBOX_AGENT_URL").ok().filter(|url| !url.is_empty());
        if url.is_some() && args.agent_command.is_some() {
            return Err("--agent-command cannot be used with SANDBOX_AGENT_URL".to_owned());
        }
        let connect = |options: ClientOptions| {
            let options = options.client_info("chat", env!("CARGO_PKG_VERSION"));
            options.permission_policy(move |request| permission::decide(policy, request)).build()
        };
        let in_words = |error: Error| error.to_string();
        let Some(url) = url else { return Self::embedded(args, connect).await };
        let agent = args.agent.clone().or_else(|| env::var("SANDBOX_AGENT_AGENT").ok());
        let agent = agent.unwrap_or_else(|| "mock".to_owned());
        let mut options = SandboxAgentClient::builder(url).agent(&agent);
        if let Ok(token) = env::var("SANDBOX_AGENT_TOKEN") {
            options = options.token(token);
        }
        let directory = args.dir.as_ref().map_or("/".to_owned(), |dir| dir.display().to_string());
        Ok(Self {
            client: connect(options).map_err(in_words)?,
            directory,
            program: agent.clone(),
            agent,
            lister: None,
            _embedded: None,
        })
    }

    async fn embedded(
        args: &Args,
        connect: impl Fn(ClientOptions) -> Result<SandboxAgentClient, Error>,
    ) -> Result<Self, String> {
        let token = random_token()?;
        let mut builder: Builder = MockServer::builder()
            .token(&token)
            .request_timeout(TURN)
            .replay_buffer(REPLAY_BUFFER)
            .record(0)
            .released_quirks(false);
        let (agent, program, directory) = match command(args)? {
            Some((name, command)) => {
                let directory = directory(args)?;
                let program = PathBuf::from(command.program());
                let program = program.file_name().unwrap_or(command.program()).to_string_lossy().into_owned();
                builder = builder.agent(&name, command.cwd(&directory)).files("/");
                (name, program, directory.display().to_string())
            }
            None => {
                builder = builder.agent(SHOWCASE, showcase());
                let directory = args.dir.as_ref().map_or("/".to_owned(), |dir| dir.display().to_string());
                (SHOWCASE.to_owned(), SHOWCASE.to_owned(), directory)
            }
        };
        let server =
            builder.try_start().await.map_err(|error| format!("the server cannot be started: {error}"))?;
        // A login by a key could replace the one that the user has stored, so the chat logs in only if it is required.
        let options = || {
            let options = SandboxAgentClient::builder(server.url()).agent(&agent).token(&token);
            options.auto_authenticate(false)
        };
        let client = connect(options()).map_err(|error| error.to_string())?;
        let lister = match agent.as_str() {
            SHOWCASE => None,
            _ => {
                let options = options().server(ServerKind::PerAgent).auto_connect(false);
                Some(connect(options).map_err(|error| error.to_string())?)
            }
        };
        if agent == SHOWCASE {
            let written = write_demo_files(&client).await;
            written.map_err(|error| format!("the files of the demonstration cannot be written: {error}"))?;
        }
        Ok(Self { client, directory, agent, program, lister, _embedded: Some(server) })
    }
}

/// Returns the agent to run as a process, with its name until it has reported its own; `None` for the demonstration.
fn command(args: &Args) -> Result<Option<(String, ProcessAgent)>, String> {
    if let Some(command) = &args.agent_command {
        let program = PathBuf::from(command.program());
        let name = program.file_stem().map_or("agent".to_owned(), |name| name.to_string_lossy().into_owned());
        return Ok(Some((name, command.clone())));
    }
    match args.agent.as_deref() {
        None | Some(SHOWCASE) => Ok(None),
        Some(name) => {
            let process = KnownAgent::named(name).and_then(|agent| agent.process());
            Ok(Some((name.to_owned(), process.map_err(|error| error.to_string())?)))
        }
    }
}

/// Writes some files to look at with `/files`.
async fn write_demo_files(client: &SandboxAgentClient) -> Result<(), Error> {
    let files = client.files();
    files.write("/README.md", "# A sandbox\n\nNothing here is real.\n").await?;
    files.write("/src/greeting.rs", "fn greet() {\n    println!(\"Hello\");\n}\n").await.map(drop)
}

fn directory(args: &Args) -> Result<PathBuf, String> {
    let directory = match &args.dir {
        Some(directory) => directory.clone(),
        None => env::current_dir().map_err(|error| format!("no current directory: {error}"))?,
    };
    directory.canonicalize().map_err(|error| format!("{}: {error}", directory.display()))
}
