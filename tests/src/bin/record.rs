//! Records the wire of a run as JSON lines; `--help` tells how.

#![allow(clippy::expect_used, reason = "a recording that cannot go on ends")]

use std::{fs, path::PathBuf, process::ExitCode};

use mock_server::{MockServer, ProcessAgent};
use sandbox_agent_sdk::ClientOptions;
use sdk_tests::{Capture, Proxy, ReleasedServer, ReleasedSetup, Scenario, binary};

const HELP: &str = "\
record: records what passes between the SDK's client and a server, as JSON lines.

USAGE: record [OPTIONS]

OPTIONS:
  --released VERSION  The released server of this version, from npm (this is the default, with 0.4.2).
  --mock              The mock server.
  --url URL           A server that runs already; its token is in SANDBOX_AGENT_TOKEN.
  --agent NAME        The agent to talk to (default mock). The scenarios are words of the stub agent.
  --scenario NAME     One of turn, permission, cancel, garbage, crash (default all).
  --out FOLDER        Writes a file for each scenario; otherwise the lines are printed.
  --help              Prints this.

The servers that are started here run the stub agent: cargo build -p sdk-tests --bin sdk-stub-agent";

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
}

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut options = Self {
            which: Which::Released("0.4.2".to_owned()),
            agent: "mock".to_owned(),
            scenarios: Scenario::ALL.to_vec(),
            out: None,
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--help" | "-h" => return Ok(None),
                "--mock" => options.which = Which::Mock,
                "--released" => options.which = Which::Released(value()?),
                "--url" => options.which = Which::Url(value()?),
                "--agent" => options.agent = value()?,
                "--out" => options.out = Some(value()?.into()),
                "--scenario" => {
                    let name = value()?;
                    let scenario = Scenario::named(&name).ok_or(format!("{name} is no scenario"))?;
                    options.scenarios = vec![scenario];
                }
                _ => return Err(format!("unknown option {word}")),
            }
        }
        Ok(Some(options))
    }
}

/// A server for one run. The fields keep it alive.
enum Server {
    Released(ReleasedServer),
    Mock(MockServer),
    Url(String),
}

impl Server {
    async fn start(which: &Which) -> Result<Self, String> {
        match which {
            Which::Url(url) => Ok(Self::Url(url.clone())),
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

/// The stub agent, which is built into the same folder as this program.
fn stub() -> Result<PathBuf, String> {
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let stub = this.with_file_name("sdk-stub-agent");
    if stub.exists() { Ok(stub) } else { Err(format!("{} is missing; see --help", stub.display())) }
}

async fn record(options: &Options, scenario: Scenario) -> Result<Capture, String> {
    let (server, name) = match &options.which {
        Which::Released(version) => {
            (Server::start(&options.which).await?, format!("sandbox-agent {version}"))
        }
        Which::Mock => (Server::start(&options.which).await?, "mock-server".to_owned()),
        Which::Url(_) => (Server::start(&options.which).await?, "a server given by its URL".to_owned()),
    };
    let proxy = Proxy::recording(server.url()).await;
    let mut client = ClientOptions::new(proxy.url()).agent(&options.agent);
    if let Ok(token) = std::env::var("SANDBOX_AGENT_TOKEN") {
        client = client.token(token);
    }
    let told = scenario.run(client).await;
    let (entries, left_out) = proxy.recorder().expect("this proxy records").entries();
    if left_out > 0 {
        return Err(format!("the run is too long: {left_out} entries did not fit"));
    }
    Ok(Capture { server: name, scenario: scenario.name().to_owned(), entries, told }.redacted())
}

async fn run(options: &Options) -> Result<(), String> {
    for &scenario in &options.scenarios {
        let capture = record(options, scenario).await?;
        let Some(folder) = &options.out else {
            print!("{}", capture.to_lines());
            continue;
        };
        fs::create_dir_all(folder).map_err(|error| error.to_string())?;
        let file = folder.join(format!("{}-{}.jsonl", capture.server.replace(' ', "-"), capture.scenario));
        fs::write(&file, capture.to_lines()).map_err(|error| error.to_string())?;
        eprintln!("{}: {} lines", file.display(), capture.to_lines().lines().count());
    }
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
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
