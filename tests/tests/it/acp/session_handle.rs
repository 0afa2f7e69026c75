//! The handle of a session: its turns and its events.

use std::time::Duration;

use acp_http_client::{
    AcpHttpClient, Error, Event, PromptTurn, RequestOptions, SessionId, schema::v1::StopReason,
};
use mock_server::Step;
use sdk_tests::{acp_server, client, eventually, session, within};

const UPDATES: usize = 20;

fn text(event: &Event) -> Option<&str> {
    match event {
        Event::Update(update) => update.message_text(),
        _ => None,
    }
}

/// Reads a turn to its end: the texts, and the stop reason.
async fn finish(mut turn: PromptTurn) -> (Vec<String>, Result<Option<StopReason>, Error>) {
    let mut texts = Vec::new();
    while let Some(event) = turn.recv().await {
        texts.extend(text(&event).map(str::to_owned));
    }
    let response = turn.response().await;
    (texts, response.map(|response| response.known().map(|response| response.stop_reason)))
}

#[tokio::test]
async fn a_turn_is_a_stream_of_its_own_events_that_ends_with_its_response() {
    let server = acp_server(|turn| {
        (0..UPDATES).map(|number| Step::Say(format!("{} {number}", turn.session_id))).collect()
    });
    let server = server.start().await;
    let client = client(&server).build().unwrap();
    let ids = [SessionId::from(session(&client).await), SessionId::from(session(&client).await)];
    let mut events = client.session(&ids[0]).events();
    let [one, two] = ids.clone().map(|id| finish(client.session(id).prompt(vec!["go".into()])));
    let (one, two) = within("the turns", async { tokio::join!(one, two) }).await;
    for (id, (texts, reason)) in ids.iter().zip([one, two]) {
        let expected: Vec<_> = (0..UPDATES).map(|number| format!("{} {number}", id.as_str())).collect();
        assert_eq!(texts, expected);
        assert_eq!(reason.unwrap(), Some(StopReason::EndTurn));
    }
    // A subscription of one session has nothing of the other either.
    let mut count = 0;
    while let Some(event) = events.try_recv() {
        if let Some(text) = text(&event) {
            assert!(text.starts_with(ids[0].as_str()), "{text}");
            count += 1;
        }
    }
    assert_eq!(count, UPDATES);
}

async fn running(client: &AcpHttpClient, id: &SessionId) -> PromptTurn {
    let mut turn = client.session(id).prompt(vec!["go".into()]);
    while text(&within("an update", turn.recv()).await.unwrap()).is_none() {}
    turn
}

#[tokio::test]
async fn a_turn_is_sent_when_it_is_polled_and_is_cancelled_by_its_session_or_by_dropping_it() {
    let server = acp_server(|_| vec![Step::Say("working".into()), Step::WaitForCancel]).start().await;
    let client = client(&server).build().unwrap();
    let id = SessionId::from(session(&client).await);
    let cancels = || {
        let bodies = server.requests_to("POST", "/v1/rpc");
        bodies
            .iter()
            .filter(|request| String::from_utf8_lossy(&request.body).contains("session/cancel"))
            .count()
    };
    drop(client.session(&id).prompt(vec!["never sent".into()]));
    assert!(client.diagnostics().pending.is_empty());

    let turn = running(&client, &id).await;
    within("the cancel", client.session(&id).cancel()).await.unwrap();
    let (_, reason) = within("the turn", finish(turn)).await;
    assert_eq!(reason.unwrap(), Some(StopReason::Cancelled));
    let before = cancels();
    assert!(before >= 1);

    drop(running(&client, &id).await);
    eventually("the cancel", || cancels() > before).await;
    assert!(client.diagnostics().pending.is_empty());
}

#[tokio::test]
async fn a_turn_takes_options_and_begins_when_its_prompt_is_sent() {
    let server = acp_server(|turn| match turn.text.as_str() {
        "hang" => vec![Step::Hang],
        _ => vec![Step::Say("new".into())],
    })
    .start()
    .await;
    let client = client(&server).build().unwrap();
    let id = SessionId::from(session(&client).await);
    let turn = client.session(&id).prompt(vec!["go".into()]);
    assert_eq!(client.diagnostics().subscribers, 0, "nothing is registered before the first poll");
    let update = serde_json::json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "old"}});
    server.emit(serde_json::json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": id.as_str(), "update": update}}));
    let last = server.last_event_id();
    eventually("the old update", || client.last_event_id().and_then(|id| id.as_number()) == Some(last)).await;
    let (texts, reason) = within("the turn", finish(turn)).await;
    assert_eq!((texts, reason.unwrap()), (vec!["new".to_owned()], Some(StopReason::EndTurn)));

    let limit = RequestOptions::new().timeout(Duration::from_millis(50));
    let turn = client.session(&id).prompt_with(vec!["hang".into()], limit);
    let (_, error) = within("the turn", finish(turn)).await;
    assert!(error.unwrap_err().is_timeout());
}
