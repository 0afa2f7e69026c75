//! Reports of gemini-cli that do not follow the protocol.
//!
//! After a client has set a mode, version 0.61.0 reports the mode as agent text outside any turn: `[MODE_UPDATE] yolo`.

use serde_json::{Value, json};

use crate::update::{Update, UpdateKind};

/// What precedes the id of the mode.
const MODE: &str = "[MODE_UPDATE] ";

/// Whether one of these names of an agent is that of gemini-cli.
pub(crate) fn is_gemini<'a>(names: impl IntoIterator<Item = &'a str>) -> bool {
    names.into_iter().any(|name| name.to_ascii_lowercase().contains("gemini"))
}

/// Returns the mode that an update reports, if it is outside any turn and this client has set the mode.
pub(crate) fn reported_mode(update: &Update) -> Option<&str> {
    let UpdateKind::Message(chunk) = update.kind() else { return None };
    let mode = chunk.content.text()?.strip_prefix(MODE)?.trim_end();
    (!mode.is_empty() && !mode.contains(char::is_whitespace)).then_some(mode)
}

/// Returns the report of a mode. Its `_meta` has the original.
pub(crate) fn mode_report(update: &Update, mode: &str) -> Update {
    let report = json!({
        "sessionUpdate": "current_mode_update", "currentModeId": mode, "_meta": {"gemini": update.raw()},
    });
    let params: Value = json!({"sessionId": update.session_id(), "update": report});
    Update::read(params, update.origin(), 2 * update.size())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{is_gemini, mode_report, reported_mode};
    use crate::event::Origin;
    use crate::{Update, UpdateKind};

    #[test]
    fn only_a_whole_report_is_a_mode() {
        let mode = |kind: &str, text: &str| {
            let raw = json!({"sessionUpdate": kind, "content": {"type": "text", "text": text}});
            let update = Update::read(json!({"sessionId": "s", "update": raw}), Origin::Live, 0);
            let report = mode_report(&update, reported_mode(&update)?);
            assert_eq!(report.raw()["_meta"]["gemini"], raw);
            assert_eq!(report.session_id(), "s");
            let UpdateKind::Mode { id } = report.kind() else { panic!("{report:?}") };
            Some(id.clone())
        };
        let table = [
            ("agent_message_chunk", "[MODE_UPDATE] yolo", Some("yolo")),
            ("agent_message_chunk", "[MODE_UPDATE] autoEdit\n", Some("autoEdit")),
            ("agent_message_chunk", "[MODE_UPDATE] ", None),
            ("agent_message_chunk", "[MODE_UPDATE] is what it prints", None),
            ("agent_message_chunk", "It says [MODE_UPDATE] yolo", None),
            ("agent_thought_chunk", "[MODE_UPDATE] yolo", None),
        ];
        for (kind, text, expected) in table {
            assert_eq!(mode(kind, text).as_deref(), expected, "{kind} {text}");
        }
    }

    #[test]
    fn the_agent_is_recognised_by_its_names() {
        assert!(is_gemini(["acp", "Gemini-CLI"]));
        assert!(!is_gemini(["claude", "qwen-code"]));
    }
}
