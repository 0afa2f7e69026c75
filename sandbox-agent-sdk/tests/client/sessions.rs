//! The methods of sessions.

use mock_server::{MockServer, Script, Step};
use sandbox_agent_sdk::event::Origin;
use sandbox_agent_sdk::session::{MetadataKey, SessionList, SessionMetadata};
use sandbox_agent_sdk::{
    ClientOptions, Error, Event, Events, NewSession, OpenSession, SandboxAgentClient, ServerKind, Session,
    Turn, UpdateKind,
};
use serde_json::{Value, json};

use super::support::{KINDS, client, event, options, session, text, within};

fn lacking(methods: &'static [&'static str], script: Script) -> Script {
    script.on_request(move |method, _| {
        let fail = || Step::Fail { code: -32601, message: "Method not found".into(), data: None };
        methods.contains(&method).then(|| vec![fail()])
    })
}

fn history() -> Script {
    Script::default().history(|id| {
        let says = |kind: &str, text: String| json!({"sessionUpdate": kind, "content": {"type": "text", "text": text}});
        vec![says("user_message_chunk", "what is".into()), says("agent_message_chunk", format!("the past of {id}"))]
    })
}

#[test]
fn client_handles_are_send_sync_and_static() {
    fn sent<T: Send + Sync + 'static>() {}
    fn moved<T: Send + 'static>() {}
    fn future<T: Send + 'static>(_: T) {}
    sent::<SandboxAgentClient>();
    sent::<Session>();
    sent::<Event>();
    sent::<Error>();
    sent::<ClientOptions>();
    moved::<Turn>();
    moved::<Events>();
    moved::<SessionList>();
    let client = ClientOptions::new("http://127.0.0.1:1").auto_connect(false).build().unwrap();
    future(client.connect());
    future(client.disconnect());
    future(client.new_session(NewSession::in_dir("/")));
    future(client.cancel("s"));
    future(client.get_session("s"));
    future(client.restart_agent());
}

#[tokio::test]
async fn what_an_agent_replays_behind_its_response_to_a_load_is_history() {
    let chunk = |kind: &str, text: &str| {
        Step::Update(json!({"sessionUpdate": kind, "content": {"type": "text", "text": text}}))
    };
    // The first message comes before the response, and the others behind it, as of gemini.
    let replay = vec![
        chunk("user_message_chunk", "question"),
        Step::Answer("end_turn".to_owned()),
        chunk("agent_message_chunk", "answer"),
        chunk("user_message_chunk", "another question"),
        chunk("agent_message_chunk", "another answer"),
    ];
    for kind in KINDS {
        let replay = replay.clone();
        let script = Script::steps(vec![Step::Say("live".into())])
            .on_request(move |method, _| (method == "session/load").then(|| replay.clone()));
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = client(&server, kind);
        let id = session(&client).await.id().to_owned();
        let session = within(client.load_session(id, OpenSession::in_dir("/"))).await.unwrap();
        assert_eq!(text(session.history()), "answeranother answer", "{kind}");
        assert!(session.history().iter().all(|update| update.origin() == Origin::History), "{kind}");
        assert_eq!(within(session.prompt("go").text()).await.unwrap(), "live", "{kind}");
        assert_eq!(server.messages("_replayed").len(), 1, "{kind}");
    }
}

#[tokio::test]
async fn a_conversation_that_ends_with_the_agent_is_complete() {
    for kind in KINDS {
        let server = MockServer::builder().agent("mock", history()).start().await;
        let client = client(&server, kind);
        within(client.load_session("old", OpenSession::in_dir("/"))).await.unwrap();
        assert!(server.messages("_replayed").is_empty(), "{kind}");
    }
}

#[tokio::test]
async fn a_loaded_session_has_its_history() {
    for kind in KINDS {
        let server = MockServer::builder().agent("mock", history()).start().await;
        let client = client(&server, kind);
        let mut events = client.session("old").events();
        let session = within(client.load_session("old", OpenSession::in_dir("/w"))).await.unwrap();
        assert_eq!(text(session.history()), "the past of old");
        assert!(session.history().iter().all(|update| update.origin() == Origin::History));
        let first = event(&mut events, |event| match event {
            Event::Update(update) => Some(update),
            _ => None,
        })
        .await;
        assert!(matches!(first.kind(), UpdateKind::UserMessage(_)) && first.origin() == Origin::History);
        assert_eq!(within(session.prompt("now").text()).await.unwrap(), "mock: now");
    }
}

#[tokio::test]
async fn resuming_falls_back_to_loading() {
    for kind in KINDS {
        let script = lacking(&["session/resume"], history());
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = client(&server, kind);
        for _ in 0..2 {
            let session = within(client.resume_session("old", OpenSession::in_dir("/w"))).await.unwrap();
            assert_eq!(text(session.history()), "the past of old");
        }
        assert_eq!(server.messages("session/resume").len(), 1, "it is tried once");
        assert_eq!(server.messages("session/load").len(), 2);
    }
}

#[tokio::test]
async fn resuming_does_not_load_if_it_is_supported() {
    let server = MockServer::builder().agent("mock", history()).start().await;
    let client = client(&server, ServerKind::Shared);
    let session = within(client.resume_session("old", OpenSession::in_dir("/w"))).await.unwrap();
    assert!(session.history().is_empty() && server.messages("session/load").is_empty());
}

#[tokio::test]
async fn an_unsupported_method_is_tried_once() {
    for kind in KINDS {
        let missing =
            &["session/fork", "session/set_model", "session/set_mode", "session/resume", "session/load"];
        let initialize = json!({"protocolVersion": 1, "agentCapabilities": {}});
        let script = lacking(missing, Script::default().initialize(initialize));
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = client(&server, kind);
        let session = session(&client).await;
        for _ in 0..3 {
            let new = || NewSession::in_dir("/");
            let calls = [
                within(client.fork_session(session.id(), new())).await.map(drop),
                within(client.load_session("x", OpenSession::in_dir("/"))).await.map(drop),
                within(client.resume_session("x", OpenSession::in_dir("/"))).await.map(drop),
                within(client.set_session_mode(session.id(), "plan")).await,
            ];
            // The agent has an option for the model.
            within(client.set_session_model(session.id(), "m")).await.unwrap();
            for result in calls {
                let error = result.unwrap_err();
                assert!(matches!(error, Error::Unsupported { .. }) && !error.maybe_executed(), "{error:?}");
            }
        }
        for method in missing {
            assert_eq!(server.messages(method).len(), 1, "{method}");
        }
    }
}

#[tokio::test]
async fn the_released_server_lacks_the_extensions() {
    let plain = Script::default().initialize(json!({"protocolVersion": 1, "agentCapabilities": {}}));
    let server = MockServer::builder().agent("mock", plain).start().await;
    let client = client(&server, ServerKind::PerAgent);
    let session = session(&client).await;
    for _ in 0..2 {
        assert!(matches!(within(session.detach()).await, Err(Error::Unsupported { .. })));
        assert!(matches!(within(session.terminate()).await, Err(Error::Unsupported { .. })));
        assert!(matches!(within(session.list_models()).await, Err(Error::Unsupported { .. })));
        let metadata = SessionMetadata::new().with_title("T");
        assert!(matches!(within(session.set_metadata(metadata)).await, Err(Error::Unsupported { .. })));
    }
    assert_eq!(server.messages("_sandboxagent/session/terminate").len(), 1);
    assert_eq!(within(session.prompt("still here").text()).await.unwrap(), "mock: still here");
}

#[tokio::test]
async fn modes_models_and_options_can_be_set() {
    for kind in KINDS {
        let server = MockServer::start().await;
        let client = client(&server, kind);
        let session = session(&client).await;
        within(session.set_mode("plan")).await.unwrap();
        within(session.set_model("mock-fast")).await.unwrap();
        let options = within(session.set_config_option("model", "mock")).await.unwrap();
        assert_eq!(options[0].category.as_deref(), Some("model"));
        let sent = |method: &str| server.messages(method)[0]["params"].clone();
        assert_eq!(sent("session/set_mode"), json!({"sessionId": session.id(), "modeId": "plan"}));
        assert_eq!(sent("session/set_model"), json!({"sessionId": session.id(), "modelId": "mock-fast"}));
        assert_eq!(
            sent("session/set_config_option"),
            json!({"sessionId": session.id(), "configId": "model", "value": "mock"})
        );
    }
}

#[tokio::test]
async fn a_model_is_set_by_its_option_if_there_is_no_method() {
    let script = lacking(&["session/set_model"], Script::default());
    let server = MockServer::builder().agent("mock", script).start().await;
    let session = session(&client(&server, ServerKind::PerAgent)).await;
    within(session.set_model("mock-fast")).await.unwrap();
    assert_eq!(server.messages("session/set_config_option")[0]["params"]["value"], "mock-fast");
}

#[tokio::test]
async fn a_fork_is_independent_of_its_source() {
    for kind in KINDS {
        let server = MockServer::start().await;
        let session = session(&client(&server, kind)).await;
        let fork = within(session.fork(NewSession::in_dir("/"))).await.unwrap();
        assert_ne!(fork.id(), session.id());
        let (one, two) = tokio::join!(session.prompt("a").text(), fork.prompt("b").text());
        assert_eq!((one.unwrap().as_str(), two.unwrap().as_str()), ("mock: a", "mock: b"));
    }
}

#[tokio::test]
async fn metadata_is_sent_and_returned() {
    let server = MockServer::start().await;
    let client = client(&server, ServerKind::Shared);
    let skills = json!([{"name": "review"}]);
    let new = NewSession::in_dir("/work")
        .title("fix the build")
        .model("opus")
        .mode("plan")
        .variant("high")
        .requested_session_id("mine")
        .permission_mode("ask")
        .skills(skills.clone())
        .agent_version_requested("1.2.3")
        .metadata("ticket", 4711)
        .meta("other.dev", json!({"kept": true}));
    let session = within(client.new_session(new)).await.unwrap();
    let sent = &server.messages("session/new")[0]["params"]["_meta"];
    assert_eq!(sent["other.dev"], json!({"kept": true}));
    let listed =
        within(client.list_sessions(sandbox_agent_sdk::session::ListSessions::all()).all()).await.unwrap();
    let metadata = &listed[0].metadata;
    assert_eq!(metadata.title(), Some("fix the build"));
    assert_eq!(
        (metadata.model(), metadata.mode(), metadata.variant()),
        (Some("opus"), Some("plan"), Some("high"))
    );
    assert_eq!((metadata.requested_session_id(), metadata.permission_mode()), (Some("mine"), Some("ask")));
    assert_eq!((metadata.skills(), metadata.agent_version_requested()), (Some(&skills), Some("1.2.3")));
    assert_eq!(metadata.get("ticket"), Some(&json!(4711)));
    assert_eq!((metadata.agent(), metadata.ended()), (Some("mock"), Some(false)));
    assert!(
        metadata.created_at().is_some()
            && metadata.updated_at().is_some()
            && metadata.event_count().is_some()
    );

    let patch =
        SessionMetadata::new().with_title("done").with("ticket", Value::Null).with_null(MetadataKey::Model);
    within(session.set_metadata(patch)).await.unwrap();
    let info = within(session.info()).await.unwrap();
    assert_eq!((info.title.as_deref(), info.agent_mode.as_deref()), (Some("done"), Some("plan")));
    let listed =
        within(client.list_sessions(sandbox_agent_sdk::session::ListSessions::all()).all()).await.unwrap();
    assert!(listed[0].metadata.is_null("ticket") && listed[0].metadata.is_null(MetadataKey::Model));
}

#[tokio::test]
async fn models_are_listed_for_a_session_and_for_the_agent() {
    let server = MockServer::start().await;
    let client = client(&server, ServerKind::Shared);
    let session = session(&client).await;
    within(session.set_model("mock")).await.unwrap();
    for list in
        [within(session.list_models()).await.unwrap(), within(client.list_models(None)).await.unwrap()]
    {
        assert_eq!(list.current.as_deref(), Some("mock"));
        assert_eq!(list.available[0].id, "mock");
    }
}

#[tokio::test]
async fn a_session_can_be_detached_and_opened_again() {
    let server = MockServer::builder().connection_ids(Some("x-acp-connection-id")).start().await;
    let client = SandboxAgentClient::builder(server.url()).agent("mock").build().unwrap();
    let session = session(&client).await;
    within(session.detach()).await.unwrap();
    assert_eq!(server.messages("_sandboxagent/session/detach")[0]["params"]["sessionId"], session.id());
    assert_eq!(within(session.prompt("back").text()).await.unwrap(), "mock: back");
}

#[tokio::test]
async fn any_other_method_can_be_called_raw() {
    for kind in KINDS {
        let script = Script::default().on_request(|method, params| {
            (method == "_x/echo").then(|| vec![Step::Finish(json!({"got": params}))])
        });
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = client(&server, kind);
        let answer = within(client.raw_request("_x/echo", json!({"a": 1, "agent": "mock"}))).await.unwrap();
        assert_eq!(answer["got"]["a"], 1);
        within(client.raw_notify("_x/tell", json!({"agent": "mock"}))).await.unwrap();
        assert_eq!(server.messages("_x/tell").len(), 1);
    }
}

#[tokio::test]
async fn a_permission_can_get_a_raw_response() {
    for kind in KINDS {
        let server = MockServer::start().await;
        let session = session(&client(&server, kind)).await;
        let mut events = session.events().deciding();
        let mut turn = session.prompt("permission");
        let request = event(&mut events, |event| match event {
            Event::Permission(request) => Some(request),
            _ => None,
        })
        .await;
        let answer = json!({"outcome": {"outcome": "selected", "optionId": "of my own"}, "_meta": {"a": 1}});
        request.respond_raw(&answer).unwrap();
        within(turn.outcome()).await.unwrap();
        assert_eq!(server.answers()[0].answer["result"], answer);
    }
}

#[tokio::test]
async fn a_response_without_a_session_id_is_a_decode_error() {
    let echo = Script::default()
        .on_request(|method, _| (method == "session/new").then(|| vec![Step::Finish(json!({"echoed": 1}))]));
    let server = MockServer::builder().agent("mock", echo).start().await;
    let error =
        within(client(&server, ServerKind::PerAgent).new_session(NewSession::in_dir("/"))).await.unwrap_err();
    assert!(matches!(error, Error::Decode { raw, .. } if raw.contains("echoed")));
}

#[tokio::test]
async fn a_session_can_use_another_agent() {
    let other = Script::steps(vec![Step::Say("other".into())]);
    let server = MockServer::builder().agent("mock", Script::default()).agent("other", other).start().await;
    let client = options(&server, ServerKind::Shared).build().unwrap();
    let session = within(client.new_session(NewSession::in_dir("/").agent("other"))).await.unwrap();
    assert_eq!(within(session.prompt("who").text()).await.unwrap(), "other");
}

#[tokio::test]
async fn mode_and_model_are_set_by_separate_calls_on_a_released_server() {
    let server = MockServer::start().await;
    let client = client(&server, ServerKind::PerAgent);
    let new = NewSession::in_dir("/").mode("plan").model("mock-fast");
    let session = within(client.new_session(new)).await.unwrap();
    assert_eq!(server.messages("session/set_mode")[0]["params"]["modeId"], "plan");
    assert_eq!(server.messages("session/set_model")[0]["params"]["modelId"], "mock-fast");
    assert_eq!(within(session.prompt("hello").text()).await.unwrap(), "mock: hello");
    // A setting that cannot be applied is an error.
    let bare = lacking(&["session/set_mode"], Script::default().session(json!({})));
    let server = MockServer::builder().agent("mock", bare).start().await;
    let client = super::support::client(&server, ServerKind::PerAgent);
    let error = within(client.new_session(NewSession::in_dir("/").mode("plan"))).await.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
}
