//! The traces of requests. A separate program, because a process has one global subscriber.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "control/every_call.rs"]
mod every_call;
#[path = "client/written_log.rs"]
mod written_log;

use mock_server::MockServer;
use sandbox_agent_sdk::control::ControlPlane;
use tracing_subscriber::filter::LevelFilter;

use crate::every_call::{CALLS, every_call};
use crate::written_log::WrittenLog;

const TOKEN: &str = "t0p-s3cret";

#[tokio::test]
async fn every_request_is_traced_and_no_secret_is() {
    let (traces, subscriber) = WrittenLog::at(LevelFilter::TRACE);
    tracing::subscriber::set_global_default(subscriber).unwrap();
    for (token, refused) in [(TOKEN, 0), ("another", CALLS)] {
        let server = MockServer::builder().token(token).start().await;
        let builder = ControlPlane::builder(server.url()).token(TOKEN).header("x-key", "hidden-header");
        assert_eq!(every_call(&builder.build().unwrap()).await.len(), refused);
    }
    let written = traces.text();
    assert_eq!(written.lines().filter(|line| line.contains("plain request")).count(), 2 * CALLS);
    assert!(written.contains("upload archive") && written.contains("status=401"));
    assert!(!written.contains(TOKEN) && !written.contains("hidden-header"));
}
