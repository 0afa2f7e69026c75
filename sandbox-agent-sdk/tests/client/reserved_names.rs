//! Member names that the JSON parser treats specially. Each attack runs in a separate process, because an exhausted
//! stack ends the process.

use std::process::Command;

use mock_server::{Fault, MockServer, Reply, Script, Step};
use sandbox_agent_sdk::control::ControlPlane;
use sandbox_agent_sdk::{Error, Event, PermissionPolicy, ServerKind, Session, UpdateKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::support::{LIMIT, client, event, options, session, within};

/// Set in the process that runs the attack.
const ATTACKED: &str = "SANDBOX_AGENT_TEST_ATTACKED";

/// 7,260 levels in a text of 50 KB that nests 121 levels: the parser replaces each such object by the JSON in its string,
/// whose depth it counts from zero.
fn nested() -> String {
    (0..60).fold("0".to_owned(), |inner, _| {
        let quoted = inner.replace('\\', "\\u005c").replace('"', "\\u0022");
        let object = format!(r#"{{"$serde_json::private::RawValue":"{quoted}"}}"#);
        format!("{}{object}{}", "[".repeat(120), "]".repeat(120))
    })
}

/// Runs this test again in another process, which must survive the attack.
fn survives(test: &str, attack: impl Future<Output = ()>) {
    if std::env::var_os(ATTACKED).is_some() {
        return tokio::runtime::Runtime::new().unwrap().block_on(attack);
    }
    let name = format!("reserved_names::{test}");
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", &name, "--nocapture"]).env(ATTACKED, "1").output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stdout.contains("1 passed"), "{}: {stdout}{stderr}", output.status);
}

/// The connection still works.
async fn still_works(session: &Session) {
    assert_eq!(within(session.prompt("hi").text()).await.unwrap(), "mock: hi");
}

fn update(session: &Session, update: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"{}","update":{update}}}}}"#,
        session.id()
    )
}

#[test]
fn a_notification_is_reported_as_malformed() {
    survives("a_notification_is_reported_as_malformed", async {
        let server = MockServer::start().await;
        let client = client(&server, ServerKind::Shared);
        let session = session(&client).await;
        let mut events = client.events();
        server.emit_raw(format!(r#"{{"jsonrpc":"2.0","method":"_x/n","params":{}}}"#, nested()));
        let reason = event(&mut events, |event| match event {
            Event::Malformed { reason, .. } => Some(reason),
            _ => None,
        })
        .await;
        assert!(reason.contains("reserved"), "{reason}");
        still_works(&session).await;
    });
}

#[test]
fn an_update_is_unreadable() {
    survives("an_update_is_unreadable", async {
        let server = MockServer::start().await;
        let session = session(&client(&server, ServerKind::Shared)).await;
        let mut events = session.events();
        for content in [
            format!(
                r#"{{"sessionUpdate":"agent_message_chunk","content":{{"type":"text","text":"x"}},"_meta":{}}}"#,
                nested()
            ),
            format!(
                r#"{{"sessionUpdate":"agent_message_chunk","content":{{"type":"text","text":"x","x":{}}}}}"#,
                nested()
            ),
            format!(r#"{{"sessionUpdate":"teleport","x":{}}}"#, nested()),
            nested(),
        ] {
            server.emit_raw(update(&session, &content));
            let read = event(&mut events, |event| match event {
                Event::Update(update) => Some(update),
                _ => None,
            })
            .await;
            assert!(
                matches!(read.kind(), UpdateKind::Unreadable { reason, .. } if reason.contains("reserved")),
                "{:?}",
                read.kind()
            );
            assert_eq!(read.raw().as_str(), Some(content.as_str()));
        }
        still_works(&session).await;
    });
}

#[test]
fn an_agent_request_is_refused() {
    survives("an_agent_request_is_refused", async {
        let script = Script::steps(vec![Step::Hang]);
        let server = MockServer::builder().agent("mock", script).start().await;
        let options = options(&server, ServerKind::Shared);
        let client = options.permissions(PermissionPolicy::BypassPermissions).build().unwrap();
        let session = session(&client).await;
        let mut events = client.events();
        let _turn = session.prompt("go");
        assert!(server.wait_for(|_| !server.messages("session/prompt").is_empty(), LIMIT).await);
        server.emit_raw(format!(
            r#"{{"jsonrpc":"2.0","id":"q","method":"session/request_permission","params":{{"sessionId":"{}","options":[],"toolCall":{}}}}}"#,
            session.id(),
            nested()
        ));
        event(&mut events, |event| matches!(event, Event::RequestRejected { .. }).then_some(())).await;
        let refusal = || server.requests().iter().filter_map(|r| r.json()).find(|body| body["id"] == "q");
        assert!(server.wait_for(|_| refusal().is_some(), LIMIT).await);
        assert_eq!(refusal().unwrap()["error"]["code"], -32602);
        client.disconnect().await.unwrap();
    });
}

#[test]
fn a_response_is_a_typed_error() {
    survives("a_response_is_a_typed_error", async {
        let server = MockServer::start().await;
        let session = session(&client(&server, ServerKind::Shared)).await;
        let accepted = Fault::PostStatus { status: 202, execute: false, reply: None };
        server.inject(accepted.on_method("session/prompt").times(1));
        let mut turn = session.prompt("go");
        assert!(server.wait_for(|_| !server.messages("session/prompt").is_empty(), LIMIT).await);
        let id = &server.messages("session/prompt")[0]["id"];
        let result = format!(r#"{{"stopReason":"end_turn","_meta":{}}}"#, nested());
        server.emit_raw(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#));
        let error = within(turn.outcome()).await.unwrap_err();
        assert!(matches!(error, Error::Decode { .. }), "{error:?}");
        still_works(&session).await;
    });
}

#[test]
fn the_body_of_a_failure_is_text() {
    survives("the_body_of_a_failure_is_text", async {
        let server = MockServer::start().await;
        let session = session(&client(&server, ServerKind::Shared)).await;
        for body in [
            format!(r#"{{"jsonrpc":"2.0","error":{{"code":1,"message":"x","data":{}}}}}"#, nested()),
            format!(r#"{{"type":"about:blank","title":"x","detail":"x","data":{}}}"#, nested()),
            nested(),
        ] {
            let reply =
                Some(Reply { body, content_type: Some("application/json".into()), ..Reply::default() });
            let failure = Fault::PostStatus { status: 400, execute: false, reply };
            server.inject(failure.on_method("session/prompt").times(1));
            let error = within(session.prompt("go").outcome()).await.unwrap_err();
            let Error::Http(failure) = error else { panic!("{error:?}") };
            assert!(failure.problem.is_none(), "{failure:?}");
            assert!(failure.body.contains("RawValue"), "{failure:?}");
        }
        still_works(&session).await;
    });
}

#[test]
fn a_response_of_the_control_plane_is_a_typed_error() {
    survives("a_response_of_the_control_plane_is_a_typed_error", async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let body = format!(r#"{{"status":"ok","x":{}}}"#, nested());
            let start = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            stream.write_all((start + &body).as_bytes()).await.unwrap();
        });
        let error = within(ControlPlane::new(&url).unwrap().health().check()).await.unwrap_err();
        assert!(matches!(error, Error::Decode { .. }), "{error:?}");
        server.await.unwrap();
    });
}
