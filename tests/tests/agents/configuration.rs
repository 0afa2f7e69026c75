//! Compares the configurations in `docs/agents.md` with those that the suite runs.

use sdk_tests::agents::{AgentHome, HomeOptions, RealAgent};

const HEADING: &str = "## How to configure each agent";
const FILES: [&str; 3] = ["opencode.json", "$CODEX_HOME/config.toml", "settings.json"];

/// Fails unless the page names all variables and settings of each agent, and no others.
pub(crate) fn check(page: &str) {
    let (_, table) = page.split_once(HEADING).expect("docs/agents.md says how to configure agents");
    for agent in RealAgent::ALL {
        let row = table.lines().find(|line| line.starts_with(&format!("| {agent} |")));
        let row = row.unwrap_or_else(|| panic!("docs/agents.md does not say how to configure {agent}"));
        let home = AgentHome::new(agent, &[], "http://127.0.0.1:1", &HomeOptions::default());
        let named: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
        for setting in home.settings() {
            let is_named = named.iter().any(|text| name_of(text) == setting);
            assert!(is_named, "docs/agents.md does not name the setting {setting} of {agent}");
        }
        // A value has neither a dot nor an equals sign.
        let settings = named.iter().filter(|text| text.contains(['=', '.']) && !FILES.contains(text));
        for text in settings {
            let is_used = home.settings().iter().any(|setting| setting == name_of(text));
            assert!(is_used, "docs/agents.md names {text}, which the suite does not set for {agent}");
        }
    }
}

/// The name in `NAME` or `NAME=VALUE`.
fn name_of(text: &str) -> &str {
    text.split_once('=').map_or(text, |(name, _)| name)
}
