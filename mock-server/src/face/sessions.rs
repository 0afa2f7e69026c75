use std::sync::Arc;

use axum::extract::{Path, State};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::hub::Hub;
use crate::problem::Problem;

/// The routes of `/v1/sessions`.
pub(crate) fn routes(hub: Arc<Hub>) -> Router {
    Router::new().route("/v1/sessions", get(list)).route("/v1/sessions/{id}", get(one)).with_state(hub)
}

async fn list(State(hub): State<Arc<Hub>>) -> Json<Value> {
    Json(json!({ "sessions": hub.session_infos() }))
}

async fn one(State(hub): State<Arc<Hub>>, Path(id): Path<String>) -> Result<Json<Value>, Problem> {
    hub.session_info(&id).map(Json).ok_or_else(|| Problem::session_not_found(id))
}
