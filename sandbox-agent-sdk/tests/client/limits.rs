//! Limits on data from the server.

use mock_server::{MockServer, Permission, Script, Step, ToolCall};
use sandbox_agent_sdk::limits::Limits;
use sandbox_agent_sdk::session::ListSessions;
use sandbox_agent_sdk::update::Missed;
use sandbox_agent_sdk::{
    Error, Event, NewSession, PermissionPolicy, PermissionRequest, SandboxAgentClient, ServerKind,
};
use serde_json::{Value, json};

use super::permissions::permission;
use super::support::{KINDS, event, options, session, within};

fn client(server: &MockServer, kind: ServerKind, limits: Limits) -> SandboxAgentClient {
    options(server, kind).limits(limits).build().unwrap()
}

/// Returns a JSON object of exactly this many bytes.
fn object(bytes: usize) -> Value {
    let empty = json!({"text": ""}).to_string().len();
    json!({"text": "x".repeat(bytes - empty)})
}

/// An agent that responds to `_x/sized` with a result of the requested size, and lists sessions with this function.
fn agent(page: impl Fn(usize) -> Value + Send + Sync + 'static) -> Script {
    Script::default().on_request(move |method, params| match method {
        "_x/sized" => Some(vec![Step::Finish(object(params["bytes"].as_u64()? as usize))]),
        "session/list" => {
            let number = params["cursor"].as_str().and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
            Some(vec![Step::Finish(page(number))])
        }
        _ => None,
    })
}

#[tokio::test]
async fn a_response_is_decoded_up_to_the_limit_and_not_above() {
    const LIMIT: usize = 20_000;
    for kind in KINDS {
        let server = MockServer::builder().agent("mock", agent(|_| json!({"sessions": []}))).start().await;
        let client = client(&server, kind, Limits::default().message(LIMIT));
        session(&client).await;
        // The limit applies to the whole message, including the result.
        let sized = |bytes: usize| client.raw_request("_x/sized", json!({"bytes": bytes, "agent": "mock"}));
        within(sized(100)).await.unwrap();
        let id = server.messages("_x/sized")[0]["id"].clone();
        let rest = json!({"jsonrpc": "2.0", "id": id, "result": {}}).to_string().len() - "{}".len();
        for (bytes, fits) in [(LIMIT - rest - 1, true), (LIMIT - rest, true), (LIMIT - rest + 1, false)] {
            match within(sized(bytes)).await {
                Ok(result) => assert!(fits && result == object(bytes), "{kind} {bytes}"),
                Err(error) => {
                    assert!(
                        !fits && matches!(error, Error::MessageTooLarge { limit: LIMIT, .. }),
                        "{error:?}"
                    );
                    assert!(error.maybe_executed());
                }
            }
        }
        within(sized(100)).await.unwrap();
    }
}

/// Returns a page of exactly this many bytes.
fn page_of(bytes: usize) -> Value {
    let mut page = json!({"sessions": [{"sessionId": "a", "title": ""}]});
    let missing = bytes - page.to_string().len();
    page["sessions"][0]["title"] = "x".repeat(missing).into();
    page
}

#[tokio::test]
async fn a_page_of_a_list_is_decoded_up_to_the_limit_and_not_above() {
    const LIMIT: usize = 5_000;
    for (bytes, fits) in [(LIMIT - 1, true), (LIMIT, true), (LIMIT + 1, false)] {
        let server = MockServer::builder().agent("mock", agent(move |_| page_of(bytes))).start().await;
        let client = client(&server, ServerKind::PerAgent, Limits::default().session_page(LIMIT));
        match within(client.list_sessions(ListSessions::all()).all()).await {
            Ok(sessions) => assert!(fits && sessions.len() == 1, "{bytes}"),
            Err(error) => {
                assert!(
                    !fits
                        && matches!(error, Error::MessageTooLarge { limit: LIMIT, seen, .. } if seen == bytes)
                );
            }
        }
    }
}

#[tokio::test]
async fn a_page_that_is_small_as_text_and_large_decoded_is_an_error() {
    let dense = || json!({"sessions": [], "dense": vec![0; 100_000]});
    let server = MockServer::builder().agent("mock", agent(move |_| dense())).start().await;
    let limits = Limits::default().session_page(300_000);
    let client = client(&server, ServerKind::PerAgent, limits);
    let error = within(client.list_sessions(ListSessions::all()).all()).await.unwrap_err();
    let Error::DecodedTooLarge { what, limit, size, .. } = &error else { panic!("{error:?}") };
    assert_eq!((what.as_str(), *limit), ("session/list", 8 * 300_000));
    assert!(size > limit);
}

/// Returns a list of this many pages with one session each.
fn pages(count: usize) -> impl Fn(usize) -> Value {
    move |number| {
        let sessions = json!([{"sessionId": format!("s{number}")}]);
        match number + 1 < count {
            true => json!({"sessions": sessions, "nextCursor": (number + 1).to_string()}),
            false => json!({"sessions": sessions}),
        }
    }
}

#[tokio::test]
async fn a_list_ends_with_a_typed_error_at_the_page_limit() {
    const LIMIT: usize = 5;
    for (count, fits) in [(LIMIT - 1, true), (LIMIT, true), (LIMIT + 1, false), (usize::MAX, false)] {
        let server = MockServer::builder().agent("mock", agent(pages(count))).start().await;
        let client = client(&server, ServerKind::PerAgent, Limits::default().list_pages(LIMIT));
        let mut list = client.list_sessions(ListSessions::all());
        let mut sessions = 0;
        let end = loop {
            match within(list.next()).await {
                Some(Ok(_)) => sessions += 1,
                end => break end,
            }
        };
        match end {
            None => assert!(fits && sessions == count, "{count}"),
            Some(Err(Error::ListTooLong { pages: LIMIT, .. })) => assert!(!fits && sessions == LIMIT),
            other => panic!("{other:?}"),
        }
        assert!(within(list.next()).await.is_none(), "the error is the last entry");
        assert!(server.messages("session/list").len() <= LIMIT);
    }
}

#[tokio::test]
async fn a_list_is_read_up_to_the_bytes_of_its_limit_and_not_above() {
    const PAGES: usize = 3;
    let server = MockServer::builder().agent("mock", agent(pages(PAGES))).start().await;
    let read = async |limits: Limits| {
        let client = client(&server, ServerKind::PerAgent, limits.expansion(1));
        within(client.list_sessions(ListSessions::all()).all()).await
    };
    // All pages have one size, and the error contains the size of the first.
    let error = read(Limits::default().list_pages(1)).await.unwrap_err();
    let Error::ListTooLong { pages: 1, bytes: page, .. } = error else { panic!("{error:?}") };
    let whole = PAGES * page;
    for (limit, fits) in [(whole - 1, false), (whole, true), (whole + 1, true)] {
        match read(Limits::default().session_list(limit)).await {
            Ok(sessions) => assert!(fits && sessions.len() == PAGES, "{limit} of {whole}"),
            Err(Error::ListTooLong { pages: PAGES, .. }) => assert!(!fits, "{limit} of {whole}"),
            Err(other) => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_list_of_endless_large_pages_ends_with_a_typed_error() {
    let page = |number: usize| {
        let entry = json!({"sessionId": format!("s{number}"), "title": "x".repeat(10_000)});
        json!({"sessions": [entry], "nextCursor": (number + 1).to_string()})
    };
    let server = MockServer::builder().agent("mock", agent(page)).start().await;
    let limits = Limits::default().session_list(10_000).expansion(10);
    let client = client(&server, ServerKind::PerAgent, limits);
    let error = within(client.list_sessions(ListSessions::all()).all()).await.unwrap_err();
    assert!(matches!(error, Error::ListTooLong { pages: 9..=10, .. }), "{error:?}");
}

#[tokio::test]
async fn open_agent_requests_are_limited_in_number() {
    const LIMIT: usize = 2;
    for kind in KINDS {
        let ask = Step::AskPermission(Permission::new(ToolCall::new("t", "Run")));
        let server = MockServer::builder().agent("mock", Script::steps(vec![ask])).start().await;
        let client = client(&server, kind, Limits::default().open_requests(LIMIT));
        let mut events = client.events().deciding();
        let (mut turns, mut requests) = (Vec::new(), Vec::new());
        // Up to the limit.
        for _ in 0..LIMIT {
            turns.push(session(&client).await.prompt("go"));
            requests.push(permission(&mut events).await);
        }
        let above = session(&client).await;
        assert_eq!(within(above.prompt("go").text()).await.unwrap(), "permission: error", "{kind}");
        assert!(requests.iter().all(PermissionRequest::is_open), "{kind}");
        let first = requests.remove(0);
        first.allow_once().unwrap();
        drop(first);
        assert_eq!(within(turns.remove(0).text()).await.unwrap(), "permission: allow_once");
        // One more fits now.
        turns.push(above.prompt("go"));
        requests.push(permission(&mut events).await);
        requests.iter().for_each(|request| request.allow_once().unwrap());
        for turn in turns {
            assert_eq!(within(turn.text()).await.unwrap(), "permission: allow_once");
        }
    }
}

#[tokio::test]
async fn open_agent_requests_are_limited_in_bytes() {
    for kind in KINDS {
        let script = Script::new(|_| {
            let mut call = ToolCall::new("t", "Run");
            call.input = json!({"text": "x".repeat(100_000)});
            vec![Step::AskPermission(Permission::new(call))]
        });
        let server = MockServer::builder().agent("mock", script).start().await;
        // Each counts a little more than twice its text, so two fit.
        let client = client(&server, kind, Limits::default().open_request_bytes(500_000));
        let sessions = [session(&client).await, session(&client).await, session(&client).await];
        let mut events = client.events().deciding();
        let first = sessions[0].prompt("go");
        let one = permission(&mut events).await;
        let second = sessions[1].prompt("go");
        let two = permission(&mut events).await;
        assert_eq!(within(sessions[2].prompt("go").text()).await.unwrap(), "permission: error", "{kind}");
        let reason = event(&mut events, |event| match event {
            Event::RequestRejected { reason, .. } => Some(reason),
            _ => None,
        })
        .await;
        assert!(reason.contains("500000"), "{reason}");
        two.allow_once().unwrap();
        drop(two);
        assert_eq!(within(second.text()).await.unwrap(), "permission: allow_once");
        // Its memory is released.
        let third = sessions[2].prompt("go");
        permission(&mut events).await.allow_once().unwrap();
        one.allow_once().unwrap();
        for turn in [first, third] {
            assert_eq!(within(turn.text()).await.unwrap(), "permission: allow_once");
        }
    }
}

#[tokio::test]
async fn a_turn_is_collected_up_to_the_limit_and_not_above() {
    let text = "x".repeat(500);
    let script = Script::steps(vec![Step::Say(text.clone()), Step::Say(text.clone())]);
    let server = MockServer::builder().agent("mock", script).start().await;
    for (limit, fits) in [(999, false), (1000, true), (1001, true)] {
        let client = client(&server, ServerKind::PerAgent, Limits::default().turn(limit));
        let session = session(&client).await;
        match within(session.prompt("go").collect()).await {
            Ok(turn) => assert!(fits && turn.text.len() == 1000, "{limit}"),
            Err(Error::IncompleteTurn(turn)) => {
                assert!(!fits && turn.collected.text.len() <= limit, "{limit}");
                assert!(matches!(turn.missing[..], [Missed::Lagged(1..)]), "{:?}", turn.missing);
                assert!(turn.collected.outcome.is_some());
            }
            Err(other) => panic!("{other:?}"),
        }
        let whole = async {
            let (mut turn, mut text) = (session.prompt("go"), String::new());
            while let Some(update) = turn.next().await {
                text.push_str(update.message_text().unwrap_or_default());
            }
            text
        };
        assert_eq!(within(whole).await.len(), 1000, "a stream has no limit");
    }
}

#[tokio::test]
async fn changes_and_tool_calls_of_a_turn_count_once() {
    let report = |number: usize| {
        let diff = json!({"type": "diff", "path": "/a", "oldText": null, "newText": "x".repeat(1000)});
        json!({"sessionUpdate": if number == 0 { "tool_call" } else { "tool_call_update" },
            "toolCallId": "t", "title": "edit", "content": [diff]})
    };
    let script = Script::steps((0..50).map(|number| Step::Update(report(number))).collect());
    let server = MockServer::builder().agent("mock", script).start().await;
    let client = client(&server, ServerKind::PerAgent, Limits::default().turn(20_000));
    let turn = within(session(&client).await.prompt("go").collect()).await.unwrap();
    assert_eq!((turn.tool_calls.len(), turn.changes.len()), (1, 1));
}

#[tokio::test]
async fn a_request_too_large_to_decode_approves_nothing() {
    let script = Script::new(|_| {
        let mut call = ToolCall::new("t", "Run");
        call.input = json!(vec![0; 100_000]);
        vec![Step::AskPermission(Permission::new(call))]
    });
    let server = MockServer::builder().agent("mock", script).start().await;
    let client = options(&server, ServerKind::Shared)
        .permissions(PermissionPolicy::BypassPermissions)
        .limits(Limits::default().open_request_bytes(1 << 20))
        .build()
        .unwrap();
    let session = session(&client).await;
    assert_ne!(within(session.prompt("go").text()).await.unwrap_or_default(), "permission: allow_once");
}

#[tokio::test]
async fn an_update_that_is_too_large_decoded_is_reported_and_the_next_one_arrives() {
    let dense = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "no"}, "dense": vec![0; 100_000]});
    let script = Script::steps(vec![Step::Update(dense), Step::Say("yes".into())]);
    let server = MockServer::builder().agent("mock", script).start().await;
    let client = client(&server, ServerKind::PerAgent, Limits::default().message(300_000));
    let session = session(&client).await;
    let mut events = client.events();
    let mut turn = session.prompt("go");
    let mut text = String::new();
    while let Some(update) = within(turn.next()).await {
        text.push_str(update.message_text().unwrap_or_default());
    }
    assert_eq!(text, "yes");
    let (reason, lost) = event(&mut events, |event| match event {
        Event::Malformed { reason, lost, .. } => Some((reason, lost)),
        _ => None,
    })
    .await;
    assert!(lost && reason.contains("2400000"), "{reason}");
}

#[tokio::test]
async fn a_session_id_is_accepted_up_to_the_limit_and_not_above() {
    const LIMIT: usize = 1 << 10;
    for (bytes, fits) in [(LIMIT - 1, true), (LIMIT, true), (LIMIT + 1, false)] {
        let script = Script::default().on_request(move |method, _| {
            let made = json!({"sessionId": "s".repeat(bytes)});
            (method == "session/new").then(|| vec![Step::Finish(made)])
        });
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = client(&server, ServerKind::PerAgent, Limits::default());
        match within(client.new_session(NewSession::in_dir("/"))).await {
            Ok(session) => assert!(fits && session.id().len() == bytes),
            Err(error) => {
                assert!(!fits && matches!(error, Error::MessageTooLarge { limit: LIMIT, .. }), "{error:?}");
            }
        }
    }
}
