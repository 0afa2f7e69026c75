//! Runs a server in a container, through the command line of a container engine.

use std::fmt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::process::Command;

use super::{Endpoint, ProviderError, SandboxProvider};
use crate::client::network::check_runtime;
use crate::local::random_token;

/// The label that stores a container's token, so that another program can attach to it.
const TOKEN_LABEL: &str = "sandbox-agent-sdk.token";

/// How much of a command's output an error contains.
const OUTPUT_CHARS: usize = 2000;

/// Runs the server in containers, through the command line of `docker` or `podman`.
///
/// The image must have the server's program `sandbox-agent` in its `PATH`. The server's port is published
/// only on the loopback interface of this machine.
///
/// The released server accepts its token on its command line only. On most systems every user of this machine can
/// read the command lines of all processes (`ps`, `/proc`), including those in containers. On a machine with
/// untrusted users, mount `/proc` with `hidepid=2`. Users of the container engine can read the token too.
#[derive(Clone)]
pub struct ContainerProvider {
    engine: PathBuf,
    name: String,
    image: String,
    port: u16,
    environment: Vec<(String, String)>,
    arguments: Vec<String>,
}

impl ContainerProvider {
    /// Creates a provider for containers of this image, with `docker`.
    pub fn docker(image: impl Into<String>) -> Self {
        Self::engine("docker", "docker", image)
    }

    /// Creates a provider for containers of this image, with `podman`.
    pub fn podman(image: impl Into<String>) -> Self {
        Self::engine("podman", "podman", image)
    }

    /// Creates a provider for a program that accepts the same commands as `docker`. `name` prefixes the ids
    /// of its sandboxes.
    pub fn engine(program: impl Into<PathBuf>, name: impl Into<String>, image: impl Into<String>) -> Self {
        Self {
            engine: program.into(),
            name: name.into(),
            image: image.into(),
            port: 3000,
            environment: Vec::new(),
            arguments: Vec::new(),
        }
    }

    /// Sets the port inside the container; 3000 by default.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Sets an environment variable in the container. Its value is not visible on the engine's command line.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Adds an option of `run`, such as `--memory=2g`, `--network=mine` or `--volume=/work:/work`.
    #[must_use]
    pub fn run_option(mut self, option: impl Into<String>) -> Self {
        self.arguments.push(option.into());
        self
    }

    /// Runs a command of the container engine and returns its output.
    async fn command(&self, words: &[String], shown: &'static str) -> Result<String, ProviderError> {
        let program = self.engine.display().to_string();
        check_runtime().map_err(|error| ProviderError::Program {
            program: program.clone(),
            source: Arc::new(std::io::Error::other(error)),
        })?;
        let mut command = Command::new(&self.engine);
        command.args(words).stdin(Stdio::null()).kill_on_drop(true);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let output = command.output().await;
        let output = output.map_err(|source| ProviderError::Program {
            program: program.clone(),
            source: Arc::new(source),
        })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
        }
        let printed = String::from_utf8_lossy(&output.stderr);
        let skipped = printed.trim().chars().count().saturating_sub(OUTPUT_CHARS);
        let output = printed.trim().chars().skip(skipped).collect();
        Err(ProviderError::Engine { command: format!("{program} {shown}"), output })
    }

    /// Builds the arguments of `run`.
    fn run_words(&self, token: &str) -> Vec<String> {
        let mut words: Vec<String> = ["run", "--detach", "--init"].map(str::to_owned).to_vec();
        words.push(format!("--publish=127.0.0.1::{}", self.port));
        words.push(format!("--label={TOKEN_LABEL}={token}"));
        words.extend(self.environment.iter().map(|(name, _)| format!("--env={name}")));
        words.extend(self.arguments.iter().cloned());
        words.push(self.image.clone());
        let server = ["sandbox-agent", "server", "--no-telemetry", "--host", "0.0.0.0", "--port"];
        words.extend(server.map(str::to_owned));
        words.extend([self.port.to_string(), "--token".to_owned(), token.to_owned()]);
        words
    }
}

impl SandboxProvider for ContainerProvider {
    fn name(&self) -> &str {
        &self.name
    }

    fn start(&self) -> BoxFuture<'_, Result<String, ProviderError>> {
        Box::pin(async move {
            let no_randomness = |source| ProviderError::Program {
                program: "the randomness of the operating system".to_owned(),
                source: Arc::new(source),
            };
            let token = random_token().map_err(no_randomness)?;
            let printed = self.command(&self.run_words(token.expose()), "run").await?;
            // Warnings about the image may precede the id.
            let id = printed.lines().last().unwrap_or_default().trim().to_owned();
            if id.is_empty() {
                let command = format!("{} run", self.engine.display());
                return Err(ProviderError::Engine { command, output: "no container id".to_owned() });
            }
            Ok(id)
        })
    }

    fn endpoint<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Endpoint, ProviderError>> {
        Box::pin(async move {
            let format = format!("{{{{.State.Status}}}} {{{{index .Config.Labels \"{TOKEN_LABEL}\"}}}}");
            let words = ["inspect".to_owned(), format!("--format={format}"), id.to_owned()];
            let inspected = match self.command(&words, "inspect").await {
                Err(ProviderError::Engine { output, .. }) if is_unknown(&output) => {
                    return Err(ProviderError::NotFound(id.to_owned()));
                }
                other => other?,
            };
            let (status, token) = inspected.split_once(' ').unwrap_or((inspected.as_str(), ""));
            match status {
                "paused" => drop(self.command(&["unpause".to_owned(), id.to_owned()], "unpause").await?),
                "exited" | "created" | "stopped" => {
                    self.command(&["start".to_owned(), id.to_owned()], "start").await?;
                }
                _ => {}
            }
            let words = ["port".to_owned(), id.to_owned(), format!("{}/tcp", self.port)];
            let published = self.command(&words, "port").await?;
            let address = published.lines().next().unwrap_or_default().trim();
            let token = Some(token.trim()).filter(|token| !token.is_empty() && *token != "<no value>");
            Ok(Endpoint::new(format!("http://{address}"), token.map(str::to_owned)))
        })
    }

    fn pause<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), ProviderError>> {
        Box::pin(async move { self.command(&["pause".to_owned(), id.to_owned()], "pause").await.map(drop) })
    }

    fn destroy<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), ProviderError>> {
        Box::pin(async move {
            let words = ["rm".to_owned(), "--force".to_owned(), "--volumes".to_owned(), id.to_owned()];
            match self.command(&words, "rm").await {
                Err(ProviderError::Engine { output, .. }) if is_unknown(&output) => Ok(()),
                other => other.map(drop),
            }
        })
    }
}

/// Variables may contain secrets.
impl fmt::Debug for ContainerProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContainerProvider")
            .field("engine", &self.engine)
            .field("image", &self.image)
            .field("port", &self.port)
            .field("environment", &self.environment.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

/// Whether the engine reports that the container does not exist.
fn is_unknown(output: &str) -> bool {
    let output = output.to_lowercase();
    output.contains("no such container") || output.contains("no such object")
}
