//! The modes, models and commands of a session.

use sandbox_agent_sdk::{Command, ConfigOption, Session, Update, UpdateKind};
use serde_json::Value;

use super::line::{Line, Style};

/// What can be set for a session, as far as it is known.
#[derive(Debug, Clone, Default)]
pub(super) struct Settings {
    pub(super) mode: Choices,
    pub(super) model: Choices,
    /// The commands that the agent understands in a prompt.
    pub(super) commands: Vec<Command>,
}

/// Values to choose from, and the one in force.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Choices {
    pub(super) current: Option<String>,
    /// Ids with the names to show.
    pub(super) values: Vec<(String, String)>,
}

impl Settings {
    /// What the answer said with which the session was made.
    pub(super) fn of(session: &Session) -> Self {
        let mut settings = Self::default();
        settings.options(&session.config_options());
        let raw = session.raw();
        let mode = Choices::read(raw.get("modes"), "currentModeId", "availableModes", "id");
        let model = Choices::read(raw.get("models"), "currentModelId", "availableModels", "modelId");
        if !mode.values.is_empty() {
            settings.mode = mode;
        }
        if !model.values.is_empty() {
            settings.model = model;
        }
        settings
    }

    /// Takes note of what the agent reports.
    pub(super) fn take(&mut self, update: &Update) {
        match update.kind() {
            UpdateKind::Mode { id } => self.mode.current = Some(id.clone()),
            UpdateKind::ConfigOptions(options) => self.options(options),
            UpdateKind::Commands(commands) => self.commands = commands.clone(),
            _ => {}
        }
    }

    fn options(&mut self, options: &[ConfigOption]) {
        for option in options {
            let place = match option.category.as_deref() {
                Some("mode") => &mut self.mode,
                Some("model") => &mut self.model,
                _ => continue,
            };
            *place = Choices {
                current: option.current.as_str().map(str::to_owned),
                values: option.values.iter().map(|value| (value.value.clone(), value.name.clone())).collect(),
            };
        }
    }
}

impl Choices {
    fn read(state: Option<&Value>, current: &str, list: &str, id: &str) -> Self {
        let Some(state) = state else { return Self::default() };
        let values = state.get(list).and_then(Value::as_array).into_iter().flatten().filter_map(|value| {
            let id = value.get(id)?.as_str()?.to_owned();
            let name = value.get("name").and_then(Value::as_str).unwrap_or(&id).to_owned();
            Some((id, name))
        });
        let current = state.get(current).and_then(Value::as_str).map(str::to_owned);
        Self { current, values: values.collect() }
    }

    /// The name of the value in force.
    pub(super) fn current_name(&self) -> Option<&str> {
        let current = self.current.as_deref()?;
        let known = self.values.iter().find(|(id, _)| id == current);
        Some(known.map_or(current, |(_, name)| name))
    }

    /// The id that the user means by a number, an id or a name; what is not known is for the agent to judge.
    pub(super) fn pick(&self, wanted: &str) -> String {
        let named = |(id, name): &&(String, String)| id == wanted || name.eq_ignore_ascii_case(wanted);
        let numbered = || self.values.get(wanted.parse::<usize>().ok()?.checked_sub(1)?);
        let found = self.values.iter().find(named).or_else(numbered);
        found.map_or_else(|| wanted.to_owned(), |(id, _)| id.clone())
    }

    pub(super) fn lines(&self, what: &str) -> Vec<Line> {
        if self.values.is_empty() {
            return vec![Line::new(Style::Dim, &format!("The agent does not say which {what}s it has."))];
        }
        let lines = self.values.iter().enumerate().map(|(index, (id, name))| {
            let current = self.current.as_ref() == Some(id);
            let sign = if current { "▸" } else { " " };
            let style = if current { Style::Bold } else { Style::Normal };
            let id = if id == name { String::new() } else { format!("  {id}") };
            Line::new(Style::Accent, &format!("{sign} {:>2}  ", index + 1))
                .with(style, name)
                .with(Style::Dim, &id)
        });
        lines.collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Choices;

    #[test]
    fn a_value_is_picked_by_number_id_or_name() {
        let modes =
            json!({"currentModeId": "b", "availableModes": [{"id": "a", "name": "Ask"}, {"id": "b"}, {}]});
        let modes = Choices::read(Some(&modes), "currentModeId", "availableModes", "id");
        assert_eq!(modes.current_name(), Some("b"));
        for (wanted, picked) in [("1", "a"), ("b", "b"), ("ask", "a"), ("9", "9"), ("0", "0"), ("new", "new")]
        {
            assert_eq!(modes.pick(wanted), picked);
        }
        assert_eq!(Choices::read(Some(&json!(5)), "x", "y", "id"), Choices::default());
    }
}
