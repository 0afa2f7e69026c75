//! Races, servers that send wrong responses, and endless lists.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mock_server::{Fault, MockServer, Script, Step};
use sandbox_agent_sdk::session::ListSessions;
use sandbox_agent_sdk::{ConnectionState, Error, Event, NewSession, OpenSession, ServerKind, Update};
use serde_json::{Value, json};

use super::support::{
    KINDS, LIMIT, client, ends_so_far, event, options, session, session_ended, streams_closed, within,
};

fn state_of(event: Event) -> Option<ConnectionState> {
    match event {
        Event::Connection(state) => Some(state),
        _ => None,
    }
}

#[tokio::test]
async fn a_cancelled_attempt_to_connect_ends_before_the_next_one_begins() {
    for kind in KINDS {
        let attempts = Arc::new(AtomicUsize::new(0));
        let script = Script::default().on_request(move |method, _| {
            let first = method == "initialize" && attempts.fetch_add(1, Ordering::SeqCst) == 0;
            first.then(|| vec![Step::Hang])
        });
        // Closing is slow, and must not delay the next connection.
        let server = MockServer::builder().agent("mock", script).fault(Fault::DeleteHangs).start().await;
        let client = options(&server, kind).auto_connect(false).build().unwrap();
        let mut events = client.events();
        let first = tokio::spawn(client.connect());
        assert!(server.wait_for(|_| !server.messages("initialize").is_empty(), LIMIT).await);
        first.abort();
        assert!(within(first).await.is_err());
        within(client.connect()).await.unwrap();
        let session = session(&client).await;
        let mut states = Vec::new();
        while states.len() < 4 {
            states.push(event(&mut events, state_of).await);
        }
        use ConnectionState::{Connected, Connecting, Disconnected};
        assert_eq!(states, [Connecting, Disconnected, Connecting, Connected], "{kind}");
        assert_eq!(client.state(), Connected);
        assert_eq!(within(session.prompt("hello").text()).await.unwrap(), "mock: hello");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tasks_that_connect_and_disconnect_concurrently_leave_a_consistent_state() {
    for kind in KINDS {
        let server = MockServer::start().await;
        let times = super::support::timeouts().disconnect(std::time::Duration::from_millis(20));
        let client = options(&server, kind).timeouts(times).auto_connect(false).build().unwrap();
        let mut events = client.events();
        let tasks: Vec<_> = (0..4)
            .map(|task| {
                let client = client.clone();
                tokio::spawn(async move {
                    for round in 0..8 {
                        match (task + round) % 4 {
                            0 => drop(client.disconnect().await),
                            1 => drop(client.new_session(NewSession::in_dir("/")).await),
                            2 => drop(
                                tokio::time::timeout(std::time::Duration::from_millis(3), client.connect())
                                    .await,
                            ),
                            _ => drop(client.connect().await),
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            within(task).await.unwrap();
        }
        within(client.disconnect()).await.unwrap();
        assert_eq!(client.state(), ConnectionState::Disconnected);
        // The last reported state is the current one, and each transition is possible.
        let states: Vec<_> = std::iter::from_fn(|| events.try_next()).filter_map(state_of).collect();
        assert!(matches!(states.last(), None | Some(ConnectionState::Disconnected)), "{kind}: {states:?}");
        for pair in states.windows(2) {
            use ConnectionState::{Connected, Connecting, Disconnected, Reconnecting};
            // A DELETE that was given up may arrive late, and ends the streams of a shared endpoint.
            let possible = matches!(
                (&pair[0], &pair[1]),
                (Connecting, Connected | Disconnected | Reconnecting { .. })
                    | (Connected, Disconnected | Reconnecting { .. })
                    | (Reconnecting { .. }, Connected | Disconnected | Reconnecting { .. })
                    | (Disconnected, Connecting)
            );
            assert!(possible, "{kind}: {states:?}");
        }
        within(client.connect()).await.unwrap();
        let session = session(&client).await;
        assert_eq!(within(session.prompt("hello").text()).await.unwrap(), "mock: hello");
        within(client.disconnect()).await.unwrap();
        streams_closed(&server).await;
    }
}

/// An agent that lists sessions by this function of the cursor.
fn listing(page: impl Fn(Option<&str>) -> Value + Send + Sync + 'static) -> Script {
    Script::default().on_request(move |method, params| {
        let cursor = params.get("cursor").and_then(Value::as_str);
        (method == "session/list").then(|| vec![Step::Finish(page(cursor))])
    })
}

#[tokio::test]
async fn a_list_that_leads_nowhere_ends_with_an_error() {
    let entry = json!({"sessionId": "a", "cwd": "/"});
    let with_entry = entry.clone();
    let pages: [Script; 3] = [
        // The same page again and again.
        listing(|_| json!({"sessions": [], "nextCursor": "again"})),
        listing(move |_| json!({"sessions": [with_entry], "nextCursor": "again"})),
        // Always another page, with nothing in it.
        listing(|cursor| {
            let number = cursor.and_then(|cursor| cursor.parse::<u64>().ok()).unwrap_or(0);
            json!({"sessions": [], "nextCursor": (number + 1).to_string()})
        }),
    ];
    for script in pages {
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = client(&server, ServerKind::PerAgent);
        let error = within(client.list_sessions(ListSessions::all()).all()).await.unwrap_err();
        assert!(matches!(&error, Error::Decode { what, .. } if what == "session/list"), "{error:?}");
        assert!(server.messages("session/list").len() <= 200);
        let mut list = client.list_sessions(ListSessions::all());
        within(async { while list.next().await.is_some() {} }).await;
        // Searching for a session ends too, and invents none.
        within(client.get_session("missing")).await.unwrap_err();
    }
}

#[tokio::test]
async fn odd_cursors_are_the_end_of_the_list() {
    for cursor in [json!(""), json!(5), json!(null), json!({"at": 1})] {
        let page = json!({"sessions": [{"sessionId": "a"}], "nextCursor": cursor});
        let server = MockServer::builder().agent("mock", listing(move |_| page.clone())).start().await;
        let client = client(&server, ServerKind::PerAgent);
        let listed = within(client.list_sessions(ListSessions::all()).all()).await.unwrap();
        assert_eq!((listed.len(), server.messages("session/list").len()), (1, 1), "{cursor}");
    }
}

#[tokio::test]
async fn a_session_that_was_only_named_does_not_end() {
    let server =
        MockServer::builder().agent("mock", Script::steps(vec![Step::crash(1, ["boom"])])).start().await;
    let client = client(&server, ServerKind::PerAgent);
    let named = client.session("never was");
    let real = session(&client).await;
    let mut events = client.events();
    within(real.prompt("die").outcome()).await.unwrap_err();
    assert_eq!(session_ended(&mut events).await.session_id, real.id());
    within(client.disconnect()).await.unwrap();
    assert!(ends_so_far(&mut events).is_empty());
    assert_eq!(named.termination(), None);
}

#[tokio::test]
async fn a_session_of_another_agent_is_loaded_with_that_agent() {
    let other = Script::steps(vec![Step::Say("other".into())]);
    let server = MockServer::builder().agent("mock", Script::default()).agent("other", other).start().await;
    let client = client(&server, ServerKind::Shared);
    let open = || OpenSession::in_dir("/").agent("other");
    let session = within(client.load_session("elsewhere", open())).await.unwrap();
    let sent = &server.messages("session/load")[0]["params"];
    assert_eq!(sent["agent"], "other");
    assert_eq!(sent["_meta"]["sandboxagent.dev"]["agent"], "other");
    assert_eq!(within(session.prompt("who").text()).await.unwrap(), "other");
    // The client remembers the agent of the session.
    within(client.load_session("elsewhere", OpenSession::in_dir("/"))).await.unwrap();
    assert_eq!(server.messages("session/load")[1]["params"]["agent"], "other");
}

#[tokio::test]
async fn a_cancel_ends_with_the_turn_even_if_its_post_hangs() {
    for kind in KINDS {
        let server =
            MockServer::builder().agent("mock", Script::steps(vec![Step::WaitForCancel])).start().await;
        let session = session(&client(&server, kind)).await;
        server.inject(Fault::PostHangs.on_method("session/cancel"));
        let mut turn = session.prompt("work");
        assert!(server.wait_for(|_| !server.messages("session/prompt").is_empty(), LIMIT).await);
        within(session.cancel()).await.unwrap();
        assert_eq!(within(turn.outcome()).await.unwrap().stop_reason.as_str(), "cancelled");
    }
}

#[tokio::test]
async fn the_end_of_a_session_is_reported_once_whatever_reports_it() {
    let server = MockServer::builder().agent("mock", Script::steps(vec![Step::Hang])).start().await;
    let client = client(&server, ServerKind::Shared);
    let session = session(&client).await;
    let mut events = client.events();
    let mut turn = session.prompt("wait");
    assert!(server.wait_for(|_| !server.messages("session/prompt").is_empty(), LIMIT).await);
    let calls: Vec<_> = (0..4).map(|_| tokio::spawn(session.terminate())).collect();
    for spelling in ["session_id", "sessionId"] {
        for _ in 0..3 {
            let data = json!({"reason": "error", "terminatedBy": "agent", "exitCode": 1});
            server.emit(json!({"jsonrpc": "2.0", "method": "_sandboxagent/session/ended",
                "params": {spelling: session.id(), "data": data}}));
        }
    }
    for call in calls {
        within(call).await.unwrap().unwrap();
    }
    within(turn.outcome()).await.unwrap_err();
    let info = within(session.info()).await.unwrap();
    within(client.disconnect()).await.unwrap();
    let ends = ends_so_far(&mut events);
    assert_eq!(ends.len(), 1, "{ends:?}");
    assert!(!ends[0].termination.is_crash(), "the client requested it");
    assert_eq!(info.termination_info.as_ref(), Some(&ends[0].termination));
}

#[tokio::test]
async fn a_wrong_response_fails_one_call_and_no_other() {
    for kind in KINDS {
        let lies = Arc::new([
            json!(null),
            json!([]),
            json!("yes"),
            json!({"sessionId": 5}),
            json!({"sessionId": "s", "modes": 5, "models": [null], "configOptions": {"a": 1}, "tools": "all",
                "_meta": {"sandboxagent.dev": "no"}, "title": 7}),
        ]);
        let (answers, next) = (Arc::clone(&lies), AtomicUsize::new(0));
        let script = Script::new(|_| {
            let updates = [
                json!(null),
                json!({"sessionUpdate": 4}),
                json!({"sessionUpdate": "current_mode_update"}),
                json!({"sessionUpdate": "config_option_update", "configOptions": [5, {"id": 1}]}),
            ];
            let mut steps: Vec<_> = updates.into_iter().map(Step::Update).collect();
            steps.push(Step::Finish(json!("whatever")));
            steps
        })
        .initialize(json!({"agentCapabilities": 5, "authMethods": {"id": 1}, "agentInfo": []}))
        .on_request(move |method, _| match method {
            "session/new" => {
                let at = next.fetch_add(1, Ordering::SeqCst);
                Some(vec![Step::Finish(answers[at.min(answers.len() - 1)].clone())])
            }
            "session/list" => Some(vec![Step::Finish(json!({"sessions": "none"}))]),
            "session/set_config_option" => Some(vec![Step::Finish(json!("done"))]),
            _ => None,
        });
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = client(&server, kind);
        for lie in lies[..4].iter().map(Value::to_string) {
            let error = within(client.new_session(NewSession::in_dir("/"))).await.unwrap_err();
            assert!(matches!(&error, Error::Decode { raw, .. } if *raw == lie), "{error:?}");
        }
        let session = session(&client).await;
        let now = session.snapshot();
        assert_eq!((now.modes.len(), now.tools.len(), now.config_options.len()), (0, 0, 0));
        assert_eq!(
            (&now.other["modes"], &now.other["title"]),
            (&json!(5), &json!(7)),
            "unexpected values are preserved"
        );
        assert!(within(session.set_config_option("a", true)).await.unwrap().is_empty());
        if kind == ServerKind::PerAgent {
            let error = within(client.list_sessions(ListSessions::all()).all()).await.unwrap_err();
            assert!(matches!(error, Error::Decode { .. }), "{error:?}");
        }
        let session = within(client.load_session(session.id(), OpenSession::in_dir("/"))).await.unwrap();
        let mut turn = session.prompt("go");
        let mut updates: Vec<Update> = Vec::new();
        while let Some(update) = within(turn.next()).await {
            updates.push(update);
        }
        assert_eq!(within(turn.outcome()).await.unwrap().raw, "whatever");
        assert!(updates.len() >= 3, "{updates:?}");
    }
}
