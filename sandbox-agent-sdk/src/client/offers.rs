//! The capabilities that this client advertises to agents.

use serde_json::{Value, json};

use crate::ClientOptions;
use crate::tools::AgentTools;

/// The member `clientCapabilities` of the first message to an agent. Agents do not send what is not in it.
pub(crate) fn client_capabilities(options: &ClientOptions, tools: &AgentTools) -> Value {
    let mut offers = tools.capabilities();
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
