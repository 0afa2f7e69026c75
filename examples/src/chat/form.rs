//! Asks the user a question of the agent, field by field.

use sandbox_agent_sdk::requests::{QuestionRequest, ReplyError};
use serde_json::{Map, Value, json};

use super::field::Field;
use super::line::{Line, Style};

/// A question that is being answered.
#[derive(Debug)]
pub(super) struct Form {
    request: QuestionRequest,
    fields: Vec<Field>,
    answers: Map<String, Value>,
    at: usize,
    complaint: Option<String>,
}

/// The result of a line that the user entered as an answer.
#[derive(Debug)]
pub(super) enum Filled {
    /// There are more fields to answer.
    More,
    /// Every field is answered, and the response is sent.
    Done(Line),
    /// The agent no longer waits for an answer.
    Stale(ReplyError),
}

impl Form {
    pub(super) fn new(request: QuestionRequest) -> Self {
        let mut fields = request.schema().map(Field::all).unwrap_or_default();
        if request.schema().is_none() && request.raw().get("url").is_none() {
            fields.push(Field::free(&options(request.raw())));
        }
        Self { request, fields, answers: Map::new(), at: 0, complaint: None }
    }

    /// Returns the text of the question.
    pub(super) fn title(&self) -> &str {
        self.request.message().unwrap_or("The agent asks you something")
    }

    /// Shows the question, with the current field if `open` is true.
    pub(super) fn card(&self, open: bool) -> Vec<Line> {
        let mut lines = Line::all(Style::Bold, self.title());
        if let Some(first) = lines.first_mut() {
            *first = first.clone().behind(Style::Warn, "? ");
        }
        if let Some(url) = self.request.raw().get("url").and_then(Value::as_str) {
            lines.push(Line::new(Style::Accent, &format!("  {url}")));
        }
        if !open {
            return lines;
        }
        match self.fields.get(self.at) {
            Some(field) => lines.extend(field.lines()),
            None => lines.push(Line::new(Style::Dim, "  Enter: yes")),
        }
        if let Some(complaint) = &self.complaint {
            lines.push(Line::new(Style::Bad, &format!("  {complaint}")));
        }
        lines.push(Line::new(Style::Dim, "  Esc: decline to answer"));
        lines
    }

    /// Uses a line as the answer to the current field.
    pub(super) fn fill(&mut self, text: &str) -> Filled {
        if let Some(field) = self.fields.get(self.at) {
            match field.read(text) {
                Err(complaint) => {
                    self.complaint = Some(complaint);
                    return Filled::More;
                }
                Ok(value) => {
                    self.answers.extend(value.map(|value| (field.name.clone(), value)));
                    self.complaint = None;
                    self.at += 1;
                }
            }
            if self.at < self.fields.len() {
                return Filled::More;
            }
        }
        let sent = match self.request.schema() {
            Some(_) => self.request.answer(&Value::Object(self.answers.clone())),
            None if self.fields.is_empty() => self.request.respond_raw(&json!({"action": "accept"})),
            // Questions without a schema are answered with a list of answers for each question.
            None => self.request.answer(&json!([self.answers.values().collect::<Vec<_>>()])),
        };
        match sent {
            Ok(()) => {
                let given: Vec<String> = self.answers.values().map(shown).collect();
                let given = format!("  {}", given.join(", "));
                let line = Line::new(Style::Good, "✔ ").with(Style::Normal, self.title());
                Filled::Done(line.with(Style::Dim, &given))
            }
            Err(error) => Filled::Stale(error),
        }
    }

    /// Declines to answer.
    pub(super) fn decline(&self) -> Result<Line, ReplyError> {
        self.request.decline().map(|()| {
            Line::new(Style::Bad, "✗ ").with(Style::Normal, self.title()).with(Style::Dim, "  not answered")
        })
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(shown).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

/// Returns the options of a question without a schema: pairs of id and label, or objects.
fn options(raw: &Value) -> Vec<(String, String)> {
    let options = raw.get("options").and_then(Value::as_array).into_iter().flatten();
    let read = options.filter_map(|option| {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
        let id = text(option.get(0)).or_else(|| text(option.get("id"))).or_else(|| text(Some(option)))?;
        let label =
            text(option.get(1)).or_else(|| text(option.get("label"))).or_else(|| text(option.get("name")));
        Some((id.clone(), label.unwrap_or(id)))
    });
    read.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::options;

    #[test]
    fn options_are_read_in_every_shape_they_come_in() {
        let pair = |id: &str, label: &str| (id.to_owned(), label.to_owned());
        let raw = json!({"options": [["a", "First"], {"id": "b", "label": "Second"}, "c", 5]});
        assert_eq!(options(&raw), [pair("a", "First"), pair("b", "Second"), pair("c", "c")]);
        assert!(options(&json!({})).is_empty());
    }
}
