//! Features of the stable protocol, over real sockets.

use mock_server::{MockServer, Script, Step};
use sandbox_agent_sdk::connection::{Feature, Support};
use sandbox_agent_sdk::update::{CompactionStatus, NoticeSeverity};
use sandbox_agent_sdk::{Error, NewSession, OpenSession, Update, UpdateKind};
use serde_json::{Value, json};

use super::support::{KINDS, client, options, session, within};

fn lacking(missing: &'static str, script: Script) -> Script {
    script.on_request(move |method, _| {
        let refusal = Step::Fail { code: -32601, message: "Method not found".into(), data: None };
        (method == missing).then(|| vec![refusal])
    })
}

#[tokio::test]
async fn notices_compactions_and_switches_are_advertised_and_typed() {
    for kind in KINDS {
        let option = json!({"id": "web", "name": "Web", "description": "Search", "type": "boolean", "currentValue": false});
        let updates = [
            json!({"sessionUpdate": "notice", "severity": "error", "title": "Overloaded", "description": "Retrying"}),
            json!({"sessionUpdate": "compaction_update", "compactionId": "c", "status": "in_progress"}),
            json!({"sessionUpdate": "compaction_summary_chunk", "compactionId": "c", "content": {"type": "text", "text": "sum"}}),
            json!({"sessionUpdate": "config_option_update", "configOptions": [option]}),
        ];
        let steps = updates.iter().cloned().map(Step::Update).collect();
        let server = MockServer::builder().agent("mock", Script::steps(steps)).start().await;
        let client = client(&server, kind);
        let session = session(&client).await;
        let mut turn = session.prompt("go");
        let mut read: Vec<Update> = Vec::new();
        while let Some(update) = within(turn.next()).await {
            read.push(update);
        }
        assert!(matches!(read[0].kind(), UpdateKind::Notice(notice)
            if notice.severity == NoticeSeverity::Error && notice.description.as_deref() == Some("Retrying")));
        assert!(matches!(read[1].kind(), UpdateKind::Compaction(compaction)
            if compaction.status == CompactionStatus::InProgress));
        assert!(matches!(read[2].kind(), UpdateKind::CompactionSummary(summary)
            if summary.content.text() == Some("sum")));
        assert_eq!(session.snapshot().config_option("web").unwrap().is_on(), Some(false));
        within(session.set_config_option("web", true)).await.unwrap();
        let sent = &server.messages("session/set_config_option")[0]["params"];
        assert_eq!((&sent["type"], &sent["value"]), (&json!("boolean"), &json!(true)));
        let advertised = &server.messages("initialize")[0]["params"]["clientCapabilities"]["session"];
        assert_eq!(advertised, &json!({"compaction": {}, "configOptions": {"boolean": {}}, "notices": {}}));

        let server = MockServer::start().await;
        super::support::session(&options(&server, kind).notices(false).build().unwrap()).await;
        let advertised = &server.messages("initialize")[0]["params"]["clientCapabilities"]["session"];
        assert_eq!(advertised.get("notices"), None, "notices are advertised only if they are on");
    }
}

#[tokio::test]
async fn additional_directories_are_sent_only_to_agents_that_support_them() {
    for kind in KINDS {
        let can = |session: Value| {
            Script::default()
                .initialize(json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true,
                "sessionCapabilities": session}}))
        };
        let able = can(json!({"resume": {}, "additionalDirectories": {}}));
        let server = MockServer::builder().agent("mock", able).start().await;
        let client = client(&server, kind);
        let new = || NewSession::in_dir("/work").additional_directory("/lib").additional_directory("/docs");
        within(client.new_session(new())).await.unwrap();
        let open = || OpenSession::in_dir("/work").additional_directory("/lib").additional_directory("/docs");
        within(client.load_session("old", open())).await.unwrap();
        within(client.resume_session("older", open())).await.unwrap();
        for method in ["session/new", "session/load", "session/resume"] {
            let sent = &server.messages(method)[0]["params"];
            assert_eq!(sent["additionalDirectories"], json!(["/lib", "/docs"]), "{method}");
        }
        assert_eq!(client.supports(Feature::AdditionalDirectories), Support::Yes);

        let server = MockServer::builder().agent("mock", can(json!({}))).start().await;
        let client = super::support::client(&server, kind);
        let error = within(client.new_session(new())).await.unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
        assert!(server.messages("session/new").is_empty(), "nothing was sent");
        session(&client).await;
        assert_eq!(server.messages("session/new")[0]["params"].get("additionalDirectories"), None);
    }
}

#[tokio::test]
async fn a_session_can_be_deleted_if_the_agent_supports_it() {
    for kind in KINDS {
        let script = Script::default()
            .on_request(|method, _| (method == "session/delete").then(|| vec![Step::Finish(json!({}))]));
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = client(&server, kind);
        let made = session(&client).await;
        assert!(client.capabilities().unwrap().delete_session);
        within(made.delete()).await.unwrap();
        assert_eq!(server.messages("session/delete")[0]["params"]["sessionId"], made.id());

        let script = lacking("session/delete", Script::default());
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = super::support::client(&server, kind);
        let made = session(&client).await;
        for _ in 0..2 {
            assert!(matches!(within(made.delete()).await, Err(Error::Unsupported { .. })));
        }
        assert_eq!(server.messages("session/delete").len(), 1);
        assert_eq!(client.supports(Feature::DeleteSession), Support::No);
    }
}

#[tokio::test]
async fn a_resume_that_is_not_advertised_is_tried_once_and_its_result_is_remembered() {
    let silent = || {
        Script::default()
            .initialize(json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}}))
    };
    for kind in KINDS {
        let server = MockServer::builder().agent("mock", lacking("session/resume", silent())).start().await;
        let client = client(&server, kind);
        for _ in 0..2 {
            within(client.resume_session("old", OpenSession::in_dir("/"))).await.unwrap();
        }
        assert_eq!((server.messages("session/resume").len(), server.messages("session/load").len()), (1, 2));
        assert_eq!(client.supports(Feature::ResumeSession), Support::Yes, "it is loaded instead");

        let server = MockServer::builder().agent("mock", silent()).start().await;
        let client = super::support::client(&server, kind);
        for _ in 0..2 {
            within(client.resume_session("old", OpenSession::in_dir("/"))).await.unwrap();
        }
        assert_eq!((server.messages("session/resume").len(), server.messages("session/load").len()), (2, 0));
        assert_eq!(client.supports(Feature::ResumeSession), Support::Yes);
    }
}

#[tokio::test]
async fn metadata_of_everything_can_be_read() {
    let update = json!({"sessionUpdate": "agent_message_chunk", "_meta": {"update": 1},
        "content": {"type": "text", "text": "hi", "annotations": {"audience": ["user"]}, "_meta": {"content": 1}}});
    let script = Script::new(move |turn| {
        let params = json!({"sessionId": turn.session_id, "update": update, "_meta": {"notification": 1}});
        vec![
            Step::Notify { method: "session/update".into(), params },
            Step::Finish(json!({"stopReason": "end_turn", "_meta": {"response": 1}})),
        ]
    });
    for kind in KINDS {
        let server = MockServer::builder().agent("mock", script.clone()).start().await;
        let mut turn = session(&client(&server, kind)).await.prompt("go");
        let update = within(turn.next()).await.unwrap();
        let UpdateKind::Message(chunk) = update.kind() else { panic!("{update:?}") };
        let extra = chunk.content.extra().unwrap();
        assert_eq!(
            (update.meta(), chunk.meta.as_ref()),
            (Some(&json!({"update": 1})), Some(&json!({"update": 1})))
        );
        assert_eq!(update.notification_meta(), Some(&json!({"notification": 1})));
        assert_eq!(extra.meta, Some(json!({"content": 1})));
        assert_eq!(
            extra.annotations.as_ref().unwrap().audience.as_deref(),
            Some(["user".to_owned()].as_slice())
        );
        assert_eq!(within(turn.outcome()).await.unwrap().meta(), Some(&json!({"response": 1})));
    }
}
