//! The current state of a session.

use serde_json::{Map, Value};

use crate::control::AgentMode;
use crate::session::{Model, ModelList, SessionMetadata};
use crate::update::{Command, ConfigOption};
use crate::usage::Cost;

mod budget;
mod patch;
mod reported;
#[cfg(test)]
mod tests;
mod tool;
mod tracked;

pub(crate) use patch::Patch;
pub use tool::Tool;
pub(crate) use tracked::TrackedSnapshot;

/// The current state of a session: the available settings and their current values.
///
/// It combines the responses that create, load, resume or fork the session, the agent's updates, and the responses to
/// changes by this client. A later update overrides an earlier response. When a turn has an outcome, the snapshot
/// contains every update of the turn.
///
/// Agents report modes and models in two ways: as lists, and as options with the category `mode` or `model`. The
/// snapshot keeps both consistent. If an agent has only options, the lists are derived from them.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct SessionSnapshot {
    /// The available modes.
    pub modes: Vec<AgentMode>,
    /// The id of the current mode.
    pub current_mode: Option<String>,
    /// The available models and the current one.
    pub models: ModelList,
    /// The options with their values.
    pub config_options: Vec<ConfigOption>,
    /// The available commands.
    pub commands: Vec<Command>,
    /// The tools of the agent, if it reports them.
    pub tools: Vec<Tool>,
    /// The display title.
    pub title: Option<String>,
    /// The time of the last activity, as the agent formats it.
    pub last_activity: Option<String>,
    /// How many tokens of the model's context are used.
    pub context_used: Option<u64>,
    /// The size of the model's context in tokens.
    pub context_size: Option<u64>,
    /// The cumulative cost that the agent last reported. [`Session::usage`](crate::Session::usage) returns the
    /// counted total.
    pub cost: Option<Cost>,
    /// The metadata from the application and the server, with all later changes.
    pub metadata: SessionMetadata,
    /// Unknown fields of the responses, as received. It also contains unparsable entries of known fields, under the
    /// name of the field.
    pub other: Map<String, Value>,
}

impl SessionSnapshot {
    /// Returns the current mode, if it is in the list.
    #[must_use]
    pub fn mode(&self) -> Option<&AgentMode> {
        let current = self.current_mode.as_deref()?;
        self.modes.iter().find(|mode| mode.id == current)
    }

    /// Returns the current model, if it is in the list.
    #[must_use]
    pub fn model(&self) -> Option<&Model> {
        self.models.current_model()
    }

    /// Returns an option by its id.
    #[must_use]
    pub fn config_option(&self, id: &str) -> Option<&ConfigOption> {
        self.config_options.iter().find(|option| option.id == id)
    }

    /// Returns the first option of a category, such as `mode`, `model` or `thought_level`.
    #[must_use]
    pub fn option_for(&self, category: &str) -> Option<&ConfigOption> {
        self.config_options.iter().find(|option| option.category.as_deref() == Some(category))
    }
}
