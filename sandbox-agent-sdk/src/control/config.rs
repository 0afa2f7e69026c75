//! MCP servers and skills that are configured per directory.

use futures::future::{BoxFuture, FutureExt};
use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::http::{Call, Http};
use super::route::Route;
use crate::Error;
use crate::config::{McpServerConfig, SkillsConfig};

/// Stores MCP servers and skills by directory and name. Cheap to clone; needs no connection.
///
/// The server only stores them. An agent uses them only if they are passed to its session.
#[derive(Debug, Clone)]
pub struct Configuration {
    http: Http,
}

/// The routes and names of one kind of configuration.
#[derive(Debug, Clone, Copy)]
struct Kind {
    path: &'static str,
    /// The query parameter that holds the name.
    name: &'static str,
    get: &'static str,
    set: &'static str,
    delete: &'static str,
}

const MCP: Kind = Kind {
    path: "/v1/config/mcp",
    name: "mcpName",
    get: "get MCP config",
    set: "set MCP config",
    delete: "delete MCP config",
};

const SKILLS: Kind = Kind {
    path: "/v1/config/skills",
    name: "skillName",
    get: "get skills config",
    set: "set skills config",
    delete: "delete skills config",
};

impl Configuration {
    pub(super) fn new(http: Http) -> Self {
        Self { http }
    }

    /// Returns the MCP server with this name, if it exists.
    pub fn mcp_server(
        &self,
        directory: &str,
        name: &str,
    ) -> BoxFuture<'static, Result<Option<McpServerConfig>, Error>> {
        self.get(MCP, directory, name)
    }

    /// Stores an MCP server. Replaces an existing one with the same name.
    pub fn set_mcp_server(
        &self,
        directory: &str,
        name: &str,
        server: &McpServerConfig,
    ) -> BoxFuture<'static, Result<(), Error>> {
        self.set(MCP, directory, name, server)
    }

    /// Deletes an MCP server. Succeeds if it does not exist.
    pub fn delete_mcp_server(&self, directory: &str, name: &str) -> BoxFuture<'static, Result<(), Error>> {
        self.delete(MCP, directory, name)
    }

    /// Returns the skills with this name, if they exist.
    pub fn skills(
        &self,
        directory: &str,
        name: &str,
    ) -> BoxFuture<'static, Result<Option<SkillsConfig>, Error>> {
        self.get(SKILLS, directory, name)
    }

    /// Stores skills. Replaces existing ones with the same name.
    pub fn set_skills(
        &self,
        directory: &str,
        name: &str,
        skills: &SkillsConfig,
    ) -> BoxFuture<'static, Result<(), Error>> {
        self.set(SKILLS, directory, name, skills)
    }

    /// Deletes skills. Succeeds if they do not exist.
    pub fn delete_skills(&self, directory: &str, name: &str) -> BoxFuture<'static, Result<(), Error>> {
        self.delete(SKILLS, directory, name)
    }

    fn get<T: DeserializeOwned + Send + 'static>(
        &self,
        kind: Kind,
        directory: &str,
        name: &str,
    ) -> BoxFuture<'static, Result<Option<T>, Error>> {
        let call = Call::new(kind.get, Method::GET, kind.route(directory, name)).private();
        self.http
            .value::<T>(Ok(call))
            .map(|value| match value {
                Ok(value) => Ok(Some(value)),
                Err(error) if is_absent(&error) => Ok(None),
                Err(error) => Err(error),
            })
            .boxed()
    }

    fn set(
        &self,
        kind: Kind,
        directory: &str,
        name: &str,
        value: &impl Serialize,
    ) -> BoxFuture<'static, Result<(), Error>> {
        self.http.done(Call::new(kind.set, Method::PUT, kind.route(directory, name)).json(value))
    }

    fn delete(&self, kind: Kind, directory: &str, name: &str) -> BoxFuture<'static, Result<(), Error>> {
        self.http.done(Ok(Call::new(kind.delete, Method::DELETE, kind.route(directory, name))))
    }
}

impl Kind {
    fn route(self, directory: &str, name: &str) -> Route {
        Route::new(self.path).query("directory", directory).query(self.name, name)
    }
}

/// Whether the name has no value. `false` if the server lacks the route.
fn is_absent(error: &Error) -> bool {
    let is_404 = error.http().is_some_and(|response| response.status == 404);
    let kind = error.problem().map(|problem| problem.short_kind());
    is_404 && matches!(kind, Some("session_not_found" | "not_found"))
}
