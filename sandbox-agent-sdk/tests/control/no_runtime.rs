//! Every call without a runtime is an error, not a panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use futures::StreamExt;
use mock_server::MockServer;
use sandbox_agent_sdk::Error;
use sandbox_agent_sdk::control::ControlPlane;
use sandbox_agent_sdk::control::processes::{CreateProcess, FollowOptions};
use tokio::io::AsyncWriteExt;

use super::every_call::{CALLS, every_call};
use super::stub::Stub;

#[test]
fn every_call_without_a_runtime_is_an_error() {
    let server = ControlPlane::new("http://127.0.0.1:9").unwrap();
    let calls = async {
        let mut errors = every_call(&server).await;
        errors.extend(server.processes().connect_terminal("p").await.err());
        errors
            .extend(server.processes().follow("p", FollowOptions::new()).next().await.and_then(Result::err));
        errors
    };
    // Nothing wakes the future, so it must fail on the first poll.
    let polled = catch_unwind(AssertUnwindSafe(|| pin!(calls).poll(&mut Context::from_waker(Waker::noop()))));
    let Ok(Poll::Ready(errors)) = polled else { panic!("a call panicked or is pending") };
    assert_eq!(errors.len(), CALLS + 2);
    for error in errors {
        assert!(matches!(&error, Error::Config(_)), "{error:?}");
    }
}

/// Polls a future of an object that was created in a runtime, outside of it, until it waits or is ready.
fn polled<T>(name: &str, call: impl Future<Output = T>) -> Option<T> {
    let call = pin!(call);
    match catch_unwind(AssertUnwindSafe(|| call.poll(&mut Context::from_waker(Waker::noop())))) {
        Ok(Poll::Ready(outcome)) => Some(outcome),
        Ok(Poll::Pending) => None,
        Err(_) => panic!("{name} panicked"),
    }
}

#[test]
fn an_object_that_was_created_in_a_runtime_does_not_panic_outside() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let stalled = runtime.block_on(Stub::serve(|_, mut stream| {
        Box::pin(async move {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n").await;
            std::future::pending::<()>().await;
        })
    }));
    let opened = ControlPlane::new(&stalled.url).unwrap().files().open("/x");
    let mut file = runtime.block_on(opened).unwrap();
    let error = polled("file", file.next()).expect("it does not wait").unwrap().unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error:?}");

    let server = runtime.block_on(MockServer::start());
    let processes = ControlPlane::new(server.url()).unwrap().processes();
    let (mut followed, terminal, mut input) = runtime.block_on(async {
        let shell = processes
            .create(CreateProcess::new("sh").args(["-c", "echo begun; cat"]).tty(true))
            .await
            .unwrap();
        let mut followed = processes.follow(&shell.id, FollowOptions::new());
        followed.next().await.unwrap().unwrap();
        let terminal = processes.connect_terminal(&shell.id).await.unwrap();
        let (input, _) = processes.connect_terminal(&shell.id).await.unwrap().split();
        (followed, terminal, input)
    });
    let error = polled("follow", followed.next()).expect("it does not wait").unwrap().unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error:?}");
    polled("close", terminal.close()).expect("it does not wait");
    polled("close", input.close()).expect("it does not wait");
    runtime.block_on(async move { drop(server) });
}
