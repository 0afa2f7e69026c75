//! Printing data from the wire has no effect on the terminal.

use std::error::Error as _;
use std::time::Duration;

use mock_server::{Fault, MockServer, Reply, Script, Step};
use sandbox_agent_sdk::text::printable;
use sandbox_agent_sdk::{Error, NewSession, ServerKind, StopReason};
use serde_json::json;
use tracing_subscriber::filter::LevelFilter;

use super::support::{KINDS, LIMIT, client, session, within};
use super::written_log::WrittenLog;

/// Sets the title, writes the clipboard, clears the screen (in both encodings), and reverses the text direction.
const ATTACK: &str =
    "\u{1b}]0;owned\u{7}\u{1b}]52;c;cm0gLXJmIH4=\u{1b}\\\u{1b}[2J\u{9b}2J\u{9d}0;x\u{9c}\rok\u{202e}txt.exe";

/// Returns whether the text is free of control characters.
fn is_harmless(text: &str) -> bool {
    !text.chars().any(|character| {
        (character.is_control() && character != '\n' && character != '\t') || character == '\u{202e}'
    })
}

/// Formats an error with its causes, as a program prints it.
fn printed(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[tokio::test]
async fn a_hostile_server_writes_no_lines_of_the_log() {
    let (written, subscriber) = WrittenLog::at(LevelFilter::TRACE);
    let _default = tracing::subscriber::set_default(subscriber);
    let hostile = format!("{ATTACK}\nERROR forged: all is lost");
    let server = MockServer::builder().agent("mock", Script::steps(vec![Step::Hang])).start().await;
    let session = session(&client(&server, ServerKind::Shared)).await;
    let body = json!({"type": "about:blank", "status": 400, "title": hostile, "detail": hostile}).to_string();
    let reply =
        Some(Reply { body, content_type: Some("application/problem+json".into()), ..Reply::default() });
    server.inject(Fault::PostStatus { status: 400, execute: false, reply }.on_method("session/cancel"));
    let turn = session.prompt("go");
    assert!(server.wait_for(|_| !server.messages("session/prompt").is_empty(), LIMIT).await);
    // The server refuses the cancel of a turn that is dropped, and its reason is logged.
    drop(turn);
    let written = within(async {
        loop {
            let written = written.text();
            if written.contains("could not be cancelled") {
                return written;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    for line in written.lines() {
        assert!(is_harmless(line) && !line.starts_with("ERROR forged"), "{line:?}");
    }
}

#[tokio::test]
async fn an_agents_message_does_nothing_to_the_terminal_and_its_text_is_preserved() {
    for kind in KINDS {
        // An escape sequence may be split across two updates.
        let (head, tail) = ATTACK.split_at(1);
        let script = Script::steps(vec![
            Step::Say(head.into()),
            Step::Say(tail.into()),
            Step::Stop(format!("odd{ATTACK}")),
        ]);
        let server = MockServer::builder().agent("mock", script).start().await;
        let mut turn = session(&client(&server, kind)).await.prompt("go");
        let (mut shown, mut raw) = (String::new(), String::new());
        while let Some(update) = within(turn.next()).await {
            shown.push_str(&update.to_string());
            raw.push_str(update.message_text().unwrap_or_default());
        }
        assert!(is_harmless(&shown), "{shown:?}");
        assert!(shown.contains("ok") && shown.contains("owned"), "nothing is hidden: {shown:?}");
        assert_eq!(raw, ATTACK);
        assert_eq!(shown, printable(ATTACK).to_string());
        let outcome = within(turn.outcome()).await.unwrap();
        assert!(is_harmless(&outcome.stop_reason.to_string()));
        assert_eq!(outcome.stop_reason, StopReason::Other(format!("odd{ATTACK}")));
    }
}

#[tokio::test]
async fn an_error_of_the_agent_does_nothing_to_the_terminal_and_shows_what_its_data_says() {
    for kind in KINDS {
        let data = json!({"details": format!("Request was aborted.{ATTACK}")});
        let script = Script::steps(vec![Step::Fail {
            code: -32603,
            message: format!("Internal error{ATTACK}"),
            data: Some(data),
        }]);
        let server = MockServer::builder().agent("mock", script).start().await;
        let error = within(session(&client(&server, kind)).await.prompt("go").outcome()).await.unwrap_err();
        let shown = printed(&error);
        assert!(is_harmless(&shown), "{shown:?}");
        assert!(shown.contains("Internal error") && shown.contains("Request was aborted."), "{shown}");
        assert_eq!(error.rpc_error().unwrap().message, format!("Internal error{ATTACK}"));
    }
}

#[tokio::test]
async fn an_error_of_the_server_does_nothing_to_the_terminal() {
    let problem = json!({"type": "about:blank", "title": ATTACK, "detail": ATTACK}).to_string();
    for (body, content_type) in [(ATTACK.to_owned(), "text/plain"), (problem, "application/problem+json")] {
        let server = MockServer::start().await;
        let client = client(&server, ServerKind::Shared);
        within(client.new_session(NewSession::in_dir("/"))).await.unwrap();
        let reply = Reply { body, content_type: Some(content_type.to_owned()), headers: Vec::new() };
        server.inject(
            Fault::PostStatus { status: 409, execute: false, reply: Some(reply) }.on_method("session/new"),
        );
        let error = within(client.new_session(NewSession::in_dir("/"))).await.unwrap_err();
        let shown = printed(&error);
        assert!(is_harmless(&shown) && shown.contains("owned"), "{shown:?}");
        let http = error.http().unwrap();
        assert!(http.body.contains("owned"), "{http:?}");
    }
}

#[tokio::test]
async fn a_hostile_session_id_does_nothing_to_the_terminal() {
    let script = Script::steps(vec![Step::WaitForCancel]).on_request(|method, _| {
        let answer = Step::Finish(json!({"sessionId": format!("s{ATTACK}")}));
        (method == "session/new").then(|| vec![answer])
    });
    let server = MockServer::builder().agent("mock", script).start().await;
    let session = session(&client(&server, ServerKind::Shared)).await;
    let _running = session.prompt("wait");
    let busy = within(session.prompt("again").outcome()).await.unwrap_err();
    assert!(
        matches!(&busy, Error::TurnInProgress { session_id, .. } if session_id.contains(ATTACK)),
        "{busy:?}"
    );
    assert!(is_harmless(&printed(&busy)), "{busy:?}");
}

#[tokio::test]
async fn an_agents_last_output_does_nothing_to_the_terminal() {
    let script = Script::steps(vec![Step::crash(3, [ATTACK])]);
    let server = MockServer::builder().agent("mock", script).start().await;
    let session = session(&client(&server, ServerKind::Shared)).await;
    let died = within(session.prompt("die").outcome()).await.unwrap_err();
    let shown = printed(&died);
    assert!(is_harmless(&shown) && shown.contains("ok"), "{shown:?}");
    assert!(died.termination().unwrap().last_stderr_lines(9).concat().contains("owned"));
}
