//! Opening sessions: checks, settings and retries.

use mock_server::{Fault, MockServer, Permission, Script, State, Step, ToolCall};
use sandbox_agent_sdk::event::Origin;
use sandbox_agent_sdk::session::ListSessions;
use sandbox_agent_sdk::{
    ConnectionState, Error, Event, NewSession, OpenSession, PermissionDecision, PermissionRequest,
    SandboxAgentClient, ServerKind, Session, Update,
};
use serde_json::{Value, json};

use super::support::{KINDS, LIMIT, client, event, options, session, timeouts, within};

#[tokio::test]
async fn a_relative_directory_is_rejected_before_anything_is_sent() {
    let server = MockServer::start().await;
    let client = client(&server, ServerKind::Shared);
    let session = session(&client).await;
    for directory in ["", "work", "./work", "~", "C:", "C:work"] {
        let new = || NewSession::in_dir(directory);
        let open = || OpenSession::in_dir(directory);
        let results: [Result<Session, Error>; 4] = [
            within(client.new_session(new())).await,
            within(client.load_session(session.id(), open())).await,
            within(client.resume_session(session.id(), open())).await,
            within(session.fork(new())).await,
        ];
        for result in results {
            assert!(matches!(result, Err(Error::Config(_))), "{directory}: {result:?}");
        }
    }
    for directory in ["", "work", "~"] {
        let new = NewSession::in_dir("/").additional_directory(directory);
        let open = OpenSession::in_dir("/").additional_directory(directory);
        let results: [Result<(), Error>; 3] = [
            within(client.new_session(new)).await.map(drop),
            within(client.load_session(session.id(), open)).await.map(drop),
            within(client.list_sessions(ListSessions::in_dir(directory)).all()).await.map(drop),
        ];
        for result in results {
            assert!(matches!(result, Err(Error::Config(_))), "{directory}: {result:?}");
        }
    }
    assert_eq!(server.messages("session/new").len(), 1);
    for method in ["session/load", "session/resume", "session/fork", "session/list"] {
        assert!(server.messages(method).is_empty(), "{method}");
    }
    let path = std::path::Path::new("/work").join("deep");
    within(client.new_session(NewSession::in_dir(&path))).await.unwrap();
    within(client.new_session(NewSession::in_dir("C:\\work"))).await.unwrap();
    assert_eq!(server.messages("session/new")[1]["params"]["cwd"], "/work/deep");
    within(client.list_sessions(ListSessions::in_dir(&path)).all()).await.unwrap();
}

#[tokio::test]
async fn a_fork_has_the_requested_mode_and_model_and_can_be_loaded_again() {
    for kind in KINDS {
        let modes = json!({"currentModeId": "ask", "availableModes": [{"id": "ask"}, {"id": "code"}]});
        let models = json!({"currentModelId": "small", "availableModels": [{"modelId": "small"}, {"modelId": "large"}]});
        let script = Script::default().on_request(move |method, _| match method {
            "session/fork" => {
                Some(vec![Step::Finish(json!({"sessionId": "f", "modes": modes, "models": models}))])
            }
            "session/set_mode" | "session/set_model" | "session/load" => Some(vec![Step::Finish(json!({}))]),
            _ => None,
        });
        let server = MockServer::builder().agent("mock", script).start().await;
        let session = session(&client(&server, kind)).await;
        let new = NewSession::in_dir("/fork").mode("code").model("large");
        let forked = within(session.fork(new)).await.unwrap();
        let sent = |method: &str| server.messages(method)[0]["params"].clone();
        assert_eq!(sent("session/set_mode"), json!({"sessionId": "f", "modeId": "code"}), "{kind}");
        assert_eq!(sent("session/set_model"), json!({"sessionId": "f", "modelId": "large"}), "{kind}");
        within(forked.reload()).await.unwrap();
        assert_eq!(sent("session/load")["cwd"], "/fork");
    }
}

#[tokio::test]
async fn what_an_agent_replays_before_it_responds_to_a_fork_is_history() {
    for kind in KINDS {
        let script = Script::default().on_request(|method, _| {
            let says = |text: &str| Step::Notify {
                method: "session/update".into(),
                params: json!({"sessionId": "f", "update": {
                    "sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}}),
            };
            match method {
                "session/fork" => {
                    Some(vec![says("one"), says("two"), Step::Finish(json!({"sessionId": "f"}))])
                }
                "session/set_mode" => Some(vec![says("three"), Step::Finish(json!({}))]),
                _ => None,
            }
        });
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = client(&server, kind);
        let session = session(&client).await;
        let mut all = client.events();
        let forked = within(session.fork(NewSession::in_dir("/"))).await.unwrap();
        let shown = |update: &Update| (update.to_string(), update.origin());
        let history: Vec<_> = forked.history().iter().map(shown).collect();
        let [one, two] = ["one", "two"].map(|text| (text.to_owned(), Origin::History));
        assert_eq!(history, [one, two], "{kind}");
        let next = |event| match event {
            Event::Update(update) => Some(shown(&update)),
            _ => None,
        };
        let mut events = forked.events();
        within(forked.set_mode("plan")).await.unwrap();
        assert_eq!(event(&mut events, next).await, ("three".to_owned(), Origin::Live), "{kind}");
        // Sessions of other clients begin in the same way.
        let expected = if kind == ServerKind::Shared { Origin::Live } else { Origin::History };
        assert_eq!(event(&mut all, next).await, ("one".to_owned(), expected), "{kind}");
    }
}

#[tokio::test]
async fn mode_and_model_are_set_by_calls_if_the_server_does_not_set_them() {
    for kind in KINDS {
        let modes = json!({"currentModeId": "ask", "availableModes": [{"id": "ask"}, {"id": "code"}]});
        let models = json!({"currentModelId": "small", "availableModels": [{"modelId": "small"}, {"modelId": "large"}]});
        let script = Script::default().on_request(move |method, _| match method {
            "session/new" => {
                let made = json!({"sessionId": "s", "modes": modes, "models": models});
                Some(vec![Step::Finish(made)])
            }
            "session/set_mode" | "session/set_model" => Some(vec![Step::Finish(json!({}))]),
            _ => None,
        });
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = client(&server, kind);
        let new =
            |mode: &str, model: &str| client.new_session(NewSession::in_dir("/").mode(mode).model(model));
        let session = within(new("code", "large")).await.unwrap();
        let sent = |method: &str, member: &str| -> Vec<Value> {
            server.messages(method).iter().map(|message| message["params"][member].clone()).collect()
        };
        assert_eq!(sent("session/set_mode", "modeId"), ["code"], "{kind}");
        assert_eq!(sent("session/set_model", "modelId"), ["large"], "{kind}");
        assert_eq!(session.snapshot().current_mode.as_deref(), Some("code"));
        server.forget_requests();
        within(new("ask", "small")).await.unwrap();
        assert!(sent("session/set_mode", "modeId").is_empty(), "it is already active");
    }
}

#[tokio::test]
async fn a_mode_or_model_that_differs_and_cannot_be_set_is_an_error() {
    for is_reported in [true, false] {
        let script = Script::default().on_request(move |method, _| match method {
            "session/new" => {
                let mut made = json!({"sessionId": "s"});
                if is_reported {
                    made["modes"] = json!({"currentModeId": "ask", "availableModes": [{"id": "ask"}]});
                    made["models"] =
                        json!({"currentModelId": "small", "availableModels": [{"modelId": "small"}]});
                }
                Some(vec![Step::Finish(made)])
            }
            "session/set_mode" | "session/set_model" | "session/set_config_option" => {
                Some(vec![Step::Fail { code: -32601, message: "Method not found".into(), data: None }])
            }
            _ => None,
        });
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = client(&server, ServerKind::Shared);
        for new in [NewSession::in_dir("/").mode("code"), NewSession::in_dir("/").model("large")] {
            let created = within(client.new_session(new)).await;
            match is_reported {
                true => assert!(matches!(created, Err(Error::Unsupported { .. })), "{created:?}"),
                // The server sets what was requested and does not report it.
                false => assert!(created.is_ok(), "{created:?}"),
            }
        }
    }
}

#[tokio::test]
async fn the_mode_of_a_session_is_set_by_its_option_through_the_client_too() {
    let option = json!({"id": "mode-option", "category": "mode", "type": "select", "currentValue": "ask",
        "options": [{"value": "ask"}, {"value": "code"}]});
    let script = Script::default().on_request(move |method, _| match method {
        "session/new" => Some(vec![Step::Finish(json!({"sessionId": "s", "configOptions": [option]}))]),
        "session/set_mode" => {
            Some(vec![Step::Fail { code: -32601, message: "Method not found".into(), data: None }])
        }
        "session/set_config_option" => Some(vec![Step::Finish(json!({}))]),
        _ => None,
    });
    let server = MockServer::builder().agent("mock", script).start().await;
    let client = client(&server, ServerKind::PerAgent);
    let session = session(&client).await;
    within(client.set_session_mode(session.id(), "code")).await.unwrap();
    assert_eq!(server.messages("session/set_config_option")[0]["params"]["configId"], "mode-option");
}

#[tokio::test]
async fn the_next_call_retries_a_failed_background_connect() {
    for kind in KINDS {
        let server = MockServer::start().await;
        let rule = server.inject(Fault::post_status(500).on_method("initialize"));
        let client = options(&server, kind).build().unwrap();
        let mut events = client.events();
        within(client.list_models(None)).await.unwrap_err();
        let down = |event| matches!(event, Event::Connection(ConnectionState::Disconnected)).then_some(());
        event(&mut events, down).await;
        within(client.new_session(NewSession::in_dir("/"))).await.unwrap_err();
        server.lift(rule);
        session(&client).await;
        assert_eq!(client.state(), ConnectionState::Connected);
        assert_eq!(server.messages("initialize").len(), 3, "{kind}");
    }
}

#[tokio::test]
async fn the_first_call_after_a_server_restart_is_repeated_if_it_was_not_executed() {
    type Opened = futures::future::BoxFuture<'static, Result<Session, Error>>;
    type Open = fn(&SandboxAgentClient) -> Opened;
    let calls: [(&str, Open); 3] = [
        ("session/new", |client| Box::pin(client.new_session(NewSession::in_dir("/")))),
        ("session/load", |client| Box::pin(client.load_session("s", OpenSession::in_dir("/")))),
        ("session/resume", |client| Box::pin(client.resume_session("s", OpenSession::in_dir("/")))),
    ];
    for kind in [ServerKind::Shared, ServerKind::PerAgent, ServerKind::ConnectionId] {
        let script =
            Script::new(|turn| vec![Step::Say(format!("mock: {}", turn.text))]).on_request(|method, _| {
                matches!(method, "session/load" | "session/resume").then(|| vec![Step::Finish(json!({}))])
            });
        let mut builder = MockServer::builder().agent("mock", script);
        if kind == ServerKind::ConnectionId {
            builder = builder.connection_ids(Some("x-acp-connection-id"));
        }
        let server = builder.start().await;
        let client = client(&server, kind);
        session(&client).await;
        for (method, call) in calls {
            // The call discovers the restart, not the stream.
            let refused = server.inject(Fault::StreamRefused { status: 503 });
            server.restart(State::Lost).await;
            server.forget_requests();
            let opening = tokio::spawn(call(&client));
            // Its first attempt has arrived, or the client has connected again.
            let is_sent = || !server.requests().iter().all(|request| request.method != "POST");
            assert!(server.wait_for(|_| is_sent(), LIMIT).await, "{kind}: {method}");
            server.lift(refused);
            let opened = within(opening).await.unwrap();
            let session = opened.unwrap_or_else(|error| panic!("{kind}: {method}: {error:?}"));
            if method == "session/new" {
                assert_eq!(within(session.prompt("hello").text()).await.unwrap(), "mock: hello", "{kind}");
            }
        }
    }
}

#[tokio::test]
async fn every_call_that_names_no_session_is_repeated_after_a_server_restart() {
    let script = Script::default().on_request(|method, _| {
        let listed = json!({"sessions": [{"sessionId": "s", "cwd": "/"}], "models": [], "x": 1});
        let known = ["session/list", "authenticate", "logout", "_x/any", "_sandboxagent/session/list_models"];
        known.contains(&method).then(|| vec![Step::Finish(listed)])
    });
    let server = MockServer::builder().agent("mock", script).start().await;
    let client = &client(&server, ServerKind::PerAgent);
    session(client).await;
    type Called<'a> = futures::future::BoxFuture<'a, Result<(), Error>>;
    type Call = fn(&SandboxAgentClient) -> Called<'_>;
    let calls: [(&str, Call); 6] = [
        ("list_sessions", |client| {
            Box::pin(async { client.list_sessions(ListSessions::all()).all().await.map(drop) })
        }),
        ("get_session", |client| Box::pin(async { client.get_session("s").await.map(drop) })),
        ("list_models", |client| Box::pin(async { client.list_models(None).await.map(drop) })),
        ("authenticate", |client| client.authenticate("key")),
        ("logout", |client| client.logout()),
        ("raw_request", |client| Box::pin(async { client.raw_request("_x/any", json!({})).await.map(drop) })),
    ];
    for (name, call) in calls {
        server.restart(State::Lost).await;
        let result = within(call(client)).await;
        assert!(result.is_ok(), "{name}: {result:?}");
    }
    // A call about a session is not repeated: the new agent does not have the session.
    server.restart(State::Lost).await;
    let about = within(client.raw_request("_x/any", json!({"sessionId": "s"}))).await;
    assert!(matches!(about, Err(Error::ConnectionEnded { .. })), "{about:?}");
}

#[tokio::test]
async fn an_error_response_to_a_prompt_may_have_been_executed() {
    for kind in KINDS {
        let fail = Step::Fail { code: -32603, message: "the model is down".into(), data: None };
        let script = Script::steps(vec![Step::Say("half".into()), fail]);
        let server = MockServer::builder().agent("mock", script).start().await;
        let session = session(&client(&server, kind)).await;
        let error = within(session.prompt("go").outcome()).await.unwrap_err();
        assert!(matches!(error, Error::Rpc { .. }) && error.maybe_executed(), "{error:?}");
    }
}

#[tokio::test]
async fn disconnecting_has_one_deadline() {
    let script = Script::steps(vec![Step::FireRequests(3), Step::Hang]);
    let server = MockServer::builder().agent("mock", script).start().await;
    // Two such timeouts would exceed the limit of this test.
    let times = timeouts().disconnect(LIMIT.mul_f32(0.6));
    // This server is waited for: released ones are not.
    let client = options(&server, ServerKind::Shared).timeouts(times).build().unwrap();
    let session = session(&client).await;
    let mut events = client.events().deciding();
    let _turn = session.prompt("go");
    super::permissions::permission(&mut events).await;
    // The server confirms neither the responses nor the close.
    server.inject(Fault::PostHangs);
    server.inject(Fault::DeleteHangs);
    within(client.disconnect()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disconnecting_does_not_wait_for_code_of_the_application() {
    for kind in KINDS {
        let ask = Step::AskPermission(Permission::new(ToolCall::new("t", "Run")));
        let server = MockServer::builder().agent("mock", Script::steps(vec![ask])).start().await;
        let (entered, mut waiting) = tokio::sync::mpsc::channel(1);
        let (release, released) = std::sync::mpsc::channel::<()>();
        let released = std::sync::Mutex::new(released);
        // A policy that blocks the thread that reads the connection.
        let policy = move |_: &PermissionRequest| {
            entered.try_send(()).unwrap();
            let _ = released.lock().unwrap().recv();
            PermissionDecision::Refuse
        };
        let client = options(&server, kind).permission_policy(policy).build().unwrap();
        let session = session(&client).await;
        let turn = session.prompt("go");
        within(waiting.recv()).await.unwrap();
        let disconnected = tokio::time::timeout(LIMIT / 2, client.disconnect()).await;
        drop(release);
        disconnected.expect("it has a deadline").unwrap();
        drop(turn);
    }
}

#[tokio::test]
async fn an_incomplete_turn_is_filled_from_the_history_of_a_reload() {
    for reload in [false, true] {
        let chunk = |kind: &str, text: &str| {
            Step::Update(json!({"sessionUpdate": kind, "content": {"type": "text", "text": text}}))
        };
        let history = vec![
            chunk("user_message_chunk", "before"),
            chunk("agent_message_chunk", "old"),
            chunk("user_message_chunk", "go"),
            chunk("agent_message_chunk", "abcd"),
            Step::Finish(json!({})),
        ];
        let script = Script::new(|_| ["a", "b", "c", "d"].map(|text| Step::Say(text.into())).to_vec())
            .on_request(move |method, _| (method == "session/load").then(|| history.clone()));
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = options(&server, ServerKind::Shared).reload_incomplete_turns(reload).build().unwrap();
        let session = session(&client).await;
        server.inject(Fault::Hole { id: server.last_event_id() + 2 });
        let text = within(session.prompt("go").text()).await;
        match reload {
            true => assert_eq!(text.unwrap(), "abcd"),
            false => {
                assert!(matches!(text, Err(Error::IncompleteTurn(_))), "{text:?}");
                let again = within(session.reload()).await.unwrap();
                assert_eq!(again.history().len(), 4);
            }
        }
        let named = client.session("named");
        assert!(matches!(within(named.reload()).await, Err(Error::Config(_))));
    }
}

#[tokio::test]
async fn an_incomplete_turn_is_filled_only_from_a_history_that_has_it() {
    let user = |text: &str| ("user_message_chunk", text.to_owned());
    let agent = |text: &str| ("agent_message_chunk", text.to_owned());
    let histories = [
        // The prompt in chunks.
        (vec![user("before"), agent("old"), user("g"), user("o"), agent("abcd")], true),
        // A tool result is replayed as a message of the user.
        (vec![user("go"), agent("ab"), user("result of the tool"), agent("cd")], false),
        // The turn is missing.
        (vec![user("before"), agent("old")], false),
        (vec![], false),
        // The turn is missing, and an earlier one had the same prompt.
        (vec![user("go"), agent("old")], false),
        // A part of the turn is missing.
        (vec![user("go"), agent("ab")], false),
    ];
    for (history, is_filled) in histories {
        let name = format!("{history:?}");
        let mut steps: Vec<Step> = history
            .into_iter()
            .map(|(kind, text)| json!({"sessionUpdate": kind, "content": {"type": "text", "text": text}}))
            .map(Step::Update)
            .collect();
        steps.push(Step::Finish(json!({})));
        let script = Script::new(|_| ["a", "b", "c", "d"].map(|text| Step::Say(text.into())).to_vec())
            .on_request(move |method, _| (method == "session/load").then(|| steps.clone()));
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = options(&server, ServerKind::Shared).reload_incomplete_turns(true).build().unwrap();
        let session = session(&client).await;
        server.inject(Fault::Hole { id: server.last_event_id() + 2 });
        match within(session.prompt("go").text()).await {
            Ok(text) => assert_eq!((is_filled, text.as_str()), (true, "abcd"), "{name}"),
            Err(Error::IncompleteTurn(turn)) => {
                assert!(!is_filled, "{name}");
                assert_eq!(turn.collected.text, "acd", "{name}");
            }
            Err(error) => panic!("{name}: {error:?}"),
        }
        assert_eq!(server.messages("session/load").len(), 1, "{name}");
    }
}
