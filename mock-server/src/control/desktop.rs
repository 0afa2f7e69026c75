//! `/v1/desktop`: the responses of a server whose desktop is not installed.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::Path,
    http::StatusCode,
    routing::{get, post},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{extract::Parameters, plane::Shared};
use crate::problem::Problem;

const MISSING: [&str; 5] = ["Xvfb", "openbox", "xdotool", "import", "xrandr"];
const INSTALL: &str = "sandbox-agent install desktop --yes";
const LOG: &str = "/.local/state/sandbox-agent/desktop/desktop-runtime.log";

type Answer = Result<Json<Value>, Problem>;

pub(super) fn router() -> Router<Arc<Shared>> {
    Router::new()
        .route("/v1/desktop/status", get(status))
        .route("/v1/desktop/start", post(start))
        .route("/v1/desktop/stop", post(stop))
        .route("/v1/desktop/screenshot", get(screenshot))
        .route("/v1/desktop/screenshot/region", get(region))
        .route("/v1/desktop/mouse/position", get(missing))
        .route("/v1/desktop/mouse/move", post(point))
        .route("/v1/desktop/mouse/click", post(point))
        .route("/v1/desktop/mouse/down", post(button))
        .route("/v1/desktop/mouse/up", post(button))
        .route("/v1/desktop/mouse/drag", post(drag))
        .route("/v1/desktop/mouse/scroll", post(scroll))
        .route("/v1/desktop/keyboard/type", post(type_text))
        .route("/v1/desktop/keyboard/press", post(key))
        .route("/v1/desktop/keyboard/down", post(key))
        .route("/v1/desktop/keyboard/up", post(key))
        .route("/v1/desktop/display/info", get(missing))
        .route("/v1/desktop/windows", get(missing))
        .route("/v1/desktop/windows/focused", get(missing))
        .route("/v1/desktop/windows/{id}/focus", post(missing))
        .route("/v1/desktop/windows/{id}/move", post(body))
        .route("/v1/desktop/windows/{id}/resize", post(body))
        .route("/v1/desktop/clipboard", get(missing).post(body))
        .route("/v1/desktop/launch", post(body))
        .route("/v1/desktop/open", post(body))
        .route("/v1/desktop/recording/start", post(start_recording))
        .route("/v1/desktop/recording/stop", post(stop_recording))
        .route("/v1/desktop/recordings", get(recordings))
        .route("/v1/desktop/recordings/{id}", get(recording).delete(recording))
        .route("/v1/desktop/recordings/{id}/download", get(recording))
        .route("/v1/desktop/stream/start", post(start_stream))
        .route("/v1/desktop/stream/stop", post(stream))
        .route("/v1/desktop/stream/status", get(stream))
        .route("/v1/desktop/stream/signaling", get(signaling))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    Png,
    Jpeg,
    Webp,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ScreenshotQuery {
    #[serde(default, rename = "format")]
    _format: Option<Format>,
    #[serde(default)]
    quality: Option<i64>,
    #[serde(default)]
    scale: Option<f64>,
    #[serde(default, rename = "showCursor")]
    _show_cursor: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct RegionQuery {
    x: i64,
    y: i64,
    width: i64,
    height: i64,
}

#[derive(Debug, Deserialize)]
struct Point {
    x: i64,
    y: i64,
}

#[derive(Debug, Deserialize)]
struct Button {
    #[serde(default)]
    x: Option<i64>,
    #[serde(default)]
    y: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Drag {
    start_x: i64,
    start_y: i64,
    end_x: i64,
    end_y: i64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Scroll {
    x: i64,
    y: i64,
    #[serde(default)]
    delta_x: Option<i64>,
    #[serde(default)]
    delta_y: Option<i64>,
}

#[derive(Debug, Deserialize)]
struct Text {
    text: String,
}

#[derive(Debug, Deserialize)]
struct Key {
    key: String,
}

async fn status() -> Json<Value> {
    Json(json!({
        "state": "install_required",
        "lastError": { "code": "desktop_dependencies_missing", "message": message() },
        "missingDependencies": MISSING,
        "installCommand": INSTALL,
        "processes": [],
        "runtimeLogPath": LOG,
    }))
}

async fn start(Json(_): Json<Value>) -> Answer {
    not_installed()
}

async fn stop() -> Json<Value> {
    Json(json!({
        "state": "inactive",
        "missingDependencies": MISSING,
        "installCommand": INSTALL,
        "processes": [],
        "runtimeLogPath": LOG,
    }))
}

async fn screenshot(Parameters(query): Parameters<ScreenshotQuery>) -> Answer {
    query.check()?;
    not_installed()
}

async fn region(
    Parameters(query): Parameters<ScreenshotQuery>,
    Parameters(region): Parameters<RegionQuery>,
) -> Answer {
    query.check()?;
    not_negative(&[region.x, region.y])?;
    if region.width <= 0 || region.height <= 0 {
        return Err(invalid("Screenshot region width and height must be greater than 0"));
    }
    not_installed()
}

async fn point(Json(point): Json<Point>) -> Answer {
    not_negative(&[point.x, point.y])?;
    not_installed()
}

async fn button(Json(button): Json<Button>) -> Answer {
    match (button.x, button.y) {
        (Some(x), Some(y)) => not_negative(&[x, y])?,
        (None, None) => {}
        _ => return Err(invalid("x and y must both be provided when setting coordinates")),
    }
    not_installed()
}

async fn drag(Json(drag): Json<Drag>) -> Answer {
    not_negative(&[drag.start_x, drag.start_y, drag.end_x, drag.end_y])?;
    not_installed()
}

async fn scroll(Json(scroll): Json<Scroll>) -> Answer {
    not_negative(&[scroll.x, scroll.y])?;
    if scroll.delta_x.unwrap_or_default() == 0 && scroll.delta_y.unwrap_or_default() == 0 {
        return Err(invalid("deltaX or deltaY must be non-zero"));
    }
    not_installed()
}

async fn type_text(Json(text): Json<Text>) -> Answer {
    if text.text.is_empty() {
        return Err(invalid("text must not be empty"));
    }
    not_installed()
}

async fn key(Json(key): Json<Key>) -> Answer {
    if key.key.is_empty() {
        return Err(invalid("key must not be empty"));
    }
    not_installed()
}

async fn body(Json(_): Json<Value>) -> Answer {
    not_installed()
}

async fn missing() -> Answer {
    not_installed()
}

async fn start_recording(Json(_): Json<Value>) -> Answer {
    Err(Problem::conflict(message()))
}

async fn stop_recording() -> Answer {
    Err(Problem::conflict("no desktop recording is active"))
}

async fn recordings() -> Json<Value> {
    Json(json!({ "recordings": [] }))
}

async fn recording(Path(id): Path<String>) -> Answer {
    Err(Problem::not_found("desktop_recording", &id))
}

async fn start_stream() -> Answer {
    Err(Problem::conflict("desktop runtime is not active"))
}

async fn stream() -> Json<Value> {
    Json(json!({ "active": false }))
}

async fn signaling() -> Answer {
    Err(Problem::conflict("desktop streaming is not active"))
}

impl ScreenshotQuery {
    fn check(&self) -> Result<(), Problem> {
        if self.quality.is_some_and(|quality| !(1..=100).contains(&quality)) {
            return Err(invalid("quality must be between 1 and 100"));
        }
        if self.scale.is_some_and(|scale| !(0.1..=1.0).contains(&scale)) {
            return Err(invalid("scale must be between 0.1 and 1.0"));
        }
        Ok(())
    }
}

fn not_negative(coordinates: &[i64]) -> Result<(), Problem> {
    if coordinates.iter().any(|coordinate| *coordinate < 0) {
        return Err(invalid("Desktop coordinates must be non-negative"));
    }
    Ok(())
}

fn not_installed() -> Answer {
    let problem = Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "desktop_dependencies_missing",
        "Desktop Dependencies Missing",
    );
    Err(problem
        .detail(message())
        .with("code", "desktop_dependencies_missing")
        .with("installCommand", INSTALL)
        .with("missingDependencies", json!(MISSING)))
}

fn invalid(message: &str) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "desktop_invalid_action", "Desktop Invalid Action")
        .detail(message)
        .with("code", "desktop_invalid_action")
}

fn message() -> String {
    let missing = MISSING.join(", ");
    format!(
        "Desktop dependencies are not installed: {missing}. Run `{INSTALL}` to install them, or install the required tools manually."
    )
}
