//! The traces of requests. A separate program, because a process has one global subscriber.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "control/every_call.rs"]
mod every_call;

use std::io;
use std::sync::{Arc, Mutex};

use mock_server::MockServer;
use sandbox_agent_sdk::control::ControlPlane;
use tracing_subscriber::filter::LevelFilter;

use crate::every_call::{CALLS, every_call};

const TOKEN: &str = "t0p-s3cret";

/// Collects the traces.
#[derive(Clone, Default)]
struct Traces(Arc<Mutex<Vec<u8>>>);

impl io::Write for Traces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn every_request_is_traced_and_no_secret_is() {
    let traces = Traces::default();
    let writer = traces.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(LevelFilter::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    for (token, refused) in [(TOKEN, 0), ("another", CALLS)] {
        let server = MockServer::builder().token(token).start().await;
        let builder = ControlPlane::builder(server.url()).token(TOKEN).header("x-key", "hidden-header");
        assert_eq!(every_call(&builder.build().unwrap()).await.len(), refused);
    }
    let written = String::from_utf8(traces.0.lock().unwrap().clone()).unwrap();
    assert_eq!(written.lines().filter(|line| line.contains("plain request")).count(), 2 * CALLS);
    assert!(written.contains("upload archive") && written.contains("status=401"));
    assert!(!written.contains(TOKEN) && !written.contains("hidden-header"));
}
