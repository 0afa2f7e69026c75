//! The routes, their parameters and responses.

use std::sync::Arc;

use axum::{Json, Router, extract::State, http::StatusCode, routing::get};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{mcp::McpServer, skills::Skills, store::Document};
use crate::{
    control::{
        extract::{Parameters, blocking},
        files::VirtualPath,
        plane::Shared,
    },
    problem::Problem,
};

pub(in crate::control) fn router() -> Router<Arc<Shared>> {
    Router::new()
        .route("/v1/config/mcp", get(read::<McpQuery>).put(write::<McpQuery>).delete(remove::<McpQuery>))
        .route(
            "/v1/config/skills",
            get(read::<SkillsQuery>).put(write::<SkillsQuery>).delete(remove::<SkillsQuery>),
        )
}

#[derive(Debug, Deserialize)]
struct McpQuery {
    directory: String,
    #[serde(rename = "mcpName", alias = "mcp_name")]
    name: String,
}

#[derive(Debug, Deserialize)]
struct SkillsQuery {
    directory: String,
    #[serde(rename = "skillName", alias = "skill_name")]
    name: String,
}

/// The names and types of one kind of configuration.
trait Kind: for<'a> Deserialize<'a> + Send {
    /// The type of a value.
    type Value: for<'a> Deserialize<'a> + Serialize + Send;
    /// The name of the file.
    const FILE: &'static str;
    /// The prefix of a name in a problem.
    const CLASS: &'static str;
    /// The query parameter that holds the name.
    const NAME_KEY: &'static str;

    fn directory(&self) -> &str;
    fn name(&self) -> &str;
}

impl Kind for McpQuery {
    type Value = McpServer;
    const FILE: &'static str = "mcp.json";
    const CLASS: &'static str = "mcp";
    const NAME_KEY: &'static str = "mcpName";

    fn directory(&self) -> &str {
        &self.directory
    }

    fn name(&self) -> &str {
        &self.name
    }
}

impl Kind for SkillsQuery {
    type Value = Skills;
    const FILE: &'static str = "skills.json";
    const CLASS: &'static str = "skills";
    const NAME_KEY: &'static str = "skillName";

    fn directory(&self) -> &str {
        &self.directory
    }

    fn name(&self) -> &str {
        &self.name
    }
}

async fn read<K: Kind>(
    State(shared): State<Arc<Shared>>,
    Parameters(query): Parameters<K>,
) -> Result<Json<Value>, Problem> {
    let (document, name) = place(&query)?;
    blocking(move || match shared.config.value(&document, &name)? {
        Some(value) => Ok(Json(value)),
        None => Err(Problem::session_not_found(format!("{}:{name}", K::CLASS))),
    })
    .await
}

async fn write<K: Kind>(
    State(shared): State<Arc<Shared>>,
    Parameters(query): Parameters<K>,
    Json(value): Json<K::Value>,
) -> Result<StatusCode, Problem> {
    let (document, name) = place(&query)?;
    let value = serde_json::to_value(value).map_err(|error| Problem::stream_error(error.to_string()))?;
    blocking(move || {
        shared.config.change(&document, |values| {
            values.insert(name, value);
        })
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn remove<K: Kind>(
    State(shared): State<Arc<Shared>>,
    Parameters(query): Parameters<K>,
) -> Result<StatusCode, Problem> {
    let (document, name) = place(&query)?;
    blocking(move || {
        shared.config.change(&document, |values| {
            values.shift_remove(&name);
        })
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns the file and the name that a query refers to. A blank parameter counts as missing.
fn place<K: Kind>(query: &K) -> Result<(Document, String), Problem> {
    let present = |value: &str, key: &str| match value.trim() {
        "" => Err(Problem::invalid_request(format!("missing required '{key}' query parameter"))),
        _ => Ok(()),
    };
    present(query.directory(), "directory")?;
    present(query.name(), K::NAME_KEY)?;
    let directory = VirtualPath::parse(query.directory())?;
    Ok((Document::of(&directory, K::FILE)?, query.name().to_owned()))
}
