//! The example `chat` once more, as a binary of this package: cargo builds the binaries of a package before its
//! integration tests and tells them where they are, which it does not do for examples.
//!
//! It panics when it gets SIGUSR1, so that a test can see what becomes of the terminal then.

use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> ExitCode {
    tokio::spawn(async {
        if let Ok(mut wish) = signal(SignalKind::user_defined1()) {
            wish.recv().await;
            panic!("a panic was asked for");
        }
    });
    sdk_examples::chat::run().await
}
