//! The log of a client, and reading the server's stream again.

use std::sync::{Arc, Mutex};

use futures::StreamExt;
use mock_server::{MockServer, Permission, Script, State, Step, ToolCall};
use sandbox_agent_sdk::error::Error;
use sandbox_agent_sdk::event::Origin;
use sandbox_agent_sdk::stream::{EventLog, LogEntry, LogRecord, StreamPosition, StreamReader};
use sandbox_agent_sdk::turns::TurnEvent;
use sandbox_agent_sdk::update::Missed;
use sandbox_agent_sdk::{Event, PermissionPolicy, ServerKind, StopReason, Turn};

use super::support::{KINDS, LIMIT, client, options, session, within};

/// Returns an entry in short form.
fn short(entry: &LogEntry) -> Option<String> {
    Some(match &entry.record {
        LogRecord::Event(Event::Update(update)) => update.to_string(),
        LogRecord::Event(Event::PermissionDecided(_)) => "decided".to_owned(),
        LogRecord::Event(Event::ServerRestarted) => "restarted".to_owned(),
        LogRecord::AgentRequest { method, .. } => format!("request {method}"),
        LogRecord::Settled(settlement) => format!("settled {}", settlement.method),
        LogRecord::Event(Event::TurnEnded(ended)) => {
            format!(
                "ended {}",
                ended.outcome.as_ref().map_or("failed", |outcome| outcome.stop_reason.as_str())
            )
        }
        LogRecord::Missing(gap) => format!("missing {}..{}", gap.from, gap.to),
        _ => return None,
    })
}

/// Reads the log up to the end of a turn. Returns the entries with their positions.
async fn until_end(log: &mut EventLog) -> Vec<(String, Option<StreamPosition>)> {
    let mut seen = Vec::new();
    loop {
        let entry = within(log.next()).await.expect("another entry");
        let Some(text) = short(&entry) else { continue };
        let is_end = text.starts_with("ended");
        seen.push((text, entry.position));
        if is_end {
            return seen;
        }
    }
}

async fn all(mut reader: StreamReader) -> Vec<LogEntry> {
    let mut entries = Vec::new();
    while let Some(entry) = within(reader.next()).await {
        entries.push(entry.unwrap());
    }
    entries
}

fn texts(entries: &[LogEntry]) -> Vec<String> {
    entries.iter().filter_map(short).collect()
}

#[tokio::test]
async fn the_log_has_updates_requests_settlements_and_ends_in_one_order() {
    for kind in KINDS {
        let script = Script::steps(vec![
            Step::Say("one".into()),
            Step::AskPermission(Permission::new(ToolCall::new("t", "Run"))),
            Step::Say("two".into()),
        ]);
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = options(&server, kind).permissions(PermissionPolicy::BypassPermissions).build().unwrap();
        let session = session(&client).await;
        let mut log = client.events_from(None);
        within(session.set_mode("ask")).await.ok();
        within(session.prompt("go").outcome()).await.unwrap();
        let seen = until_end(&mut log).await;
        let texts: Vec<_> =
            seen.iter().map(|(text, _)| text.as_str()).filter(|text| !text.is_empty()).collect();
        let set_mode =
            texts.iter().position(|text| *text == "settled session/set_mode").expect("a settlement");
        let turn: Vec<_> = texts[set_mode + 1..].to_vec();
        assert_eq!(
            turn,
            [
                "one",
                "request session/request_permission",
                "decided",
                "permission: allow_once",
                "two",
                "ended end_turn"
            ],
            "{kind}"
        );
        let positions: Vec<_> = seen.iter().filter_map(|(_, position)| *position).collect();
        assert!(positions.len() >= 3 && positions.windows(2).all(|pair| pair[1].is_after(&pair[0])));
    }
}

#[tokio::test]
async fn an_unread_log_is_filled_from_the_server() {
    let script = Script::steps(vec![Step::Flood { updates: 300, bytes: 1000 }]);
    let server = MockServer::builder().agent("mock", script).start().await;
    for kind in KINDS {
        // A budget for a few updates only.
        let client = options(&server, kind).event_budget(20_000).build().unwrap();
        let session = session(&client).await;
        let mut log = client.events_from(None);
        let _ = within(session.prompt("go").outcome()).await;
        let mut offsets = Vec::new();
        while offsets.len() < 300 {
            let entry = within(log.next()).await.expect("another entry");
            assert!(!matches!(entry.record, LogRecord::Missing(_)), "the server has all of them");
            if let LogRecord::Event(Event::Update(update)) = &entry.record
                && update.session_id() == session.id()
                && !update.to_string().is_empty()
            {
                offsets.push(entry.position.expect("updates are numbered").offset);
            }
        }
        assert!(offsets.windows(2).all(|pair| pair[0] < pair[1]), "{kind}");
        within(client.disconnect()).await.unwrap();
    }
}

#[tokio::test]
async fn events_that_the_server_no_longer_has_are_reported_missing_in_order() {
    let script = Script::steps(vec![Step::Flood { updates: 300, bytes: 1000 }, Step::Say("end".into())]);
    let server = MockServer::builder().agent("mock", script).replay_buffer(50).start().await;
    let client = options(&server, ServerKind::Shared).event_budget(20_000).build().unwrap();
    let session = session(&client).await;
    let mut log = client.events_from(None);
    let _ = within(session.prompt("go").outcome()).await;
    let (mut last, mut missing) = (0, 0);
    loop {
        let entry = within(log.next()).await.expect("another entry");
        match &entry.record {
            LogRecord::Missing(gap) => {
                assert!(gap.from > last && gap.to >= gap.from);
                missing += gap.count();
                last = gap.to;
            }
            _ => last = entry.position.map_or(last, |position| position.offset),
        }
        if short(&entry).as_deref() == Some("end") {
            break;
        }
    }
    assert!(missing > 100, "{missing}");
}

#[tokio::test]
async fn a_log_from_a_position_begins_after_it_also_in_another_client() {
    let server = MockServer::start().await;
    let first = client(&server, ServerKind::Shared);
    let session = session(&first).await;
    let mut log = first.events_from(None);
    within(session.prompt("one").outcome()).await.unwrap();
    until_end(&mut log).await;
    let position = log.position().expect("a position");
    within(session.prompt("two").outcome()).await.unwrap();
    within(first.disconnect()).await.unwrap();

    let second = client(&server, ServerKind::Shared);
    let mut log = second.events_from(position);
    let mut seen = String::new();
    while !seen.contains("two") {
        let entry = within(log.next()).await.expect("another entry");
        assert_eq!(entry.position.map(|at| at.offset > position.offset), entry.position.map(|_| true));
        if let LogRecord::Event(Event::Update(update)) = &entry.record {
            assert_eq!(update.origin(), Origin::Replayed);
            seen.push_str(&update.to_string());
        }
    }
    assert_eq!(seen, "mock: two");
}

#[tokio::test]
async fn a_part_of_the_stream_is_read_again() {
    for kind in KINDS {
        let server = MockServer::start().await;
        let client = client(&server, kind);
        let session = session(&client).await;
        let mut log = client.events_from(None);
        within(session.prompt("one").outcome()).await.unwrap();
        let one =
            until_end(&mut log).await.into_iter().filter_map(|(_, position)| position).next_back().unwrap();
        within(session.prompt("two").outcome()).await.unwrap();
        let two =
            until_end(&mut log).await.into_iter().filter_map(|(_, position)| position).next_back().unwrap();
        let whole = texts(&all(client.read(StreamPosition::beginning(), None)).await).concat();
        assert!(whole.contains("mock: one") && whole.contains("mock: two"), "{kind}: {whole}");
        let later = texts(&all(client.read(one, None)).await).concat();
        assert_eq!(later, "mock: two", "{kind}");
        let earlier = texts(&all(client.read(StreamPosition::beginning(), one.offset)).await).concat();
        assert!(earlier.ends_with("mock: one"), "{kind}: {earlier}");
        assert_eq!(all(client.read(two, two.offset)).await.len(), 0, "{kind}");
        // The event at this offset differs, so the position belongs to another incarnation.
        let other = StreamPosition::new(one.incarnation, one.offset, one.fingerprint ^ 1);
        let entries = all(client.read(other, None)).await;
        assert!(matches!(entries[0].record, LogRecord::Event(Event::ServerRestarted)), "{kind}: {entries:?}");
    }
}

#[tokio::test]
async fn a_reader_responds_to_nothing_and_sees_the_responses_of_others() {
    let script = Script::steps(vec![
        Step::AskPermission(Permission::new(ToolCall::new("t", "Run"))),
        Step::Say("done".into()),
    ]);
    let server = MockServer::builder().agent("mock", script).start().await;
    let owner = client(&server, ServerKind::Shared);
    let ours = session(&owner).await;
    let other = client(&server, ServerKind::Shared);
    within(other.connect()).await.ok();
    within(other.list_models(None)).await.unwrap();
    let ids = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&ids);
    let mut turn = ours.prompt_after("go", move |id| async move {
        seen.lock().unwrap().push(id);
        Ok(())
    });
    let request = match within(turn.next_event()).await {
        Some(TurnEvent::Permission(request)) => request,
        other => panic!("{other:?}"),
    };
    let entries = all(other.read(StreamPosition::beginning(), None)).await;
    assert!(texts(&entries).iter().any(|text| text == "request session/request_permission"));
    assert!(request.is_open() && server.answers().is_empty());
    request.cancel().unwrap();
    while within(turn.next_event()).await.is_some() {}
    let id = ids.lock().unwrap()[0].clone();
    let entries = all(other.read(StreamPosition::beginning(), None)).await;
    let responds = |entry: &LogEntry| {
        matches!(&entry.record, LogRecord::Response { request_id, result: Ok(result), .. }
            if *request_id == id && result["stopReason"].is_string())
    };
    assert_eq!(entries.iter().filter(|entry| responds(entry)).count(), 1, "the echo ends the turn");
}

#[tokio::test]
async fn a_prompt_is_sent_after_the_function_before_it() {
    for kind in KINDS {
        let server = Arc::new(MockServer::start().await);
        let session = session(&client(&server, kind)).await;
        let watched = Arc::clone(&server);
        let turn = session.prompt_after("hello", move |id| async move {
            assert!(!id.is_empty() && watched.messages("session/prompt").is_empty());
            Ok(())
        });
        assert_eq!(within(turn.text()).await.unwrap(), "mock: hello");
        let refuse = |_| async { Err(Error::NotConnected) };
        let mut turn = session.prompt_after("never", refuse);
        assert!(matches!(within(turn.outcome()).await, Err(Error::NotConnected)));
        assert_eq!(server.messages("session/prompt").len(), 1);
        assert_eq!(within(session.prompt("again").text()).await.unwrap(), "mock: again");
    }
}

#[tokio::test]
async fn a_turn_from_events_behaves_like_any_other() {
    let script = Script::steps(vec![
        Step::Say("one".into()),
        Step::AskPermission(Permission::new(ToolCall::new("t", "Run"))),
        Step::Say("two".into()),
    ]);
    let server = MockServer::builder().agent("mock", script).start().await;
    let session = session(&client(&server, ServerKind::Shared)).await;
    let stored = Arc::new(Mutex::new(0));
    let behind_a_store = |stored: &Arc<Mutex<usize>>| {
        let (turn, stored) = (session.prompt("go"), Arc::clone(stored));
        let events = futures::stream::unfold((turn, stored), |(mut turn, stored)| async move {
            let event = turn.next_event().await?;
            *stored.lock().unwrap() += 1;
            Some((event, (turn, stored)))
        });
        Turn::from_events(session.clone(), events)
    };
    let collected = within(behind_a_store(&stored).collect()).await.unwrap();
    assert_eq!(collected.text, "onepermission: reject_oncetwo");
    assert!(*stored.lock().unwrap() >= 4);
    let answers = server.answers();
    assert_eq!(answers[0].answer["result"]["outcome"]["optionId"], "reject_once", "{answers:?}");

    let mut turn = behind_a_store(&stored);
    let mut decided = false;
    while let Some(event) = within(turn.next_event()).await {
        match event {
            TurnEvent::Permission(request) => {
                request.allow_once().unwrap();
                decided = true;
            }
            TurnEvent::Ended(outcome) => assert_eq!(outcome.unwrap().stop_reason, StopReason::EndTurn),
            _ => {}
        }
    }
    assert!(decided);
    let broken = Turn::from_events(session.clone(), futures::stream::empty().boxed());
    assert!(within(broken.text()).await.is_err());
}

#[tokio::test]
async fn dropping_a_turn_from_events_drops_its_stream() {
    let server = MockServer::builder().agent("mock", Script::steps(vec![Step::WaitForCancel])).start().await;
    let session = session(&client(&server, ServerKind::Shared)).await;
    let inner = session.prompt("go");
    let events = futures::stream::unfold(inner, |mut turn| async move {
        let event = turn.next_event().await?;
        Some((event, turn))
    });
    assert!(server.wait_for(|_| !server.messages("session/prompt").is_empty(), LIMIT).await);
    drop(Turn::from_events(session.clone(), events));
    assert!(server.wait_for(|_| !server.messages("session/cancel").is_empty(), LIMIT).await);
}

#[tokio::test]
async fn a_turn_from_events_whose_queue_overflows_is_incomplete() {
    let script = Script::steps(vec![Step::Flood { updates: 100, bytes: 10_000 }]);
    let server = MockServer::builder().agent("mock", script).start().await;
    let session = session(&options(&server, ServerKind::Shared).event_budget(100_000).build().unwrap()).await;
    let mut events = Vec::new();
    let wide = client(&server, ServerKind::Shared);
    let mut turn = super::support::session(&wide).await.prompt("go");
    while let Some(event) = within(turn.next_event()).await {
        events.push(event);
    }
    let mut turn = Turn::from_events(session, futures::stream::iter(events));
    // The feed never waits for its reader, so the queue has overflowed when the turn ends.
    let outcome = within(turn.outcome()).await.unwrap();
    assert!(matches!(outcome.missing[..], [Missed::Lagged(count)] if count > 50), "{:?}", outcome.missing);
    let error = within(turn.text()).await.unwrap_err();
    let Error::IncompleteTurn(turn) = &error else { panic!("{error:?}") };
    assert!(turn.collected.text.len() < 1_000_000);
}

/// An agent that repeats each prompt in one update.
fn repeats() -> Script {
    Script::new(|turn| vec![Step::Say(format!("mock: {}", turn.text))])
}

/// Reads the log until a text, and returns everything before it.
async fn until(log: &mut EventLog, last: &str) -> Vec<String> {
    let mut seen = Vec::new();
    while !seen.ends_with(&[last.to_owned()]) {
        let entry = within(log.next()).await.expect("another entry");
        seen.extend(short(&entry).filter(|text| !text.is_empty()));
    }
    seen
}

#[tokio::test]
async fn the_log_has_the_events_of_a_server_that_restarted_without_a_connection() {
    for kind in [ServerKind::Shared, ServerKind::PerAgent, ServerKind::ConnectionId] {
        let mut builder = MockServer::builder().agent("mock", repeats());
        if kind == ServerKind::ConnectionId {
            builder = builder.connection_ids(Some("x-acp-connection-id"));
        }
        let server = builder.start().await;
        let client = client(&server, kind);
        let mut log = client.events_from(None);
        let one = session(&client).await;
        for text in ["a", "b", "c"] {
            within(one.prompt(text).outcome()).await.unwrap();
        }
        until(&mut log, "mock: c").await;
        within(client.disconnect()).await.unwrap();
        server.restart(State::Lost).await;
        within(client.connect()).await.unwrap();
        let two = session(&client).await;
        within(two.prompt("d").outcome()).await.unwrap();
        within(two.prompt("e").outcome()).await.unwrap();
        let seen = until(&mut log, "mock: e").await;
        assert!(seen.iter().any(|text| text == "mock: d"), "{kind}: {seen:?}");
        assert!(!seen.iter().any(|text| text == "mock: a"), "{kind}: {seen:?}");
    }
}

#[tokio::test]
async fn the_log_has_each_event_once_after_a_new_connection_to_the_same_server() {
    let server = MockServer::builder().agent("mock", repeats()).start().await;
    let (watcher, writer) = (client(&server, ServerKind::Shared), client(&server, ServerKind::Shared));
    let theirs = session(&writer).await;
    within(theirs.prompt("early").outcome()).await.unwrap();
    let mut log = watcher.events_from(None);
    within(watcher.list_models(None)).await.unwrap();
    within(theirs.prompt("a").outcome()).await.unwrap();
    until(&mut log, "mock: a").await;
    within(watcher.disconnect()).await.unwrap();
    within(theirs.prompt("b").outcome()).await.unwrap();
    within(watcher.connect()).await.unwrap();
    within(theirs.prompt("c").outcome()).await.unwrap();
    let seen = until(&mut log, "mock: c").await;
    let said: Vec<_> = seen.iter().filter(|text| text.starts_with("mock: ")).collect();
    assert_eq!(said, ["mock: b", "mock: c"], "{seen:?}");
}

#[tokio::test]
async fn a_log_from_a_position_of_another_server_has_everything_of_this_one() {
    let server = MockServer::builder().agent("mock", repeats()).start().await;
    let first = client(&server, ServerKind::Shared);
    let session_one = session(&first).await;
    let mut log = first.events_from(None);
    for text in ["a", "b", "c"] {
        within(session_one.prompt(text).outcome()).await.unwrap();
    }
    until(&mut log, "mock: c").await;
    let position = log.position().unwrap();
    let position = StreamPosition::new(7, position.offset, position.fingerprint);
    drop(first);
    // The number of the incarnation is that of another process and means nothing here.
    let second = client(&server, ServerKind::Shared);
    let mut log = second.events_from(position);
    let session_two = session(&second).await;
    within(session_two.prompt("d").outcome()).await.unwrap();
    let seen = until(&mut log, "mock: d").await;
    assert!(!seen.iter().any(|text| text == "mock: c" || text == "restarted"), "{seen:?}");
    drop(second);
    server.restart(State::Lost).await;
    let third = client(&server, ServerKind::Shared);
    let session_three = session(&third).await;
    for text in ["u", "v", "w", "x"] {
        within(session_three.prompt(text).outcome()).await.unwrap();
    }
    let mut log = third.events_from(position);
    let seen = until(&mut log, "mock: x").await;
    assert_eq!(seen, ["restarted", "mock: u", "mock: v", "mock: w", "mock: x"]);
}
