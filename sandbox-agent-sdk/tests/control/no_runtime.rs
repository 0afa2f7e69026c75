//! Every call without a runtime is an error, not a panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use futures::StreamExt;
use sandbox_agent_sdk::Error;
use sandbox_agent_sdk::control::ControlPlane;
use sandbox_agent_sdk::control::processes::FollowOptions;

use super::every_call::{CALLS, every_call};

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
