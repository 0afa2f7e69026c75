use proptest::prelude::{Just, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};
use proptest::{collection, option};
use serde_json::{Map, Value, json};

use super::{META, MetadataKey, NAMESPACE, SessionMetadata};
use crate::session::Timestamp;
use crate::termination::EndReason;

/// Generates well-known keys, similar keys and unknown keys.
fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        (0..MetadataKey::ALL.len()).prop_map(|at| MetadataKey::ALL[at].as_str().to_owned()),
        Just("permission_mode".to_owned()),
        Just("termination_info".to_owned()),
        Just(META.to_owned()),
        Just(NAMESPACE.to_owned()),
        Just("__proto__".to_owned()),
        Just(String::new()),
        any::<String>(),
    ]
}

/// Any JSON value, a few levels deep, with the extremes of each type.
fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            collection::vec((key(), inner), 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn object() -> impl Strategy<Value = Map<String, Value>> {
    collection::vec((key(), json_value()), 0..10).prop_map(|members| members.into_iter().collect())
}

fn metadata() -> impl Strategy<Value = SessionMetadata> {
    object().prop_map(SessionMetadata::from)
}

/// Calls every getter. None may panic or change the stored value.
fn read_everything(metadata: &SessionMetadata) -> usize {
    let texts = [
        metadata.title(),
        metadata.model(),
        metadata.mode(),
        metadata.variant(),
        metadata.requested_session_id(),
        metadata.permission_mode(),
        metadata.agent_version_requested(),
        metadata.agent(),
    ];
    let times = [metadata.created_at(), metadata.updated_at()];
    texts.iter().flatten().count()
        + times.iter().flatten().count()
        + usize::from(metadata.skills().is_some())
        + usize::from(metadata.ended().is_some())
        + usize::from(metadata.event_count().is_some())
        + usize::from(metadata.termination_info().is_some())
        + metadata.unknown().count()
}

/// Returns the message without what `write_into` may add or change.
fn without_namespace(mut message: Map<String, Value>) -> Map<String, Value> {
    if let Some(Value::Object(meta)) = message.get_mut(META) {
        meta.shift_remove(NAMESPACE);
    }
    if message.get(META).is_some_and(|meta| meta.is_null() || meta.as_object().is_some_and(Map::is_empty)) {
        message.shift_remove(META);
    }
    message
}

proptest! {
    #[test]
    fn what_is_written_into_a_message_is_read_out_of_it(
        metadata in metadata(),
        mut members in object(),
        meta in option::of(object()),
    ) {
        members.shift_remove(META);
        if let Some(mut meta) = meta {
            meta.shift_remove(NAMESPACE);
            members.insert(META.to_owned(), Value::Object(meta));
        }
        let mut message = Value::Object(members.clone());
        metadata.write_into(&mut message).unwrap();

        prop_assert_eq!(SessionMetadata::read_from(&message).unwrap_or_default(), metadata.clone());
        let after = message.as_object().cloned().unwrap();
        prop_assert_eq!(without_namespace(after), without_namespace(members));

        // The same holds after serializing and parsing the message.
        let travelled: Value = serde_json::from_str(&message.to_string()).unwrap();
        prop_assert_eq!(SessionMetadata::read_from(&travelled).unwrap_or_default(), metadata);
    }

    #[test]
    fn metadata_survives_its_own_text(metadata in metadata()) {
        let text = serde_json::to_string(&metadata).unwrap();
        let read: SessionMetadata = serde_json::from_str(&text).unwrap();
        let order = |metadata: &SessionMetadata| metadata.iter().map(|(key, _)| key.to_owned()).collect::<Vec<_>>();
        prop_assert_eq!(order(&read), order(&metadata));
        prop_assert_eq!(serde_json::to_string(&read).unwrap(), text);
    }

    #[test]
    fn reading_never_panics_and_never_changes_anything(metadata in metadata(), message in json_value()) {
        let before = metadata.clone();
        let seen = read_everything(&metadata);
        prop_assert!(seen <= before.iter().count() + MetadataKey::ALL.len());
        prop_assert_eq!(metadata, before);
        if let Some(read) = SessionMetadata::read_from(&message) {
            read_everything(&read);
        }
    }

    #[test]
    fn any_message_is_either_written_into_or_left_as_it_was(metadata in metadata(), message in json_value()) {
        let mut written = message.clone();
        match metadata.write_into(&mut written) {
            Ok(()) => {
                let read = SessionMetadata::read_from(&written).unwrap_or_default();
                for (key, value) in metadata.iter() {
                    prop_assert_eq!(read.get(key), Some(value));
                }
            }
            Err(_) => prop_assert_eq!(written, message),
        }
    }
}

#[test]
fn every_known_key_is_read_in_its_type() {
    let message = json!({"sessionId": "s", "_meta": {"sandboxagent.dev": {
        "title": "Fix", "model": "opus", "mode": "plan", "variant": "high", "requestedSessionId": "mine",
        "permissionMode": "ask", "skills": {"sources": []}, "agentVersionRequested": "1.2.3", "agent": "claude",
        "createdAt": 1_794_790_579_671_u64, "updatedAt": 1_794_790_579_672_u64, "ended": true, "eventCount": 7,
        "terminationInfo": {"reason": "error", "terminatedBy": "agent", "exitCode": 1}, "team": "blue",
    }, "other.dev": {"title": "not ours"}}});
    let metadata = SessionMetadata::read_from(&message).unwrap();
    assert_eq!(metadata.title(), Some("Fix"));
    assert_eq!(metadata.model(), Some("opus"));
    assert_eq!(metadata.mode(), Some("plan"));
    assert_eq!(metadata.variant(), Some("high"));
    assert_eq!(metadata.requested_session_id(), Some("mine"));
    assert_eq!(metadata.permission_mode(), Some("ask"));
    assert_eq!(metadata.skills(), Some(&json!({"sources": []})));
    assert_eq!(metadata.agent_version_requested(), Some("1.2.3"));
    assert_eq!(metadata.agent(), Some("claude"));
    assert_eq!(metadata.created_at(), Some(Timestamp::from_millis(1_794_790_579_671)));
    assert_eq!(metadata.updated_at(), Some(Timestamp::from_millis(1_794_790_579_672)));
    assert_eq!(metadata.ended(), Some(true));
    assert_eq!(metadata.event_count(), Some(7));
    assert_eq!(metadata.termination_info().unwrap().reason, EndReason::Error);
    assert_eq!(metadata.unknown().collect::<Vec<_>>(), [("team", &json!("blue"))]);
}

#[test]
fn the_builder_writes_the_wire_spelling_of_every_key() {
    let built = SessionMetadata::new()
        .with_title("t")
        .with_model("m")
        .with_mode("o")
        .with_variant("v")
        .with_requested_session_id("r")
        .with_permission_mode("p")
        .with_skills(json!(["a"]))
        .with_agent_version_requested("1")
        .with_agent("codex");
    assert_eq!(
        serde_json::to_value(built).unwrap(),
        json!({"title": "t", "model": "m", "mode": "o", "variant": "v", "requestedSessionId": "r",
            "permissionMode": "p", "skills": ["a"], "agentVersionRequested": "1", "agent": "codex"})
    );
}

#[test]
fn a_known_key_of_the_wrong_type_reads_as_nothing_and_stays() {
    let odd = json!({"title": 5, "model": null, "ended": "yes", "createdAt": "2026-11-16", "eventCount": -1,
        "skills": null});
    let metadata: SessionMetadata = serde_json::from_value(odd.clone()).unwrap();
    assert_eq!(metadata.title(), None);
    assert_eq!(metadata.get(MetadataKey::Title), Some(&json!(5)));
    assert_eq!(metadata.model(), None);
    assert_eq!(metadata.ended(), None);
    assert_eq!(metadata.created_at(), None);
    assert_eq!(metadata.event_count(), None);
    assert_eq!(metadata.skills(), None);
    assert_eq!(serde_json::to_value(&metadata).unwrap(), odd);
}

#[test]
fn unset_and_null_are_two_things() {
    let mut patch = SessionMetadata::new().with_null(MetadataKey::Model);
    assert!(patch.is_null(MetadataKey::Model) && patch.contains(MetadataKey::Model));
    assert!(!patch.is_null(MetadataKey::Mode) && !patch.contains(MetadataKey::Mode));
    assert_eq!(serde_json::to_value(&patch).unwrap(), json!({"model": null}));
    assert_eq!(patch.remove(MetadataKey::Model), Some(Value::Null));
    assert!(patch.is_empty());
}

#[test]
fn a_patch_replaces_key_by_key_like_the_server_does() {
    let mut stored =
        SessionMetadata::new().with_title("old").with_model("opus").with("nested", json!({"a": 1}));
    stored.merge(
        SessionMetadata::new().with_title("new").with_null(MetadataKey::Model).with("nested", json!({})),
    );
    assert_eq!(serde_json::to_value(stored).unwrap(), json!({"title": "new", "model": null, "nested": {}}));
}

#[test]
fn snake_case_is_read_where_the_wire_spelling_is_missing() {
    let metadata: SessionMetadata =
        serde_json::from_value(json!({"permission_mode": "ask", "createdAt": null,
        "created_at": 5}))
        .unwrap();
    assert_eq!(metadata.permission_mode(), Some("ask"));
    assert_eq!(metadata.created_at(), Some(Timestamp::from_millis(5)));
    assert_eq!(metadata.unknown().count(), 0);
}

#[test]
fn writing_makes_missing_objects_and_refuses_to_overwrite_what_is_none() {
    let metadata = SessionMetadata::new().with_agent("mock");
    let ours = json!({"sandboxagent.dev": {"agent": "mock"}});
    let cases = [
        (json!(null), Some(json!({"_meta": ours}))),
        (json!({}), Some(json!({"_meta": ours}))),
        (json!({"_meta": null}), Some(json!({"_meta": ours}))),
        (json!({"_meta": {"sandboxagent.dev": null}}), Some(json!({"_meta": ours}))),
        (
            json!({"cwd": "/", "_meta": {"o.dev": 1, "sandboxagent.dev": {"agent": "x", "k": 2}}}),
            Some(json!({"cwd": "/", "_meta": {"o.dev": 1, "sandboxagent.dev": {"agent": "mock", "k": 2}}})),
        ),
        (json!([]), None),
        (json!("text"), None),
        (json!({"_meta": "text"}), None),
        (json!({"_meta": []}), None),
        (json!({"_meta": {"sandboxagent.dev": 5}}), None),
    ];
    for (before, expected) in cases {
        let mut message = before.clone();
        let outcome = metadata.write_into(&mut message);
        assert_eq!(outcome.is_ok(), expected.is_some(), "{before}");
        assert_eq!(message, expected.unwrap_or(before));
    }
}

#[test]
fn metadata_of_the_wrong_type_reads_as_none() {
    for message in [
        json!(null),
        json!([1]),
        json!({}),
        json!({"_meta": null}),
        json!({"_meta": "text"}),
        json!({"_meta": {}}),
        json!({"_meta": {"sandboxagent.dev": [1]}}),
    ] {
        assert_eq!(SessionMetadata::read_from(&message), None, "{message}");
    }
}

#[test]
fn empty_metadata_leaves_every_message_alone() {
    for message in [json!(null), json!("text"), json!({"_meta": 5})] {
        let mut written = message.clone();
        SessionMetadata::new().write_into(&mut written).unwrap();
        assert_eq!(written, message);
    }
}
