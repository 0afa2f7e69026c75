//! Questions of the agent.

use mock_server::{MockServer, Script, Step};
use sandbox_agent_sdk::error::RpcError;
use sandbox_agent_sdk::requests::{FieldKind, QuestionKind, QuestionRequest, QuestionSupport, ReplyError};
use sandbox_agent_sdk::{Event, Events, ServerKind};
use serde_json::{Value, json};

use super::support::{KINDS, client, event, options, session, within};

async fn question(events: &mut Events) -> QuestionRequest {
    event(events, |event| match event {
        Event::Question(request) => Some(request),
        _ => None,
    })
    .await
}

async fn asking(method: &str, params: Value) -> MockServer {
    let step = Step::Request { method: method.into(), params };
    MockServer::builder().agent("mock", Script::steps(vec![step])).start().await
}

#[tokio::test]
async fn questions_are_advertised_only_if_they_are_on() {
    let table = [
        (QuestionSupport::Off, Value::Null),
        (QuestionSupport::Forms, json!({"form": {}})),
        (QuestionSupport::FormsAndUrls, json!({"form": {}, "url": {}})),
    ];
    for (support, expected) in table {
        let server = MockServer::start().await;
        let client = options(&server, ServerKind::Shared).questions(support).build().unwrap();
        session(&client).await;
        let advertised = &server.messages("initialize")[0]["params"]["clientCapabilities"];
        assert_eq!(advertised.get("elicitation").cloned().unwrap_or_default(), expected, "{support:?}");
        assert_eq!(advertised["fs"], json!({"readTextFile": false, "writeTextFile": false}));
        assert_eq!(advertised["terminal"], false);
    }
}

#[tokio::test]
async fn a_form_is_typed_and_an_invalid_answer_leaves_it_open() {
    let schema = json!({
        "type": "object", "required": ["branch"],
        "properties": {
            "branch": {"type": "string", "oneOf": [{"const": "main", "title": "Main"}, {"const": "dev", "title": "Dev"}]},
            "force": {"type": "boolean", "default": false},
            "depth": {"type": "integer", "minimum": 1},
        },
    });
    let params = json!({
        "mode": "form", "message": "Where to?", "toolCallId": "t", "requestedSchema": schema, "_meta": {"m": 1},
    });
    for kind in KINDS {
        let server = asking("elicitation/create", params.clone()).await;
        let client = options(&server, kind).questions(QuestionSupport::Forms).build().unwrap();
        let session = session(&client).await;
        let mut events = session.events().deciding();
        let mut turn = session.prompt("go");
        let request = question(&mut events).await;
        assert_eq!((request.message(), request.tool_call_id()), (Some("Where to?"), Some("t")));
        assert_eq!(request.meta(), Some(&json!({"m": 1})));
        let QuestionKind::Form(form) = request.kind() else { panic!("{request:?}") };
        assert!(matches!(&form.fields[0].kind, FieldKind::Choice(options) if options[1].title == "Dev"));
        for odd in [json!({}), json!({"branch": "Main"}), json!({"branch": "dev", "depth": 0}), json!(null)] {
            assert!(matches!(request.answer(&odd), Err(ReplyError::Unfit { .. })), "{odd}");
        }
        assert_eq!(request.accept(), Err(ReplyError::NotOffered), "a form needs an answer");
        assert!(request.is_open());
        request.answer(&json!({"branch": "dev", "depth": 2})).unwrap();
        assert_eq!(request.cancel(), Err(ReplyError::Stale));
        within(turn.outcome()).await.unwrap();
        let expected = json!({"action": "accept", "content": {"branch": "dev", "depth": 2}});
        assert_eq!(server.answers()[0].result(), &expected);
    }
}

#[tokio::test]
async fn a_question_with_a_web_page_reports_its_completion() {
    let params =
        json!({"mode": "url", "message": "Sign in", "elicitationId": "e1", "url": "https://example.org/in"});
    let steps = vec![
        Step::Request { method: "elicitation/create".into(), params },
        Step::Notify { method: "elicitation/complete".into(), params: json!({"elicitationId": "e1"}) },
    ];
    let server = MockServer::builder().agent("mock", Script::steps(steps)).start().await;
    let client = client(&server, ServerKind::Shared);
    let session = session(&client).await;
    let mut events = client.events().deciding();
    let mut turn = session.prompt("go");
    let request = question(&mut events).await;
    let QuestionKind::Url { id, url, .. } = request.kind() else { panic!("{request:?}") };
    assert_eq!((id.as_str(), url.as_str()), ("e1", "https://example.org/in"));
    request.accept().unwrap();
    let done = event(&mut events, |event| match event {
        Event::QuestionCompleted { id, .. } => Some(id),
        _ => None,
    });
    assert_eq!(done.await, "e1");
    within(turn.outcome()).await.unwrap();
    assert_eq!(server.answers()[0].result(), &json!({"action": "accept"}));
}

type Verb = fn(&QuestionRequest) -> Result<(), ReplyError>;

#[tokio::test]
async fn every_method_sends_its_response_in_both_formats() {
    let table: [(Option<Verb>, Value, Value); 5] = [
        (
            Some(|request| request.answer(&json!({}))),
            json!({"action": "accept", "content": {}}),
            json!({"status": "answered", "outcome": "answered", "answers": {}}),
        ),
        (
            Some(QuestionRequest::decline),
            json!({"action": "decline"}),
            json!({"status": "rejected", "outcome": "rejected"}),
        ),
        (
            Some(QuestionRequest::cancel),
            json!({"action": "cancel"}),
            json!({"status": "rejected", "outcome": "cancelled"}),
        ),
        (Some(|request| request.respond_raw(&json!({"any": 1}))), json!({"any": 1}), json!({"any": 1})),
        // Dropped.
        (None, json!({"action": "cancel"}), json!({"status": "rejected", "outcome": "cancelled"})),
    ];
    for (verb, form, passed_on) in table {
        for (method, expected) in
            [("elicitation/create", form), ("_sandboxagent/session/request_question", passed_on)]
        {
            let params = json!({"mode": "form", "message": "?", "requestedSchema": {}});
            let server = asking(method, params).await;
            let session = session(&client(&server, ServerKind::Shared)).await;
            let mut events = session.events().deciding();
            let mut turn = session.prompt("go");
            let request = question(&mut events).await;
            assert_eq!(request.method(), method);
            match verb {
                Some(verb) => {
                    verb(&request).unwrap();
                    assert_eq!(verb(&request), Err(ReplyError::Stale));
                }
                None => drop(request),
            }
            within(turn.outcome()).await.unwrap();
            assert_eq!(server.answers()[0].result(), &expected, "{method}");
        }
    }
}

#[tokio::test]
async fn a_question_that_a_server_forwards_has_its_choices() {
    let params =
        json!({"questionId": "q", "prompt": "Which?", "options": [["a", "The first"], ["b", "The second"]]});
    let server = asking("_sandboxagent/session/request_question", params).await;
    let session = session(&client(&server, ServerKind::Shared)).await;
    let mut events = session.events().deciding();
    let mut turn = session.prompt("go");
    let request = question(&mut events).await;
    assert_eq!(request.message(), Some("Which?"));
    let QuestionKind::Choice(options) = request.kind() else { panic!("{request:?}") };
    assert_eq!((options[1].value.as_str(), options[1].title.as_str()), ("b", "The second"));
    request.answer(&json!([["b"]])).unwrap();
    within(turn.outcome()).await.unwrap();
    assert_eq!(server.answers()[0].result()["answers"], json!([["b"]]));
}

#[tokio::test]
async fn an_unknown_kind_of_question_is_delivered_unchanged() {
    let params = json!({"mode": "_hologram", "message": "Look", "depth": {"n": 3}});
    let server = asking("elicitation/create", params).await;
    let session = session(&client(&server, ServerKind::Shared)).await;
    let mut events = session.events().deciding();
    let mut turn = session.prompt("go");
    let request = question(&mut events).await;
    assert_eq!(request.kind(), &QuestionKind::Other);
    assert_eq!(request.raw()["depth"]["n"], 3);
    let refusal =
        RpcError::new(RpcError::INVALID_PARAMS, "no holograms here").with_data(json!({"why": "flat"}));
    request.fail(refusal).unwrap();
    within(turn.outcome()).await.unwrap();
    let error = &server.answers()[0].answer["error"];
    assert_eq!((&error["code"], &error["data"]["why"]), (&json!(-32602), &json!("flat")));
}
