//! The classification and the messages of errors.

use std::error::Error as StdError;
use std::sync::Arc;

use serde_json::json;

use super::{Error, HttpError, LostReason, Problem, RpcError};
use crate::TerminationInfo;
use crate::termination::{EndReason, TerminatedBy};

fn http(status: u16, body: &str) -> Error {
    Error::from_http(HttpError {
        what: "session/new".into(),
        status,
        content_type: None,
        problem: Problem::from_json(body.as_bytes()),
        body: body.into(),
        retry_after: None,
    })
}

fn problem(kind: &str) -> String {
    json!({"type": format!("urn:sandbox-agent:error:{kind}"), "title": "T", "detail": "d"}).to_string()
}

#[test]
fn callers_can_ask_what_to_do() {
    let info = || TerminationInfo::new(EndReason::Error, TerminatedBy::Agent);
    let lost = |sent| Error::ConnectionEnded { reason: LostReason::ServerGone, sent, source: None };
    // Each row: the error, and whether it is retryable, terminal, maybe executed.
    let table = [
        (Error::NotConnected, false, true, false),
        (Error::AlreadyConnected, false, false, false),
        (Error::TurnInProgress { session_id: "s".into() }, true, false, false),
        (Error::Unsupported { method: "m".into() }, false, false, false),
        (Error::Unreachable(Arc::new(RpcError::new(1, "x"))), true, false, false),
        (http(400, ""), false, false, false),
        (http(429, ""), true, false, false),
        (http(503, ""), true, false, false),
        (http(500, ""), false, false, true),
        (http(401, ""), false, false, false),
        (http(413, "too large"), false, false, false),
        (
            Error::Rpc { error: RpcError::new(-32603, "x"), status: None, executed: false },
            false,
            false,
            false,
        ),
        (Error::ended(None, info(), true), false, true, true),
        (Error::ended(None, info(), false), false, true, false),
        (Error::ended(Some("s"), info(), true), false, false, true),
        (lost(true), false, true, true),
        (lost(false), false, true, false),
        (Error::Disconnected { what: "x".into() }, false, true, true),
    ];
    for (error, retryable, terminal, maybe) in table {
        let flags = (error.is_retryable(), error.is_terminal(), error.maybe_executed());
        assert_eq!(flags, (retryable, terminal, maybe), "{error:?}");
    }
}

#[test]
fn a_required_login_is_distinguished_from_an_ended_agent() {
    let rpc =
        |message: &str| Error::Rpc { error: RpcError::new(-32000, message), status: None, executed: false };
    assert!(rpc("Authentication required").is_login_required());
    // The message of gemini.
    assert!(rpc("Gemini API key is missing or not configured.").is_login_required());
    for message in [
        "Unauthorized",
        "OAuth token expired",
        "auth_required",
        "not authorised",
        "please log in",
        "Login first",
    ] {
        assert!(rpc(message).is_login_required(), "{message}");
    }
    let others = [
        "session already ended",
        "no author in the commit",
        "unknown authority",
        "catalog in use",
        "cannot reauthor",
    ];
    for message in others {
        assert!(!rpc(message).is_login_required(), "{message}");
    }
}

#[test]
fn problems_become_the_matching_variant() {
    assert!(matches!(http(400, &problem("unsupported_agent")), Error::UnsupportedAgent(_)));
    assert!(matches!(http(404, &problem("agent_not_installed")), Error::AgentNotInstalled(_)));
    assert!(matches!(http(500, &problem("install_failed")), Error::InstallFailed(_)));
    assert!(matches!(http(401, &problem("token_invalid")), Error::Unauthorized(_)));
    assert!(matches!(http(413, "length limit exceeded"), Error::PayloadTooLarge { .. }));
    let conflict = http(409, &problem("conflict"));
    assert_eq!(conflict.problem().unwrap().short_kind(), "conflict");
    assert!(http(404, &problem("session_not_found")).is_not_found());
    let missing = json!({"type": "urn:sandbox-agent:error:invalid_request", "title": "Invalid Request",
        "detail": "invalid request: path not found: /x"});
    assert!(http(400, &missing.to_string()).is_not_found());
    assert!(!http(400, &problem("invalid_request")).is_not_found());
}

#[test]
fn errors_of_the_protocol_client_are_converted_without_loss() {
    use acp_http_client as wire;
    let rpc = wire::RpcError::new(-32000, "no").with_data(json!({"a": 1}));
    let error = Error::from_wire(wire::Error::Rpc { error: rpc, status: Some(500) });
    let rpc = error.rpc_error().unwrap();
    assert_eq!((rpc.code, rpc.message.as_str(), &rpc.data), (-32000, "no", &Some(json!({"a": 1}))));
    assert!(matches!(error, Error::Rpc { status: Some(500), .. }));

    let error = Error::from_wire(wire::Error::Config("bad".into()));
    assert!(matches!(error, Error::Config(what) if what == "bad"));

    let info = TerminationInfo::new(EndReason::Error, TerminatedBy::Agent);
    let ours = Error::ended(Some("s"), info.clone(), true);
    let error = Error::from_wire(wire::Error::Interrupted(Arc::new(ours)));
    assert_eq!(error.termination(), Some(&info));

    for pending in [true, false] {
        let reasons = [
            wire::EndReason::Closed,
            wire::EndReason::Dropped,
            wire::EndReason::Custom(Arc::new(Error::ended(None, info.clone(), true))),
        ];
        for reason in reasons {
            let reason = wire::EndReasonError(reason);
            let error = Error::from_wire(wire::Error::Terminated { reason, pending });
            assert_eq!(error.maybe_executed(), pending, "{error:?}");
        }
    }

    let error = Error::from_wire(wire::Error::ServerRestarted { method: "session/prompt".into() });
    assert!(error.maybe_executed());
}

#[test]
fn causes_are_shown_once_and_preserved() {
    let mut info = TerminationInfo::new(EndReason::Error, TerminatedBy::Agent);
    info.exit_code = Some(3);
    let error = Error::ended(None, info, true);
    assert_eq!(error.to_string(), "the agent has ended: error, exit code 3");
    assert_eq!(error.source().unwrap().to_string(), "error, exit code 3");
    let ended = Error::ConnectionEnded {
        reason: LostReason::Unauthorized,
        sent: false,
        source: Some(Arc::new(http(401, &problem("token_invalid")))),
    };
    assert!(ended.is_unauthorized());
    assert_eq!(ended.problem().unwrap().short_kind(), "token_invalid");
}

#[test]
fn an_error_response_shows_what_its_data_has() {
    let shown = |data| RpcError::new(-32603, "Internal error").with_data(data).to_string();
    assert_eq!(shown(json!({"details": "no disk"})), "Internal error (code -32603): no disk");
    assert_eq!(
        shown(json!({"errorKind": "billing"})),
        r#"Internal error (code -32603): {"errorKind":"billing"}"#
    );
    assert_eq!(shown(json!(["a", 1])), r#"Internal error (code -32603): ["a",1]"#);
    for nothing in [json!(null), json!({}), json!([]), json!("")] {
        assert_eq!(shown(nothing), "Internal error (code -32603)");
    }
    let attack = shown(json!({"a": "\u{1b}]0;owned\u{7}\u{9b}2J", "b": "x".repeat(10_000)}));
    assert!(!attack.contains(char::is_control) && attack.contains("owned"), "{attack}");
    assert!(attack.chars().count() < 600 && attack.ends_with('…'), "{attack}");
}

#[test]
fn the_response_of_a_dead_agent_is_readable() {
    let message = "agent exited with status ExitStatus(unix_wait_status(9))";
    let end = json!({
        "reason": "error", "terminatedBy": "agent", "message": message, "signal": "SIGKILL",
        "stderr": {"head": "boom \"x\"", "truncated": false, "totalLines": 1},
    });
    let error = RpcError::new(-32000, message).with_data(json!({"terminationInfo": end}));
    assert_eq!(error.to_string(), "the agent has ended: error, killed by SIGKILL (code -32000)");
    let own = RpcError::new(-32000, "session already ended").with_data(json!({
        "terminationInfo": {"reason": "error", "exitCode": 3},
    }));
    assert_eq!(own.to_string(), "session already ended: error, exit code 3 (code -32000)");
}
