//! What is known about a session now.

use serde_json::{Map, Value};

use crate::control::AgentMode;
use crate::session::{Model, ModelList, SessionMetadata};
use crate::update::{Command, ConfigOption};
use crate::usage::Cost;

mod cell;
mod patch;
#[cfg(test)]
mod tests;
mod told;
mod tool;

pub(crate) use cell::SnapshotCell;
pub(crate) use patch::Patch;
pub use tool::Tool;

/// What is known about a session now: what can be chosen in it, and what is chosen.
///
/// It is put together from whatever tells of it: the answers that make, load, resume or fork a session, the
/// agent's own reports, and the answers to changes that this client asks for. What the agent reports later counts
/// for more than what it answered before. When the outcome of a turn is there, everything that came in the turn is
/// in the snapshot.
///
/// Agents tell of modes and models in two ways: as lists of their own, and as options with the category `mode` or
/// `model`. The two are kept in step here, and where there are only options, the lists are made of them.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct SessionSnapshot {
    /// The modes to choose from.
    pub modes: Vec<AgentMode>,
    /// The id of the mode in force.
    pub current_mode: Option<String>,
    /// The models to choose from, and the one in use.
    pub models: ModelList,
    /// The options with their values.
    pub config_options: Vec<ConfigOption>,
    /// The commands that a user may give.
    pub commands: Vec<Command>,
    /// The tools the agent has, where it tells of them.
    pub tools: Vec<Tool>,
    /// The title people see.
    pub title: Option<String>,
    /// When it was last used, in the agent's own words.
    pub last_activity: Option<String>,
    /// How many tokens of the model's context are used.
    pub context_used: Option<u64>,
    /// How many tokens the model's context has room for.
    pub context_size: Option<u64>,
    /// The running total of the cost, as the agent last reported it. [`Session::usage`](crate::Session::usage) adds up.
    pub cost: Option<Cost>,
    /// The metadata it was made with, and what came back or was changed since.
    pub metadata: SessionMetadata,
    /// What this version does not know, as it came: whole members of the answers, and of a member that it knows (of
    /// `modes`, say, or of the list of tools) what it cannot read, under the name of that member.
    pub other: Map<String, Value>,
}

impl SessionSnapshot {
    /// The mode in force, if it is one of the list.
    #[must_use]
    pub fn mode(&self) -> Option<&AgentMode> {
        let current = self.current_mode.as_deref()?;
        self.modes.iter().find(|mode| mode.id == current)
    }

    /// The model in use, if it is one of the list.
    #[must_use]
    pub fn model(&self) -> Option<&Model> {
        self.models.current_model()
    }

    /// An option by its id.
    #[must_use]
    pub fn config_option(&self, id: &str) -> Option<&ConfigOption> {
        self.config_options.iter().find(|option| option.id == id)
    }

    /// The first option of a category: `mode`, `model`, `thought_level` or whatever the agent has.
    #[must_use]
    pub fn option_for(&self, category: &str) -> Option<&ConfigOption> {
        self.config_options.iter().find(|option| option.category.as_deref() == Some(category))
    }
}
