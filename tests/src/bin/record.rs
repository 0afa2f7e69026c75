//! Records the messages of a run as JSON lines. See `--help`.

#![allow(clippy::expect_used, reason = "a failed recording ends the program")]

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use acp_http_client::http_client_builder;
use mock_server::{MockServer, ProcessAgent};
use sandbox_agent_sdk::ClientOptions;
use sdk_tests::{Capture, Proxy, ReleasedServer, ReleasedSetup, Scenario, binary};

const HELP: &str = "\
record: records the messages between the SDK's client and a server as JSON lines.

USAGE: record [OPTIONS]

OPTIONS:
  --released VERSION  The released server of this version, from npm (the default, with version 0.4.2).
  --mock              The mock server.
  --url URL           A running server. Its token is in SANDBOX_AGENT_TOKEN.
  --agent NAME        The agent (default mock). The scenarios need an agent that obeys the stub agent's directives.
  --scenario NAME     One of turn, permission, cancel, garbage, crash (default all).
  --out FOLDER        Writes one file per scenario to this folder. The default prints the lines.
  --overwrite         Replaces existing files.
  --help              Prints this help.

Servers that this program starts run the stub agent: cargo build -p sdk-tests --bin sdk-stub-agent
Tokens, connection ids and the random names of endpoints are not recorded. The text of agents is.

Exit codes: 0 if everything was recorded, 1 after a failure, 2 for invalid arguments.";

/// The timeout of the first request to a given server.
const REACH: Duration = Duration::from_secs(5);

enum Which {
    Released(String),
    Mock,
    Url(String),
}

struct Options {
    which: Which,
    agent: String,
    scenarios: Vec<Scenario>,
    out: Option<PathBuf>,
    overwrite: bool,
}

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut options = Self {
            which: Which::Released("0.4.2".to_owned()),
            agent: "mock".to_owned(),
            scenarios: Scenario::ALL.to_vec(),
            out: None,
            overwrite: false,
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--help" | "-h" => return Ok(None),
                "--mock" => options.which = Which::Mock,
                "--released" => options.which = Which::Released(value()?),
                "--url" => options.which = Which::Url(value()?),
                "--agent" => options.agent = value()?,
                "--overwrite" => options.overwrite = true,
                "--out" => options.out = Some(value()?.into()),
                "--scenario" => {
                    let name = value()?;
                    let scenario = Scenario::named(&name).ok_or(format!("unknown scenario {name}"))?;
                    options.scenarios = vec![scenario];
                }
                _ => return Err(format!("unknown option {word}")),
            }
        }
        Ok(Some(options))
    }
}

/// The server of one run. Dropping it stops the server.
enum Server {
    Released(ReleasedServer),
    Mock(MockServer),
    Url(String),
}

impl Server {
    async fn start(which: &Which) -> Result<Self, String> {
        match which {
            Which::Url(url) => reach(url).await.map(|()| Self::Url(url.clone())),
            Which::Mock => {
                let agent = ProcessAgent::new(stub()?);
                Ok(Self::Mock(MockServer::builder().agent("mock", agent).start().await))
            }
            Which::Released(version) => {
                let stub = stub()?;
                let folder = stub.with_file_name("released");
                let program = binary(&folder, version).await.map_err(|why| why.0)?;
                let agent = vec![stub.display().to_string()];
                let setup = ReleasedSetup { program, agent, token: None, request_limit: None };
                Ok(Self::Released(ReleasedServer::start(setup).await))
            }
        }
    }

    fn url(&self) -> String {
        match self {
            Self::Released(server) => server.url(),
            Self::Mock(server) => server.url(),
            Self::Url(url) => url.clone(),
        }
    }
}

/// Returns the path of the stub agent, which is built into the same folder as this program.
fn stub() -> Result<PathBuf, String> {
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let stub = this.with_file_name("sdk-stub-agent");
    if stub.exists() {
        Ok(stub)
    } else {
        Err(format!("{} is missing: cargo build -p sdk-tests --bin sdk-stub-agent", stub.display()))
    }
}

/// Checks that the server is reachable.
async fn reach(url: &str) -> Result<(), String> {
    let http = http_client_builder().timeout(REACH).build().map_err(|error| error.to_string())?;
    let answer = http.get(format!("{}/v1/health", url.trim_end_matches('/'))).send().await;
    answer.map(drop).map_err(|error| format!("failed to reach {url}: {}", causes(&error.without_url())))
}

/// Formats an error with its causes.
fn causes(error: &dyn std::error::Error) -> String {
    let mut observed = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        observed.push_str(&format!(": {error}"));
        cause = error.source();
    }
    observed
}

async fn record(options: &Options, scenario: Scenario) -> Result<Capture, String> {
    let (server, name) = match &options.which {
        Which::Released(version) => {
            (Server::start(&options.which).await?, format!("sandbox-agent {version}"))
        }
        Which::Mock => (Server::start(&options.which).await?, "mock-server".to_owned()),
        Which::Url(_) => (Server::start(&options.which).await?, "a server at a URL".to_owned()),
    };
    let proxy = Proxy::recording(server.url()).await;
    let mut client = ClientOptions::new(proxy.url()).agent(&options.agent);
    let token = std::env::var("SANDBOX_AGENT_TOKEN").ok().filter(|token| !token.is_empty());
    if let Some(token) = &token {
        client = client.token(token);
    }
    // A run that times out panics. The panic must not end the other runs.
    let observed = tokio::spawn(scenario.run(client)).await.map_err(|panic| panicked(panic.into_panic()))?;
    let observed = observed.map_err(|error| causes(&error))?;
    let (entries, left_out) = proxy.recorder().expect("this proxy records").entries();
    if left_out > 0 {
        return Err(format!("the recording is full: {left_out} entries were dropped"));
    }
    let capture = Capture { server: name, scenario: scenario.name().to_owned(), entries, observed };
    Ok(capture.redacted(token.as_deref()))
}

async fn run(options: &Options) -> Result<(), String> {
    for &scenario in &options.scenarios {
        let capture = record(options, scenario).await.map_err(|why| format!("{}: {why}", scenario.name()))?;
        let lines = capture.to_lines();
        let Some(folder) = &options.out else {
            // The reader closed the pipe and wants no more.
            if io::stdout().write_all(lines.as_bytes()).is_err() {
                return Ok(());
            }
            continue;
        };
        let name = format!("{}-{}.jsonl", capture.server.replace(' ', "-"), capture.scenario);
        let file = folder.join(name);
        write(&file, &lines, options.overwrite).map_err(|error| format!("{}: {error}", file.display()))?;
        eprintln!("{}: {} lines", file.display(), lines.lines().count());
    }
    Ok(())
}

/// Writes a file. Fails if it exists, unless `overwrite` is set.
fn write(file: &Path, lines: &str, overwrite: bool) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    match overwrite {
        true => fs::write(file, lines),
        false => File::create_new(file)?.write_all(lines.as_bytes()),
    }
}

/// Returns the message of a panic.
fn panicked(panic: Box<dyn std::any::Any + Send>) -> String {
    let text = panic.downcast::<String>().map(|text| *text);
    text.unwrap_or_else(|panic| {
        panic.downcast::<&str>().map_or("the run failed".to_owned(), |text| text.to_string())
    })
}

#[tokio::main]
async fn main() -> ExitCode {
    // The message of a panic is printed like any other failure.
    std::panic::set_hook(Box::new(|_| {}));
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(mistake) => {
            eprintln!("record: {mistake}; see --help");
            return ExitCode::from(2);
        }
    };
    match run(&options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("record: {why}");
            ExitCode::FAILURE
        }
    }
}
