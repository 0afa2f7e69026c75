//! Reopening a lost stream, with backoff.

use std::time::Duration;

use acp_http_client::{ConnectionState, Event, ReconnectPolicy, Timeouts};
use mock_server::{Fault, State, Step};
use sdk_tests::{
    acp_server, client, collect_until, eventually, handshake, numbered, prompt, session, texts, within,
};
use tokio::time::Instant;

#[tokio::test]
async fn a_server_that_accepts_and_closes_sees_a_handful_of_connects() {
    let server = acp_server(|_| vec![]).fault(Fault::StreamAcceptThenClose).start().await;
    let client = client(&server).build().unwrap();
    let started = Instant::now();
    handshake(&client).await.unwrap();
    // The sixth connect comes after 3.1 s by the schedule, ten seconds hold seven of them.
    eventually("six connects", || server.requests_to("GET", "/v1/rpc").len() >= 6).await;
    assert!(started.elapsed() > Duration::from_secs(2), "six connects within {:?}", started.elapsed());
    assert!(matches!(client.state(), ConnectionState::Reconnecting { attempt } if attempt >= 4));
}

#[tokio::test]
async fn progress_resets_the_backoff() {
    let server = acp_server(|_| numbered(1)).start().await;
    let policy = ReconnectPolicy::default().base(Duration::from_millis(1)).max_attempts(3);
    let client = client(&server).reconnect(policy).build().unwrap();
    let mut events = client.events();
    let session = session(&client).await;
    // Ten losses with progress between them: three attempts in a row are never used up.
    for _ in 0..10 {
        within("a turn", prompt(&client, &session, "go")).await.unwrap();
        server.restart(State::Preserved).await;
        collect_until(&mut events, "the reconnect", |event| matches!(event, Event::Reconnected { .. })).await;
    }
    assert!(!client.state().is_terminated());
}

#[tokio::test]
async fn the_servers_retry_field_is_the_first_delay() {
    let server = acp_server(|_| vec![]).fault(Fault::Retry(1_500)).start().await;
    let client = client(&server).build().unwrap();
    handshake(&client).await.unwrap();
    eventually("the stream to open", || server.open_streams() == 1).await;
    let mut events = client.events();
    let lost = Instant::now();
    server.restart(State::Preserved).await;
    collect_until(&mut events, "the reconnect", |event| matches!(event, Event::Reconnected { .. })).await;
    assert!(lost.elapsed() > Duration::from_millis(1_100), "after {:?}", lost.elapsed());
}

fn watchful(idle: Duration) -> Timeouts {
    let mut timeouts = Timeouts::default();
    timeouts.stream_idle = Some(idle);
    timeouts
}

#[tokio::test]
async fn comments_keep_a_silent_stream_open() {
    let server = acp_server(|_| vec![Step::Wait(Duration::from_secs(2)), Step::Say("late".into())])
        .heartbeat(Duration::from_millis(50))
        .start()
        .await;
    let client = client(&server).timeouts(watchful(Duration::from_millis(600))).build().unwrap();
    let session = session(&client).await;
    let mut events = client.events();
    within("the turn", prompt(&client, &session, "go")).await.unwrap();
    assert_eq!(texts(&mut events), ["late"]);
    assert_eq!(server.requests_to("GET", "/v1/rpc").len(), 1, "the stream was never opened again");
}

#[tokio::test]
async fn a_silent_stream_is_reopened() {
    let server = acp_server(|_| numbered(5)).fault(Fault::StreamStall.times(1)).start().await;
    let client = client(&server).timeouts(watchful(Duration::from_millis(200))).build().unwrap();
    let session = session(&client).await;
    let mut events = client.events();
    within("the turn", prompt(&client, &session, "go")).await.unwrap();
    eventually("the stream to be read", || client.diagnostics().messages >= 8).await;
    assert_eq!(texts(&mut events).len(), 5);
    assert_eq!(server.fired("StreamStall"), 1);
}

#[tokio::test]
async fn a_total_timeout_on_the_programs_own_http_client_loses_nothing() {
    let server = acp_server(|_| {
        let say = |number: usize| [Step::Say(number.to_string()), Step::Wait(Duration::from_millis(100))];
        (0..12).flat_map(say).collect()
    })
    .start()
    .await;
    let http = acp_http_client::http_client_builder().timeout(Duration::from_millis(500)).build().unwrap();
    let client = client(&server).http_client(http).build().unwrap();
    let session = session(&client).await;
    let mut events = client.events();
    within("the turn", prompt(&client, &session, "go")).await.unwrap();
    assert_eq!(texts(&mut events), (0..12).map(|number| number.to_string()).collect::<Vec<_>>());
    assert!(client.diagnostics().reconnects > 0);
}
