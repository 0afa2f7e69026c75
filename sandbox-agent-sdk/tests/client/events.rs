//! Events of clients and sessions.

use std::time::Duration;

use mock_server::{Fault, MockServer, Script, State, Step};
use sandbox_agent_sdk::event::Origin;
use sandbox_agent_sdk::update::Missed;
use sandbox_agent_sdk::{ConnectionState, Event, NewSession, OpenSession, ServerKind, UpdateKind};
use serde_json::{Value, json};

use super::support::{KINDS, client, event, options, session, streams_closed, within};

fn says(text: &str) -> Value {
    json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}})
}

fn update_text(event: Event) -> Option<String> {
    match event {
        Event::Update(update) => Some(update.to_string()),
        _ => None,
    }
}

#[tokio::test]
async fn updates_before_the_response_that_creates_a_session_are_delivered() {
    for kind in KINDS {
        let early = |method: &str, _: &Value| {
            let update = json!({"sessionId": "early", "update": says("before")});
            let notify = Step::Notify { method: "session/update".into(), params: update };
            (method == "session/new").then(|| vec![notify, Step::Finish(json!({"sessionId": "early"}))])
        };
        let server = MockServer::builder().agent("mock", Script::default().on_request(early)).start().await;
        let session = within(client(&server, kind).new_session(NewSession::in_dir("/"))).await.unwrap();
        let mut events = session.events();
        let update = event(&mut events, |event| match event {
            Event::Update(update) => Some(update),
            _ => None,
        })
        .await;
        assert_eq!((update.to_string().as_str(), update.origin()), ("before", Origin::Live));
    }
}

#[tokio::test]
async fn updates_between_turns_are_delivered_once() {
    for kind in KINDS {
        let script = Script::steps(vec![
            Step::Say("in the turn".into()),
            Step::Answer("end_turn".into()),
            Step::Wait(Duration::from_millis(50)),
            Step::Say("after the turn".into()),
        ]);
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = client(&server, kind);
        let mut all = client.events();
        let session = session(&client).await;
        assert_eq!(within(session.prompt("go").text()).await.unwrap(), "in the turn");
        // The client's stream shows that the late update has arrived. The session's stream is opened only then.
        let mut received = Vec::new();
        while received.last().map(String::as_str) != Some("after the turn") {
            received.push(event(&mut all, update_text).await);
        }
        assert_eq!(received, ["in the turn", "after the turn"]);
        assert_eq!(event(&mut session.events(), update_text).await, "after the turn");
        assert!(session.events().try_next().is_none());
    }
}

#[tokio::test]
async fn every_event_has_its_origin() {
    let server = MockServer::start().await;
    let first = client(&server, ServerKind::Shared);
    let dead = session(&first).await;
    within(dead.prompt("crash").outcome()).await.unwrap_err();
    drop((dead, first));
    let second = options(&server, ServerKind::Shared).auto_connect(false).build().unwrap();
    let mut events = second.events();
    within(second.connect()).await.unwrap();
    let old = event(&mut events, |event| matches!(event, Event::SessionEnded(_)).then_some(event)).await;
    assert_eq!(old.origin(), Origin::Replayed);
    let revived =
        within(second.load_session(old.session_id().unwrap(), OpenSession::in_dir("/"))).await.unwrap();
    assert_eq!(
        within(revived.prompt("hello").text()).await.unwrap(),
        "mock: hello",
        "an end in the backlog does not end the session"
    );
    let new = event(&mut events, |event| matches!(event, Event::Update(_)).then_some(event)).await;
    assert_eq!(new.origin(), Origin::Live);
}

#[tokio::test]
async fn agent_output_that_is_not_a_message_is_reported() {
    for kind in KINDS {
        let server = MockServer::start().await;
        let client = client(&server, kind);
        let session = session(&client).await;
        let mut events = client.events();
        within(session.prompt("garbage").outcome()).await.unwrap();
        let unparsed = event(&mut events, |event| match event {
            Event::AgentUnparsed { unparsed, origin, .. } => Some((unparsed, origin)),
            _ => None,
        })
        .await;
        assert_eq!((unparsed.0.raw.as_str(), unparsed.1), ("this line is not JSON", Origin::Live));
    }
}

#[tokio::test]
async fn a_gap_is_reported_in_order_to_every_subscriber() {
    let server = MockServer::start().await;
    let client = client(&server, ServerKind::Shared);
    let session = session(&client).await;
    let mut events = client.events();
    server.inject(Fault::Hole { id: server.last_event_id() + 2 });
    let mut turn = session.prompt("one two three");
    let mut kinds = Vec::new();
    while let Some(update) = within(turn.next()).await {
        kinds.push(match update.kind() {
            UpdateKind::Missed(Missed::Gap(gap)) => format!("gap of {}", gap.count()),
            _ => update.to_string(),
        });
    }
    assert_eq!(kinds, ["mock: ", "gap of 1", "two ", "three"]);
    event(&mut events, |event| matches!(event, Event::Gap(gap) if gap.count() == 1).then_some(())).await;
}

#[tokio::test]
async fn a_slow_subscriber_learns_how_much_it_missed_and_slows_down_no_other() {
    for kind in KINDS {
        let script = Script::steps(vec![Step::Flood { updates: 1000, bytes: 1000 }, Step::Say("end".into())]);
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = options(&server, kind).event_budget(100_000).build().unwrap();
        let session = session(&client).await;
        let mut slow = session.events();
        let mut turn = session.prompt("go");
        within(turn.outcome()).await.unwrap();
        let (mut seen, mut missed) = (0, 0);
        while let Some(event) = slow.try_next() {
            match event {
                Event::Update(_) => seen += 1,
                Event::Lagged(count) => missed += count,
                _ => {}
            }
        }
        assert!(missed > 800, "{missed}");
        assert_eq!(seen + missed, 1001);
        let mut missed = 0;
        while let Some(update) = within(turn.next()).await {
            missed += match update.kind() {
                UpdateKind::Missed(Missed::Lagged(count)) => *count,
                _ => 1,
            };
        }
        assert_eq!(missed, 1001, "the turn's stream counts its dropped updates too");
    }
}

#[tokio::test]
async fn a_lost_stream_and_a_restarted_server_are_reported() {
    let server = MockServer::start().await;
    let client = client(&server, ServerKind::Shared);
    let session = session(&client).await;
    let mut events = session.events();
    server.restart(State::Preserved).await;
    event(&mut events, |event| {
        matches!(event, Event::Connection(ConnectionState::Reconnecting { .. })).then_some(())
    })
    .await;
    event(&mut events, |event| matches!(event, Event::Connection(ConnectionState::Connected)).then_some(()))
        .await;
    assert_eq!(within(session.prompt("hello").text()).await.unwrap(), "mock: hello");
    server.restart(State::Lost).await;
    server.emit(json!({"jsonrpc": "2.0", "method": "_x/news"}));
    event(&mut events, |event| matches!(event, Event::ServerRestarted).then_some(())).await;
}

#[tokio::test]
async fn an_unreadable_event_is_reported_and_the_stream_continues() {
    let server = MockServer::start().await;
    let client = client(&server, ServerKind::Shared);
    let session = session(&client).await;
    let mut events = client.events();
    server.inject(Fault::MalformedEvent("{oops".into()));
    server.inject(Fault::NonObjectEvent("[1,2,3]".into()));
    server
        .emit(json!({"jsonrpc": "2.0", "method": "_x/news", "params": {"sessionId": session.id(), "a": 1}}));
    event(&mut events, |event| {
        matches!(event, Event::Malformed { start, .. } if start == "{oops").then_some(())
    })
    .await;
    let other = event(&mut events, |event| matches!(event, Event::Other { .. }).then_some(event)).await;
    assert_eq!(other.session_id(), Some(session.id()));
    assert_eq!(within(session.prompt("hello").text()).await.unwrap(), "mock: hello");
}

#[tokio::test]
async fn a_session_gets_only_its_own_events() {
    let server = MockServer::start().await;
    let client = client(&server, ServerKind::Shared);
    let (one, two) = (session(&client).await, session(&client).await);
    let mut of_one = one.events();
    within(two.prompt("to the other").outcome()).await.unwrap();
    within(one.prompt("mine").outcome()).await.unwrap();
    let texts: Vec<_> = std::iter::from_fn(|| of_one.try_next()).filter_map(update_text).collect();
    assert_eq!(texts.concat(), "mock: mine");
}

#[tokio::test]
async fn events_continue_over_a_new_connection_and_end_with_the_client() {
    let server = MockServer::start().await;
    let client = client(&server, ServerKind::Shared);
    let mut events = client.events();
    session(&client).await;
    within(client.disconnect()).await.unwrap();
    within(client.connect()).await.unwrap();
    let session = session(&client).await;
    within(session.prompt("again").outcome()).await.unwrap();
    assert_eq!(event(&mut events, update_text).await, "mock: ");
    drop((client, session));
    within(async { while events.next().await.is_some() {} }).await;
    streams_closed(&server).await;
}
