//! The capabilities that this client advertises to agents.

use serde_json::{Map, Value, json};

use crate::ClientOptions;

/// The `clientCapabilities` of the first message to an agent. Agents use only advertised capabilities.
pub(crate) fn client_capabilities(options: &ClientOptions, handlers: Map<String, Value>) -> Value {
    let mut offers = json!({"fs": {"readTextFile": false, "writeTextFile": false}, "terminal": false});
    for (name, offer) in handlers {
        offers[name] = offer;
    }
    let mut session = json!({"compaction": {}, "configOptions": {"boolean": {}}});
    if options.notices {
        session["notices"] = json!({});
    }
    offers["session"] = session;
    offers["auth"] = json!({"terminal": options.terminal_logins});
    if let Some(questions) = options.questions.to_value() {
        offers["elicitation"] = questions;
    }
    offers
}
