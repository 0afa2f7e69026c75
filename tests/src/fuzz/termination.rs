//! The reports of an agent's end.

use acp_http_client::is_unsafe;
use sandbox_agent_sdk::termination::{TerminationInfo, TerminationReport};
use serde_json::Value;

/// Reports of different kinds join in any order, an end is written as it was read, and it is safe to print.
pub(crate) fn termination(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    // One line for each kind of report.
    let values: Vec<Value> =
        text.lines().take(4).filter_map(|line| serde_json::from_str(line).ok()).collect();
    let Some(first) = values.first() else { return };
    let second = values.get(1).unwrap_or(first);
    let third = values.get(2).unwrap_or(first);
    let reports = [
        Some(TerminationReport::from_agent_exited(first)),
        TerminationReport::from_problem(second),
        TerminationReport::from_session_ended(third),
        Some(TerminationReport::requested()),
    ];
    let reports: Vec<TerminationReport> = reports.into_iter().flatten().collect();
    let join = |reports: &[TerminationReport]| {
        reports.iter().cloned().fold(TerminationReport::default(), TerminationReport::merge)
    };
    let joined = join(&reports);
    let mut turned = reports.clone();
    for _ in 0..reports.len() {
        turned.rotate_left(1);
        assert_eq!(join(&turned), joined, "the order of reports matters");
    }
    turned.reverse();
    assert_eq!(join(&turned), joined, "the order of reports matters");

    // The words of a joined report may name a signal, which is read with them; from then on nothing changes.
    let joined = again(&joined.into_info());
    for info in values.iter().filter_map(TerminationInfo::from_value).chain([joined]) {
        let shown = info.to_string();
        assert!(!shown.contains(is_unsafe), "a terminal acts on {shown:?}");
        assert_eq!(write(&again(&info)), write(&info), "an end changes when it is written and read");
        assert!(info.last_stderr_lines(5).len() <= 5);
    }
}

fn write(info: &TerminationInfo) -> Value {
    serde_json::to_value(info).expect("an end can be written")
}

fn again(info: &TerminationInfo) -> TerminationInfo {
    TerminationInfo::from_value(&write(info)).expect("an end is an object")
}
