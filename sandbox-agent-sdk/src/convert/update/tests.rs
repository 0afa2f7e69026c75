//! Parsing of updates.

use proptest::prelude::{any, prop_assert_eq, proptest};
use serde_json::{Value, json};

use super::{
    CompactionStatus, ConfigKind, Missed, NoticeSeverity, Patched, ToolKind, ToolStatus, Update, UpdateKind,
};
use crate::Content;
use crate::event::{Gap, Origin};

type Fits = fn(&UpdateKind) -> bool;

fn read(update: Value) -> Update {
    Update::read(json!({"sessionId": "s", "update": update}), Origin::Live, 10)
}

#[test]
fn every_known_kind_is_typed_and_its_json_is_kept() {
    let chunk = |kind: &str| json!({"sessionUpdate": kind, "content": {"type": "text", "text": "hi"}, "messageId": "m"});
    let table: Vec<(Value, Fits)> = vec![
        (
            chunk("agent_message_chunk"),
            |kind| matches!(kind, UpdateKind::Message(chunk) if chunk.text() == Some("hi")),
        ),
        (
            chunk("agent_thought_chunk"),
            |kind| matches!(kind, UpdateKind::Thought(chunk) if chunk.message_id.as_deref() == Some("m")),
        ),
        (chunk("user_message_chunk"), |kind| matches!(kind, UpdateKind::UserMessage(_))),
        (
            json!({"sessionUpdate": "plan", "entries": [{"content": "a", "priority": "high", "status": "pending"}]}),
            |kind| matches!(kind, UpdateKind::Plan(entries) if entries[0].content == "a"),
        ),
        (
            json!({"sessionUpdate": "available_commands_update", "availableCommands": [{"name": "web", "description": "d", "input": {"hint": "h"}}]}),
            |kind| matches!(kind, UpdateKind::Commands(commands) if commands[0].hint.as_deref() == Some("h")),
        ),
        (
            json!({"sessionUpdate": "current_mode_update", "currentModeId": "plan"}),
            |kind| matches!(kind, UpdateKind::Mode { id } if id == "plan"),
        ),
        (
            json!({"sessionUpdate": "session_info_update", "title": "T"}),
            |kind| matches!(kind, UpdateKind::Info { title: Some(title), .. } if title == "T"),
        ),
        (
            json!({"sessionUpdate": "usage_update", "used": 5, "size": 10}),
            |kind| matches!(kind, UpdateKind::Usage(usage) if (usage.used, usage.size) == (Some(5), Some(10))),
        ),
        (
            json!({"sessionUpdate": "config_option_update", "configOptions": [
            {"id": "model", "name": "Model", "category": "model", "type": "select", "currentValue": "a",
             "options": [{"value": "a", "name": "A"}, {"group": "g", "name": "G", "options": [{"value": "b", "name": "B"}]}]}]}),
            |kind| {
                matches!(kind, UpdateKind::ConfigOptions(options)
                if options[0].values.len() == 2 && options[0].values[1].group.as_deref() == Some("G"))
            },
        ),
        (
            json!({"sessionUpdate": "teleport", "to": "moon"}),
            |kind| matches!(kind, UpdateKind::Other { kind } if kind == "teleport"),
        ),
        (
            json!({"sessionUpdate": "agent_message_chunk"}),
            |kind| matches!(kind, UpdateKind::Other { kind } if kind == "agent_message_chunk"),
        ),
    ];
    for (update, expected) in table {
        let read = read(update.clone());
        assert!(expected(read.kind()), "{update} was read as {:?}", read.kind());
        assert_eq!(read.raw(), &update);
        assert_eq!(read.session_id(), "s");
    }
}

#[test]
fn a_tool_call_describes_what_it_does() {
    let update =
        read(json!({"sessionUpdate": "tool_call", "toolCallId": "t", "title": "Run", "kind": "execute",
        "status": "in_progress", "rawInput": {"command": "ls"}, "locations": [{"path": "/a", "line": 3}, {}],
        "content": [{"type": "content", "content": {"type": "text", "text": "out"}},
            {"type": "diff", "path": "/a", "newText": "b"}, {"type": "diff", "path": "/broken"}]}));
    let UpdateKind::ToolCall(call) = update.kind() else { panic!("{update:?}") };
    assert_eq!(
        (call.kind.clone(), call.status.clone()),
        (Some(ToolKind::Execute), Some(ToolStatus::InProgress))
    );
    assert_eq!(call.locations[0].line, Some(3));
    assert_eq!(call.content[0], Content::from("out"));
    assert_eq!(call.content[1], Content::diff("/a", None, "b"));
    assert!(matches!(&call.content[2], Content::Other(diff) if diff["path"] == "/broken"));
    let update = read(json!({"sessionUpdate": "tool_call_update", "toolCallId": "t", "status": "quantum"}));
    let UpdateKind::ToolCallUpdate(call) = update.kind() else { panic!("{update:?}") };
    assert_eq!(call.status, Some(ToolStatus::Other("quantum".into())));
    assert_eq!((call.title.as_deref(), call.kind.as_ref()), (None, None));
}

#[test]
fn only_the_agents_message_is_printed() {
    let message = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "hi"}});
    let thought = json!({"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": "hm"}});
    assert_eq!(format!("{}{}", read(message), read(thought)), "hi");
    let missed = Missed::Gap(Gap { from: 3, to: 5 });
    assert_eq!(Update::missed("s", missed).to_string(), "");
    assert_eq!(Gap { from: 3, to: 5 }.count(), 3);
}

#[test]
fn a_report_that_is_nested_too_deep_is_unreadable_and_its_text_is_kept() {
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    let inside = format!(r#"{{"sessionUpdate":"plan","x":{deep}}}"#);
    let update = Update::from_text(&format!(r#"{{"sessionId":"s","update":{inside}}}"#), Origin::Live, 0);
    assert!(
        matches!(update.kind(), UpdateKind::Unreadable { kind, .. } if kind == "plan"),
        "{:?}",
        update.kind()
    );
    assert_eq!((update.session_id(), update.raw().as_str()), ("s", Some(inside.as_str())));
    let broken = Update::from_text("{", Origin::Live, 0);
    assert!(matches!(broken.kind(), UpdateKind::Unreadable { .. }));
    assert_eq!(broken.raw(), "{");
}

#[test]
fn the_updates_of_the_stable_protocol_are_typed() {
    let notice =
        read(json!({"sessionUpdate": "notice", "severity": "warning", "title": "Slow", "description": "d",
        "_meta": {"a": 1}}));
    let UpdateKind::Notice(typed) = notice.kind() else { panic!("{notice:?}") };
    assert_eq!((&typed.severity, typed.title.as_str()), (&NoticeSeverity::Warning, "Slow"));
    assert_eq!((notice.meta(), typed.meta.as_ref()), (Some(&json!({"a": 1})), Some(&json!({"a": 1}))));
    let compaction =
        read(json!({"sessionUpdate": "compaction_update", "compactionId": "c", "status": "failed",
        "summary": null, "error": "no"}));
    let UpdateKind::Compaction(typed) = compaction.kind() else { panic!("{compaction:?}") };
    assert_eq!((typed.id.as_str(), &typed.status), ("c", &CompactionStatus::Failed));
    assert_eq!((&typed.summary, typed.error.set().map(String::as_str)), (&Patched::Cleared, Some("no")));
    assert_eq!(typed.meta, Patched::Unchanged);
    assert_eq!(json!(typed), json!({"id": "c", "status": "failed", "summary": null, "error": "no"}));
    let chunk = read(json!({"sessionUpdate": "compaction_summary_chunk", "compactionId": "c",
        "content": {"type": "text", "text": "so far"}}));
    let UpdateKind::CompactionSummary(typed) = chunk.kind() else { panic!("{chunk:?}") };
    assert_eq!((typed.id.as_str(), typed.content.text()), ("c", Some("so far")));
    let options = read(json!({"sessionUpdate": "config_option_update", "configOptions": [
        {"id": "web", "name": "Web", "description": "Search the web", "type": "boolean", "currentValue": true},
        {"id": "m", "type": "select", "currentValue": "a", "options": [{"value": "a", "name": "A", "description": "d"}]}]}));
    let UpdateKind::ConfigOptions(typed) = options.kind() else { panic!("{options:?}") };
    assert_eq!((&typed[0].kind, typed[0].is_on()), (&ConfigKind::Boolean, Some(true)));
    assert_eq!(typed[0].description.as_deref(), Some("Search the web"));
    assert_eq!((typed[1].is_on(), typed[1].values[0].description.as_deref()), (None, Some("d")));
}

#[test]
fn an_absent_list_differs_from_an_empty_one() {
    let call = |update: Value| match read(update).kind() {
        UpdateKind::ToolCall(call) | UpdateKind::ToolCallUpdate(call) => call.clone(),
        other => panic!("{other:?}"),
    };
    let mut now =
        call(json!({"sessionUpdate": "tool_call", "toolCallId": "t", "title": "Edit", "status": "pending",
        "content": [{"type": "diff", "path": "/a", "newText": "b"}], "locations": [{"path": "/a"}]}));
    let silent =
        call(json!({"sessionUpdate": "tool_call_update", "toolCallId": "t", "status": "in_progress"}));
    assert_eq!((silent.new_content(), silent.new_locations()), (None, None));
    now.apply_update(&silent);
    assert_eq!((now.content.len(), now.locations.len(), now.title.as_deref()), (1, 1, Some("Edit")));
    let empty = call(json!({"sessionUpdate": "tool_call_update", "toolCallId": "t", "content": []}));
    assert_eq!(empty.new_content().map(<[Content]>::len), Some(0));
    now.apply_update(&empty);
    assert_eq!((now.content.len(), now.locations.len()), (0, 1));
    assert_eq!(now.status, Some(ToolStatus::InProgress));
}

proptest! {
    #[test]
    fn no_report_makes_the_reader_fail(name in any::<String>(), text in any::<String>()) {
        for content in [json!(null), json!(text), json!([text]), json!({"type": "text", "text": text})] {
            let update = json!({"sessionUpdate": name, "content": content, "entries": content, "toolCallId": content,
                "configOptions": content, "availableCommands": content});
            let read = read(update.clone());
            prop_assert_eq!(read.raw(), &update);
        }
    }
}
