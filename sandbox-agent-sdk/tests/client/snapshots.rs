//! Snapshots of sessions.

use mock_server::{MockServer, Script, Step};
use sandbox_agent_sdk::session::SessionMetadata;
use sandbox_agent_sdk::{Error, Event, NewSession, OpenSession, ServerKind, Session, UpdateKind};
use serde_json::{Value, json};

use super::support::{KINDS, client, event, session, within};

/// The result of an agent that reports everything a session can have.
fn rich() -> Value {
    json!({
        "modes": {"currentModeId": "build", "availableModes": [{"id": "build", "name": "Build"}, {"id": "plan"}]},
        "models": {"currentModelId": "large", "availableModels": [{"modelId": "large"}, {"modelId": "small"}]},
        "configOptions": [
            {"id": "m", "name": "Mode", "category": "mode", "currentValue": "build",
             "options": [{"value": "build", "name": "Build"}, {"value": "plan", "name": "Plan"}]},
            {"id": "t", "name": "Thinking", "category": "thought_level", "currentValue": "low",
             "options": [{"value": "low", "name": "Low"}, {"value": "high", "name": "High"}]}],
        "tools": ["shell", {"name": "edit", "description": "Edits files", "new": 1}],
        "_meta": {"sandboxagent.dev": {"ticket": 7}, "other.dev": 1},
        "brandNew": {"kept": true},
    })
}

fn update(update: Value) -> Step {
    Step::Update(update)
}

fn mode_update(id: &str) -> Value {
    json!({"sessionUpdate": "current_mode_update", "currentModeId": id})
}

async fn seen(session: &Session, fits: impl Fn(&Session) -> bool) {
    within(async {
        while !fits(session) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn every_method_that_opens_a_session_fills_its_snapshot() {
    for kind in KINDS {
        let server = MockServer::builder().agent("mock", Script::default().session(rich())).start().await;
        let client = client(&server, kind);
        let new = || NewSession::in_dir("/").title("T");
        let made = within(client.new_session(new())).await.unwrap();
        assert_eq!(made.snapshot().title.as_deref(), Some("T"), "the requested title is known");
        let loaded = within(client.load_session("loaded", OpenSession::in_dir("/"))).await.unwrap();
        let resumed = within(client.resume_session("resumed", OpenSession::in_dir("/"))).await.unwrap();
        let forked = within(made.fork(new())).await.unwrap();
        for session in [made, loaded, resumed, forked] {
            let now = session.snapshot();
            assert_eq!(now.mode().unwrap().name.as_deref(), Some("Build"), "{kind} {}", session.id());
            assert_eq!((now.modes.len(), now.model().unwrap().id.as_str()), (2, "large"));
            assert_eq!(now.models.available.len(), 2);
            assert_eq!(now.config_option("t").unwrap().current, "low");
            let tools: Vec<_> = now.tools.iter().map(|tool| tool.name.as_str()).collect();
            assert_eq!((tools, now.tools[1].raw["new"].clone()), (vec!["shell", "edit"], json!(1)));
            assert_eq!(now.metadata.get("ticket"), Some(&json!(7)));
            assert_eq!(now.other["brandNew"], json!({"kept": true}), "unknown members are preserved");
            assert_eq!(now.other["_meta"], json!({"other.dev": 1}));
        }
    }
}

#[tokio::test]
async fn the_snapshot_follows_updates_and_is_complete_when_the_turn_ends() {
    for kind in KINDS {
        let commands = json!({"sessionUpdate": "available_commands_update",
            "availableCommands": [{"name": "test", "description": "Runs the tests", "input": {"hint": "which"}}]});
        let option = json!({"id": "t", "name": "Thinking", "category": "thought_level", "currentValue": "high",
            "options": [{"value": "low"}, {"value": "high"}]});
        let steps = vec![
            update(commands),
            update(mode_update("plan")),
            update(json!({"sessionUpdate": "session_info_update", "title": "New", "updatedAt": "today"})),
            update(json!({"sessionUpdate": "usage_update", "used": 10, "size": 100})),
            Step::Say("done".into()),
            update(json!({"sessionUpdate": "config_option_update", "configOptions": [option]})),
            Step::Finish(json!({"stopReason": "end_turn", "tools": ["late"], "usage": {"x": 1}})),
        ];
        let script = Script::steps(steps).session(rich());
        let server = MockServer::builder().agent("mock", script).start().await;
        let session = session(&client(&server, kind)).await;
        let before = session.snapshot();
        within(session.prompt("go").outcome()).await.unwrap();
        let now = session.snapshot();
        assert_eq!((now.commands[0].name.as_str(), now.commands[0].hint.as_deref()), ("test", Some("which")));
        assert_eq!(now.current_mode.as_deref(), Some("plan"));
        assert_eq!((now.title.as_deref(), now.last_activity.as_deref()), (Some("New"), Some("today")));
        assert_eq!((now.context_used, now.context_size), (Some(10), Some(100)));
        assert_eq!(now.option_for("thought_level").unwrap().current, "high");
        assert_eq!((now.config_options.len(), now.tools[0].name.as_str()), (1, "late"));
        assert!(!now.other.contains_key("stopReason") && now.other.contains_key("brandNew"));
        assert_eq!(before.current_mode.as_deref(), Some("build"), "a copy does not change");
    }
}

#[tokio::test]
async fn a_session_started_notification_reports_the_tools() {
    for kind in KINDS {
        let started = |id: &str| Step::Notify {
            method: "session/started".into(),
            params: json!({"sessionId": id, "tools": [{"name": "grep"}], "extra": 1}),
        };
        let script = Script::default().session(json!({})).on_request(move |method, _| {
            let answer = Step::Finish(json!({"sessionId": "s"}));
            (method == "session/new").then(|| vec![started("s"), answer])
        });
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = client(&server, kind);
        let mut events = client.events();
        let session = session(&client).await;
        event(&mut events, |event| {
            matches!(event, Event::Other { method, .. } if method == "session/started").then_some(())
        })
        .await;
        let now = session.snapshot();
        assert_eq!(now.tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), ["grep"]);
        assert_eq!(now.other["extra"], 1);
    }
}

#[tokio::test]
async fn a_change_by_this_client_is_in_the_snapshot_at_once() {
    for kind in KINDS {
        // The responses are empty, as with many agents.
        let script = Script::default().session(rich()).on_request(|method, _| {
            (method == "session/set_config_option").then(|| vec![Step::Finish(json!({}))])
        });
        let server = MockServer::builder().agent("mock", script).start().await;
        let session = session(&client(&server, kind)).await;
        within(session.set_mode("plan")).await.unwrap();
        within(session.set_model("small")).await.unwrap();
        let options = within(session.set_thought_level("high")).await.unwrap();
        let now = session.snapshot();
        assert_eq!(
            (now.current_mode.as_deref(), now.models.current.as_deref()),
            (Some("plan"), Some("small"))
        );
        assert_eq!(now.option_for("mode").unwrap().current, "plan", "the option changes with the mode");
        assert_eq!(now.option_for("thought_level").unwrap().current, "high");
        assert_eq!(options, now.config_options);
        if kind == ServerKind::Shared {
            let patch = SessionMetadata::new().with_title("Better").with("ticket", 8);
            within(session.set_metadata(patch)).await.unwrap();
            let now = session.snapshot();
            assert_eq!((now.title.as_deref(), now.metadata.get("ticket")), (Some("Better"), Some(&json!(8))));
        }
    }
}

#[tokio::test]
async fn a_response_does_not_undo_an_earlier_report() {
    for kind in KINDS {
        let script = Script::default().on_request(|method, _| {
            let early = json!({"sessionId": "s", "update": mode_update("plan")});
            let notify = Step::Notify { method: "session/update".into(), params: early };
            let mut answer = rich();
            answer["sessionId"] = "s".into();
            (method == "session/new").then(|| vec![notify, Step::Finish(answer)])
        });
        let server = MockServer::builder().agent("mock", script).start().await;
        let session = session(&client(&server, kind)).await;
        // Whichever is read first, the report is newer than the response.
        seen(&session, |session| session.snapshot().current_mode.as_deref() == Some("plan")).await;
        assert_eq!(session.snapshot().modes.len(), 2);
    }
}

#[tokio::test]
async fn an_option_that_was_set_is_not_undone_by_an_older_report_before_the_response() {
    for kind in KINDS {
        // Some agents report their options late: after the response to an earlier call, during this one.
        let script = Script::default().session(rich()).on_request(|method, params| {
            let late =
                json!({"sessionUpdate": "config_option_update", "configOptions": rich()["configOptions"]});
            let late = json!({"sessionId": params["sessionId"], "update": late});
            let notify = Step::Notify { method: "session/update".into(), params: late };
            let mut options = rich()["configOptions"].clone();
            options[1]["currentValue"] = "high".into();
            let answer = Step::Finish(json!({"configOptions": options}));
            (method == "session/set_config_option").then(|| vec![notify, answer])
        });
        let server = MockServer::builder().agent("mock", script).start().await;
        let session = session(&client(&server, kind)).await;
        within(session.set_mode("plan")).await.unwrap();
        within(session.set_thought_level("high")).await.unwrap();
        let now = session.snapshot();
        assert_eq!(now.option_for("thought_level").unwrap().current, "high");
        assert_eq!(now.current_mode.as_deref(), Some("build"), "the report is newer than the mode");
    }
}

#[tokio::test]
async fn handles_of_one_session_share_its_snapshot() {
    let server = MockServer::builder().agent("mock", Script::default().session(rich())).start().await;
    let client = client(&server, ServerKind::Shared);
    let by_id = client.session("s");
    assert!(by_id.snapshot().modes.is_empty());
    let loaded = within(client.load_session("s", OpenSession::in_dir("/"))).await.unwrap();
    within(loaded.set_mode("plan")).await.unwrap();
    assert_eq!(by_id.snapshot().current_mode.as_deref(), Some("plan"));
}

#[tokio::test]
async fn a_requested_thought_level_is_set() {
    for kind in KINDS {
        let server = MockServer::builder().agent("mock", Script::default().session(rich())).start().await;
        let client = client(&server, kind);
        within(client.new_session(NewSession::in_dir("/").thought_level("high"))).await.unwrap();
        let sent = &server.messages("session/set_config_option")[0]["params"];
        assert_eq!((&sent["configId"], &sent["value"]), (&json!("t"), &json!("high")));
        let bare = MockServer::builder().agent("mock", Script::default().session(json!({}))).start().await;
        let client = super::support::client(&bare, kind);
        let wish = NewSession::in_dir("/").thought_level("high");
        assert!(matches!(within(client.new_session(wish)).await, Err(Error::Unsupported { .. })));
    }
}

#[tokio::test]
async fn a_mode_that_gemini_reports_as_text_outside_a_turn_is_a_mode() {
    let text = |text: &str| {
        Step::Update(json!({
            "sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}))
    };
    for (name, is_text) in [("gemini-cli", false), ("other", true)] {
        let said = json!({"protocolVersion": 1, "agentCapabilities": {}, "agentInfo": {"name": name}});
        let script = Script::new(move |_| vec![text("[MODE_UPDATE] plan")]).initialize(said).on_request(
            move |method, params| {
                let session = params["sessionId"].clone();
                let report = Step::Notify {
                    method: "session/update".into(),
                    params: json!({"sessionId": session, "update": {"sessionUpdate": "agent_message_chunk",
                        "content": {"type": "text", "text": "[MODE_UPDATE] yolo"}}}),
                };
                (method == "session/set_mode").then(|| vec![report, Step::Finish(json!({}))])
            },
        );
        let server = MockServer::builder().agent("mock", script).start().await;
        let session = session(&client(&server, ServerKind::PerAgent)).await;
        let mut events = session.events();
        within(session.set_mode("yolo")).await.unwrap();
        let shown = event(&mut events, |event| match event {
            Event::Update(update) => Some(matches!(update.kind(), UpdateKind::Message(_))),
            _ => None,
        });
        assert_eq!(shown.await, is_text, "{name}");
        // In a turn it is what the model says.
        assert_eq!(within(session.prompt("plan?").text()).await.unwrap(), "[MODE_UPDATE] plan", "{name}");
        assert_eq!(session.snapshot().current_mode.as_deref(), Some("yolo"));
    }
}

#[tokio::test]
async fn text_of_other_clients_and_stored_text_is_no_mode_of_gemini() {
    let chunk = json!({
        "sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "[MODE_UPDATE] yolo"}});
    let said = json!({"protocolVersion": 1, "agentInfo": {"name": "gemini-cli"},
        "agentCapabilities": {"loadSession": true}});
    let stored = chunk.clone();
    let script = Script::default().initialize(said).on_request(move |method, params| {
        let params = json!({"sessionId": params["sessionId"], "update": stored});
        let replay = Step::Notify { method: "session/update".into(), params };
        match method {
            "session/load" => Some(vec![replay, Step::Finish(json!({}))]),
            "session/set_mode" => Some(vec![Step::Finish(json!({}))]),
            _ => None,
        }
    });
    let server = MockServer::builder().agent("mock", script).start().await;
    let client = client(&server, ServerKind::Shared);
    let session = session(&client).await;
    let mut events = session.events();
    // Whether the text of the agent is shown as text.
    let mut emit = async || {
        let params = json!({"sessionId": session.id(), "update": chunk});
        server.emit(json!({"jsonrpc": "2.0", "method": "session/update", "params": params}));
        event(&mut events, |event| match event {
            Event::Update(update) => Some(matches!(update.kind(), UpdateKind::Message(_))),
            _ => None,
        })
        .await
    };
    assert!(emit().await, "this client has not set it");
    assert_ne!(session.snapshot().current_mode.as_deref(), Some("yolo"));
    within(session.set_mode("plan")).await.unwrap();
    assert!(emit().await, "this client has set another one");
    within(session.set_mode("yolo")).await.unwrap();
    assert!(!emit().await, "the agent reports it late");
    assert!(emit().await, "it was reported before");
    within(session.set_mode("yolo")).await.unwrap();
    within(session.prompt("hello").text()).await.unwrap();
    assert!(emit().await, "a turn has begun since");
    let loaded = within(client.load_session("stored", OpenSession::in_dir("/"))).await.unwrap();
    assert!(matches!(loaded.history()[0].kind(), UpdateKind::Message(_)));
    assert_ne!(loaded.snapshot().current_mode.as_deref(), Some("yolo"));
}
