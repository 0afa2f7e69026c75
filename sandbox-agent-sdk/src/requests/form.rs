//! Forms of questions: fields, and the check of an answer.

use serde_json::Value;

use super::reply::ReplyError;
use crate::convert::open_enum::open_enum;

open_enum! {
    /// The format of a text field.
    pub enum TextFormat {
        /// An e-mail address.
        Email = "email",
        /// A URI.
        Uri = "uri",
        /// A date.
        Date = "date",
        /// A date with a time.
        DateTime = "date-time",
    }
}

/// A form for the user to fill in.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct QuestionForm {
    /// The title of the form.
    pub title: Option<String>,
    /// A description of the form.
    pub description: Option<String>,
    /// The fields, in the agent's order.
    pub fields: Vec<FormField>,
    /// The JSON schema of the form, as received.
    pub schema: Value,
}

/// One field of a form.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct FormField {
    /// The name of the field in the answer.
    pub name: String,
    /// The display title.
    pub title: Option<String>,
    /// A description of the field.
    pub description: Option<String>,
    /// Whether an answer must contain the field.
    pub required: bool,
    /// The default value.
    pub default: Option<Value>,
    /// The type of the field, with its constraints.
    pub kind: FieldKind,
    /// The schema of the field, as received.
    pub raw: Value,
}

/// The type of a form field, with its constraints.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum FieldKind {
    /// A text.
    #[non_exhaustive]
    Text {
        /// The minimum number of characters.
        min_length: Option<u64>,
        /// The maximum number of characters.
        max_length: Option<u64>,
        /// The regular expression that the text must match.
        pattern: Option<String>,
        /// The format of the text.
        format: Option<TextFormat>,
    },
    /// One of these choices.
    Choice(Vec<FormChoice>),
    /// Any number of these choices.
    #[non_exhaustive]
    Choices {
        /// The choices.
        options: Vec<FormChoice>,
        /// The minimum number of choices.
        min: Option<u64>,
        /// The maximum number of choices.
        max: Option<u64>,
    },
    /// A number.
    #[non_exhaustive]
    Number {
        /// The minimum value.
        min: Option<f64>,
        /// The maximum value.
        max: Option<f64>,
    },
    /// A whole number.
    #[non_exhaustive]
    Integer {
        /// The minimum value.
        min: Option<i64>,
        /// The maximum value.
        max: Option<i64>,
    },
    /// Yes or no.
    Boolean,
    /// A type that this version does not know; see [`FormField::raw`].
    Other,
}

/// One choice of a field or question.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FormChoice {
    /// The value that the answer contains.
    pub value: String,
    /// The display title.
    pub title: String,
    /// A description of the choice.
    pub description: Option<String>,
}

impl QuestionForm {
    /// Parses a form from its JSON schema.
    pub(super) fn read(schema: &Value) -> Self {
        let required: Vec<&str> = list(schema, "required").iter().filter_map(Value::as_str).collect();
        let properties = schema.get("properties").and_then(Value::as_object);
        let fields = properties.into_iter().flatten().map(|(name, raw)| FormField {
            name: name.clone(),
            title: text(raw, "title"),
            description: text(raw, "description"),
            required: required.contains(&name.as_str()),
            default: raw.get("default").filter(|value| !value.is_null()).cloned(),
            kind: FieldKind::read(raw),
            raw: raw.clone(),
        });
        Self {
            title: text(schema, "title"),
            description: text(schema, "description"),
            fields: fields.collect(),
            schema: schema.clone(),
        }
    }

    /// Returns an answer with the default value of every field that has one.
    #[must_use]
    pub fn defaults(&self) -> Value {
        let defaults =
            self.fields.iter().filter_map(|field| Some((field.name.clone(), field.default.clone()?)));
        Value::Object(defaults.collect())
    }

    /// Checks an answer against the form.
    ///
    /// Checks required fields, types, bounds and choices. Patterns and formats are left to the agent.
    ///
    /// # Errors
    /// [`ReplyError::Unfit`] with the first invalid field.
    pub fn check(&self, answer: &Value) -> Result<(), ReplyError> {
        let Some(members) = answer.as_object() else { return Err(unfit("", "is not an object")) };
        for field in &self.fields {
            match members.get(&field.name) {
                Some(value) => field.kind.check(value).map_err(|reason| unfit(&field.name, reason))?,
                None if field.required => return Err(unfit(&field.name, "is missing")),
                None => {}
            }
        }
        Ok(())
    }
}

impl FieldKind {
    fn read(raw: &Value) -> Self {
        let count = |name: &str| raw.get(name).and_then(Value::as_u64);
        let number = |name: &str| raw.get(name).and_then(Value::as_f64);
        let integer = |name: &str| raw.get(name).and_then(Value::as_i64);
        match raw.get("type").and_then(Value::as_str) {
            Some("string") => match FormChoice::read_all(raw, "oneOf") {
                Some(options) => Self::Choice(options),
                None => Self::Text {
                    min_length: count("minLength"),
                    max_length: count("maxLength"),
                    pattern: text(raw, "pattern"),
                    format: text(raw, "format").map(TextFormat::from),
                },
            },
            Some("number") => Self::Number { min: number("minimum"), max: number("maximum") },
            Some("integer") => Self::Integer { min: integer("minimum"), max: integer("maximum") },
            Some("boolean") => Self::Boolean,
            Some("array") => match raw.get("items").and_then(|items| FormChoice::read_all(items, "anyOf")) {
                Some(options) => Self::Choices { options, min: count("minItems"), max: count("maxItems") },
                None => Self::Other,
            },
            _ => Self::Other,
        }
    }

    fn check(&self, value: &Value) -> Result<(), &'static str> {
        match self {
            Self::Text { min_length, max_length, .. } => {
                let length = value.as_str().ok_or("is not a string")?.chars().count() as u64;
                within(length, *min_length, *max_length, "is too short", "is too long")
            }
            Self::Choice(options) => chosen(options, value).then_some(()).ok_or("is not one of the choices"),
            Self::Choices { options, min, max } => {
                let values = value.as_array().ok_or("is not a list")?;
                if !values.iter().all(|value| chosen(options, value)) {
                    return Err("is not one of the choices");
                }
                within(values.len() as u64, *min, *max, "has too few choices", "has too many choices")
            }
            Self::Number { min, max } => {
                let number = value.as_f64().ok_or("is not a number")?;
                within(number, *min, *max, "is too small", "is too large")
            }
            Self::Integer { min, max } => {
                let number = value.as_i64().ok_or("is not an integer")?;
                within(number, *min, *max, "is too small", "is too large")
            }
            Self::Boolean => value.is_boolean().then_some(()).ok_or("is not a boolean"),
            Self::Other => Ok(()),
        }
    }
}

impl FormChoice {
    /// Parses choices: those with titles from the member `titled`, those without from `enum`.
    fn read_all(value: &Value, titled: &str) -> Option<Vec<Self>> {
        let choices = value.get(titled).or_else(|| value.get("enum"))?.as_array()?;
        Some(choices.iter().filter_map(Self::read).collect())
    }

    /// Parses one choice: a string, a pair of id and label, or an object.
    pub(super) fn read(value: &Value) -> Option<Self> {
        if let Some(text) = value.as_str() {
            return Some(Self { value: text.to_owned(), title: text.to_owned(), description: None });
        }
        if let Some([id, label]) = value.as_array().map(Vec::as_slice) {
            let id = id.as_str()?;
            let title = label.as_str().unwrap_or(id).to_owned();
            return Some(Self { value: id.to_owned(), title, description: None });
        }
        let first = |names: &[&str]| names.iter().find_map(|name| text(value, name));
        let id = first(&["const", "id", "value", "label"])?;
        let title = first(&["title", "label", "name"]).unwrap_or_else(|| id.clone());
        Some(Self { value: id, title, description: text(value, "description") })
    }
}

fn chosen(options: &[FormChoice], value: &Value) -> bool {
    value.as_str().is_some_and(|value| options.iter().any(|option| option.value == value))
}

fn within<T: PartialOrd>(
    value: T,
    min: Option<T>,
    max: Option<T>,
    below: &'static str,
    above: &'static str,
) -> Result<(), &'static str> {
    match (min, max) {
        (Some(min), _) if value < min => Err(below),
        (_, Some(max)) if value > max => Err(above),
        _ => Ok(()),
    }
}

fn unfit(field: &str, reason: &'static str) -> ReplyError {
    ReplyError::Unfit { field: field.to_owned(), reason }
}

fn text(value: &Value, name: &str) -> Option<String> {
    value.get(name).and_then(Value::as_str).map(str::to_owned)
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{FieldKind, QuestionForm, TextFormat};
    use crate::requests::ReplyError;

    fn form() -> QuestionForm {
        QuestionForm::read(&json!({
            "type": "object", "title": "About you", "required": ["name", "colour"],
            "properties": {
                "name": {"type": "string", "minLength": 2, "maxLength": 4, "title": "Name", "default": "Ada"},
                "mail": {"type": "string", "format": "email"},
                "colour": {"type": "string", "oneOf": [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]},
                "size": {"type": "string", "enum": ["s", "m"]},
                "age": {"type": "integer", "minimum": 0, "maximum": 150},
                "ratio": {"type": "number", "maximum": 1.5},
                "agree": {"type": "boolean", "default": false},
                "tags": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "string", "enum": ["a", "b", "c"]}},
                "titled": {"type": "array", "items": {"anyOf": [{"const": "x", "title": "X"}]}},
                "strange": {"type": "_hologram", "depth": 3},
                "shapeless": 7
            }
        }))
    }

    #[test]
    fn every_field_type_is_parsed_and_unknown_types_are_preserved() {
        let form = form();
        let names: Vec<_> = form.fields.iter().map(|field| field.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "name",
                "mail",
                "colour",
                "size",
                "age",
                "ratio",
                "agree",
                "tags",
                "titled",
                "strange",
                "shapeless"
            ]
        );
        let kind = |name: &str| form.fields.iter().find(|field| field.name == name).unwrap().kind.clone();
        assert!(matches!(kind("mail"), FieldKind::Text { format: Some(TextFormat::Email), .. }));
        assert!(matches!(kind("colour"), FieldKind::Choice(options) if options[1].title == "Green"));
        assert!(matches!(kind("size"), FieldKind::Choice(options) if options[1].value == "m"));
        assert_eq!(kind("age"), FieldKind::Integer { min: Some(0), max: Some(150) });
        assert_eq!(kind("ratio"), FieldKind::Number { min: None, max: Some(1.5) });
        assert_eq!(kind("agree"), FieldKind::Boolean);
        assert!(
            matches!(kind("tags"), FieldKind::Choices { options, min: Some(1), max: Some(2) } if options.len() == 3)
        );
        assert!(matches!(kind("titled"), FieldKind::Choices { options, .. } if options[0].title == "X"));
        assert_eq!((kind("strange"), kind("shapeless")), (FieldKind::Other, FieldKind::Other));
        assert_eq!(form.fields[9].raw["depth"], 3);
        assert!(form.fields[0].required && !form.fields[1].required);
        assert_eq!(form.defaults(), json!({"name": "Ada", "agree": false}));
    }

    #[test]
    fn an_invalid_answer_is_reported_with_its_field() {
        let form = form();
        let good =
            json!({"name": "Ada", "colour": "g", "age": 36, "ratio": 1, "tags": ["a", "c"], "strange": [1]});
        assert_eq!(form.check(&good), Ok(()));
        let table = [
            (json!({"name": "A"}), "name"),
            (json!({"name": "Adele"}), "name"),
            (json!({"name": 5}), "name"),
            (json!({"colour": "Green"}), "colour"),
            (json!({"age": -1}), "age"),
            (json!({"age": 1.5}), "age"),
            (json!({"age": "36"}), "age"),
            (json!({"ratio": 1.6}), "ratio"),
            (json!({"agree": "yes"}), "agree"),
            (json!({"tags": []}), "tags"),
            (json!({"tags": ["a", "b", "c"]}), "tags"),
            (json!({"tags": ["z"]}), "tags"),
            (json!({"tags": "a"}), "tags"),
            (json!({"size": null}), "size"),
        ];
        for (change, field) in table {
            let mut answer = good.clone();
            answer.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            assert!(
                matches!(form.check(&answer), Err(ReplyError::Unfit { field: named, .. }) if named == field),
                "{change}"
            );
        }
        assert!(
            matches!(form.check(&json!({"name": "Ada"})), Err(ReplyError::Unfit { field, .. }) if field == "colour")
        );
        for nonsense in [json!(null), json!([]), json!("Ada")] {
            assert!(form.check(&nonsense).is_err(), "{nonsense}");
        }
    }

    #[test]
    fn an_invalid_schema_is_an_empty_form() {
        for schema in [json!(null), json!([]), json!({"properties": 5}), json!({"required": "x"})] {
            let form = QuestionForm::read(&schema);
            assert!(form.fields.is_empty());
            assert_eq!(form.check(&json!({})), Ok(()));
        }
    }
}
