//! The example `remote_shell` as a binary of this package. Cargo builds the binaries of a package before its
//! integration tests and passes them their paths; it does not do that for examples.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    sdk_examples::remote_shell::run().await
}
