//! Agent requests, and requests that are cancelled or dropped.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use acp_http_client::{
    AcpHttpClient, AgentHandler, AgentRequest, Call, Dialect, Direction, Error, Event, Events, Origin,
    RequestOptions, RpcError, Timeouts,
    schema::v1::{
        CancelNotification, ContentBlock, LoadSessionRequest, PromptRequest, ReadTextFileRequest,
        ReadTextFileResponse, RequestPermissionOutcome, RequestPermissionRequest, RequestPermissionResponse,
        SelectedPermissionOutcome, TextContent,
    },
};
use mock_server::{Fault, MockServer, Script, State, Step};
use sdk_tests::{
    Collected, LIMIT, acp_server, client, eventually, handshake, numbered, prompt, session, texts, within,
};
use serde_json::{Value, json};

fn ask(method: &str, params: Value) -> Step {
    Step::Request { method: method.into(), params }
}

/// Answers everything it can.
struct Helpful {
    seen: Arc<AtomicUsize>,
}

impl AgentHandler for Helpful {
    async fn request_permission(
        &self,
        call: Call<RequestPermissionRequest>,
    ) -> Result<RequestPermissionResponse, RpcError> {
        self.seen.fetch_add(1, Ordering::SeqCst);
        // A handler may call the client that it serves.
        let sessions: Value =
            call.client().request("session/list", &json!({})).await.map_err(RpcError::internal)?;
        assert!(sessions["sessions"].is_array());
        let option = SelectedPermissionOutcome::new(call.options[0].option_id.clone());
        Ok(RequestPermissionResponse::new(RequestPermissionOutcome::Selected(option)))
    }

    async fn read_text_file(
        &self,
        call: Call<ReadTextFileRequest>,
    ) -> Result<ReadTextFileResponse, RpcError> {
        Ok(ReadTextFileResponse::new(format!("content of {}", call.path.display())))
    }

    async fn other(&self, request: AgentRequest) -> Result<Value, RpcError> {
        match request.method() {
            "_x/echo" => Ok(request.params().to_value().unwrap()),
            method => Err(RpcError::method_not_found(method)),
        }
    }
}

#[tokio::test]
async fn a_handler_responds_to_typed_and_extension_requests_and_rejects_unknown_ones() {
    let server = acp_server(|turn| {
        let session = &turn.session_id;
        let options = json!([{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]);
        vec![
            ask(
                "session/request_permission",
                json!({"sessionId": session, "toolCall": {"toolCallId": "t"}, "options": options}),
            ),
            ask("fs/read_text_file", json!({"sessionId": session, "path": "/a"})),
            ask("_x/echo", json!({"n": 1})),
            ask("_x/unknown", json!({})),
            ask("terminal/create", json!({"sessionId": session, "command": "ls"})),
        ]
    })
    .start()
    .await;
    let seen = Arc::new(AtomicUsize::new(0));
    let client = client(&server).handler(Helpful { seen: seen.clone() }).build().unwrap();
    let session = session(&client).await;
    within("the turn", prompt(&client, &session, "go")).await.unwrap();
    assert_eq!(seen.load(Ordering::SeqCst), 1);
    let answers: Vec<Value> = server.answers().iter().map(|answer| answer.answer.clone()).collect();
    assert_eq!(answers[0]["result"], json!({"outcome": {"outcome": "selected", "optionId": "yes"}}));
    assert_eq!(answers[1]["result"]["content"], "content of /a");
    assert_eq!(answers[2]["result"]["n"], 1);
    assert_eq!(answers[3]["error"]["code"], -32601);
    assert_eq!(answers[4]["error"]["code"], -32601);
}

#[tokio::test]
async fn fifty_concurrent_agent_requests_get_responses_in_any_order() {
    let server = acp_server(|_| vec![Step::FireRequests(50)]).start().await;
    let (builder, mut requests) = client(&server).agent_requests();
    let client = builder.build().unwrap();
    let session = session(&client).await;
    let turn = tokio::spawn(prompt(&client, &session, "go"));
    let mut open = Vec::new();
    while open.len() < 50 {
        open.push(within("a request", requests.recv()).await.expect("a request"));
    }
    assert!(requests.try_recv().is_none());
    for (number, (request, responder)) in open.into_iter().rev().enumerate() {
        assert_eq!(request.method(), "session/request_permission");
        match number % 3 {
            0 => assert!(
                responder.respond(&json!({"outcome": {"outcome": "selected", "optionId": "allow_once"}}))
            ),
            1 => assert!(responder.error(RpcError::new(-1, "no"))),
            _ => drop(responder),
        }
    }
    within("the turn", turn).await.unwrap().unwrap();
    assert_eq!(server.answers().len(), 50);
    assert!(client.diagnostics().open_agent_requests.is_empty());
}

#[tokio::test]
async fn an_agent_request_left_to_another_client_gets_one_response() {
    let server = acp_server(|_| vec![Step::FireRequests(3)]).start().await;
    let (builder, mut seen) = client(&server).agent_requests();
    let bystander = builder.build().unwrap();
    session(&bystander).await;
    let (builder, mut requests) = client(&server).agent_requests();
    let client = builder.build().unwrap();
    let session = session(&client).await;
    let turn = tokio::spawn(prompt(&client, &session, "go"));
    for _ in 0..3 {
        let (_, responder) = within("a request", seen.next()).await.unwrap();
        assert!(responder.ignore());
    }
    eventually("nothing is open", || bystander.diagnostics().open_agent_requests.is_empty()).await;
    assert!(server.answers().is_empty());
    for _ in 0..3 {
        let (_, responder) = within("a request", requests.next()).await.unwrap();
        assert!(responder.respond(&json!({"outcome": {"outcome": "selected", "optionId": "allow_once"}})));
    }
    within("the turn", turn).await.unwrap().unwrap();
    let answers = server.answers();
    assert_eq!(answers.len(), 3);
    assert!(answers.iter().all(|answer| answer.answer["result"]["outcome"]["optionId"] == "allow_once"));
}

#[tokio::test]
async fn an_idle_client_leaves_the_agent_requests_of_other_clients_alone() {
    let server = MockServer::builder().default_agent("mock").start().await;
    let builder = || AcpHttpClient::builder(server.url()).dialect(Dialect::RPC);
    let seen = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let idle =
        [builder().build().unwrap(), builder().handler(Helpful { seen: seen[0].clone() }).build().unwrap()];
    let mut events = Vec::new();
    for client in &idle {
        // A separate session makes no difference.
        session(client).await;
        events.push(client.events());
    }
    let client = builder().handler(Helpful { seen: seen[1].clone() }).build().unwrap();
    let session = session(&client).await;
    let reply = within("the turn", prompt(&client, &session, "permission")).await.unwrap();
    assert_eq!(reply.raw().to_value().unwrap()["stopReason"], "end_turn");
    for (client, events) in idle.iter().zip(&mut events) {
        let asked =
            async { while !matches!(events.recv().await.expect("an event"), Event::AgentRequest { .. }) {} };
        within("the request is published", asked).await;
        assert!(client.diagnostics().open_agent_requests.is_empty());
    }
    assert_eq!(seen.map(|seen| seen.load(Ordering::SeqCst)), [0, 1]);
    let sent = server.requests();
    let answers = sent.iter().filter(|sent| sent.json().is_some_and(|sent| sent.get("method").is_none()));
    assert_eq!(answers.count(), 1, "only the client of the turn responds");
}

#[tokio::test]
async fn without_a_handler_permissions_are_refused() {
    let server = MockServer::builder().default_agent("mock").start().await;
    let client = client(&server).build().unwrap();
    let session = session(&client).await;
    within("the turn", prompt(&client, &session, "permission")).await.unwrap();
    let answers = server.answers();
    assert_eq!(answers.len(), 1);
    let outcome = &answers[0].answer["result"]["outcome"];
    assert_ne!(outcome["optionId"], "allow_once", "{outcome}");
}

/// The agent has its responses before the cancel arrives.
fn assert_answered_before_the_cancel(server: &MockServer) {
    let sent: Vec<_> = server.requests().iter().filter_map(|request| request.json()).collect();
    let answer = sent.iter().position(|message| message.get("result").is_some()).unwrap();
    let cancel = sent.iter().position(|message| message["method"] == "session/cancel").unwrap();
    assert!(answer < cancel, "the response is sent before the cancel");
}

#[tokio::test]
async fn a_cancel_first_responds_to_open_agent_requests() {
    let server = acp_server(|_| vec![]).fault(Fault::PermissionWaitsForCancel).start().await;
    let (builder, mut requests) = client(&server).agent_requests();
    let client = builder.build().unwrap();
    let session = session(&client).await;
    let turn = tokio::spawn(prompt(&client, &session, "go"));
    let (_, responder) = within("the permission", requests.next()).await.unwrap();
    within("the cancel", client.cancel(CancelNotification::new(session.clone()))).await.unwrap();
    let reply = within("the turn", turn).await.unwrap().unwrap();
    assert_eq!(reply.raw().to_value().unwrap()["stopReason"], "cancelled");
    let answers = server.answers();
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].answer["result"], json!({"outcome": {"outcome": "cancelled"}}));
    assert_answered_before_the_cancel(&server);
    assert!(!responder.respond(&json!({})), "a late response is refused");
}

#[tokio::test]
async fn a_response_is_not_undone_by_a_cancel_right_behind_it() {
    let server = acp_server(|_| vec![]).fault(Fault::PermissionWaitsForCancel).start().await;
    let (builder, mut requests) = client(&server).agent_requests();
    let client = builder.build().unwrap();
    let session = session(&client).await;
    let turn = tokio::spawn(prompt(&client, &session, "go"));
    let (_, responder) = within("the permission", requests.next()).await.unwrap();
    // On one thread no other task runs between the two.
    let chosen = json!({"outcome": {"outcome": "selected", "optionId": "reject_once"}});
    assert!(responder.respond(&chosen));
    within("the cancel", client.cancel(CancelNotification::new(session.clone()))).await.unwrap();
    within("the turn", turn).await.unwrap().unwrap();
    assert_eq!(server.answers()[0].answer["result"], chosen);
    assert_answered_before_the_cancel(&server);
}

#[tokio::test]
async fn a_response_to_the_agent_survives_a_lost_stream_and_is_sent_once() {
    let server = acp_server(|_| vec![ask("_x/slow", json!({})), Step::Say("done".into())]).start().await;
    let (builder, mut requests) = client(&server).agent_requests();
    let client = builder.build().unwrap();
    let session = session(&client).await;
    let turn = tokio::spawn(prompt(&client, &session, "go"));
    let (_, responder) = within("the request", requests.next()).await.unwrap();
    // The stream is lost and the server is down when the response is sent; the agent keeps running.
    server.stop().await;
    assert!(responder.respond(&json!({"ok": true})));
    server.restart(State::Preserved).await;
    within("the turn", turn).await.unwrap().unwrap();
    let answers = server.answers();
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].answer["result"], json!({"ok": true}));
    assert_eq!(
        server
            .requests()
            .iter()
            .filter(|request| request.json().is_some_and(|json| json.get("result").is_some()))
            .count(),
        1
    );
}

#[tokio::test]
async fn a_response_that_may_have_arrived_is_not_resent_and_is_reported() {
    let server = acp_server(|_| vec![ask("_x/slow", json!({})), Step::Say("done".into())]).start().await;
    let (builder, mut requests) = client(&server).agent_requests();
    let client = builder.build().unwrap();
    let mut events = client.events();
    let session = session(&client).await;
    let turn = tokio::spawn(prompt(&client, &session, "go"));
    let (_, responder) = within("the request", requests.next()).await.unwrap();
    server.inject(Fault::PostResetAfterRead { execute: true }.times(1));
    responder.respond(&json!({"ok": true}));
    within("the turn", turn).await.unwrap().unwrap();
    assert_eq!(server.answers().len(), 1);
    let lost = sdk_tests::collect_until(&mut events, "the report", |event| {
        matches!(event, Event::ResponseLost { .. })
    });
    let lost = lost.await;
    assert!(matches!(lost.events.last(), Some(Event::ResponseLost { error, .. }) if error.maybe_executed()));
}

#[tokio::test]
async fn the_agent_can_cancel_its_request() {
    let server = acp_server(|_| vec![]).start().await;
    let (builder, mut requests) = client(&server).agent_requests();
    let client = builder.build().unwrap();
    session(&client).await;
    let id = server.emit_request(json!({"method": "_x/slow", "params": {}}));
    let (request, responder) = within("the request", requests.next()).await.unwrap();
    let wire_id: Value = serde_json::from_str(request.id().as_json()).unwrap();
    assert_eq!(wire_id, json!(id));
    server.emit(json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": wire_id}}));
    assert!(server.wait_for_answers(|answers| answers.len() == 1, LIMIT).await);
    assert_eq!(server.answers()[0].answer["error"]["code"], -32800);
    assert!(!responder.respond(&json!({})));
}

#[tokio::test]
async fn dropping_a_request_cancels_it_unless_that_is_off() {
    let server = acp_server(|_| vec![Step::Hang]).start().await;
    let quiet = client(&server).cancel_on_drop(false).build().unwrap();
    let client = client(&server).build().unwrap();
    let one = session(&client).await;
    let text = ContentBlock::Text(TextContent::new("hang"));
    let request = client.prompt(PromptRequest::new(one.clone(), vec![text]));
    let id: Value = serde_json::from_str(request.id().unwrap().as_json()).unwrap();
    let dropped = tokio::time::timeout(Duration::from_millis(200), request.into_future()).await;
    assert!(dropped.is_err());
    eventually("the cancellation", || server.messages("$/cancel_request").len() == 1).await;
    assert_eq!(server.messages("$/cancel_request")[0]["params"]["requestId"], id);
    assert!(client.diagnostics().pending.is_empty());

    let other = session(&quiet).await;
    assert!(tokio::time::timeout(Duration::from_millis(200), prompt(&quiet, &other, "hang")).await.is_err());
    // A request that was never awaited was never sent, and there is nothing to take back.
    drop(prompt(&client, &one, "never sent"));
    handshake(&quiet).await.unwrap();
    handshake(&client).await.unwrap();
    assert_eq!(server.messages("$/cancel_request").len(), 1);
    assert_eq!(server.messages("session/prompt").len(), 2);
}

#[tokio::test]
async fn a_timeout_names_its_phase_and_cancels_the_request() {
    let server = acp_server(|_| vec![Step::Say("started".into()), Step::Hang]).start().await;
    let timeouts = Timeouts::default().method("session/prompt", Duration::from_millis(300));
    let client = client(&server).timeouts(timeouts).build().unwrap();
    let session = session(&client).await;
    let error = within("the prompt", prompt(&client, &session, "go")).await.unwrap_err();
    let Error::Timeout(timeout) = &error else { panic!("{error:?}") };
    assert_eq!((timeout.phase, timeout.what.as_str()), (acp_http_client::Phase::Response, "session/prompt"));
    assert!(timeout.last_event_age.is_some_and(|age| age < timeout.elapsed));
    assert!(error.to_string().contains("last event"), "{error}");
    eventually("the cancellation", || server.messages("$/cancel_request").len() == 1).await;
}

/// Where the updates so far are from.
fn origins(events: &mut Events) -> Vec<Origin> {
    let mut seen = Collected::default();
    seen.drain(events);
    let origin = |event: &Event| match event {
        Event::Update(update) => Some(update.meta.origin),
        _ => None,
    };
    seen.events.iter().filter_map(origin).collect()
}

#[tokio::test]
async fn a_load_replays_history_marked_as_such() {
    let history = |_: &str| {
        (0..5).map(|n| json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": n.to_string()}})).collect()
    };
    let script = Script::new(|_| numbered(2)).history(history);
    let server = MockServer::builder().agent("mock", script).default_agent("mock").start().await;
    let client = client(&server).build().unwrap();
    let session = session(&client).await;
    let mut events = client.events();
    within("the load", client.load_session(LoadSessionRequest::new(session.clone(), "/"))).await.unwrap();
    assert_eq!(origins(&mut events), [Origin::History; 5], "all of it before the load returned");
    within("the turn", prompt(&client, &session, "go")).await.unwrap();
    assert_eq!(texts(&mut events).len(), 2);
}

#[tokio::test]
async fn updates_during_a_resume_are_history_where_no_other_client_can_have_a_turn() {
    let history = |_: &str| {
        let text = json!({"type": "text", "text": "old"});
        vec![
            json!({"sessionUpdate": "user_message_chunk", "content": text}),
            json!({"sessionUpdate": "agent_message_chunk", "content": text}),
            json!({"sessionUpdate": "current_mode_update", "currentModeId": "plan"}),
        ]
    };
    let script = Script::new(|_| numbered(2)).history(history).replays_on_resume(true);
    let server = MockServer::builder().agent("mock", script).default_agent("mock").start().await;
    let client = client(&server).build().unwrap();
    let session = session(&client).await;
    let mut events = client.events();
    for (replays, said) in [(true, Origin::History), (false, Origin::Live)] {
        let params = json!({"sessionId": session, "cwd": "/", "mcpServers": []});
        let options = RequestOptions::new().ordered(true).replays(replays);
        within("resuming", client.request_raw("session/resume", &params).options(options)).await.unwrap();
        assert_eq!(origins(&mut events), [said, said, Origin::Live], "what the session offers now is news");
    }
}

#[tokio::test]
async fn the_tap_sees_every_message_once_in_both_directions() {
    let server = acp_server(|_| numbered(3)).start().await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let client = client(&server)
        .tap(move |envelope| {
            let json: Value = serde_json::from_slice(envelope.raw).unwrap();
            log.lock().unwrap().push((
                envelope.direction,
                envelope.event_id.map(|id| id.as_text().into_owned()),
                json,
            ));
        })
        .build()
        .unwrap();
    let session = session(&client).await;
    for _ in 0..3 {
        within("the turn", prompt(&client, &session, "go")).await.unwrap();
    }
    client.close().await;
    let seen = seen.lock().unwrap();
    let outbound = seen.iter().filter(|(direction, _, _)| *direction == Direction::Outbound).count();
    assert_eq!(outbound, 5, "initialize, session/new and three prompts");
    let inbound: Vec<_> = seen.iter().filter(|(direction, _, _)| *direction == Direction::Inbound).collect();
    let answers = inbound.iter().filter(|(_, _, json)| json.get("id").is_some()).count();
    let updates = inbound.iter().filter(|(_, _, json)| json["method"] == "session/update").count();
    assert_eq!((answers, updates), (5, 9), "{inbound:?}");
    assert!(inbound.iter().filter(|(_, id, _)| id.is_some()).count() >= 12, "event ids are shown");
}
