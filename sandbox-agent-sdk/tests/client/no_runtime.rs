//! Every call without a runtime is an error, not a panic.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use futures::FutureExt;
use mock_server::MockServer;
use sandbox_agent_sdk::local::LocalError;
use sandbox_agent_sdk::session::{ListSessions, SessionMetadata};
use sandbox_agent_sdk::sessions::Suspend;
use sandbox_agent_sdk::sessions::store::{MemoryStore, RecordQuery, SessionStore, SqliteStore, StoreError};
use sandbox_agent_sdk::stream::StreamPosition;
use sandbox_agent_sdk::tools::{
    ConfinedFiles, FileError, ReadText, Roots, TerminalCommand, TerminalError, TerminalOptions, Terminals,
    TextFiles,
};
use sandbox_agent_sdk::{
    ConnectionState, Error, NewSession, OpenSession, SandboxAgentClient, ServerKind, Turn,
};
use serde_json::json;

use super::support::{KINDS, client, session, within};

/// Polls a future outside a runtime. Nothing wakes it, so it must be ready on the first poll.
fn polled<T>(name: &str, call: impl Future<Output = T>) -> T {
    let call = pin!(call);
    match catch_unwind(AssertUnwindSafe(|| call.poll(&mut Context::from_waker(Waker::noop())))) {
        Ok(Poll::Ready(outcome)) => outcome,
        Ok(Poll::Pending) => panic!("{name} waits"),
        Err(_) => panic!("{name} panicked"),
    }
}

/// Polls a call outside a runtime and checks its error.
fn outcome<T: std::fmt::Debug>(name: &str, call: impl Future<Output = Result<T, Error>>) {
    let error = polled(name, call).expect_err(name);
    assert!(matches!(&error, Error::Config(text) if text.contains("tokio runtime")), "{name}: {error:?}");
}

/// Makes every call that needs a runtime.
fn every_call(client: &SandboxAgentClient) {
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
    outcome("set_config_option", session.set_config_option("o", "v"));
    outcome("set_metadata", session.set_metadata(SessionMetadata::new()));
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
    assert!(!polled("disconnect_if_idle", client.disconnect_if_idle()));
    every_stored_call(client);
}

fn every_stored_call(client: &SandboxAgentClient) {
    let stored = client.with_store(MemoryStore::new());
    let session = stored.session("s");
    outcome("stored new_session", stored.new_session(NewSession::in_dir("/")));
    outcome("stored resume", stored.resume("s"));
    outcome("resume_or_create", stored.resume_or_create("s", NewSession::in_dir("/")));
    outcome("list", stored.list(RecordQuery::default()));
    outcome("get", stored.get("s"));
    outcome("delete", stored.delete("s"));
    outcome("archive", stored.archive("s"));
    outcome("flush", stored.flush());
    outcome("stored disconnect", stored.disconnect());
    outcome("shut_down", stored.shut_down(Suspend::Own));
    outcome("shut_down_on_signal", stored.shut_down_on_signal(Suspend::Own));
    outcome("stored prompt", session.prompt("hello"));
    outcome("stored cancel", session.cancel());
    outcome("stored record", session.record());
    outcome("release", session.release());
}

#[test]
fn every_call_without_a_runtime_is_an_error() {
    let builder = || SandboxAgentClient::builder("http://127.0.0.1:9").agent("mock");
    assert!(matches!(builder().build(), Err(Error::Config(_))), "it would connect");
    let client = builder().auto_connect(false).build().unwrap();
    every_call(&client);
    polled("disconnect", client.disconnect()).expect("there is nothing to disconnect");
}

#[test]
fn every_call_without_a_runtime_on_a_connected_client_is_an_error() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    for kind in KINDS {
        let (server, client, session) = runtime.block_on(async {
            let server = MockServer::start().await;
            let client = client(&server, kind);
            let session = session(&client).await;
            (server, client, session)
        });
        every_call(&client);
        outcome("set_thought_level", async { session.set_config_option("thought_level", "l").await });
        outcome("reload", session.reload());
        outcome("info", session.info());
        outcome("disconnect", client.disconnect());
        // Nothing of it broke the connection.
        let text = runtime.block_on(within(async { session.prompt("hello").text().await })).expect("a turn");
        assert!(!text.is_empty());
        runtime.block_on(within(client.disconnect())).unwrap();
        runtime.block_on(async { drop((session, client, server)) });
    }
}

#[test]
fn optional_parts_without_a_runtime_return_errors() {
    let directory = tempfile::tempdir().unwrap();
    let opened = polled("SqliteStore::open", SqliteStore::open(directory.path().join("s.db")));
    assert!(matches!(opened, Err(StoreError::NoRuntime)), "{opened:?}");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let store = runtime.block_on(SqliteStore::open(directory.path().join("s.db"))).unwrap();
    let listed = polled("list", SessionStore::get(&store, "s"));
    assert!(matches!(listed, Err(StoreError::NoRuntime)), "{listed:?}");
    runtime.block_on(async { drop(store) });

    let files = ConfinedFiles::open(Roots::at(directory.path())).unwrap();
    let read = polled("read", files.read(ReadText::new(directory.path().join("a"))));
    assert!(matches!(read, Err(FileError::Refused(_))), "{read:?}");

    let terminals = Terminals::new(TerminalOptions::new(Roots::at(directory.path())));
    let created = terminals.create("s", &TerminalCommand::new("true"));
    assert!(matches!(created, Err(TerminalError::Io { .. })), "{created:?}");
    let started = polled("start_local", SandboxAgentClient::start_local().binary("/bin/true").start());
    assert!(matches!(started, Err(LocalError::Machine { .. })), "{started:?}");
}

#[test]
fn an_attempt_to_connect_ends_with_its_runtime() {
    // It accepts connections and never responds.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    for auto_connect in [true, false] {
        let first = runtime();
        let client = first.block_on(async {
            let builder = SandboxAgentClient::builder(&url).agent("mock").server(ServerKind::Shared);
            builder.auto_connect(auto_connect).build().unwrap()
        });
        let mut connecting = match auto_connect {
            true => futures::future::pending().boxed(),
            false => client.connect(),
        };
        let pending = first.block_on(async {
            let pending = connecting.as_mut().now_or_never().is_none();
            // The connection is there: the attempt waits for a response.
            tokio::task::spawn_blocking({
                let listener = listener.try_clone().unwrap();
                move || listener.accept().unwrap()
            })
            .await
            .unwrap();
            pending
        });
        assert!(pending && client.state() == ConnectionState::Connecting);
        drop(first);
        runtime().block_on(async {
            if !auto_connect {
                let outcome = within(connecting).await;
                assert!(matches!(outcome, Err(Error::Config(_))), "{outcome:?}");
            }
            assert_eq!(client.state(), ConnectionState::Disconnected);
        });
    }
}
