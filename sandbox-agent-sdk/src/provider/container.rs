//! Runs a server in a container, through the command line of a container engine.

use std::fmt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::program::find;
use super::{Endpoint, ProviderError, SandboxProvider};
use crate::client::network::check_runtime;
use crate::local::token::random_token;

/// The label that stores a container's token, so that another program can attach to it.
const TOKEN_LABEL: &str = "sandbox-agent-sdk.token";

/// Where the engine reads the variables of a container: its standard input, so that they are not in a file.
const VARIABLES: &str = "/dev/stdin";

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
    accept_untrusted: bool,
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
    ///
    /// A program without a slash in its name is searched for in the absolute directories of `PATH`. A program that other
    /// users can replace is rejected, unless [`accept_untrusted_engine`](Self::accept_untrusted_engine) is set.
    pub fn engine(program: impl Into<PathBuf>, name: impl Into<String>, image: impl Into<String>) -> Self {
        Self {
            engine: program.into(),
            name: name.into(),
            image: image.into(),
            port: 3000,
            environment: Vec::new(),
            arguments: Vec::new(),
            accept_untrusted: false,
        }
    }

    /// Sets the port inside the container; 3000 by default.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Sets an environment variable in the container.
    ///
    /// The engine reads the variable from its standard input. The variable appears neither on a command line nor in
    /// the environment of the engine, so it cannot change the engine's own variables (`DOCKER_HOST`, `PATH`). Starting
    /// a container fails with [`ProviderError::Variable`] if the name is invalid, or if the value contains a line
    /// break or a NUL character, which engines cannot read.
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

    /// Runs the engine even if other users of this machine can replace it.
    #[must_use]
    pub fn accept_untrusted_engine(mut self) -> Self {
        self.accept_untrusted = true;
        self
    }

    /// Runs a command of the container engine and returns its output.
    async fn command(&self, words: &[String], shown: &'static str) -> Result<String, ProviderError> {
        self.command_with_input(words, String::new(), shown).await
    }

    /// Runs a command of the container engine that reads `input`.
    async fn command_with_input(
        &self,
        words: &[String],
        input: String,
        shown: &'static str,
    ) -> Result<String, ProviderError> {
        let program = self.engine.display().to_string();
        check_runtime().map_err(|error| ProviderError::Program {
            program: program.clone(),
            source: Arc::new(std::io::Error::other(error)),
        })?;
        let failed = |source| ProviderError::Program { program: program.clone(), source: Arc::new(source) };
        let mut command = Command::new(find(&self.engine, self.accept_untrusted)?);
        command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command.stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() });
        let mut engine = command.spawn().map_err(failed)?;
        let stdin = engine.stdin.take();
        let written = async move {
            if let Some(mut stdin) = stdin {
                // An engine that does not read its input fails, or needs none of it.
                let _ = stdin.write_all(input.as_bytes()).await;
            }
        };
        let ((), output) = tokio::join!(written, engine.wait_with_output());
        let output = output.map_err(failed)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
        }
        let printed = String::from_utf8_lossy(&output.stderr);
        let skipped = printed.trim().chars().count().saturating_sub(OUTPUT_CHARS);
        let output = printed.trim().chars().skip(skipped).collect();
        Err(ProviderError::Engine { command: format!("{program} {shown}"), output })
    }

    /// Returns the variables of a container, in the format of the option `--env-file`.
    fn variables(&self) -> Result<String, ProviderError> {
        let mut lines = String::new();
        for (name, value) in &self.environment {
            let is_break = |character: char| matches!(character, '\n' | '\r' | '\0');
            let is_special = |character: char| {
                character.is_whitespace()
                    || character.is_control()
                    || matches!(character, '=' | '#' | '\u{feff}')
            };
            let problem = if name.is_empty() || name.contains(is_special) {
                "its name is invalid"
            } else if value.contains(is_break) {
                "its value has a line break or a NUL character"
            } else {
                lines.extend([name, "=", value, "\n"]);
                continue;
            };
            return Err(ProviderError::Variable { name: name.clone(), problem });
        }
        Ok(lines)
    }

    /// Builds the arguments of `run`.
    fn run_words(&self, token: &str) -> Vec<String> {
        let mut words: Vec<String> = ["run", "--detach", "--init"].map(str::to_owned).to_vec();
        words.push(format!("--publish=127.0.0.1::{}", self.port));
        words.push(format!("--label={TOKEN_LABEL}={token}"));
        if !self.environment.is_empty() {
            words.push(format!("--env-file={VARIABLES}"));
        }
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
            let token = random_token().map_err(ProviderError::randomness)?;
            let words = self.run_words(token.expose());
            let printed = self.command_with_input(&words, self.variables()?, "run").await?;
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

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use tempfile::TempDir;

    use super::{ContainerProvider, ProviderError, SandboxProvider};
    use crate::convert::text::is_unsafe;

    /// An engine that records its arguments, its environment, and what it reads as the variables of a container.
    fn engine() -> (TempDir, ContainerProvider) {
        let folder = tempfile::tempdir().unwrap();
        let (program, at) = (folder.path().join("engine"), folder.path().display());
        let script = format!(
            "#!/bin/sh\n/usr/bin/env > '{at}/environment'\necho \"$@\" > '{at}/words'\n\
             for word in \"$@\"; do case $word in --env-file=*) cat \"${{word#*=}}\" > '{at}/variables';; esac; done\n\
             echo c0ffee\n"
        );
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        let provider = ContainerProvider::engine(program, "docker", "image");
        (folder, provider)
    }

    fn read(folder: &TempDir, name: &str) -> String {
        fs::read_to_string(folder.path().join(name)).unwrap_or_default()
    }

    #[tokio::test]
    async fn variables_of_a_container_do_not_reach_the_engine_itself() {
        let (folder, provider) = engine();
        let provider = provider
            .env("API_KEY", "s3cret")
            .env("DOCKER_HOST", "tcp://attacker:2375")
            .env("PATH", "/planted")
            .env("LD_PRELOAD", "/planted/code.so")
            .env("PADDED", " # 'it' = \"that\" ");
        assert_eq!(provider.start().await.unwrap(), "c0ffee");
        let (environment, words) = (read(&folder, "environment"), read(&folder, "words"));
        for planted in ["s3cret", "attacker", "planted"] {
            assert!(!environment.contains(planted), "{environment}");
            assert!(!words.contains(planted), "{words}");
        }
        assert_eq!(
            read(&folder, "variables"),
            "API_KEY=s3cret\nDOCKER_HOST=tcp://attacker:2375\nPATH=/planted\nLD_PRELOAD=/planted/code.so\n\
             PADDED= # 'it' = \"that\" \n"
        );
    }

    #[tokio::test]
    async fn an_engine_reads_many_variables_or_none() {
        let (folder, provider) = engine();
        provider.start().await.unwrap();
        assert!(!read(&folder, "words").contains("env-file"), "there are no variables");
        // More than a pipe holds.
        let (folder, provider) = engine();
        let value = "v".repeat(1 << 10);
        let provider = (0..500).fold(provider, |provider, at| provider.env(format!("V{at}"), &value));
        provider.start().await.unwrap();
        assert_eq!(read(&folder, "variables").lines().count(), 500);
    }

    #[tokio::test]
    async fn a_variable_adds_no_other_variable() {
        let attacks = [
            ("KEY", "x\nDOCKER_HOST=attacker"),
            ("KEY", "x\r"),
            ("KEY", "x\0y"),
            ("KEY\nOTHER", "x"),
            ("A=B", "x"),
            ("#KEY", "x"),
            (" KEY", "x"),
            ("\u{feff}KEY", "x"),
            ("", "x"),
        ];
        for (name, value) in attacks {
            let (folder, provider) = engine();
            let error = provider.env(name, value).start().await.unwrap_err();
            assert!(matches!(&error, ProviderError::Variable { .. }), "{name:?} {value:?}: {error:?}");
            assert!(!error.to_string().contains(is_unsafe), "{error:?}");
            assert_eq!(read(&folder, "words"), "", "the engine did not start");
        }
    }
}
