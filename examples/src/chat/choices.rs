//! The modes and models of a session, to choose from.

use sandbox_agent_sdk::session::SessionSnapshot;

use super::line::{Line, Style};

/// Values to choose from, and the current one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Choices {
    current: Option<String>,
    /// Ids with the names to show.
    values: Vec<(String, String)>,
}

impl Choices {
    pub(super) fn modes(snapshot: &SessionSnapshot) -> Self {
        let values = snapshot.modes.iter().map(|mode| (mode.id.clone(), mode.label().to_owned()));
        Self { current: snapshot.current_mode.clone(), values: values.collect() }
    }

    pub(super) fn models(snapshot: &SessionSnapshot) -> Self {
        let models = &snapshot.models;
        let values = models.available.iter().map(|model| (model.id.clone(), model.label().to_owned()));
        Self { current: models.current.clone(), values: values.collect() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Returns the name of the current value.
    pub(super) fn current_name(&self) -> Option<&str> {
        let current = self.current.as_deref()?;
        let known = self.values.iter().find(|(id, _)| id == current);
        Some(known.map_or(current, |(_, name)| name))
    }

    /// Returns the id for a number, an id or a name. Unknown input is returned unchanged: the agent checks it.
    pub(super) fn pick(&self, wanted: &str) -> String {
        let named = |(id, name): &&(String, String)| id == wanted || name.eq_ignore_ascii_case(wanted);
        let numbered = || self.values.get(wanted.parse::<usize>().ok()?.checked_sub(1)?);
        let found = self.values.iter().find(named).or_else(numbered);
        found.map_or_else(|| wanted.to_owned(), |(id, _)| id.clone())
    }

    /// Returns whether an id can be chosen. Without a list, any can.
    pub(super) fn knows(&self, id: &str) -> bool {
        self.values.is_empty() || self.values.iter().any(|(known, _)| known == id)
    }

    pub(super) fn lines(&self, what: &str) -> Vec<Line> {
        if self.values.is_empty() {
            return vec![Line::new(Style::Dim, &format!("The agent does not report its {what}s."))];
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
    use super::Choices;

    #[test]
    fn a_value_is_picked_by_number_id_or_name() {
        let value = |id: &str, name: &str| (id.to_owned(), name.to_owned());
        let modes =
            Choices { current: Some("b".to_owned()), values: vec![value("a", "Ask"), value("b", "b")] };
        assert_eq!(modes.current_name(), Some("b"));
        for (wanted, picked) in [("1", "a"), ("b", "b"), ("ask", "a"), ("9", "9"), ("0", "0"), ("new", "new")]
        {
            assert_eq!(modes.pick(wanted), picked);
        }
        assert_eq!(Choices::default().pick("1"), "1");
    }
}
