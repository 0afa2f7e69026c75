//! Memory is bounded, and a message over a limit loses nothing else.

use acp_http_client::{Error, Event, Limits};
use mock_server::{Fault, Step};
use sdk_tests::{
    Collected, acp_server, client, collect_until, eventually, numbered, prompt, session, texts, within,
};
use serde_json::json;

fn small() -> Limits {
    let mut limits = Limits::default();
    limits.message = 256 * 1024;
    limits
}

#[tokio::test]
async fn an_event_over_the_limit_is_reported_and_the_rest_is_delivered() {
    let server = acp_server(|_| numbered(5)).start().await;
    let client = client(&server).limits(small()).build().unwrap();
    let session = session(&client).await;
    let mut events = client.events();
    server.inject(Fault::OversizeEvent { bytes: 1 << 20 });
    within("the turn", prompt(&client, &session, "go")).await.unwrap();
    let mut seen = Collected::default();
    seen.drain(&mut events);
    let errors: Vec<_> = seen.events.iter().filter(|event| matches!(event, Event::TooLarge { .. })).collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    let Event::TooLarge { error: Error::MessageTooLarge { limit, seen: bytes, event_id } } = errors[0] else {
        panic!("{errors:?}")
    };
    assert_eq!((*limit, event_id.clone()), (256 * 1024, Some(3.into())));
    assert!(*bytes > *limit && *bytes < 2 * *limit);
    assert_eq!(seen.texts().len(), 5);
    assert_eq!(client.diagnostics().oversize, 1, "it is not fetched again");
}

#[tokio::test]
async fn an_event_that_never_ends_fails_at_the_limit_and_the_stream_continues() {
    let endless = Fault::UnterminatedEvent { bytes: 16 << 20 }.times(1);
    let server = acp_server(|_| numbered(5)).fault(endless).start().await;
    let client = client(&server).limits(small()).build().unwrap();
    let mut events = client.events();
    let session = session(&client).await;
    let seen =
        collect_until(&mut events, "the report", |event| matches!(event, Event::TooLarge { .. })).await;
    assert!(matches!(
        seen.events.last(),
        Some(Event::TooLarge { error: Error::MessageTooLarge { limit, .. } }) if *limit == 256 * 1024
    ));
    within("the turn", prompt(&client, &session, "go")).await.unwrap();
    eventually("the turn's events", || client.diagnostics().messages >= 7).await;
    assert_eq!(texts(&mut events).len(), 5);
    assert_eq!(client.diagnostics().oversize, 1);
}

#[tokio::test]
async fn a_response_over_the_limit_fails_only_its_request() {
    let big = "x".repeat(1 << 20);
    let server =
        acp_server(move |_| vec![Step::Finish(json!({"stopReason": "end_turn", "big": big}))]).start().await;
    let client = client(&server).limits(small()).build().unwrap();
    let one = session(&client).await;
    let error = within("the prompt", prompt(&client, &one, "go")).await.unwrap_err();
    assert!(matches!(error, Error::MessageTooLarge { .. }), "{error:?}");
    assert!(error.maybe_executed());
    // The connection is as good as before.
    session(&client).await;
    assert!(!client.state().is_terminated());
}

#[tokio::test]
async fn thirty_two_mebibytes_pass_either_way_by_default() {
    let size = 32 << 20;
    let big = "x".repeat(size);
    // Each in a separate turn: this takes long, and the time limit is per turn.
    let server = acp_server(move |turn| match turn.text.as_str() {
        "an update" => vec![Step::Flood { updates: 1, bytes: size }],
        _ => vec![Step::Finish(json!({"stopReason": "end_turn", "big": big}))],
    });
    let server = server.start().await;
    let client = client(&server).build().unwrap();
    let session = session(&client).await;
    let mut events = client.events();
    within("the update", prompt(&client, &session, "an update")).await.unwrap();
    assert_eq!(texts(&mut events)[0].len(), size);
    let reply = within("the response", prompt(&client, &session, "a response")).await.unwrap();
    assert!(reply.raw().as_bytes().len() > size);
}

#[tokio::test]
async fn a_slow_subscriber_receives_the_number_of_missed_events_and_blocks_nothing() {
    let updates = 2_000;
    let server = acp_server(move |_| vec![Step::Flood { updates, bytes: 1_000 }])
        .replay_buffer(usize::MAX)
        .start()
        .await;
    let mut limits = Limits::default();
    limits.subscriber = 100_000;
    let client = client(&server).limits(limits).build().unwrap();
    let session = session(&client).await;
    let mut lazy = client.events();
    within("the turn, although no one reads", prompt(&client, &session, "go")).await.unwrap();
    let mut seen = Collected::default();
    seen.drain(&mut lazy);
    let missed: u64 = seen
        .events
        .iter()
        .map(|event| match event {
            Event::Lagged(count) => *count,
            _ => 0,
        })
        .sum();
    assert!(missed > 0);
    assert_eq!(seen.texts().len() as u64 + missed, updates as u64, "what was missed is counted to the event");
    // It continues behind the hole, and the count stays exact.
    let again = tokio::spawn(prompt(&client, &session, "go"));
    let mut count = 0u64;
    within("the next turn's updates", async {
        while count < updates as u64 {
            match lazy.recv().await {
                Some(Event::Update(_)) => count += 1,
                Some(Event::Lagged(missed)) => count += missed,
                other => assert!(other.is_some()),
            }
        }
    })
    .await;
    within("the next turn", again).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_request_over_the_servers_limit_fails_and_the_connection_stays() {
    let server = acp_server(|_| numbered(1)).start().await;
    let client = client(&server).build().unwrap();
    let session = session(&client).await;
    let error = within("the prompt", prompt(&client, &session, &"x".repeat(3 << 20))).await.unwrap_err();
    assert!(
        matches!(&error, Error::PayloadTooLarge { method, size, .. } if method == "session/prompt" && *size > 3 << 20),
        "{error:?}"
    );
    within("the next prompt", prompt(&client, &session, "small")).await.unwrap();
}
