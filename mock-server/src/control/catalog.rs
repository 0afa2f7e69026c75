//! The known agents, and which of them are installed.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde_json::{Map, Value, json};

/// All agent ids, in the order of the released server's list.
pub const AGENT_IDS: [&str; 7] = ["claude", "codex", "opencode", "amp", "pi", "cursor", "mock"];

/// The reported installation directory of agents.
const BIN_DIRECTORY: &str = "/opt/sandbox-agent/bin";

/// The capabilities of agents, in the released server's order.
const CAPABILITIES: [&str; 18] = [
    "planMode",
    "permissions",
    "questions",
    "toolCalls",
    "toolResults",
    "textMessages",
    "images",
    "fileAttachments",
    "sessionLifecycle",
    "errorEvents",
    "reasoning",
    "status",
    "commandExecution",
    "fileChanges",
    "mcpTools",
    "streamingDeltas",
    "itemStarted",
    "sharedProcess",
];

/// The facts about an agent that do not depend on its installation.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    /// One of [`AGENT_IDS`], or the name of an additional agent.
    pub(super) id: Cow<'static, str>,
    /// Whether it has credentials, or needs none.
    pub(super) credentials: bool,
    /// One bit per capability, the first one leftmost.
    capabilities: &'static str,
    /// The values of its `model` option, with names.
    models: &'static [(&'static str, &'static str)],
}

const ENTRIES: [Entry; 7] = [
    Entry {
        id: Cow::Borrowed("claude"),
        credentials: false,
        capabilities: "011111000000001100",
        models: &[("default", "Default"), ("sonnet", "Sonnet"), ("opus", "Opus"), ("haiku", "Haiku")],
    },
    Entry { id: Cow::Borrowed("codex"), credentials: false, capabilities: "110111111111111110", models: &[] },
    Entry {
        id: Cow::Borrowed("opencode"),
        credentials: false,
        capabilities: "000111111100001110",
        models: &[],
    },
    Entry {
        id: Cow::Borrowed("amp"),
        credentials: false,
        capabilities: "000111000100001000",
        models: &[("amp-default", "Amp Default")],
    },
    Entry { id: Cow::Borrowed("pi"), credentials: true, capabilities: "000111101100000110", models: &[] },
    Entry { id: Cow::Borrowed("cursor"), credentials: true, capabilities: "110111101100000110", models: &[] },
    Entry {
        id: Cow::Borrowed("mock"),
        credentials: true,
        capabilities: "111111111111111110",
        models: &[("mock", "Mock"), ("mock-fast", "Mock Fast")],
    },
];

impl Entry {
    /// Returns the released server's agents, in order.
    fn released() -> impl Iterator<Item = Self> {
        ENTRIES.into_iter()
    }

    /// Creates an agent that the released server does not have, with the capabilities of the mock.
    fn own(id: &str) -> Self {
        let capabilities = "111111111111111110";
        Self { id: Cow::Owned(id.to_owned()), credentials: true, capabilities, models: &[] }
    }

    /// Returns the eighteen capabilities.
    pub(super) fn capabilities(&self) -> Value {
        let bits = self.capabilities.bytes().map(|bit| Value::Bool(bit == b'1'));
        CAPABILITIES.iter().map(|name| (*name).to_owned()).zip(bits).collect::<Map<_, _>>().into()
    }

    /// Returns the version that is reported after installation.
    pub(super) fn version(&self) -> &'static str {
        if self.id == "mock" { "builtin" } else { "1.0.0" }
    }

    /// Returns the reported path of its program.
    pub(super) fn path(&self) -> String {
        format!("{BIN_DIRECTORY}/{}", self.id)
    }

    /// Returns its options: models, and for the mock also a mode and a thought level.
    pub(super) fn config_options(&self) -> Value {
        let mut options = Vec::new();
        if !self.models.is_empty() {
            options.push(select("model", "Model", self.models));
        }
        if self.id == "mock" {
            options.push(select("mode", "Mode", &[("normal", "Normal"), ("plan", "Plan")]));
            let levels = [("low", "Low"), ("medium", "Medium"), ("high", "High")];
            options.push(select("thought_level", "Thought Level", &levels));
        }
        options.into()
    }

    /// Returns the reported artifacts of an installation.
    pub(super) fn artifacts(&self, agent_version: Option<&str>, process_version: Option<&str>) -> Value {
        let launcher = format!("{BIN_DIRECTORY}/agent_processes/{}-acp", self.id);
        if self.id == "mock" {
            return json!([artifact("agent_process", launcher, "builtin", Some("builtin"))]);
        }
        json!([
            artifact("native_agent", self.path(), "fallback", agent_version),
            artifact("agent_process", launcher, "registry", process_version),
        ])
    }
}

/// Creates an option with fixed values; the first one is selected.
fn select(id: &str, name: &str, choices: &[(&str, &str)]) -> Value {
    let options: Vec<Value> =
        choices.iter().map(|(value, name)| json!({ "name": name, "value": value })).collect();
    json!({
        "category": id,
        "currentValue": choices.first().map(|(value, _)| value),
        "id": id,
        "name": name,
        "options": options,
        "type": "select",
    })
}

fn artifact(kind: &str, path: String, source: &str, version: Option<&str>) -> Value {
    json!({ "kind": kind, "path": path, "source": source, "version": version })
}

/// The known agents, the installed ones, and those whose installation fails.
#[derive(Debug)]
pub(super) struct Catalog {
    /// Agents beyond the released server's.
    own: BTreeSet<String>,
    /// Guards both sets; held only for lookups and changes.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    installed: BTreeSet<String>,
    /// The installer output of agents whose installation fails.
    failing: BTreeMap<String, String>,
}

/// The outcome of an installation.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Installation {
    /// The agent was already installed.
    Already,
    /// The agent was installed.
    Done,
    /// The installation failed with this output.
    Failed(String),
}

impl Catalog {
    pub(super) fn new(
        installed: impl IntoIterator<Item = String>,
        own: impl IntoIterator<Item = String>,
    ) -> Self {
        let own = own.into_iter().filter(|id| !AGENT_IDS.contains(&id.as_str())).collect();
        let state = State { installed: installed.into_iter().collect(), failing: BTreeMap::new() };
        Self { own, state: Mutex::new(state) }
    }

    /// Returns all agents, the released server's first.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> {
        Entry::released().chain(self.own.iter().map(|id| Entry::own(id)))
    }

    /// Returns the entry of an agent, if it exists.
    pub(super) fn entry(&self, agent: &str) -> Option<Entry> {
        self.entries().find(|entry| entry.id == agent)
    }

    pub(super) fn is_installed(&self, agent: &str) -> bool {
        let known = AGENT_IDS.contains(&agent) || self.own.contains(agent);
        known && self.state().installed.contains(agent)
    }

    pub(super) fn set_installed(&self, agent: &str, installed: bool) {
        let mut state = self.state();
        if installed {
            state.installed.insert(agent.to_owned());
        } else {
            state.installed.remove(agent);
        }
    }

    pub(super) fn fail_install(&self, agent: &str, stderr: String) {
        self.state().failing.insert(agent.to_owned(), stderr);
    }

    /// Installs an agent. With `reinstall`, also if it is already installed.
    pub(super) fn install(&self, agent: &str, reinstall: bool) -> Installation {
        if self.is_installed(agent) && !reinstall {
            return Installation::Already;
        }
        let mut state = self.state();
        if let Some(stderr) = state.failing.get(agent) {
            return Installation::Failed(stderr.clone());
        }
        state.installed.insert(agent.to_owned());
        Installation::Done
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_ids_and_complete() {
        assert_eq!(Entry::released().map(|entry| entry.id).collect::<Vec<_>>(), AGENT_IDS);
        for entry in Entry::released() {
            assert_eq!(entry.capabilities().as_object().unwrap().len(), CAPABILITIES.len(), "{}", entry.id);
        }
    }

    #[test]
    fn an_unknown_agent_is_never_installed() {
        let catalog = Catalog::new(["nope".to_owned(), "mock".to_owned()], []);
        assert!(catalog.is_installed("mock"));
        assert!(!catalog.is_installed("nope"));
    }

    #[test]
    fn additional_agents_come_last_and_only_once() {
        let catalog = Catalog::new(["zed".to_owned()], ["zed", "mock", "alpha"].map(str::to_owned));
        let ids: Vec<_> = catalog.entries().map(|entry| entry.id).collect();
        assert_eq!(ids[6..], ["mock", "alpha", "zed"]);
        assert!(catalog.is_installed("zed") && !catalog.is_installed("alpha"));
    }
}
