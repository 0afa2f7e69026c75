//! Health checks, and waiting for a healthy server.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mock_server::{Fault, MockServer, State};
use sandbox_agent_sdk::Error;
use sandbox_agent_sdk::control::{ControlPlane, HealthWait, StartPhase};
use sandbox_agent_sdk::error::Phase;
use tokio::sync::mpsc;

use crate::stub::{Stub, reply, response};
use crate::support::{LIMIT, nowhere, plane, soon};

const SHORT: Duration = Duration::from_millis(300);

/// Returns a wait that records its phases.
fn noting(within: Duration) -> (HealthWait, Arc<Mutex<Vec<StartPhase>>>) {
    let phases = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&phases);
    (HealthWait::within(within).on_phase(move |phase| noted.lock().unwrap().push(phase)), phases)
}

#[tokio::test]
async fn a_healthy_server_reports_ok() {
    let server = MockServer::start().await;
    let health = plane(&server).health().check().await.unwrap();
    assert!(health.is_ok());
    assert!(plane(&server).health().wait(HealthWait::default()).await.unwrap().is_ok());
    assert_eq!(server.requests_to("GET", "/v1/health").len(), 2);
}

#[tokio::test]
async fn a_server_that_starts_late_is_waited_for() {
    let server = MockServer::start().await;
    server.stop().await;
    let (sender, mut phases) = mpsc::channel(8);
    let wait = HealthWait::within(LIMIT).on_phase(move |phase| sender.try_send(phase).unwrap());
    let waiting = tokio::spawn(plane(&server).health().wait(wait));
    assert_eq!(soon(phases.recv()).await, Some(StartPhase::Unreachable));
    server.restart(State::Preserved).await;
    assert!(soon(waiting).await.unwrap().unwrap().is_ok());
    assert_eq!(phases.recv().await, None, "a phase is reported once");
}

#[tokio::test]
async fn a_server_that_never_starts_is_unreachable_after_a_bounded_time() {
    let (wait, phases) = noting(SHORT);
    let server = ControlPlane::new(nowhere()).unwrap();
    let error = soon(server.health().wait(wait)).await.unwrap_err();
    let Error::Timeout(timeout) = &error else { panic!("{error:?}") };
    assert_eq!(timeout.phase, Phase::Health);
    assert!(timeout.elapsed >= SHORT);
    assert!(matches!(timeout.cause.as_deref(), Some(Error::Unreachable(_))));
    assert_eq!(StartPhase::of(&error), Some(StartPhase::Unreachable));
    assert_eq!(*phases.lock().unwrap(), [StartPhase::Unreachable]);
    let once = server.health().check().await.unwrap_err();
    assert!(matches!(once, Error::Unreachable(_)) && once.is_retryable() && !once.maybe_executed());
}

#[tokio::test]
async fn a_wrong_token_is_reported_at_once() {
    let server = MockServer::builder().token("right").start().await;
    for builder in [ControlPlane::builder(server.url()), ControlPlane::builder(server.url()).token("wrong")] {
        server.forget_requests();
        let (wait, phases) = noting(LIMIT);
        let start = Instant::now();
        let error = builder.build().unwrap().health().wait(wait).await.unwrap_err();
        assert!(error.is_unauthorized(), "{error:?}");
        assert_eq!(error.problem().unwrap().short_kind(), "token_invalid");
        assert_eq!(StartPhase::of(&error), Some(StartPhase::Unauthorized));
        assert_eq!(*phases.lock().unwrap(), [StartPhase::Unauthorized]);
        assert!(start.elapsed() < LIMIT);
        assert_eq!(server.requests().len(), 1, "a wrong token is not retried");
    }
}

#[tokio::test]
async fn a_gateway_in_front_of_a_sleeping_sandbox_is_waited_for() {
    let asked = AtomicUsize::new(0);
    let answers = [
        response("503 Service Unavailable", "text/plain", "waking up"),
        response("200 OK", "text/html", "<html>please wait</html>"),
        response("404 Not Found", "text/plain", "no such sandbox"),
        response("200 OK", "application/json", r#"{"status":"starting"}"#),
        response("200 OK", "application/json", r#"{"status":"ok","version":"9"}"#),
    ];
    let stub = Stub::serve(move |_, stream| {
        let answer = answers[asked.fetch_add(1, Ordering::SeqCst).min(4)].clone();
        Box::pin(reply(stream, answer))
    })
    .await;
    let (wait, phases) = noting(LIMIT);
    let health = ControlPlane::new(&stub.url).unwrap().health().wait(wait).await.unwrap();
    assert_eq!(health.other["version"], "9");
    assert_eq!(*phases.lock().unwrap(), [StartPhase::Unhealthy], "a phase is reported once");
    assert_eq!(stub.heads().len(), 5);
}

#[tokio::test]
async fn a_slow_server_is_waited_for() {
    let server = MockServer::builder().fault(Fault::SlowStart { delay: SHORT }).start().await;
    let start = Instant::now();
    assert!(plane(&server).health().wait(HealthWait::within(LIMIT)).await.unwrap().is_ok());
    assert!(start.elapsed() >= SHORT / 2);
}

#[tokio::test]
async fn a_server_that_accepts_and_sends_nothing_is_unhealthy() {
    let stub = Stub::serve(|_, stream| {
        Box::pin(async move {
            let _kept = stream;
            std::future::pending().await
        })
    })
    .await;
    let server = ControlPlane::new(&stub.url).unwrap();
    let error = soon(server.health().wait(HealthWait::within(SHORT))).await.unwrap_err();
    assert!(error.is_timeout());
    assert_eq!(StartPhase::of(&error), Some(StartPhase::Unhealthy));
}

#[tokio::test]
async fn a_redirect_is_not_waited_for() {
    let server = MockServer::builder()
        .fault(Fault::Redirect { to: "https://elsewhere.example/login?token=abc".into() })
        .start()
        .await;
    let error = plane(&server).health().wait(HealthWait::within(LIMIT)).await.unwrap_err();
    let Error::Redirected { status: 307, location, .. } = &error else { panic!("{error:?}") };
    assert_eq!(location.as_deref(), Some("https://elsewhere.example/login"));
    assert_eq!(server.requests().len(), 1);
}
