use serde_json::json;

use super::instance::Player;
use super::step::{Permission, PermissionOption, Step, ToolCall};
use crate::fault::{Fault, Moment};

impl Player {
    /// Returns the steps that a fault substitutes for the script.
    pub(super) fn faulty_steps(&self) -> Option<Vec<Step>> {
        let moment = Moment { verb: "POST", path: "", method: Some("session/prompt") };
        let fault = self.outlet.surroundings().faults.strike(&moment, |fault| {
            matches!(fault, Fault::PermissionWaitsForCancel | Fault::UnknownVariants).then(|| fault.clone())
        })?;
        Some(if fault == Fault::UnknownVariants { unknown_variants() } else { permission_until_cancelled() })
    }
}

fn permission_until_cancelled() -> Vec<Step> {
    let call = ToolCall::new("tool-call-until-cancelled", "Wait for the user");
    vec![
        Step::ToolCall(call.clone()),
        Step::AskPermission(Permission::new(call).then(|_| Vec::new())),
        Step::WaitForCancel,
    ]
}

fn unknown_variants() -> Vec<Step> {
    let call =
        ToolCall { kind: "teleport".to_owned(), ..ToolCall::new("tool-call-unknown", "From the future") };
    let option =
        PermissionOption { id: "today".into(), name: "Allow today".into(), kind: "allow_for_today".into() };
    vec![
        Step::Update(json!({ "sessionUpdate": "future_update", "payload": { "answer": 42 } })),
        Step::Update(json!({
            "sessionUpdate": "agent_message_chunk",
            "content": { "type": "hologram", "data": "…" },
        })),
        Step::ToolCall(call.clone()),
        Step::Notify { method: "_vendor/unknown".into(), params: json!({ "anything": true }) },
        Step::AskPermission(Permission::new(call).options(vec![option])),
        Step::Stop("future_reason".into()),
    ]
}
