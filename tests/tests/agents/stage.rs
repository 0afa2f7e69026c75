//! An agent and a model to try things by hand.

use std::{io::Read, process::ExitCode};

use sdk_tests::{
    Unavailable,
    agents::{AgentHome, HomeOptions, RealAgent},
    model::ScriptedModel,
};

use crate::cell::folder;

/// Starts the model and prepares an agent, prints the command that runs the agent, and waits for the end of the input.
pub(crate) async fn run(name: &str) -> ExitCode {
    let Some(agent) = RealAgent::named(name) else {
        eprintln!("there is no agent {name}");
        return ExitCode::FAILURE;
    };
    let package = match agent.fetch(&folder()).await {
        Ok(package) => package,
        Err(Unavailable(why)) => {
            eprintln!("{agent} cannot be fetched: {why}");
            return ExitCode::FAILURE;
        }
    };
    let model = ScriptedModel::start().await;
    let home = AgentHome::new(agent, &agent.command(&package), &model.url(), &HomeOptions::default());
    println!("model:   {}", model.url());
    println!("project: {}", home.project().display());
    println!("agent:   {}", home.launcher().display());
    println!(
        "chat:    cargo run --example chat -- --agent-command {} --dir {}",
        home.launcher().display(),
        home.project().display()
    );
    // Only the end of the input matters.
    let _ = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await;
    ExitCode::SUCCESS
}
