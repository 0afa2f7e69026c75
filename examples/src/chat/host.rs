//! Connects to the server: an external one, or one inside this program.

use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mock_server::{Builder, MockServer, ProcessAgent};
use sandbox_agent_sdk::{ClientOptions, Error, SandboxAgentClient, ServerKind};

use super::args::Args;
use super::login::LoginHelp;
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
    /// The name to show until the agent has reported its own.
    pub(super) agent: String,
    /// How the user logs in to the agent.
    pub(super) login: LoginHelp,
    /// A client that lists the agent's sessions with a separate process of the agent. `None` if the agent is not a
    /// process of this machine. The embedded server lists only the sessions of this chat, without titles.
    pub(super) lister: Option<SandboxAgentClient>,
    /// The embedded server.
    embedded: Option<MockServer>,
}

impl Host {
    /// Connects to the server or starts one. The error is a message for the user.
    pub(super) async fn find(args: &Args) -> Result<Self, String> {
        let policy = args.policy;
        let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let url = variable("SANDBOX_AGENT_URL");
        if url.is_some() && args.agent_command.is_some() {
            return Err("--agent-command cannot be used with SANDBOX_AGENT_URL".to_owned());
        }
        let connect = |options: ClientOptions| {
            let options = options.client_info("chat", env!("CARGO_PKG_VERSION"));
            options.permission_policy(move |request| permission::decide(policy, request)).build()
        };
        let in_words = |error: Error| error.to_string();
        let Some(url) = url else { return Self::embedded(args, connect).await };
        let agent = args.agent.clone().or_else(|| variable("SANDBOX_AGENT_AGENT"));
        let agent = agent.unwrap_or_else(|| "mock".to_owned());
        let mut options = SandboxAgentClient::builder(url).agent(&agent);
        if let Some(token) = variable("SANDBOX_AGENT_TOKEN") {
            options = options.token(token);
        }
        let directory = args.dir.as_ref().map_or("/".to_owned(), |dir| dir.display().to_string());
        Ok(Self {
            client: connect(options).map_err(in_words)?,
            directory,
            login: LoginHelp::of_name(&agent),
            agent,
            lister: None,
            embedded: None,
        })
    }

    /// Shuts down the embedded server. Waits for its agents, which may write the last turn to disk before they exit.
    pub(super) async fn end(self) {
        if let Some(server) = self.embedded {
            server.shutdown().await;
        }
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
        let (name, agent, login, directory) = match Launch::from_args(args)? {
            Some(launch) => {
                let directory = directory(args)?;
                builder = builder.agent(&launch.name, launch.process.cwd(&directory)).files("/");
                (launch.name, launch.called, launch.login, directory.display().to_string())
            }
            None => {
                builder = builder.agent(SHOWCASE, showcase());
                let directory = args.dir.as_ref().map_or("/".to_owned(), |dir| dir.display().to_string());
                let name = || SHOWCASE.to_owned();
                (name(), name(), LoginHelp::of_name(SHOWCASE), directory)
            }
        };
        let is_process = name != SHOWCASE;
        let server =
            builder.try_start().await.map_err(|error| format!("the server cannot be started: {error}"))?;
        // A login by a key could replace the one that the user has stored, so the chat logs in only if it is required.
        let options = || {
            let options = SandboxAgentClient::builder(server.url()).agent(&name).token(&token);
            // The user has a terminal on the machine of the agent.
            options.auto_authenticate(false).terminal_logins(true)
        };
        let client = connect(options()).map_err(|error| error.to_string())?;
        let lister = match is_process {
            false => None,
            true => {
                let options = options().server(ServerKind::PerAgent).auto_connect(false);
                Some(connect(options).map_err(|error| error.to_string())?)
            }
        };
        if !is_process {
            let written = write_demo_files(&client).await;
            written.map_err(|error| format!("the files of the demonstration cannot be written: {error}"))?;
        }
        Ok(Self { client, directory, agent, login, lister, embedded: Some(server) })
    }
}

/// An agent to run as a process.
struct Launch {
    /// The agent's name on the server. The SDK knows some agents by their names.
    name: String,
    process: ProcessAgent,
    /// The name to show until the agent has reported its own.
    called: String,
    login: LoginHelp,
}

impl Launch {
    /// Returns the agent that the options name; `None` for the demonstration.
    fn from_args(args: &Args) -> Result<Option<Self>, String> {
        if let Some(process) = args.agent_command.clone() {
            let name = Path::new(process.program()).file_stem().unwrap_or(process.program());
            let name = name.to_string_lossy().into_owned();
            let login = LoginHelp::of_command(process.words());
            // The program may be an interpreter, whose name means nothing to the user.
            return Ok(Some(Self { name, process, called: "the agent".to_owned(), login }));
        }
        let name = match args.agent.as_deref() {
            None | Some(SHOWCASE) => return Ok(None),
            Some(name) => name,
        };
        let found = KnownAgent::named(name).and_then(|agent| Ok((agent, agent.find()?, agent.process()?)));
        let (agent, program, process) = found.map_err(|error| error.to_string())?;
        let login = LoginHelp::of_known(&agent, &program);
        Ok(Some(Self { name: name.to_owned(), process, called: name.to_owned(), login }))
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
