//! A terminal chat with an agent: streamed text, reasoning, tool calls, coloured diffs, permissions and questions from
//! the keyboard, and a report when the agent crashes.
//!
//! By default it runs a demonstration agent on an embedded server. It also runs against the server at
//! `SANDBOX_AGENT_URL`, with an installed agent (`cargo run --example chat -- --agent opencode`), or with any other
//! program (`-- --agent-command "my-agent --acp"`). `--help` lists keys, options and exit codes. The implementation is in
//! `src/chat`.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    sdk_examples::chat::run().await
}
