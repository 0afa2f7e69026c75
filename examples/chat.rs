//! A chat with an agent in the terminal: streamed text, thoughts, tool calls, changes in colour, permissions and
//! questions answered from the keyboard, and a card when the agent dies.
//!
//! Runs against an embedded server whose agent shows what the chat can do, against the server at `SANDBOX_AGENT_URL`,
//! with an agent that is installed here (`cargo run --example chat -- --agent opencode`), or with any other agent on
//! this machine (`-- --agent-command "my-agent --acp"`). `--help` lists keys, options and exit codes. The program itself is
//! in `src/chat`.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    sdk_examples::chat::run().await
}
