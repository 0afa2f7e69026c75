//! The example `chat` as a binary of this package. Cargo builds the binaries of a package before its integration
//! tests and passes them their paths; it does not do that for examples.
//!
//! It panics on SIGUSR1, so that a test can check the state of the terminal after a panic.

use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> ExitCode {
    tokio::spawn(async {
        if let Ok(mut requests) = signal(SignalKind::user_defined1()) {
            requests.recv().await;
            panic!("panic requested by SIGUSR1");
        }
    });
    sdk_examples::chat::run().await
}
