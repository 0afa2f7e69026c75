//! One field of a question.

use serde_json::{Value, json};

use super::line::{Line, Style};

/// One field of a question, parsed from its JSON schema.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Field {
    pub(super) name: String,
    title: String,
    about: Option<String>,
    kind: Kind,
    required: bool,
    default: Option<Value>,
}

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    Text,
    Number,
    Integer,
    YesNo,
    /// One of these values, each with the name to show.
    One(Vec<(Value, String)>),
    /// Any of these values.
    Any(Vec<(Value, String)>),
}

impl Field {
    /// Returns the fields of an object's schema, in order.
    pub(super) fn all(schema: &Value) -> Vec<Self> {
        let required =
            schema.get("required").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let properties = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
        let fields = properties.map(|(name, property)| {
            let text = |member: &str| property.get(member).and_then(Value::as_str).map(str::to_owned);
            Self {
                name: name.clone(),
                title: text("title").unwrap_or_else(|| name.clone()),
                about: text("description"),
                kind: Kind::read(property),
                required: required.iter().any(|required| required == name),
                default: property.get("default").cloned(),
            }
        });
        fields.collect()
    }

    /// Creates the field of a question without a schema: free text, or a choice of options.
    pub(super) fn free(options: &[(String, String)]) -> Self {
        let kind = match options {
            [] => Kind::Text,
            some => Kind::One(some.iter().map(|(id, label)| (json!(id), label.clone())).collect()),
        };
        let name = "answer".to_owned();
        Self { title: name.clone(), name, about: None, kind, required: true, default: None }
    }

    /// Returns the lines to show above the input line.
    pub(super) fn lines(&self) -> Vec<Line> {
        let mut title = Line::new(Style::Bold, &format!("  {}", self.title));
        if let Some(about) = &self.about {
            title = title.with(Style::Dim, &format!("  {about}"));
        }
        let hint = match (&self.kind, &self.default) {
            (_, Some(default)) => format!("  (Enter: {})", self.shown(default)),
            (Kind::YesNo, _) => "  (y or n)".to_owned(),
            (Kind::Number | Kind::Integer, _) => "  (a number)".to_owned(),
            (Kind::Any(_), _) => "  (numbers, separated by spaces)".to_owned(),
            _ if !self.required => "  (optional)".to_owned(),
            _ => String::new(),
        };
        let mut lines = vec![title.with(Style::Dim, &hint)];
        for (index, (_, name)) in self.choices().iter().enumerate() {
            lines.push(Line::new(Style::Warn, &format!("  {}  ", index + 1)).with(Style::Normal, name));
        }
        lines
    }

    fn shown(&self, value: &Value) -> String {
        match self.choices().iter().find(|(choice, _)| choice == value) {
            Some((_, name)) => name.clone(),
            None => value.as_str().map_or_else(|| value.to_string(), str::to_owned),
        }
    }

    fn choices(&self) -> &[(Value, String)] {
        match &self.kind {
            Kind::One(choices) | Kind::Any(choices) => choices,
            _ => &[],
        }
    }

    /// Parses an answer: a value, no value, or an error message.
    pub(super) fn read(&self, text: &str) -> Result<Option<Value>, String> {
        let text = text.trim();
        if text.is_empty() {
            return match (&self.default, self.required) {
                (Some(default), _) => Ok(Some(default.clone())),
                (None, false) => Ok(None),
                (None, true) => Err(format!("{} is needed", self.title)),
            };
        }
        let value = match &self.kind {
            Kind::Text => json!(text),
            Kind::Integer => json!(text.parse::<i64>().map_err(|_| "not an integer".to_owned())?),
            Kind::Number => {
                let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
                json!(number.ok_or_else(|| "not a number".to_owned())?)
            }
            Kind::YesNo => match text.to_lowercase().as_str() {
                "y" | "yes" | "true" => json!(true),
                "n" | "no" | "false" => json!(false),
                _ => return Err("y or n, please".to_owned()),
            },
            Kind::One(choices) => choice(choices, text)?,
            Kind::Any(choices) => {
                let words = text.split([' ', ',']).filter(|word| !word.is_empty());
                Value::Array(words.map(|word| choice(choices, word)).collect::<Result<_, _>>()?)
            }
        };
        Ok(Some(value))
    }
}

impl Kind {
    fn read(property: &Value) -> Self {
        let choices = choices(property);
        match property.get("type").and_then(Value::as_str) {
            Some("array") => Self::Any(property.get("items").map(self::choices).unwrap_or_default()),
            _ if !choices.is_empty() => Self::One(choices),
            Some("boolean") => Self::YesNo,
            Some("integer") => Self::Integer,
            Some("number") => Self::Number,
            _ => Self::Text,
        }
    }
}

/// Returns the values that a schema allows: a plain list, or one with titles.
fn choices(schema: &Value) -> Vec<(Value, String)> {
    let list = |member: &str| schema.get(member).and_then(Value::as_array);
    let shown = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    if let Some(titled) = list("oneOf").or_else(|| list("anyOf")) {
        let choices = titled.iter().filter_map(|entry| {
            let value = entry.get("const")?;
            let title = entry.get("title").and_then(Value::as_str).map(str::to_owned);
            Some((value.clone(), title.unwrap_or_else(|| shown(value))))
        });
        return choices.collect();
    }
    let names = list("enumNames");
    let choices = list("enum").into_iter().flatten().enumerate().map(|(index, value)| {
        let name = names.and_then(|names| names.get(index)?.as_str()).map(str::to_owned);
        (value.clone(), name.unwrap_or_else(|| shown(value)))
    });
    choices.collect()
}

/// Finds a choice by its number, its name or its value.
fn choice(choices: &[(Value, String)], text: &str) -> Result<Value, String> {
    let by_name = choices.iter().find(|(value, name)| name.eq_ignore_ascii_case(text) || value == text);
    let by_number = || choices.get(text.parse::<usize>().ok()?.checked_sub(1)?);
    let found = by_name.or_else(by_number).map(|(value, _)| value.clone());
    found.ok_or_else(|| format!("choose from 1 to {}", choices.len()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]
mod tests {
    use serde_json::{Value, json};

    use super::Field;

    #[test]
    fn answers_are_read_as_the_schema_wants_them() {
        let schema = json!({
            "type": "object",
            "properties": {
                "name": {"type": "string", "title": "Your name"},
                "age": {"type": "integer"},
                "size": {"type": "number", "default": 1.5},
                "sure": {"type": "boolean"},
                "colour": {"type": "string", "enum": ["r", "g"], "enumNames": ["Red", "Green"]},
                "place": {"oneOf": [{"const": "n", "title": "North"}, {"const": "s"}]},
                "many": {"type": "array", "items": {"enum": ["a", "b", "c"]}},
            },
            "required": ["name", "colour"],
        });
        let fields = Field::all(&schema);
        let read =
            |name: &str, text: &str| fields.iter().find(|field| field.name == name).unwrap().read(text);
        for (name, text, value) in [
            ("name", " Ada ", json!("Ada")),
            ("age", "7", json!(7)),
            ("size", "", json!(1.5)),
            ("size", "2.5", json!(2.5)),
            ("sure", "Y", json!(true)),
            ("colour", "2", json!("g")),
            ("colour", "red", json!("r")),
            ("place", "north", json!("n")),
            ("place", "s", json!("s")),
            ("many", "1, 3", json!(["a", "c"])),
        ] {
            assert_eq!(read(name, text), Ok(Some(value)), "{name} {text}");
        }
        assert_eq!(read("age", ""), Ok(None));
        for (name, text) in
            [("name", ""), ("age", "x"), ("size", "inf"), ("sure", "?"), ("colour", "3"), ("many", "9")]
        {
            assert!(read(name, text).is_err(), "{name} {text}");
        }
    }

    #[test]
    fn a_schema_that_is_none_has_no_fields() {
        for schema in [Value::Null, json!({}), json!({"properties": 5}), json!([])] {
            assert!(Field::all(&schema).is_empty());
        }
        let free = Field::free(&[("a".to_owned(), "First".to_owned())]);
        assert_eq!(free.read("1"), Ok(Some(json!("a"))));
        assert_eq!(Field::free(&[]).read("words"), Ok(Some(json!("words"))));
    }
}
