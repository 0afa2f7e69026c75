use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Json, Router};

use super::accept::{events_out, json_in_and_out, last_event_id};
use crate::hub::{Envelope, Hub, Posted};
use crate::problem::Problem;
use crate::server::{Core, EchoOverride};

/// The state that the routes of `/v1/rpc` share.
#[derive(Debug, Clone)]
struct Face {
    core: Arc<Core>,
    hub: Arc<Hub>,
}

/// The routes of `/v1/rpc`.
pub(crate) fn routes(core: Arc<Core>, hub: Arc<Hub>) -> Router {
    Router::new().route("/v1/rpc", get(stream).post(post).delete(close)).with_state(Face { core, hub })
}

async fn post(
    State(face): State<Face>,
    echo: Option<Extension<EchoOverride>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    json_in_and_out(&headers)?;
    let echo = echo.map_or(face.core.config.echo, |Extension(EchoOverride(echo))| echo);
    let envelope = Envelope::parse(&body)?;
    let Posted { connection, body } = face.hub.post(face.connection(&headers), envelope, echo).await?;
    let mut response = match body {
        Some(body) => Json(body).into_response(),
        None => StatusCode::ACCEPTED.into_response(),
    };
    face.name_connection(&connection, &mut response);
    Ok(response)
}

async fn stream(State(face): State<Face>, headers: HeaderMap) -> Result<Response, Problem> {
    events_out(&headers)?;
    let seen = last_event_id(&headers)?;
    let tap = face.hub.stream(face.connection(&headers), seen)?;
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    Ok((headers, tap.into_body()).into_response())
}

async fn close(State(face): State<Face>, headers: HeaderMap) -> Result<StatusCode, Problem> {
    face.hub.close(face.connection(&headers)).await?;
    Ok(StatusCode::NO_CONTENT)
}

impl Face {
    /// Returns the connection id of a request, if the server assigns any.
    fn connection<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        let name = self.core.config.connection_ids.as_deref()?;
        headers.get(name)?.to_str().ok()
    }

    fn name_connection(&self, connection: &str, response: &mut Response) {
        let name = self.core.config.connection_ids.as_deref();
        let name = name.and_then(|name| HeaderName::try_from(name).ok());
        if let (Some(name), Ok(value)) = (name, HeaderValue::from_str(connection)) {
            response.headers_mut().insert(name, value);
        }
    }
}
