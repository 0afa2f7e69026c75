//! The example `remote_shell` once more, as a binary of this package: cargo builds the binaries of a package before its
//! integration tests and tells them where they are, which it does not do for examples.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    sdk_examples::remote_shell::run().await
}
