//! JSON that is nested too deep is an error or preserved as text, and is never misinterpreted.

use mock_server::{Fault, MockServer, Script, Step};
use sandbox_agent_sdk::update::Missed;
use sandbox_agent_sdk::{Error, Event, OpenSession, ServerKind, UpdateKind};

use super::support::{LIMIT, client, event, session, within};

/// Deeper than the limit of any parser, and deep enough to overflow the stack of one without a limit.
const LEVELS: usize = 100_000;

fn deep() -> String {
    "[".repeat(LEVELS) + &"]".repeat(LEVELS)
}

#[tokio::test]
async fn an_update_that_is_nested_too_deep_is_reported_as_unreadable() {
    let server = MockServer::start().await;
    let session = session(&client(&server, ServerKind::Shared)).await;
    let mut events = session.events();
    let update = format!(
        r#"{{"sessionUpdate":"agent_message_chunk","content":{{"type":"text","text":"hi","x":{}}}}}"#,
        deep()
    );
    server.emit_raw(format!(
        r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"{}","update":{update}}}}}"#,
        session.id()
    ));
    // The protocol layer may reject it completely. Otherwise it is unreadable, and its text is preserved.
    let reported = event(&mut events, |event| match event {
        Event::Update(_) | Event::Malformed { .. } => Some(event),
        _ => None,
    })
    .await;
    match &reported {
        Event::Malformed { start, .. } => assert!(start.contains(r#""text":"hi""#), "{start}"),
        Event::Update(read) => {
            assert!(matches!(read.kind(), UpdateKind::Unreadable { .. }), "{:?}", read.kind());
            assert_eq!(read.raw().as_str(), Some(update.as_str()));
        }
        other => panic!("{other:?}"),
    }
    // The connection remains usable.
    assert_eq!(within(session.prompt("hi").text()).await.unwrap(), "mock: hi");
}

#[tokio::test]
async fn a_response_that_is_nested_too_deep_is_a_typed_error() {
    let server = MockServer::start().await;
    let client = client(&server, ServerKind::Shared);
    let session = session(&client).await;
    for method in ["session/load", "session/prompt"] {
        // The server accepts the request, and the response arrives on the stream.
        let accepted = Fault::PostStatus { status: 202, execute: false, reply: None };
        server.inject(accepted.on_method(method).times(1));
        let (client, session) = (client.clone(), session.clone());
        let call = tokio::spawn(async move {
            match method {
                "session/load" => client.load_session("s", OpenSession::in_dir("/")).await.map(drop),
                _ => session.prompt("go").outcome().await.map(drop),
            }
        });
        within(server.wait_for(|_| !server.messages(method).is_empty(), LIMIT)).await;
        let id = &server.messages(method)[0]["id"];
        server.emit_raw(format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{"stopReason":"end_turn","x":{}}}}}"#,
            deep()
        ));
        let error = within(call).await.unwrap().unwrap_err();
        assert!(
            matches!(&error, Error::Decode { what, raw, .. } if what == method && raw.contains("end_turn")),
            "{error:?}"
        );
        assert!(error.maybe_executed());
    }
}

#[tokio::test]
async fn the_end_of_a_session_is_known_from_a_notice_that_is_nested_too_deep() {
    let server = MockServer::start().await;
    let client = client(&server, ServerKind::Shared);
    let session = session(&client).await;
    let mut events = client.events();
    server.emit_raw(
        format!(
            r#"{{"jsonrpc":"2.0","method":"_sandboxagent/session/ended","params":{{"session_id":"{}",
            "data":{{"reason":"error","terminated_by":"agent","exit_code":3,"x":{}}}}}}}"#,
            session.id(),
            deep()
        )
        .replace('\n', " "),
    );
    let ended = event(&mut events, |event| match event {
        Event::SessionEnded(ended) => Some(ended),
        _ => None,
    })
    .await;
    assert_eq!((ended.session_id.as_str(), ended.termination.exit_code), (session.id(), Some(3)));
    event(&mut events, |event| matches!(event, Event::Malformed { .. }).then_some(())).await;
}

#[tokio::test]
async fn a_turn_with_a_message_that_cannot_be_read_is_incomplete() {
    let update = |session: &str, content: &str| {
        let update = format!(r#"{{"sessionUpdate":"agent_message_chunk","content":{content}}}"#);
        format!(
            r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"{session}","update":{update}}}}}"#
        )
    };
    let unreadable =
        |session: &str| update(session, &format!(r#"{{"type":"text","text":"hi","x":{}}}"#, deep()));
    type Message<'a> = &'a dyn Fn(&str) -> String;
    let table: [(&str, Message<'_>, bool); 7] = [
        ("an update", &unreadable, true),
        ("an update without a session", &|_| unreadable("").replace(r#""sessionId":"","#, ""), true),
        ("another session's update", &|_| unreadable("another"), false),
        ("a message that is cut off", &|session| update(session, r#"{"type":"te"#)[..60].to_owned(), true),
        ("a list with a message", &|session| format!("[{}]", update(session, "{}")), true),
        ("a list", &|_| "[1,2,3]".to_owned(), false),
        ("an object that is not a message", &|_| r#"{"level":"info"}"#.to_owned(), false),
    ];
    for (name, message, is_missing) in table {
        let server = MockServer::builder().agent("mock", Script::steps(vec![Step::Hang])).start().await;
        let session = session(&client(&server, ServerKind::Shared)).await;
        let turn = session.prompt("go");
        assert!(server.wait_for(|_| !server.messages("session/prompt").is_empty(), LIMIT).await);
        let id = &server.messages("session/prompt")[0]["id"];
        server.emit_raw(update(session.id(), r#"{"type":"text","text":"one"}"#));
        server.emit_raw(message(session.id()));
        server.emit_raw(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"stopReason":"end_turn"}}}}"#));
        match within(turn.text()).await {
            Ok(text) => assert_eq!((text.as_str(), is_missing), ("one", false), "{name}"),
            Err(Error::IncompleteTurn(turn)) => {
                assert!(is_missing, "{name}");
                assert_eq!(
                    (turn.missing.as_slice(), turn.collected.text.as_str()),
                    (&[Missed::Malformed][..], "one"),
                    "{name}"
                );
            }
            Err(error) => panic!("{name}: {error:?}"),
        }
    }
}
