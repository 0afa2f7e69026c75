//! A chat with an agent in the terminal: streamed text, thoughts, tool calls, changes in colour, permissions and
//! questions answered from the keyboard, and a card when the agent dies.
//!
//! Runs against an embedded server whose agent shows what the chat can do, against the server at `SANDBOX_AGENT_URL`,
//! or with any agent on this machine: `cargo run --example chat -- --agent-command "my-agent --acp"`. Keys, options and
//! exit codes are told by `--help`. The program itself is in `src/chat`.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    sdk_examples::chat::run().await
}
