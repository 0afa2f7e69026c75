//! Every call without a runtime is an error, not a panic.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use sandbox_agent_sdk::session::{ListSessions, SessionMetadata};
use sandbox_agent_sdk::stream::StreamPosition;
use sandbox_agent_sdk::{Error, NewSession, OpenSession, SandboxAgentClient, Turn};
use serde_json::json;

/// Polls a future outside a runtime and checks its error.
fn outcome<T: std::fmt::Debug>(name: &str, call: impl Future<Output = Result<T, Error>>) {
    let mut call = pin!(call);
    let polled = catch_unwind(AssertUnwindSafe(|| {
        // Nothing wakes the future, so it must fail on the first poll.
        call.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }));
    match polled {
        Ok(Poll::Ready(Err(error))) => {
            let is_typed =
                matches!(error, Error::Config(_) | Error::NotConnected | Error::Unsupported { .. });
            assert!(is_typed, "{name}: {error:?}");
        }
        Ok(other) => panic!("{name}: {other:?}"),
        Err(_) => panic!("{name} panicked"),
    }
}

#[test]
fn every_call_without_a_runtime_is_an_error() {
    let builder = || SandboxAgentClient::builder("http://127.0.0.1:9").agent("mock");
    assert!(matches!(builder().build(), Err(Error::Config(_))), "it would connect");
    let client = builder().auto_connect(false).build().unwrap();
    let session = client.session("s");
    let (new, open) = (|| NewSession::in_dir("/"), || OpenSession::in_dir("/"));
    outcome("connect", client.connect());
    outcome("connect_with", client.connect_with("mock"));
    outcome("restart_agent", client.restart_agent());
    outcome("new_session", client.new_session(new()));
    outcome("load_session", client.load_session("s", open()));
    outcome("resume_session", client.resume_session("s", open()));
    outcome("fork_session", client.fork_session("s", new()));
    outcome("delete_session", client.delete_session("s"));
    outcome("logout", client.logout());
    outcome("authenticate", client.authenticate("key"));
    outcome("get_session", client.get_session("s"));
    outcome("list_models", client.list_models(None));
    outcome("detach_session", client.detach_session("s"));
    outcome("terminate_session", client.terminate_session("s"));
    outcome("raw_request", client.raw_request("m", json!({})));
    outcome("raw_notify", client.raw_notify("m", json!({})));
    outcome("cancel", client.cancel("s"));
    outcome("set_mode", session.set_mode("m"));
    outcome("set_model", session.set_model("m"));
    outcome("set_thought_level", session.set_thought_level("l"));
    outcome("set_config_option", session.set_config_option("o", "v"));
    outcome("set_metadata", session.set_metadata(SessionMetadata::new()));
    outcome("reload", session.reload());
    outcome("list_sessions", async {
        client.list_sessions(ListSessions::all()).next().await.unwrap_or(Err(Error::NotConnected))
    });
    outcome("read", async {
        let mut reader = client.read(StreamPosition::beginning(), None);
        reader.next().await.unwrap_or(Err(Error::NotConnected))
    });
    outcome("prompt", async { session.prompt("hello").outcome().await });
    outcome("text", async { session.prompt("hello").text().await });
    outcome("from_events", async {
        Turn::from_events(session.clone(), futures::stream::empty()).outcome().await
    });
    drop(client.events_from(StreamPosition::beginning()));
    let disconnect = catch_unwind(AssertUnwindSafe(|| {
        pin!(client.disconnect()).poll(&mut Context::from_waker(Waker::noop()))
    }));
    assert!(matches!(disconnect, Ok(Poll::Ready(Ok(())))), "there is nothing to disconnect");
}
