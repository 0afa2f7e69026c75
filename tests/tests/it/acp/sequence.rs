//! Events are delivered exactly once and in order, whatever happens to the stream.

use std::time::Duration;

use acp_http_client::{Event, Origin, ReconnectPolicy};
use futures::StreamExt;
use mock_server::{Cut, Fault, LineEnding, MockServer, State, Step};
use sdk_tests::{acp_server, client, collect_until, eventually, numbered, prompt, session, texts, within};
use serde_json::json;

const EVENTS: usize = 50;

fn quick() -> ReconnectPolicy {
    ReconnectPolicy::default().base(Duration::from_millis(1)).cap(Duration::from_millis(5))
}

fn expected(count: usize) -> Vec<String> {
    (0..count).map(|number| number.to_string()).collect()
}

/// A turn of fifty events, as short as messages can be, so that every byte of it can be the last.
fn short_turn() -> Vec<Step> {
    (0..EVENTS).map(|number| Step::Raw(json!({"method": "n", "params": number}))).collect()
}

/// Runs such a turn over a stream that is cut once at this byte, and gives the numbers that were delivered.
async fn turn_cut_at(byte: u64, cut: Cut) -> (Vec<u64>, usize) {
    let server = acp_server(|_| short_turn()).start().await;
    server.inject(Fault::StreamCutAt { byte, cut }.times(1));
    let client = client(&server).reconnect(quick()).build().unwrap();
    let mut events = client.events();
    let session = session(&client).await;
    within("the turn", prompt(&client, &session, "go")).await.unwrap();
    let mut numbers = Vec::new();
    while let Some(event) = events.try_recv() {
        if let Event::Notification(notification) = event {
            numbers.push(notification.params.parse().unwrap());
        }
    }
    (numbers, server.fired("StreamCutAt"))
}

/// How many bytes the stream of such a turn has.
async fn length_of_a_turn() -> u64 {
    let server = acp_server(|_| short_turn()).start().await;
    let client = client(&server).build().unwrap();
    let session = session(&client).await;
    within("the turn", prompt(&client, &session, "go")).await.unwrap();
    let http = acp_http_client::http_client_builder().build().unwrap();
    let stream = http.get(format!("{}/v1/rpc", server.url())).header("accept", "text/event-stream");
    let mut response = stream.send().await.unwrap();
    let mut seen = Vec::new();
    while seen.windows(14).filter(|window| window == b"event: message").count() < EVENTS + 3 {
        seen.extend_from_slice(&response.chunk().await.unwrap().unwrap());
    }
    seen.len() as u64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_cut_at_any_byte_gives_each_event_once_and_in_order() {
    let length = length_of_a_turn().await;
    let expected: Vec<u64> = (0..EVENTS as u64).collect();
    let mut fired = 0;
    let mut turns = futures::stream::iter(0..length)
        .map(|byte| {
            let cut = [Cut::Dropped, Cut::Clean, Cut::Reset][byte as usize % 3];
            tokio::spawn(async move { (byte, turn_cut_at(byte, cut).await) })
        })
        .buffer_unordered(8);
    while let Some(turn) = turns.next().await {
        let (byte, (numbers, cuts)) = turn.unwrap();
        assert_eq!(numbers, expected, "cut at byte {byte}");
        fired += cuts as u64;
    }
    assert!(fired >= length - 1, "{fired} of {length} turns were really cut");
}

#[tokio::test]
async fn any_framing_gives_the_same_events() {
    let framings = [
        Fault::LineEnding(LineEnding::CrLf),
        Fault::LineEnding(LineEnding::Cr),
        Fault::LineEnding(LineEnding::Mixed),
        Fault::Bom,
        Fault::ChunkSize(1),
        Fault::ChunkSize(7),
        Fault::Retry(0),
    ];
    for framing in framings {
        let name = format!("{framing:?}");
        let server = acp_server(|_| numbered(EVENTS)).fault(framing).start().await;
        let client = client(&server).build().unwrap();
        let mut events = client.events();
        let session = session(&client).await;
        within(&name, prompt(&client, &session, "go")).await.unwrap();
        assert_eq!(texts(&mut events), expected(EVENTS), "{name}");
        assert_eq!(client.diagnostics().reconnects, 0, "{name}");
    }
}

#[tokio::test]
async fn repeats_are_dropped() {
    let server = acp_server(|_| numbered(10)).start().await;
    for id in 3..10 {
        server.inject(Fault::Repeat { id });
    }
    let client = client(&server).build().unwrap();
    let mut events = client.events();
    let session = session(&client).await;
    within("the turn", prompt(&client, &session, "go")).await.unwrap();
    assert_eq!(texts(&mut events), expected(10));
    assert!(server.fired("Repeat") >= 7);
    assert_eq!(client.diagnostics().repeats, 7);
}

#[tokio::test]
async fn a_hole_is_fetched_again_from_the_last_contiguous_event() {
    let server = acp_server(|_| numbered(20)).start().await;
    server.inject(Fault::Hole { id: 8 }.times(1));
    let client = client(&server).build().unwrap();
    let mut events = client.events();
    let session = session(&client).await;
    within("the turn", prompt(&client, &session, "go")).await.unwrap();
    assert_eq!(server.fired("Hole"), 1);
    assert_eq!(texts(&mut events), expected(20));
    let gets = server.requests_to("GET", "/v1/rpc");
    assert_eq!(gets.len(), 2);
    // One event that was seen is asked for again: it proves that the server is still the same one.
    assert_eq!(gets[1].header("last-event-id"), Some("6"));
}

#[tokio::test]
async fn a_hole_that_cannot_be_filled_is_reported_with_its_bounds_in_order() {
    let server = acp_server(|_| numbered(20)).start().await;
    for id in [8, 9, 10] {
        server.inject(Fault::Hole { id });
    }
    let client = client(&server).build().unwrap();
    let mut events = client.events();
    let session = session(&client).await;
    within("the turn", prompt(&client, &session, "go")).await.unwrap();
    let seen = collect_until(
        &mut events,
        "the last update",
        |event| matches!(event, Event::Update(update) if update.message_text() == Some("19")),
    )
    .await;
    let gap = seen.events.iter().position(|event| matches!(event, Event::Gap { from: 8, to: 10, .. }));
    let before =
        seen.events[..gap.expect("a gap")].iter().filter(|event| matches!(event, Event::Update(_))).count();
    assert_eq!(before, 5, "events 3 to 7 are the first five updates");
    assert_eq!(seen.texts().len(), 17);
    assert_eq!(client.diagnostics().gaps, 1);
}

#[tokio::test]
async fn events_that_left_the_replay_buffer_are_reported_as_a_gap() {
    let server =
        acp_server(|_| vec![Step::Flood { updates: 500, bytes: 10 }]).replay_buffer(100).start().await;
    let client = client(&server).reconnect(quick()).build().unwrap();
    let session = session(&client).await;
    eventually("the stream to open", || server.open_streams() == 1).await;
    let mut events = client.events();
    // The stream is down for the whole turn, and the replay buffer is smaller than the turn.
    server.inject(Fault::StreamRefused { status: 503 });
    server.restart(State::Preserved).await;
    let turn = tokio::spawn(prompt(&client, &session, "go"));
    eventually("the turn to be over", || server.last_event_id() >= 503).await;
    server.clear_faults();
    within("the turn", turn).await.unwrap().unwrap();
    let seen = collect_until(&mut events, "the gap", |event| matches!(event, Event::Gap { .. })).await;
    let Some(Event::Gap { from, to, .. }) = seen.events.last() else { unreachable!() };
    assert_eq!((*from, *to), (3, 403));
    eventually("the rest", || client.diagnostics().messages >= 102).await;
    assert_eq!(texts(&mut events).len(), 99);
}

#[tokio::test]
async fn a_restarted_server_whose_ids_begin_again_loses_nothing() {
    let server = acp_server(|_| numbered(20)).start().await;
    let client = client(&server).reconnect(quick()).build().unwrap();
    let mut events = client.events();
    let first = session(&client).await;
    within("the first turn", prompt(&client, &first, "go")).await.unwrap();
    assert_eq!(texts(&mut events), expected(20));
    server.restart(State::Lost).await;
    // The new server responds and sends events before the client's stream is reopened: its ids are all lower than the last one seen.
    let second = session(&client).await;
    within("the second turn", prompt(&client, &second, "go")).await.unwrap();
    assert_eq!(texts(&mut events), expected(20));
    assert_eq!(client.diagnostics().restarts, 1);
}

#[tokio::test]
async fn numbering_that_begins_again_on_an_open_stream_loses_nothing() {
    let server = acp_server(|_| numbered(20)).start().await;
    let client = client(&server).build().unwrap();
    let mut events = client.events();
    let session = session(&client).await;
    within("the first turn", prompt(&client, &session, "go")).await.unwrap();
    server.inject(Fault::SequenceReset);
    within("the second turn", prompt(&client, &session, "go")).await.unwrap();
    let twice: Vec<_> = expected(20).into_iter().chain(expected(20)).collect();
    assert_eq!(texts(&mut events), twice);
}

#[tokio::test]
async fn a_request_that_a_restart_lost_fails() {
    let server = acp_server(|_| vec![Step::Hang]).start().await;
    let client = client(&server).reconnect(quick()).build().unwrap();
    let old = session(&client).await;
    let hanging = tokio::spawn(prompt(&client, &old, "go"));
    eventually("the prompt to arrive", || server.messages("session/prompt").len() == 1).await;
    server.restart(State::Lost).await;
    session(&client).await;
    let error = within("the prompt", hanging).await.unwrap().unwrap_err();
    assert!(matches!(error, acp_http_client::Error::ServerRestarted { .. }), "{error:?}");
    assert!(error.maybe_executed());
}

#[tokio::test]
async fn the_backlog_of_another_client_is_marked_and_gets_no_responses() {
    let server = MockServer::builder().default_agent("mock").start().await;
    server.inject(Fault::StaleReplayBuffer { count: 50 });
    let client = client(&server).build().unwrap();
    let mut events = client.events();
    let session = session(&client).await;
    within("the turn", prompt(&client, &session, "hello")).await.unwrap();
    let mut seen = sdk_tests::Collected::default();
    seen.drain(&mut events);
    let requests: Vec<_> = seen
        .events
        .iter()
        .filter_map(|event| match event {
            Event::AgentRequest { request, .. } => Some(request.meta.origin),
            _ => None,
        })
        .collect();
    assert_eq!(requests, [Origin::Replayed], "the old permission request is reported as old");
    assert!(server.answers().is_empty(), "and it is not answered");
    assert!(seen.texts().join("").contains("hello"));
}

#[tokio::test]
async fn a_client_that_resumes_receives_exactly_what_follows() {
    let server = acp_server(|_| numbered(20)).start().await;
    let first = client(&server).build().unwrap();
    let session = session(&first).await;
    within("the first turn", prompt(&first, &session, "go")).await.unwrap();
    let cursor = first.last_event_id().unwrap();
    drop(first);
    let second = client(&server).resume_from(cursor).build().unwrap();
    let mut events = second.events();
    within("the second turn", prompt(&second, &session, "go")).await.unwrap();
    assert_eq!(texts(&mut events), expected(20));
}
