//! The models of an agent.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::convert::fields::{Fields, MissingMember, null_as_default, put};
use crate::update::ConfigValue;

/// The models that a session or an agent can use.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ModelList {
    /// The models. Empty if the server does not know them.
    #[serde(
        default,
        rename = "availableModels",
        alias = "available_models",
        deserialize_with = "null_as_default"
    )]
    pub available: Vec<Model>,
    /// The id of the current model.
    #[serde(default, rename = "currentModelId", alias = "current_model_id")]
    pub current: Option<String>,
    /// Unknown fields, as the server sent them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl ModelList {
    /// Returns the current model, if it is in the list.
    #[must_use]
    pub fn current_model(&self) -> Option<&Model> {
        let current = self.current.as_deref()?;
        self.available.iter().find(|model| model.id == current)
    }
}

/// A model of an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Map<String, Value>", into = "Map<String, Value>")]
#[non_exhaustive]
pub struct Model {
    /// The id that selects the model.
    pub id: String,
    /// The display name.
    pub name: Option<String>,
    /// A description of the model.
    pub description: Option<String>,
    /// The default variant.
    pub default_variant: Option<String>,
    /// The available variants.
    pub variants: Vec<String>,
    /// Unknown fields, as the server sent them.
    pub other: Map<String, Value>,
}

impl Model {
    /// Returns the name, or the id if there is no name.
    #[must_use]
    pub fn label(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.id)
    }
}

impl Model {
    /// Converts a value of a configuration option to a model.
    pub(crate) fn from_value(value: &ConfigValue) -> Self {
        Self {
            id: value.value.clone(),
            name: Some(value.name.clone()),
            description: value.description.clone(),
            default_variant: None,
            variants: Vec::new(),
            other: Map::new(),
        }
    }
}

impl TryFrom<Map<String, Value>> for Model {
    type Error = MissingMember;

    /// Session methods use `modelId` where lists of agents use `id`.
    fn try_from(map: Map<String, Value>) -> Result<Self, MissingMember> {
        let mut fields = Fields::new(map);
        let id = fields.string(&["modelId", "model_id", "id"]);
        Ok(Self {
            id: id.ok_or(MissingMember { object: "a model", member: "modelId" })?,
            name: fields.string(&["name"]),
            description: fields.string(&["description"]),
            default_variant: fields.string(&["defaultVariant", "default_variant"]),
            variants: fields.strings(&["variants"]).unwrap_or_default(),
            other: fields.rest(),
        })
    }
}

impl From<Model> for Map<String, Value> {
    fn from(model: Model) -> Self {
        let mut map = Self::new();
        put(&mut map, "modelId", Some(model.id));
        put(&mut map, "name", model.name);
        put(&mut map, "description", model.description);
        put(&mut map, "defaultVariant", model.default_variant);
        put(&mut map, "variants", Some(model.variants));
        map.extend(model.other);
        map
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Model, ModelList};

    #[test]
    fn a_list_of_models_is_read_with_every_key_present() {
        let list: ModelList = serde_json::from_value(json!({"availableModels": [
            {"modelId": "default", "name": null, "description": null, "defaultVariant": null, "variants": []},
            {"modelId": "opus", "name": "Opus", "description": "large", "defaultVariant": "high",
             "variants": ["high", "low"], "contextWindow": 200_000}], "currentModelId": "opus"}))
        .unwrap();
        assert_eq!(list.available.iter().map(Model::label).collect::<Vec<_>>(), ["default", "Opus"]);
        let current = list.current_model().unwrap();
        assert_eq!(current.description.as_deref(), Some("large"));
        assert_eq!(current.default_variant.as_deref(), Some("high"));
        assert_eq!(current.variants, ["high", "low"]);
        assert_eq!(current.other.get("contextWindow"), Some(&json!(200_000)));
        let written = serde_json::to_value(&list).unwrap();
        assert_eq!(serde_json::from_value::<ModelList>(written).unwrap(), list);
    }

    #[test]
    fn a_server_that_knows_no_models_is_understood() {
        for value in [
            json!({"availableModels": [], "currentModelId": null}),
            json!({"availableModels": null}),
            json!({}),
        ] {
            assert_eq!(serde_json::from_value::<ModelList>(value).unwrap(), ModelList::default());
        }
    }

    #[test]
    fn a_current_model_that_is_not_listed_is_still_known_by_its_id() {
        let list: ModelList = serde_json::from_value(json!({"currentModelId": "haiku"})).unwrap();
        assert_eq!((list.current.as_deref(), list.current_model()), (Some("haiku"), None));
    }

    #[test]
    fn the_short_form_of_agent_lists_is_the_same_model() {
        let model: Model = serde_json::from_value(json!({"id": "mock", "name": "Mock"})).unwrap();
        assert_eq!((model.id.as_str(), model.label()), ("mock", "Mock"));
        let error = serde_json::from_value::<Model>(json!({"name": "Mock"})).unwrap_err();
        assert_eq!(error.to_string(), "a model has no valid `modelId`");
    }
}
