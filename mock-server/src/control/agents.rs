//! `/v1/agents`: lists and installs agents.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Path, State},
    routing::{get, post},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    catalog::{Entry, Installation},
    extract::Parameters,
    plane::Shared,
};
use crate::problem::Problem;

pub(super) fn router() -> Router<Arc<Shared>> {
    Router::new()
        .route("/v1/agents", get(list))
        .route("/v1/agents/{agent}", get(show))
        .route("/v1/agents/{agent}/install", post(install))
}

/// The requested details of an agent.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Detail {
    /// Whether version, path and options are requested.
    #[serde(default)]
    config: bool,
    /// Nothing is cached here, but a value that is not a boolean is rejected as well.
    #[serde(default, rename = "no_cache")]
    _no_cache: bool,
}

/// The body of an installation request.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct InstallBody {
    #[serde(default)]
    reinstall: Option<bool>,
    #[serde(default, alias = "agent_version")]
    agent_version: Option<String>,
    #[serde(default, alias = "agent_process_version")]
    agent_process_version: Option<String>,
}

async fn list(State(shared): State<Arc<Shared>>, Parameters(detail): Parameters<Detail>) -> Json<Value> {
    Json(json!({ "agents": infos(&shared, &detail) }))
}

async fn show(
    State(shared): State<Arc<Shared>>,
    Path(agent): Path<String>,
    Parameters(detail): Parameters<Detail>,
) -> Result<Json<Value>, Problem> {
    let entry = shared.catalog.entry(&agent).ok_or_else(|| Problem::unsupported_agent(agent))?;
    Ok(Json(info(&shared, &entry, &detail)))
}

async fn install(
    State(shared): State<Arc<Shared>>,
    Path(agent): Path<String>,
    Json(body): Json<InstallBody>,
) -> Result<Json<Value>, Problem> {
    installed(&shared, &agent, &body).map(Json)
}

/// Returns all agents in the released server's format.
pub(super) fn infos(shared: &Shared, detail: &Detail) -> Vec<Value> {
    shared.catalog.entries().map(|entry| info(shared, &entry, detail)).collect()
}

/// Installs an agent and returns the result.
pub(super) fn installed(shared: &Shared, agent: &str, body: &InstallBody) -> Result<Value, Problem> {
    let entry = shared.catalog.entry(agent).ok_or_else(|| Problem::unsupported_agent(agent))?;
    match shared.catalog.install(&entry.id, body.reinstall.unwrap_or(false)) {
        Installation::Already => Ok(json!({ "already_installed": true, "artifacts": [] })),
        Installation::Done => {
            let artifacts =
                entry.artifacts(body.agent_version.as_deref(), body.agent_process_version.as_deref());
            Ok(json!({ "already_installed": false, "artifacts": artifacts }))
        }
        Installation::Failed(stderr) => Err(Problem::install_failed(entry.id.as_ref(), Some(stderr))),
    }
}

/// Returns one agent in the released server's format.
fn info(shared: &Shared, entry: &Entry, detail: &Detail) -> Value {
    let installed = shared.catalog.is_installed(&entry.id);
    let mut info = Map::new();
    info.insert("id".to_owned(), entry.id.as_ref().into());
    info.insert("installed".to_owned(), installed.into());
    info.insert("credentialsAvailable".to_owned(), entry.credentials.into());
    if detail.config && installed {
        info.insert("version".to_owned(), entry.version().into());
        info.insert("path".to_owned(), entry.path().into());
    }
    info.insert("capabilities".to_owned(), entry.capabilities());
    if let Some(uptime) = (shared.uptime)(&entry.id) {
        let millis = u64::try_from(uptime.as_millis()).unwrap_or(u64::MAX);
        info.insert("serverStatus".to_owned(), json!({ "status": "running", "uptimeMs": millis }));
    }
    if detail.config {
        info.insert("configOptions".to_owned(), entry.config_options());
    }
    info.into()
}
