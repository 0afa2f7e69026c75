//! Reports three ways in which an agent ends during a turn.
//!
//! The agent of the embedded server exits with an error code, is killed by a signal, and exits without an error. If
//! `SANDBOX_AGENT_URL` is set, the prompts go to the agent of that server instead.

use mock_server::{MockServer, Script, Step};
use sandbox_agent_sdk::text::printable;
use sandbox_agent_sdk::thread::{ResultRules, TurnFailure};
use sandbox_agent_sdk::{Error, Event, NewSession, OpenSession};
use sdk_examples::Server;

/// The steps of the embedded agent for each prompt.
fn doomed() -> Script {
    Script::new(|turn| {
        let mut steps = vec![Step::Say("I will just ".into())];
        let trace = (1..=250).map(|line| format!("  at step {line}"));
        steps.push(match turn.text.as_str() {
            "exit" => Step::crash(3, std::iter::once("Error: module not found".to_owned()).chain(trace)),
            "signal" => Step::killed(9, ["out of memory"]),
            "leave" => Step::Exit(0),
            _ => Step::Say("say hello".into()),
        });
        steps
    })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let server = Server::find_or_start(MockServer::builder().agent("mock", doomed())).await;
    let client = server.options().build()?;
    let mut events = client.events();
    let mut session = client.new_session(NewSession::in_dir("/").title("doomed")).await?;

    for way in ["exit", "signal", "leave"] {
        println!("== {way}");
        let mut turn = session.prompt(way);
        while let Some(update) = turn.next().await {
            println!("before the crash: {update}");
        }
        match turn.outcome().await {
            Ok(outcome) => println!("it did not crash: {}", outcome.stop_reason),
            Err(error) => {
                let Some(end) = error.termination() else { return Err(error) };
                println!("{end}");
                let entry = ResultRules::default().classify_failure(&TurnFailure::from(&error));
                println!("a thread shows: {:?} (terminal: {})", entry.kind, entry.is_terminal_error);
            }
        }
        // Every subscriber also receives the end as an event, once.
        while let Some(event) = events.try_next() {
            if let Event::SessionEnded(ended) = event {
                println!(
                    "event: session {} ended ({})",
                    printable(&ended.session_id),
                    ended.termination.reason
                );
            }
        }
        // Restarts the agent and loads the session again.
        client.restart_agent().await?;
        session = client.load_session(session.id(), OpenSession::in_dir("/")).await?;
    }
    println!("== after the restart: {}", printable(&session.prompt("hello").text().await?));
    client.disconnect().await
}
