//! A terminal on the server's machine: `cargo run --example remote_shell -- bash -l`.
//!
//! Runs against the server at `SANDBOX_AGENT_URL`, with the token in `SANDBOX_AGENT_TOKEN`, or against an
//! embedded one. Keys, colours and the window size are passed through; the exit code is that of the remote
//! program. A lost connection is reopened. The implementation is in `src/remote_shell.rs`.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    sdk_examples::remote_shell::run().await
}
