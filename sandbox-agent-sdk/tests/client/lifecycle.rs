//! Connecting and disconnecting, also at the same time.

use std::time::Duration;

use mock_server::{Fault, MockServer, Script, State, Step};
use sandbox_agent_sdk::extensions::Extension;
use sandbox_agent_sdk::session::{ListSessions, SessionMetadata};
use sandbox_agent_sdk::{
    ClientOptions, ConnectionState, Error, Event, NewSession, OpenSession, SandboxAgentClient, ServerKind,
};
use serde_json::Value;

use super::support::{KINDS, LIMIT, client, event, options, session, streams_closed, timeouts, within};

fn agent_of(message: &Value) -> Option<&str> {
    message.pointer("/params/_meta/sandboxagent.dev/agent")?.as_str()
}

#[tokio::test]
async fn a_client_connects_in_the_background_and_the_first_call_waits_for_it() {
    for kind in KINDS {
        let slow = Fault::SlowStart { delay: Duration::from_millis(300) };
        let server = MockServer::builder().fault(slow).start().await;
        let client = client(&server, kind);
        assert_eq!(client.state(), ConnectionState::Connecting);
        let session = session(&client).await;
        assert_eq!(client.state(), ConnectionState::Connected, "{kind}");
        assert!(!session.id().is_empty());
    }
}

#[tokio::test]
async fn connecting_and_new_sessions_carry_the_agent() {
    for kind in KINDS {
        let server = MockServer::start().await;
        let client = client(&server, kind);
        session(&client).await;
        for method in ["initialize", "session/new"] {
            let messages = server.messages(method);
            assert_eq!(messages.len(), 1, "{method}");
            assert_eq!(agent_of(&messages[0]), Some("mock"), "{method}");
        }
    }
}

#[tokio::test]
async fn connecting_in_the_background_without_an_agent_is_an_error_at_construction() {
    for options in
        [ClientOptions::new("http://127.0.0.1:1"), ClientOptions::new("http://127.0.0.1:1").agent(" ")]
    {
        assert!(matches!(SandboxAgentClient::new(options), Err(Error::Config(_))));
    }
    let later = ClientOptions::new("http://127.0.0.1:1").auto_connect(false).build().unwrap();
    assert!(matches!(within(later.connect()).await, Err(Error::Config(_))));
}

#[test]
fn connecting_in_the_background_without_a_runtime_is_an_error_at_construction() {
    let options = ClientOptions::new("http://127.0.0.1:1").agent("mock");
    assert!(matches!(SandboxAgentClient::new(options), Err(Error::Config(_))));
}

#[test]
fn invalid_options_are_reported_without_their_secrets() {
    let table = [
        ClientOptions::new("no url"),
        ClientOptions::new("ftp://h"),
        ClientOptions::new("http://user:secret@h"),
        ClientOptions::new("http://h").token("sec\nret"),
        ClientOptions::new("http://h").header("bad name", "secret"),
    ];
    for options in table {
        let error = SandboxAgentClient::new(options.auto_connect(false)).unwrap_err();
        assert!(matches!(error, Error::Config(_)) && !error.to_string().contains("secret"), "{error}");
    }
}

/// Makes every call that needs a connection.
async fn every_call(client: &SandboxAgentClient) -> Vec<(&'static str, Result<(), Error>)> {
    let new = || NewSession::in_dir("/");
    vec![
        ("new_session", within(client.new_session(new())).await.map(drop)),
        ("load_session", within(client.load_session("s", OpenSession::in_dir("/"))).await.map(drop)),
        ("resume_session", within(client.resume_session("s", OpenSession::in_dir("/"))).await.map(drop)),
        ("fork_session", within(client.fork_session("s", new())).await.map(drop)),
        ("prompt", within(client.prompt("s", "hi").outcome()).await.map(drop)),
        ("cancel", within(client.cancel("s")).await),
        ("set_session_mode", within(client.set_session_mode("s", "m")).await),
        (
            "set_session_config_option",
            within(client.set_session_config_option("s", "o", "v")).await.map(drop),
        ),
        ("set_session_model", within(client.set_session_model("s", "m")).await),
        ("list_sessions", within(client.list_sessions(ListSessions::all()).all()).await.map(drop)),
        ("get_session", within(client.get_session("s")).await.map(drop)),
        ("list_models", within(client.list_models(None)).await.map(drop)),
        ("set_metadata", within(client.set_metadata("s", SessionMetadata::new())).await),
        ("detach_session", within(client.detach_session("s")).await),
        ("terminate_session", within(client.terminate_session("s")).await.map(drop)),
        ("authenticate", within(client.authenticate("key")).await),
        ("restart_agent", within(client.restart_agent()).await.map(drop)),
        ("raw_request", within(client.raw_request("m", Value::Null)).await.map(drop)),
        ("raw_notify", within(client.raw_notify("m", Value::Null)).await),
    ]
}

#[tokio::test]
async fn before_connecting_calls_fail_and_nothing_is_sent() {
    for kind in KINDS {
        let server = MockServer::start().await;
        let client = options(&server, kind).auto_connect(false).build().unwrap();
        assert_eq!(client.state(), ConnectionState::Disconnected);
        for (call, result) in every_call(&client).await {
            assert!(matches!(result, Err(Error::NotConnected)), "{call}: {result:?}");
        }
        assert!(server.requests().is_empty());
    }
}

#[tokio::test]
async fn connecting_returns_the_capabilities_of_server_and_agent() {
    for kind in KINDS {
        let server = MockServer::start().await;
        let client = options(&server, kind).auto_connect(false).build().unwrap();
        let can = within(client.connect()).await.unwrap();
        assert_eq!((can.server, can.agent.as_str()), (kind, "mock"));
        assert!(can.load_session && can.resume_session && can.images);
        assert_eq!(can.extensions.supports(Extension::SessionTerminate), kind == ServerKind::Shared);
        assert_eq!(client.capabilities().unwrap(), can);
    }
}

#[tokio::test]
async fn connecting_fails_while_connected_and_while_connecting() {
    let server =
        MockServer::builder().fault(Fault::SlowStart { delay: Duration::from_millis(200) }).start().await;
    let client = client(&server, ServerKind::Shared);
    assert!(matches!(within(client.connect()).await, Err(Error::AlreadyConnected)));
    session(&client).await;
    assert!(matches!(within(client.connect_with("mock")).await, Err(Error::AlreadyConnected)));
    assert_eq!(server.messages("initialize").len(), 1);
}

#[tokio::test]
async fn of_two_tasks_that_connect_one_wins() {
    for kind in KINDS {
        let server = MockServer::start().await;
        let client = options(&server, kind).auto_connect(false).build().unwrap();
        let tasks: Vec<_> = (0..8).map(|_| tokio::spawn(client.connect())).collect();
        let mut won = 0;
        for task in tasks {
            match within(task).await.unwrap() {
                Ok(_) => won += 1,
                Err(error) => assert!(matches!(error, Error::AlreadyConnected), "{error}"),
            }
        }
        assert_eq!((won, server.messages("initialize").len()), (1, 1));
    }
}

#[tokio::test]
async fn after_disconnecting_calls_fail_and_connecting_works_with_another_agent() {
    for kind in KINDS {
        let server = MockServer::builder()
            .agent("mock", Script::default())
            .agent("other", Script::steps(vec![Step::Say("I am the other".into())]))
            .start()
            .await;
        let client = client(&server, kind);
        session(&client).await;
        within(client.disconnect()).await.unwrap();
        server.forget_requests();
        for (call, result) in every_call(&client).await {
            assert!(matches!(result, Err(Error::NotConnected)), "{call}: {result:?}");
        }
        assert!(server.requests().is_empty());
        let can = within(client.connect_with("other")).await.unwrap();
        assert_eq!(can.agent, "other");
        // Each agent of the mock server numbers its sessions from 1, so one session makes the ids differ.
        let taken = session(&client).await;
        let session = session(&client).await;
        assert_ne!(taken.id(), session.id());
        assert_eq!(within(session.prompt("who are you").text()).await.unwrap(), "I am the other");
        within(client.disconnect()).await.unwrap();
        within(client.connect()).await.unwrap();
        assert_eq!(client.capabilities().unwrap().agent, "mock");
    }
}

#[tokio::test]
async fn disconnecting_is_bounded_and_idempotent() {
    for kind in KINDS {
        let server = MockServer::builder().fault(Fault::DeleteHangs).start().await;
        let client = client(&server, kind);
        session(&client).await;
        let both = within(async { tokio::join!(client.disconnect(), client.disconnect()) }).await;
        assert!(both.0.is_ok() && both.1.is_ok());
        within(client.disconnect()).await.unwrap();
        let deletes = server.requests().iter().filter(|request| request.method == "DELETE").count();
        assert_eq!((client.state(), deletes), (ConnectionState::Disconnected, 1));
    }
}

#[tokio::test]
async fn disconnecting_fails_pending_calls() {
    for kind in KINDS {
        let server = MockServer::builder().agent("mock", Script::steps(vec![Step::Hang])).start().await;
        let client = client(&server, kind);
        let session = session(&client).await;
        let mut turn = session.prompt("wait");
        assert!(server.wait_for(|_| !server.messages("session/prompt").is_empty(), LIMIT).await);
        within(client.disconnect()).await.unwrap();
        let error = within(turn.outcome()).await.unwrap_err();
        assert!(matches!(&error, Error::Disconnected { .. }) && error.maybe_executed(), "{error:?}");
        assert!(error.termination().is_none_or(|info| !info.is_crash()));
    }
}

#[tokio::test]
async fn disconnecting_while_connecting_ends_the_attempt() {
    for kind in KINDS {
        let stuck =
            Script::default().on_request(|method, _| (method == "initialize").then(|| vec![Step::Hang]));
        let server = MockServer::builder().agent("mock", stuck).start().await;
        let client = options(&server, kind).auto_connect(false).build().unwrap();
        let connecting = tokio::spawn(client.connect());
        assert!(server.wait_for(|_| !server.messages("initialize").is_empty(), LIMIT).await);
        let waiting = tokio::spawn(client.new_session(NewSession::in_dir("/")));
        within(client.disconnect()).await.unwrap();
        assert!(matches!(within(connecting).await.unwrap(), Err(Error::Disconnected { .. })));
        assert!(matches!(within(waiting).await.unwrap(), Err(Error::NotConnected)));
        assert_eq!(client.state(), ConnectionState::Disconnected);
        assert!(server.messages("session/new").is_empty());
    }
}

#[tokio::test]
async fn dropping_the_future_of_connect_aborts_the_attempt() {
    let slow = Fault::SlowStart { delay: Duration::from_millis(400) };
    let server = MockServer::builder().fault(slow).start().await;
    let client = options(&server, ServerKind::Shared).auto_connect(false).build().unwrap();
    let short = tokio::time::timeout(Duration::from_millis(50), client.connect()).await;
    assert!(short.is_err());
    assert_eq!(client.state(), ConnectionState::Disconnected);
    within(client.connect()).await.unwrap();
    assert_eq!(client.state(), ConnectionState::Connected);
}

#[tokio::test]
async fn dropping_the_client_while_connecting_ends_everything() {
    for kind in KINDS {
        let stuck =
            Script::default().on_request(|method, _| (method == "initialize").then(|| vec![Step::Hang]));
        let server = MockServer::builder().agent("mock", stuck).start().await;
        let client = client(&server, kind);
        let mut events = client.events();
        assert!(server.wait_for(|_| !server.messages("initialize").is_empty(), LIMIT).await);
        drop(client);
        within(async { while events.next().await.is_some() {} }).await;
        streams_closed(&server).await;
    }
}

#[tokio::test]
async fn the_next_call_returns_the_error_of_a_failed_background_connection() {
    for kind in KINDS {
        let server = MockServer::start().await;
        let client = options(&server, kind).agent("unknown").build().unwrap();
        for _ in 0..2 {
            let error = within(client.new_session(NewSession::in_dir("/"))).await.unwrap_err();
            assert!(matches!(error, Error::UnsupportedAgent(_)), "{error:?}");
        }
        within(client.connect_with("mock")).await.unwrap();
        session(&client).await;
    }
}

#[tokio::test]
async fn a_server_that_never_starts_is_unreachable_after_the_start_timeout() {
    let server = MockServer::start().await;
    let url = server.url();
    drop(server);
    let times = timeouts().start(Duration::from_millis(100));
    let client = SandboxAgentClient::builder(url).agent("mock").timeouts(times).build().unwrap();
    let error = within(client.new_session(NewSession::in_dir("/"))).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)) && error.is_retryable(), "{error:?}");
}

#[tokio::test]
async fn a_server_that_starts_late_is_waited_for_by_the_client() {
    let server = MockServer::start().await;
    server.stop().await;
    let client =
        SandboxAgentClient::builder(server.url()).agent("mock").timeouts(timeouts()).build().unwrap();
    let calling = tokio::spawn(client.new_session(NewSession::in_dir("/")));
    tokio::task::yield_now().await;
    server.restart(State::Preserved).await;
    within(calling).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_rejected_token_is_a_typed_error() {
    for kind in [None, Some(ServerKind::Shared), Some(ServerKind::PerAgent)] {
        let server = MockServer::builder().token("good").start().await;
        let build = |token: &str| {
            let options =
                SandboxAgentClient::builder(server.url()).agent("mock").timeouts(timeouts()).token(token);
            let options = kind.into_iter().fold(options, ClientOptions::server);
            options.auto_connect(false).build().unwrap()
        };
        let error = within(build("bad").connect()).await.unwrap_err();
        assert!(error.is_unauthorized(), "{kind:?}: {error:?}");
        within(build("good").connect()).await.unwrap();
        assert!(!format!("{error:?}").contains("bad"));
    }
}

#[tokio::test]
async fn every_change_of_the_connection_state_is_published() {
    let server = MockServer::start().await;
    let client = options(&server, ServerKind::Shared).auto_connect(false).build().unwrap();
    let mut events = client.events();
    within(client.connect()).await.unwrap();
    within(client.disconnect()).await.unwrap();
    let mut states = Vec::new();
    while states.last() != Some(&ConnectionState::Disconnected) {
        states.push(
            event(&mut events, |event| match event {
                Event::Connection(state) => Some(state),
                _ => None,
            })
            .await,
        );
    }
    assert_eq!(
        states,
        [ConnectionState::Connecting, ConnectionState::Connected, ConnectionState::Disconnected]
    );
}

#[tokio::test]
async fn headers_are_sent_with_every_request() {
    let server = MockServer::start().await;
    let client = options(&server, ServerKind::Shared).header("x-tenant", "seven").build().unwrap();
    session(&client).await;
    within(client.health().check()).await.unwrap();
    let requests = server.requests();
    assert!(requests.len() >= 4);
    for request in requests {
        let tenant = request.header("x-tenant").map(str::to_owned);
        assert_eq!(tenant.as_deref(), Some("seven"), "{} {}", request.method, request.path);
    }
}

#[tokio::test]
async fn a_custom_http_client_is_used() {
    let server = MockServer::start().await;
    let http = acp_http_client::http_client_builder().user_agent("mine").build().unwrap();
    let client = options(&server, ServerKind::Shared).http_client(http).build().unwrap();
    session(&client).await;
    within(client.health().check()).await.unwrap();
    let requests = server.requests();
    assert!(requests.len() >= 4);
    assert!(requests.iter().all(|request| request.header("user-agent").is_some_and(|agent| agent == "mine")));
}

#[tokio::test]
async fn the_timeout_of_a_silent_agent_quotes_its_output() {
    for kind in KINDS {
        let script = Script::default().on_request(|method, _| {
            let steps = || vec![Step::Garbage("npm ERR! no such package".into()), Step::Hang];
            (method == "initialize").then(steps)
        });
        let server = MockServer::builder().agent("mock", script).start().await;
        let times = timeouts().initialize(Duration::from_secs(1));
        let client = options(&server, kind).timeouts(times).auto_connect(false).build().unwrap();
        let error = within(client.connect()).await.unwrap_err();
        assert!(
            error.is_timeout() && error.to_string().contains("npm ERR! no such package"),
            "{kind}: {error}"
        );
    }
}

#[tokio::test]
async fn connecting_and_disconnecting_leaks_nothing() {
    let server = MockServer::start().await;
    let client = options(&server, ServerKind::Shared).auto_connect(false).build().unwrap();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let mut before = None;
    for round in 0..40 {
        within(client.connect()).await.unwrap();
        within(session(&client).await.prompt("hello").outcome()).await.unwrap();
        within(client.disconnect()).await.unwrap();
        streams_closed(&server).await;
        if round == 4 {
            before = Some(tasks());
        }
    }
    // The connection pool opens and closes connections, so the numbers may differ slightly.
    let before = before.unwrap();
    within(async {
        while tasks() > before + 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}
