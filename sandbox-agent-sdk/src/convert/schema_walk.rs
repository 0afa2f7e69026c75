//! Checks the protocol schema: everything stable in it has a type here or is explicitly excluded.
//!
//! A new version of the schema crate with a new method, update, capability, content kind or value makes these
//! tests fail until it has a type or is excluded. Unstable parts of the schema are not checked;
//! `docs/protocol.md` lists them.

use std::collections::BTreeSet;
use std::path::Path;

use agent_client_protocol_schema::v1 as schema;
use serde_json::{Map, Value, json};

use crate::client::client_capabilities;
use crate::connection::Capabilities;
use crate::event::Origin;
use crate::requests::{PermissionKind, QuestionSupport};
use crate::update::{ToolKind, ToolStatus};
use crate::{ClientOptions, Content, ServerKind, StopReason, Update, UpdateKind};

/// A schema with its definitions.
struct Schema(Value);

impl Schema {
    fn of<T: schemars::JsonSchema>() -> Self {
        Self(schemars::schema_for!(T).to_value())
    }

    /// Resolves references to definitions.
    fn resolve<'a>(&'a self, mut schema: &'a Value) -> &'a Value {
        loop {
            let reference = schema.get("$ref").and_then(Value::as_str);
            let Some(target) = reference.and_then(|name| self.0.pointer(name.trim_start_matches('#'))) else {
                let only = schema.get("allOf").and_then(Value::as_array).filter(|all| all.len() == 1);
                match only {
                    Some(all) => schema = &all[0],
                    None => return schema,
                }
                continue;
            };
            schema = target;
        }
    }

    /// Returns the alternatives of an enum.
    fn alternatives<'a>(&'a self, schema: &'a Value) -> Vec<&'a Value> {
        let schema = self.resolve(schema);
        let found = schema.get("oneOf").or_else(|| schema.get("anyOf")).and_then(Value::as_array);
        found.into_iter().flatten().collect()
    }

    /// Builds the smallest value that is valid for a schema.
    fn example(&self, schema: &Value) -> Value {
        let mut value = self.members(schema);
        if !value.is_empty() {
            if let Some(referenced) = schema.get("$ref") {
                value.extend(self.members(&json!({ "$ref": referenced })));
            }
            return value.into();
        }
        let schema = self.resolve(schema);
        if let Some(constant) = schema.get("const") {
            return constant.clone();
        }
        if let Some(value) = schema.get("enum").and_then(Value::as_array).and_then(|values| values.first()) {
            return value.clone();
        }
        if let Some(first) = self.alternatives(schema).first() {
            return self.example(first);
        }
        match schema.get("type").and_then(Value::as_str) {
            Some("string") => json!("x"),
            Some("integer" | "number") => json!(1),
            Some("boolean") => json!(true),
            Some("array") => json!([]),
            _ => json!({}),
        }
    }

    /// Returns the required fields of an object, from the schema and the schemas that it combines.
    fn members(&self, schema: &Value) -> Map<String, Value> {
        let mut members = Map::new();
        let mut parts = vec![schema];
        if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
            parts.extend(self.0.pointer(target.trim_start_matches('#')));
        }
        parts.extend(schema.get("allOf").and_then(Value::as_array).into_iter().flatten());
        for part in parts {
            let part = if part.get("properties").is_some() { part } else { self.resolve(part) };
            let required = part.get("required").and_then(Value::as_array).into_iter().flatten();
            for name in required.filter_map(Value::as_str) {
                if let Some(property) = part.pointer(&format!("/properties/{name}")) {
                    members.insert(name.to_owned(), self.example(property));
                }
            }
        }
        members
    }

    /// Collects the paths of all values in an object that are not objects, and of empty objects.
    fn leaves(&self, schema: &Value, place: &str, found: &mut BTreeSet<String>) {
        let schema = self.resolve(schema);
        // An optional object is an alternative to `null`.
        let inside = self.alternatives(schema).into_iter().find(|one| one.get("$ref").is_some());
        let schema = inside.map_or(schema, |inside| self.resolve(inside));
        let properties = schema.get("properties").and_then(Value::as_object);
        let own: Vec<_> = properties.into_iter().flatten().filter(|(name, _)| *name != "_meta").collect();
        if own.is_empty() && !place.is_empty() {
            found.insert(place.to_owned());
        }
        for (name, property) in own {
            self.leaves(property, &format!("{place}/{name}"), found);
        }
    }

    fn all_leaves(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        self.leaves(&self.0, "", &mut found);
        found
    }
}

/// Reads the source of this crate without its tests.
fn sources(directory: &Path, text: &mut String) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            sources(&path, text);
        } else if name.ends_with(".rs") && name != "tests.rs" && name != "schema_walk.rs" {
            let source = std::fs::read_to_string(&path).unwrap();
            text.push_str(source.split("#[cfg(test)]\nmod tests {").next().unwrap());
        }
    }
}

#[test]
fn every_method_is_called_or_answered() {
    let mut text = String::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut text);
    let names = [json!(schema::AGENT_METHOD_NAMES), json!(schema::CLIENT_METHOD_NAMES)];
    let names: Vec<_> = names.iter().flat_map(|names| names.as_object().unwrap().values()).collect();
    assert!(names.len() >= 20, "{names:?}");
    // The protocol client sends and receives these.
    let below = ["session/cancel", "session/update"];
    for name in names {
        let name = name.as_str().unwrap();
        let literal = |text_of: &str| text.contains(&format!("\"{text_of}\""));
        // The methods of terminals are matched after their common prefix.
        let of_terminals = name.strip_prefix("terminal/").is_some_and(literal) && literal("terminal/");
        assert!(
            below.contains(&name) || of_terminals || literal(name),
            "`{name}` is neither called nor answered"
        );
    }
}

#[test]
fn every_kind_of_update_is_typed() {
    let schema = Schema::of::<schema::SessionUpdate>();
    let mut kinds = BTreeSet::new();
    for alternative in schema.alternatives(&schema.0) {
        let update = schema.example(alternative);
        let name = update["sessionUpdate"].as_str().unwrap_or_default().to_owned();
        let read = Update::read(json!({"sessionId": "s", "update": update}), Origin::Live, 0);
        assert!(!matches!(read.kind(), UpdateKind::Other { .. }), "`{name}` is not typed: {update}");
        kinds.insert(name);
    }
    assert!(kinds.len() >= 14 && kinds.contains("notice"), "the walk has lost its way: {kinds:?}");
}

#[test]
fn every_kind_of_content_is_typed() {
    let blocks = Schema::of::<schema::ContentBlock>();
    let of_tools = Schema::of::<schema::ToolCallContent>();
    let mut count = 0;
    for alternative in blocks.alternatives(&blocks.0) {
        let content = blocks.example(alternative);
        assert!(!matches!(Content::from_value(content.clone()), Content::Other(_)), "{content}");
        count += 1;
    }
    for alternative in of_tools.alternatives(&of_tools.0) {
        let content = of_tools.example(alternative);
        assert!(!matches!(Content::from_tool_call(content.clone()), Content::Other(_)), "{content}");
        count += 1;
    }
    assert!(count >= 8, "{count}");
}

#[test]
fn every_capability_of_an_agent_has_a_field() {
    let places = Schema::of::<schema::AgentCapabilities>().all_leaves();
    assert!(places.len() >= 10 && places.contains("/loadSession"), "{places:?}");
    let read = |capabilities: Value| {
        let raw = json!({ "agentCapabilities": capabilities });
        Capabilities { raw: Value::Null, ..Capabilities::read(ServerKind::Shared, "a", raw) }
    };
    let none = read(json!({}));
    for place in places {
        let has_field = [json!(true), json!({})].into_iter().any(|flag| {
            let names: Vec<_> = place.split('/').skip(1).collect();
            read(names.iter().rev().fold(flag, |inside, name| json!({ *name: inside }))) != none
        });
        assert!(has_field, "`{place}` has no field");
    }
}

#[test]
fn every_capability_of_a_client_is_advertised_by_some_option() {
    let places = Schema::of::<schema::ClientCapabilities>().all_leaves();
    assert!(places.len() >= 8 && places.contains("/terminal"), "{places:?}");
    let options =
        ClientOptions::new("http://h").questions(QuestionSupport::FormsAndUrls).terminal_logins(true);
    let advertised = client_capabilities(&options, serde_json::Map::new());
    for place in places {
        assert!(advertised.pointer(&place).is_some(), "`{place}` is never advertised: {advertised}");
    }
}

#[test]
fn every_value_has_a_name() {
    fn values<T: schemars::JsonSchema>() -> Vec<String> {
        let schema = Schema::of::<T>();
        let listed = schema.0.get("enum").and_then(Value::as_array).cloned().unwrap_or_default();
        let alternatives = schema.alternatives(&schema.0).into_iter();
        let constants = alternatives.filter_map(|one| one.get("const").cloned());
        constants.chain(listed).filter_map(|value| value.as_str().map(str::to_owned)).collect()
    }
    let (stops, kinds) = (values::<schema::StopReason>(), values::<schema::ToolKind>());
    let (statuses, options) = (values::<schema::ToolCallStatus>(), values::<schema::PermissionOptionKind>());
    assert!(stops.len() >= 5 && kinds.len() >= 9 && statuses.len() >= 4 && options.len() >= 4);
    for stop in stops {
        assert!(!matches!(StopReason::from(stop.as_str()), StopReason::Other(_)), "{stop}");
    }
    for kind in kinds {
        assert!(!matches!(ToolKind::from(kind.as_str()), ToolKind::Other(_)), "{kind}");
    }
    for status in statuses {
        assert!(!matches!(ToolStatus::from(status.as_str()), ToolStatus::Other(_)), "{status}");
    }
    for option in options {
        assert!(!matches!(PermissionKind::from(option.as_str()), PermissionKind::Other(_)), "{option}");
    }
}
