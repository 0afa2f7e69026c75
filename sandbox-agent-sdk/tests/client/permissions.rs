//! Permission requests: content, decisions and policies.

use std::time::Duration;

use mock_server::{MockServer, Permission, PermissionOption, Script, Step, ToolCall};
use sandbox_agent_sdk::requests::{PermissionKind, ReplyError};
use sandbox_agent_sdk::update::ToolKind;
use sandbox_agent_sdk::{Event, Events, PermissionDecision, PermissionPolicy, PermissionRequest, ServerKind};
use serde_json::{Value, json};
use tracing_subscriber::filter::LevelFilter;

use super::support::{KINDS, client, event, options, session, within};
use super::written_log::WrittenLog;

pub(super) async fn permission(events: &mut Events) -> PermissionRequest {
    event(events, |event| match event {
        Event::Permission(request) => Some(request),
        _ => None,
    })
    .await
}

fn ask(kind: &str, options: &[(&str, &str)]) -> Step {
    let options = options.iter().map(|(id, kind)| PermissionOption {
        id: (*id).to_owned(),
        name: (*id).to_owned(),
        kind: (*kind).to_owned(),
    });
    let mut call = ToolCall::new("t", "Do it");
    call.kind = kind.to_owned();
    Step::AskPermission(Permission::new(call).options(options.collect()))
}

const FOUR: [(&str, &str); 4] =
    [("a", "allow_once"), ("A", "allow_always"), ("r", "reject_once"), ("R", "reject_always")];

#[tokio::test]
async fn a_request_has_everything_that_the_agent_sent() {
    let params = json!({
        "toolCall": {
            "toolCallId": "t", "title": "Edit", "kind": "edit", "status": "pending",
            "rawInput": {"path": "/w/f", "n": 1.5}, "locations": [{"path": "/w/f", "line": 7}],
            "content": [{"type": "diff", "path": "/w/f", "oldText": "a", "newText": "b"}],
            "future": [1, 2], "_meta": {"tool": "t"},
        },
        "options": [
            {"optionId": "y", "name": "Yes", "kind": "allow_once", "_meta": {"key": "y"}},
            {"optionId": "s", "name": "For the session", "kind": "allow_session"},
            {"optionId": "n", "name": "No", "kind": "reject_once", "extra": true},
        ],
        "_meta": {"trace": {"id": 5}}, "somethingNew": null,
    });
    for kind in KINDS {
        let step = Step::Request { method: "session/request_permission".into(), params: params.clone() };
        let server = MockServer::builder().agent("mock", Script::steps(vec![step])).start().await;
        let session = session(&client(&server, kind)).await;
        let mut events = session.events().deciding();
        let mut turn = session.prompt("go");
        let request = permission(&mut events).await;
        let mut expected = params.clone();
        expected["sessionId"] = session.id().into();
        assert_eq!(request.raw(), &expected);
        assert_eq!(request.meta(), Some(&json!({"trace": {"id": 5}})));
        let call = request.tool_call().unwrap();
        assert_eq!(call.input, Some(json!({"path": "/w/f", "n": 1.5})));
        assert_eq!((call.locations[0].path.as_str(), call.locations[0].line), ("/w/f", Some(7)));
        assert_eq!(call.kind, Some(ToolKind::Edit));
        let kinds: Vec<_> = request.options().iter().map(|option| option.kind.clone().unwrap()).collect();
        let new = PermissionKind::Other("allow_session".into());
        assert_eq!(kinds, [PermissionKind::AllowOnce, new, PermissionKind::RejectOnce]);
        assert_eq!(request.options()[2].raw["extra"], true);
        request.choose("s").unwrap();
        within(turn.outcome()).await.unwrap();
        assert_eq!(
            server.answers()[0].answer["result"]["outcome"],
            json!({"outcome": "selected", "optionId": "s"})
        );
    }
}

type Verb = fn(&PermissionRequest) -> Result<(), ReplyError>;

#[tokio::test]
async fn every_method_chooses_its_option_only_once() {
    let table: [(&str, Verb); 6] = [
        ("a", PermissionRequest::allow_once),
        ("A", PermissionRequest::allow_always),
        ("r", PermissionRequest::reject_once),
        ("R", PermissionRequest::reject_always),
        ("cancelled", PermissionRequest::cancel),
        ("R", |request| request.choose("R")),
    ];
    let server = MockServer::builder().agent("mock", Script::steps(vec![ask("edit", &FOUR)])).start().await;
    let session = session(&client(&server, ServerKind::Shared)).await;
    let mut events = session.events().deciding();
    for (outcome, verb) in table {
        let turn = session.prompt("go");
        let request = permission(&mut events).await;
        assert!(request.is_open());
        verb(&request).unwrap();
        assert!(!request.is_open());
        for (_, late) in table {
            assert_eq!(late(&request), Err(ReplyError::Stale));
        }
        assert_eq!(within(turn.text()).await.unwrap(), format!("permission: {outcome}"));
    }
    assert_eq!(server.answers().len(), 6);
}

#[tokio::test]
async fn a_decision_that_is_not_offered_leaves_the_request_open() {
    let script = Script::steps(vec![ask("edit", &[("x", "allow_session")])]);
    let server = MockServer::builder().agent("mock", script).start().await;
    let session = session(&client(&server, ServerKind::Shared)).await;
    let mut events = session.events().deciding();
    let turn = session.prompt("go");
    let request = permission(&mut events).await;
    let verbs: [Verb; 5] = [
        PermissionRequest::allow_once,
        PermissionRequest::allow_always,
        PermissionRequest::reject_once,
        PermissionRequest::reject_always,
        |request| request.choose("y"),
    ];
    for verb in verbs {
        assert_eq!(verb(&request), Err(ReplyError::NotOffered));
    }
    assert!(request.is_open());
    request.choose("x").unwrap();
    assert_eq!(within(turn.text()).await.unwrap(), "permission: x");
}

#[tokio::test]
async fn policies_decide_according_to_their_names() {
    use PermissionPolicy::{AcceptEdits, Ask, BypassPermissions, Deny};
    let always: &[_] = &[("A", "allow_always"), ("r", "reject_once")];
    let no_allow: &[_] = &[("x", "allow_session"), ("r", "reject_once")];
    let only_allow: &[_] = &[("a", "allow_once")];
    let function =
        PermissionPolicy::function(|request| match request.tool_call().and_then(|call| call.kind.as_ref()) {
            Some(ToolKind::Read) => PermissionDecision::Option("a".into()),
            Some(ToolKind::Edit) => PermissionDecision::Option("not offered".into()),
            Some(ToolKind::Fetch) => panic!("a policy that panics"),
            Some(ToolKind::Search) => PermissionDecision::Ask,
            _ => PermissionDecision::Refuse,
        });
    // There is no subscriber, so requests that a policy leaves open are rejected.
    type Row<'a> = (PermissionPolicy, &'a str, &'a [(&'a str, &'a str)], &'a str);
    let table: &[Row<'_>] = &[
        (Ask, "edit", &FOUR, "r"),
        (Ask, "read", only_allow, "cancelled"),
        (BypassPermissions, "execute", &FOUR, "a"),
        (BypassPermissions, "execute", always, "A"),
        (BypassPermissions, "execute", no_allow, "r"),
        (AcceptEdits, "edit", &FOUR, "a"),
        (AcceptEdits, "edit", always, "A"),
        (AcceptEdits, "edit", no_allow, "r"),
        (AcceptEdits, "execute", &FOUR, "r"),
        (AcceptEdits, "delete", &FOUR, "r"),
        (AcceptEdits, "move", &FOUR, "r"),
        (AcceptEdits, "brand_new", &FOUR, "r"),
        (AcceptEdits, "read", only_allow, "cancelled"),
        (Deny, "edit", &FOUR, "r"),
        (Deny, "read", only_allow, "cancelled"),
        (function.clone(), "read", &FOUR, "a"),
        (function.clone(), "edit", &FOUR, "r"),
        (function.clone(), "fetch", &FOUR, "r"),
        (function.clone(), "search", &FOUR, "r"),
        (function.clone(), "execute", only_allow, "cancelled"),
    ];
    for (policy, kind, offered, expected) in table {
        let server =
            MockServer::builder().agent("mock", Script::steps(vec![ask(kind, offered)])).start().await;
        let client = options(&server, ServerKind::Shared).permissions(policy.clone()).build().unwrap();
        let session = session(&client).await;
        let text = within(session.prompt("go").text()).await.unwrap();
        assert_eq!(text, format!("permission: {expected}"), "{policy:?} {kind} {offered:?}");
    }
}

#[tokio::test]
async fn subscribers_decide_what_a_policy_leaves_open() {
    for policy in [PermissionPolicy::Ask, PermissionPolicy::AcceptEdits] {
        let server =
            MockServer::builder().agent("mock", Script::steps(vec![ask("execute", &FOUR)])).start().await;
        let client = options(&server, ServerKind::Shared).permissions(policy).build().unwrap();
        let session = session(&client).await;
        let mut events = session.events().deciding();
        let turn = session.prompt("go");
        permission(&mut events).await.allow_once().unwrap();
        assert_eq!(within(turn.text()).await.unwrap(), "permission: a");
    }
}

#[tokio::test]
async fn nothing_is_approved_because_time_has_passed() {
    let server =
        MockServer::builder().agent("mock", Script::steps(vec![ask("execute", &FOUR)])).start().await;
    let session = session(&client(&server, ServerKind::Shared)).await;
    let mut events = session.events().deciding();
    let turn = session.prompt("go");
    let request = permission(&mut events).await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(30 * 24 * 3600)).await;
    tokio::time::resume();
    // After this round trip, any effect of a timer would be visible.
    let _ = within(session.client().list_models(None)).await;
    assert!(request.is_open() && server.answers().is_empty());
    request.allow_once().unwrap();
    assert_eq!(within(turn.text()).await.unwrap(), "permission: a");
}

#[tokio::test]
async fn requests_that_nothing_decides_log_one_warning_per_session() {
    let (warnings, subscriber) = WrittenLog::at(LevelFilter::WARN);
    // The runtime of this test has one thread, so the subscriber receives the warnings of all tasks.
    let _guard = tracing::subscriber::set_default(subscriber);
    let steps = vec![ask("execute", &FOUR), ask("edit", &FOUR)];
    let server = MockServer::builder().agent("mock", Script::steps(steps)).start().await;
    let client = client(&server, ServerKind::Shared);
    let (one, two) = (session(&client).await, session(&client).await);
    for session in [&one, &two, &one] {
        assert_eq!(within(session.prompt("go").text()).await.unwrap(), "permission: rpermission: r");
    }
    let log = warnings.text();
    let of = |session: &str| {
        log.lines().filter(|line| line.contains("nothing decides them") && line.contains(session)).count()
    };
    assert_eq!((of(one.id()), of(two.id())), (1, 1), "{log}");
}

#[tokio::test]
async fn the_options_of_an_early_server_are_parsed() {
    let params: Value = json!({
        "toolCall": {"toolCallId": "t", "kind": "execute"},
        "options": [{"id": "allow_once", "name": "Allow once"}, {"id": "deny", "name": "Deny"}],
    });
    let step = Step::Request { method: "session/request_permission".into(), params };
    let server = MockServer::builder().agent("mock", Script::steps(vec![step])).start().await;
    let client = options(&server, ServerKind::Shared)
        .permissions(PermissionPolicy::BypassPermissions)
        .build()
        .unwrap();
    let session = session(&client).await;
    within(session.prompt("go").outcome()).await.unwrap();
    assert_eq!(server.answers()[0].answer["result"]["outcome"]["optionId"], "allow_once");
}

#[tokio::test]
async fn a_permission_whose_tool_call_was_reported_with_too_much_is_incomplete_and_shows_no_older_values() {
    for (bytes, is_incomplete) in [(1_000, false), (1_100_000, true)] {
        let begins = json!({"sessionUpdate": "tool_call", "toolCallId": "t", "title": "Edit", "kind": "edit",
            "rawInput": {"path": "/old"}});
        let changes = json!({"sessionUpdate": "tool_call_update", "toolCallId": "t", "kind": "execute",
            "rawInput": {"path": "/new", "text": "x".repeat(bytes)}});
        let asks = json!({"toolCall": {"toolCallId": "t"},
            "options": [{"optionId": "yes", "name": "Yes", "kind": "allow_once"},
                {"optionId": "no", "name": "No", "kind": "reject_once"}]});
        let params = move |session: &Value| {
            let mut params = asks.clone();
            params["sessionId"] = session.clone();
            params
        };
        let script = Script::new(move |turn| {
            let params = params(&json!(turn.session_id));
            let method = "session/request_permission".into();
            vec![
                Step::Update(begins.clone()),
                Step::Update(changes.clone()),
                Step::Request { method, params },
            ]
        });
        let server = MockServer::builder().agent("mock", script).start().await;
        // Edits are allowed without a question, and the call is no longer one.
        let options = options(&server, ServerKind::Shared).permissions(PermissionPolicy::AcceptEdits);
        let client = options.build().unwrap();
        let session = session(&client).await;
        let mut events = client.events().deciding();
        let mut turn = session.prompt("go");
        let request = permission(&mut events).await;
        let call = request.tool_call().unwrap();
        let path = call.input.as_ref().map(|input| &input["path"]);
        assert_eq!((call.is_incomplete(), path), (is_incomplete, (!is_incomplete).then_some(&json!("/new"))));
        let written = serde_json::to_value(&request).unwrap();
        assert_eq!(written.get("isToolCallIncomplete"), is_incomplete.then_some(&json!(true)));
        request.reject_once().unwrap();
        within(turn.outcome()).await.unwrap();
    }
}
