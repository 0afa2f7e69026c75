//! A server for a control plane, and a client for it.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use axum::response::IntoResponse;
use mock_server::{ControlPlane, ControlPlaneBuilder, Problem};
use reqwest::{Body, Method, StatusCode};
use serde_json::Value;
use tokio::{net::TcpListener, task::JoinHandle};

pub(crate) const JSON: &str = "application/json";
pub(crate) const PROBLEM: &str = "application/problem+json";
pub(crate) const TEXT: &str = "text/plain; charset=utf-8";
pub(crate) const TAR: &str = "application/x-tar";

/// A control plane on its own port. Ends with the test.
pub(crate) struct Server {
    pub(crate) control: ControlPlane,
    pub(crate) address: SocketAddr,
    client: reqwest::Client,
    task: JoinHandle<()>,
}

/// A response with its whole body.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) content_type: String,
    pub(crate) allow: Option<String>,
    pub(crate) body: String,
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::with(ControlPlane::builder()).await
    }

    pub(crate) async fn with(builder: ControlPlaneBuilder) -> Self {
        let control = builder.build().unwrap();
        let router = control.router().fallback(async || Problem::unknown_endpoint().into_response());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let client = crate::http_client::builder().timeout(Duration::from_secs(120)).build().unwrap();
        Self { control, address, client, task }
    }

    /// Builds a request. `target` is the encoded path and query.
    pub(crate) fn request(&self, method: Method, target: &str) -> reqwest::RequestBuilder {
        self.client.request(method, format!("http://{}{target}", self.address))
    }

    pub(crate) async fn get(&self, target: &str) -> Reply {
        Reply::of(self.request(Method::GET, target)).await
    }

    pub(crate) async fn post(&self, target: &str) -> Reply {
        Reply::of(self.request(Method::POST, target)).await
    }

    pub(crate) async fn delete(&self, target: &str) -> Reply {
        Reply::of(self.request(Method::DELETE, target)).await
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        target: &str,
        content_type: &str,
        body: impl Into<Body>,
    ) -> Reply {
        Reply::of(self.request(method, target).header("content-type", content_type).body(body)).await
    }

    /// Writes a file through the server.
    pub(crate) async fn put(&self, path: &str, body: impl Into<Body>) -> Reply {
        let target = format!("/v1/fs/file?path={path}");
        Reply::of(self.request(Method::PUT, &target).body(body)).await
    }

    /// Returns the location of a path below the root on this machine.
    pub(crate) fn on_disk(&self, path: &str) -> PathBuf {
        self.control.root().join(path)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Reply {
    pub(crate) async fn of(request: reqwest::RequestBuilder) -> Self {
        let response = request.send().await.expect("a response");
        let header = |name| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        let (content_type, allow) = (header("content-type").unwrap_or_default(), header("allow"));
        let status = response.status();
        Self { status, content_type, allow, body: response.text().await.unwrap() }
    }

    /// Checks status and content type, and returns the body as JSON.
    #[track_caller]
    pub(crate) fn json(&self, status: u16) -> Value {
        assert_eq!((self.status.as_u16(), self.content_type.as_str()), (status, JSON), "{}", self.body);
        serde_json::from_str(&self.body).unwrap()
    }

    /// Checks that this is a plain text error, and returns the text.
    #[track_caller]
    pub(crate) fn text(&self, status: u16) -> &str {
        assert_eq!((self.status.as_u16(), self.content_type.as_str()), (status, TEXT), "{}", self.body);
        &self.body
    }

    /// Checks that this is a problem of this type, and returns its detail.
    #[track_caller]
    pub(crate) fn problem(&self, status: u16, suffix: &str) -> String {
        assert_eq!((self.status.as_u16(), self.content_type.as_str()), (status, PROBLEM), "{}", self.body);
        let problem: Value = serde_json::from_str(&self.body).unwrap();
        assert_eq!(problem["type"], format!("urn:sandbox-agent:error:{suffix}"));
        assert_eq!(problem["status"], status);
        problem["detail"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    pub(crate) fn nothing(&self, status: u16) {
        assert_eq!((self.status.as_u16(), self.body.as_str()), (status, ""), "{}", self.content_type);
    }
}
