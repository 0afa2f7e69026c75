//! A prompt returns only after its updates.

use std::time::Duration;

use mock_server::{Echo, Fault, Step};
use sdk_tests::{acp_server, client, numbered, prompt, session, texts, within};

fn expected(count: usize) -> Vec<String> {
    (0..count).map(|number| number.to_string()).collect()
}

#[tokio::test]
async fn every_update_is_delivered_before_the_prompt_returns() {
    for echo in [Echo::BodyAndStream, Echo::BodyOnly, Echo::StreamOnly] {
        let server = acp_server(|_| numbered(500)).echo(echo).start().await;
        let client = client(&server).build().unwrap();
        let session = session(&client).await;
        for turn in 0..3 {
            let mut events = client.events();
            let reply = within("the prompt", prompt(&client, &session, "go")).await.unwrap();
            assert_eq!(texts(&mut events), expected(500), "turn {turn} with {echo:?}");
            assert_eq!(reply.raw().to_value().unwrap()["stopReason"], "end_turn");
        }
        client.close().await;
    }
}

#[tokio::test]
async fn twenty_thousand_updates_are_delivered_before_the_prompt_returns() {
    for echo in [Echo::BodyAndStream, Echo::BodyOnly, Echo::StreamOnly] {
        let server = acp_server(|_| vec![Step::Flood { updates: 20_000, bytes: 20 }])
            .ring(usize::MAX)
            .echo(echo)
            .start()
            .await;
        let client = client(&server).build().unwrap();
        let session = session(&client).await;
        let mut events = client.events();
        within("the prompt", prompt(&client, &session, "go")).await.unwrap();
        assert_eq!(texts(&mut events).len(), 20_000, "with {echo:?}");
    }
}

#[tokio::test]
async fn a_body_that_overtakes_the_stream_is_held_for_its_updates() {
    let server = acp_server(|_| numbered(500)).start().await;
    let client = client(&server).build().unwrap();
    let session = session(&client).await;
    server.inject(
        Fault::BodyBeforeUpdates { delay: Duration::from_millis(300) }.on_method("session/prompt").times(1),
    );
    let mut events = client.events();
    within("the prompt", prompt(&client, &session, "go")).await.unwrap();
    assert_eq!(server.fired("BodyBeforeUpdates"), 1);
    assert_eq!(texts(&mut events), expected(500));
}
