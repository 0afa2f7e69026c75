//! The mock server as a program. See `--help`.

mod options;

use std::process::ExitCode;

use mock_server::{Builder, ProcessAgent, Scenario};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::options::{Command, Options};

#[tokio::main]
async fn main() -> ExitCode {
    match Options::parse(std::env::args().skip(1)) {
        Ok(Command::Help) => {
            print!("{}", include_str!("help.txt"));
            ExitCode::SUCCESS
        }
        Ok(Command::ListScenarios) => {
            for scenario in Scenario::all() {
                println!("{:<18} {}", scenario.name(), scenario.about());
            }
            ExitCode::SUCCESS
        }
        Ok(Command::Serve(options)) => serve(&options).await,
        Err(message) => {
            eprintln!("mock-server: {message}; see --help");
            ExitCode::from(2)
        }
    }
}

async fn serve(options: &Options) -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("mock_server=debug"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        eprintln!("mock-server: cannot install signal handlers");
        return ExitCode::FAILURE;
    };
    let server = match builder(options).try_start().await {
        Ok(server) => server,
        Err(error) => {
            eprintln!("mock-server: cannot listen on {}: {error}", options.address);
            return ExitCode::FAILURE;
        }
    };
    println!("listening on {}", server.url());
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    let suspended = server.shutdown().await;
    println!("stopped; {suspended} active sessions are suspended");
    ExitCode::SUCCESS
}

fn builder(options: &Options) -> Builder {
    let mut builder = options.scenario.builder().bind(options.address);
    // Clients of the plain protocol name no agent.
    builder = builder.default_agent(match options.agent_command {
        Some(_) => options.agent_name.as_str(),
        None => "mock",
    });
    builder = builder.processes(options.processes).local_hosts_only(options.address.ip().is_loopback());
    if let Some(token) = &options.token {
        builder = builder.token(token);
    }
    if let Some(directory) = &options.files {
        builder = builder.files(directory);
    }
    if let Some(command) = &options.agent_command {
        builder = builder.agent(options.agent_name.as_str(), ProcessAgent::clone(command));
    }
    builder
}
