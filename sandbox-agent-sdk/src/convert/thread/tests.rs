use serde_json::{Value, json};

use super::{AgentResult, ResultRules, Severity, ThreadEntry, ThreadEntryKind, TurnFailure};
use crate::TerminationInfo;
use crate::termination::{EndReason, TerminatedBy, TerminationReport};

fn classify(entry: &Value) -> ThreadEntry {
    ResultRules::default().classify_result(&AgentResult::from_value(entry))
}

#[test]
fn every_result_is_classified_as_specified() {
    use ThreadEntryKind::{Error, Response, Thought};
    let table = [
        // A success is a response, regardless of the error flag.
        (json!({"subtype": "success", "result": "done"}), Response, "done"),
        (json!({"subtype": "success", "result": "done", "is_error": false}), Response, "done"),
        (json!({"subtype": "success", "result": "done", "is_error": true}), Response, "done"),
        (json!({"subtype": "success"}), Response, ""),
        // Recoverable failures are shown inline, regardless of the error flag.
        (json!({"subtype": "error_during_execution", "result": "lost"}), Thought, "❌ lost"),
        (
            json!({"subtype": "error_during_execution", "result": "lost", "is_error": true}),
            Thought,
            "❌ lost",
        ),
        (
            json!({"subtype": "error_during_execution", "result": "lost", "is_error": false}),
            Thought,
            "❌ lost",
        ),
        (
            json!({"subtype": "error_during_execution"}),
            Thought,
            "❌ the agent ended with error_during_execution",
        ),
        (json!({"subtype": "error_during_execution", "errors": ["a", 1, "b"]}), Thought, "❌ a\nb"),
        (json!({"subtype": "error_during_execution", "result": "❌ once"}), Thought, "❌ once"),
        (json!({"subtype": "tool_error", "message": "no such file"}), Thought, "❌ no such file"),
        (json!({"subtype": "error_tool_denied", "is_error": true, "error": "no"}), Thought, "❌ no"),
        // Terminal failures are cards.
        (json!({"subtype": "error_max_turns", "result": "too many"}), Error, "too many"),
        (json!({"subtype": "error_max_turns", "result": "too many", "is_error": false}), Error, "too many"),
        (json!({"subtype": "error_max_turns"}), Error, "the agent ended with error_max_turns"),
        (json!({"result": "half"}), Error, "half"),
        (json!({"result": "half", "is_error": false}), Error, "half"),
        (json!({"subtype": null, "result": "half"}), Error, "half"),
        (json!({"subtype": "  "}), Error, "the agent ended without a reason"),
        (json!({"subtype": 7, "result": "half"}), Error, "half"),
        // Unknown subtypes are terminal unless they declare that they are not an error.
        (json!({"subtype": "error_new", "result": "new", "is_error": true}), Error, "new"),
        (json!({"subtype": "error_new", "result": "new"}), Error, "new"),
        (json!({"subtype": "error_new", "result": "new", "is_error": "no"}), Error, "new"),
        (json!({"subtype": "error_new", "result": "new", "is_error": false}), Thought, "❌ new"),
        (json!({"subtype": "error_new", "result": "new", "isError": false}), Thought, "❌ new"),
        (json!({"subtype": "toolbox", "result": "new"}), Error, "new"),
        (json!("no object at all"), Error, "the agent ended without a reason"),
    ];
    for (entry, kind, body) in table {
        let shown = classify(&entry);
        assert_eq!((&shown.kind, shown.body.as_str()), (&kind, body), "{entry}");
        assert_eq!(shown.is_terminal_error, kind == Error, "{entry}");
        assert_eq!(shown.result_subtype.as_deref(), entry.get("subtype").and_then(Value::as_str), "{entry}");
    }
}

#[test]
fn stop_reasons_are_results_too() {
    for (reason, kind, subtype, terminal) in [
        ("end_turn", ThreadEntryKind::Response, "success", false),
        ("max_turn_requests", ThreadEntryKind::Error, "error_max_turns", true),
        ("max_tokens", ThreadEntryKind::Thought, "max_tokens", false),
        ("refusal", ThreadEntryKind::Thought, "refusal", false),
        ("cancelled", ThreadEntryKind::Thought, "cancelled", false),
        ("something_new", ThreadEntryKind::Error, "something_new", true),
    ] {
        let entry =
            ResultRules::default().classify_result(&AgentResult::from_stop_reason(reason).with_body("x"));
        assert_eq!((&entry.kind, entry.is_terminal_error), (&kind, terminal), "{reason}");
        assert_eq!(entry.result_subtype.as_deref(), Some(subtype));
        assert_eq!(
            entry.body.starts_with('❌'),
            kind == ThreadEntryKind::Thought && reason != "cancelled",
            "{reason}"
        );
    }
}

#[test]
fn failed_turns_are_classified_as_specified() {
    let crash = TerminationReport::from_agent_exited(&json!({"success": false, "code": 3}));
    let clean = TerminationReport::from_agent_exited(&json!({"success": true, "code": 0}));
    let stopped = crash.clone().merge(TerminationReport::requested());
    let by_others = TerminationInfo::new(EndReason::Terminated, TerminatedBy::Daemon);
    let item_failure = json!({"type": "item_failure", "item": {"id": "item_1"}});
    let inline = (ThreadEntryKind::Thought, true, false);
    let card = (ThreadEntryKind::Error, false, true);
    let table = [
        ("a failed item", TurnFailure::new("failed").with_cause(item_failure.clone()), &inline),
        ("a denied tool", TurnFailure::new("denied").with_cause(json!({"toolCallId": "t"})), &inline),
        ("a list of causes", TurnFailure::new("failed").with_cause(json!(["a"])), &inline),
        ("no cause", TurnFailure::new("failed"), &card),
        ("a null cause", TurnFailure::new("failed").with_cause(Value::Null), &card),
        ("an empty cause", TurnFailure::new("failed").with_cause(json!({})), &card),
        ("a cause in words only", TurnFailure::new("failed").with_cause("because"), &card),
        ("old stderr only", TurnFailure::new("failed").with_cause(json!({"agentStderr": "old"})), &card),
        ("a crash", TurnFailure::from(crash.clone().into_info()), &card),
        ("a crash with a cause", TurnFailure::from(crash.into_info()).with_cause(item_failure), &card),
        (
            "a crash reported in the cause",
            TurnFailure::new("ended")
                .with_cause(json!({"terminationInfo": {"reason": "error", "exitCode": 1}})),
            &card,
        ),
        ("a clean exit before the response", TurnFailure::from(clean.into_info()), &card),
        ("a stop by another client", TurnFailure::from(by_others), &card),
        ("our own stop", TurnFailure::from(stopped.into_info()), &(ThreadEntryKind::Thought, false, false)),
    ];
    for (name, failure, (kind, marked, terminal)) in table {
        let entry = ResultRules::default().classify_failure(&failure);
        assert_eq!(&entry.kind, kind, "{name}");
        assert_eq!(entry.body.starts_with("❌ "), *marked, "{name}");
        assert_eq!(entry.is_terminal_error, *terminal, "{name}");
        assert_eq!(entry.result_subtype, None);
    }
}

#[test]
fn a_crash_says_what_the_agent_said() {
    let mut info = TerminationInfo::new(EndReason::Error, TerminatedBy::Agent);
    info.exit_code = Some(1);
    info.message = Some("agent exited with status exit status: 1".to_owned());
    let entry = ResultRules::default().classify_failure(&info.into());
    assert_eq!(
        entry.body,
        "the agent ended before its response: error, exit code 1: agent exited with status exit status: 1"
    );
}

#[test]
fn new_subtypes_can_be_added_and_known_ones_reclassified() {
    let rules = ResultRules::default()
        .with_subtype("error_max_budget_usd", Severity::Recoverable)
        .with_subtype("partial_success", Severity::Success)
        .with_subtype("paused", Severity::Stopped)
        .with_subtype("error_during_execution", Severity::Terminal);
    let kind = |subtype: &str| rules.classify_result(&AgentResult::new(subtype).with_is_error(true)).kind;
    assert_eq!(kind("error_max_budget_usd"), ThreadEntryKind::Thought);
    assert_eq!(kind("partial_success"), ThreadEntryKind::Response);
    assert_eq!(kind("paused"), ThreadEntryKind::Thought);
    assert_eq!(kind("error_during_execution"), ThreadEntryKind::Error);
    assert_eq!(kind("success"), ThreadEntryKind::Response);
}

#[test]
fn an_entry_travels_with_its_flags() {
    let entry = classify(&json!({"subtype": "error_max_turns", "result": "too many"}));
    let value = json!({"type": "error", "body": "too many", "resultSubtype": "error_max_turns",
        "isTerminalError": true});
    assert_eq!(serde_json::to_value(&entry).unwrap(), value);
    assert_eq!(serde_json::from_value::<ThreadEntry>(value).unwrap(), entry);
    let bare = json!({"type": "thought", "body": "❌ x", "isTerminalError": false});
    let failure = TurnFailure::new("x").with_cause(json!({"a": 1}));
    assert_eq!(serde_json::to_value(ResultRules::default().classify_failure(&failure)).unwrap(), bare);
}
