use proptest::prelude::{Just, Strategy, any, prop_assert_eq, prop_oneof, proptest};
use serde_json::{Map, Value, json};

use super::{SessionInfo, SessionPage, TerminateResult};
use crate::session::Timestamp;
use crate::termination::{EndReason, TerminatedBy};

fn read(value: Value) -> SessionInfo {
    serde_json::from_value(value).unwrap()
}

/// A session as returned by `GET /v1/sessions/{id}` and `_sandboxagent/session/get`.
fn record() -> Value {
    json!({"sessionId": "mock-session-1", "agent": "mock", "agentMode": "build", "permissionMode": "default",
        "model": "mock", "nativeSessionId": "native-1", "ended": true, "eventCount": 9,
        "createdAt": 1_794_790_579_671_u64, "updatedAt": 1_794_790_581_000_u64, "directory": "/work",
        "title": "Fix", "terminationInfo": {"reason": "error", "terminatedBy": "agent",
            "message": "agent exited with status exit status: 3", "exitCode": 3,
            "stderr": {"head": "boom", "truncated": false, "totalLines": 1}}})
}

/// The same session as an entry of `session/list`.
fn entry() -> Value {
    json!({"sessionId": "mock-session-1", "cwd": "/work", "title": "Fix", "updatedAt": "2026-11-16T01:00:00Z",
        "_meta": {"sandboxagent.dev": {"agent": "mock", "mode": "build", "permissionMode": "default",
            "nativeSessionId": "native-1", "team": "blue", "title": null, "createdAt": 1_794_790_579_671_u64,
            "updatedAt": 1_794_790_581_000_u64, "ended": true, "eventCount": 9, "model": "mock",
            "terminationInfo": {"reason": "error", "terminatedBy": "agent",
                "message": "agent exited with status exit status: 3", "exitCode": 3,
                "stderr": {"head": "boom", "truncated": false, "totalLines": 1}}},
            "other.dev": {"kept": true}}})
}

#[test]
fn a_record_and_a_list_entry_tell_the_same() {
    let (record, mut entry) = (read(record()), read(entry()));
    assert_eq!(record.session_id, "mock-session-1");
    assert_eq!(record.created_at, Some(Timestamp::from_millis(1_794_790_579_671)));
    assert_eq!(record.termination_info.as_ref().unwrap().exit_code, Some(3));
    assert!(record.has_ended());

    // The entry has more: the agent's own time, the application's keys and a foreign namespace.
    assert_eq!(entry.last_activity.take().as_deref(), Some("2026-11-16T01:00:00Z"));
    assert_eq!(entry.metadata.get("team"), Some(&json!("blue")));
    assert_eq!(
        Value::from(std::mem::take(&mut entry.other)),
        json!({"_meta": {"other.dev": {"kept": true}}})
    );
    entry.metadata = record.metadata.clone();
    assert_eq!(entry, record);
}

#[test]
fn a_bare_entry_leaves_open_what_it_does_not_say() {
    let info = read(json!({"sessionId": "s", "cwd": "/"}));
    assert_eq!((info.ended, info.has_ended(), info.agent), (None, false, None));
    assert!(read(json!({"session_id": "s", "ended": true})).has_ended());
    assert!(read(json!({"id": "s", "termination_info": {"reason": "completed"}})).has_ended());
    assert!(!read(json!({"sessionId": "s", "ended": false, "terminationInfo": null})).has_ended());
}

#[test]
fn a_session_without_an_id_is_none() {
    for value in [json!({}), json!({"sessionId": 5}), json!({"sessionId": null})] {
        let error = serde_json::from_value::<SessionInfo>(value).unwrap_err();
        assert_eq!(error.to_string(), "a session has no valid `sessionId`");
    }
}

#[test]
fn odd_metadata_stays_where_it_was() {
    for odd in [
        json!({"sessionId": "s", "_meta": "text"}),
        json!({"sessionId": "s", "_meta": {"sandboxagent.dev": 5}}),
        json!({"sessionId": "s", "title": 5, "ended": "yes"}),
    ] {
        let info = read(odd.clone());
        assert!(info.metadata.is_empty());
        assert_eq!(serde_json::to_value(info).unwrap(), odd);
    }
}

#[test]
fn what_was_read_is_written_and_read_again_the_same() {
    for value in [record(), entry()] {
        let info = read(value);
        assert_eq!(read(serde_json::to_value(&info).unwrap()), info);
    }
    assert_eq!(serde_json::to_value(read(record())).unwrap(), record());
    let twice = read(json!({"sessionId": "s", "lastActivity": 0, "updatedAt": "today", "updated_at": 5}));
    assert_eq!(
        (twice.last_activity.as_deref(), twice.updated_at),
        (Some("today"), Some(Timestamp::from_millis(5)))
    );
    assert_eq!(read(serde_json::to_value(&twice).unwrap()), twice);
}

#[test]
fn a_page_is_read_in_every_form_and_survives_a_bad_entry() {
    let page = SessionPage::from_value(&json!({"sessions": [entry(), {"cwd": "/"}, 5], "nextCursor": "200"}))
        .unwrap();
    assert_eq!(page.sessions.len(), 1);
    assert_eq!(page.next_cursor.as_deref(), Some("200"));
    assert_eq!(page.unreadable, [json!({"cwd": "/"}), json!(5)]);
    let last = SessionPage::from_value(&json!({"sessions": [], "nextCursor": null})).unwrap();
    assert_eq!(last, SessionPage::default());
    assert_eq!(SessionPage::from_value(&json!([record()])).unwrap().sessions.len(), 1);
    assert_eq!(SessionPage::from_value(&json!({"sessions": "none"})), None);
    assert_eq!(SessionPage::from_value(&json!({})), None);
}

#[test]
fn the_answer_to_a_termination_is_read() {
    let value =
        json!({"terminated": false, "alreadyEnded": true, "reason": "terminated", "terminatedBy": "daemon"});
    let result: TerminateResult = serde_json::from_value(value.clone()).unwrap();
    assert!(!result.terminated && result.already_ended);
    assert_eq!(result.reason, Some(EndReason::Terminated));
    assert_eq!(result.terminated_by, Some(TerminatedBy::Daemon));
    assert_eq!(serde_json::to_value(result).unwrap(), value);
    let bare: TerminateResult = serde_json::from_value(json!({"terminated": true})).unwrap();
    assert!(bare.terminated && !bare.already_ended && bare.reason.is_none());
}

fn hostile_members() -> impl Strategy<Value = Map<String, Value>> {
    let names = [
        "agent",
        "title",
        "directory",
        "cwd",
        "model",
        "agentMode",
        "agent_mode",
        "ended",
        "eventCount",
        "createdAt",
        "updatedAt",
        "updated_at",
        "lastActivity",
        "terminationInfo",
        "termination_info",
        "_meta",
        "unheard",
    ];
    let member = prop_oneof![
        Just(Value::Null),
        any::<String>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(json!({"reason": "error", "exit_code": 1})),
        Just(json!({"sandboxagent.dev": {"agent": "x", "updatedAt": 5, "ended": 1, "title": "t"}, "o": 1})),
        Just(json!({"sandboxagent.dev": {}})),
        Just(json!({"sandboxagent.dev": [1]})),
    ];
    proptest::collection::vec((0..names.len(), member), 0..12).prop_map(move |members| {
        members.into_iter().map(|(name, value)| (names[name].to_owned(), value)).collect()
    })
}

proptest! {
    #[test]
    fn any_session_is_read_and_reads_the_same_again(mut members in hostile_members()) {
        members.insert("sessionId".to_owned(), json!("s"));
        let info = read(Value::Object(members));
        prop_assert_eq!(read(serde_json::to_value(&info).unwrap()), info);
    }
}
