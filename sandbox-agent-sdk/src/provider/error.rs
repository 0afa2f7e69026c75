//! Why there is no sandbox.

use std::io;
use std::sync::Arc;

use crate::Error;
use crate::local::LocalError;

/// Why a provider failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ProviderError {
    /// The provider cannot do this.
    #[error("the provider does not support `{0}`")]
    Unsupported(&'static str),
    /// There is no sandbox with this id.
    #[error("there is no sandbox `{0}`")]
    NotFound(String),
    /// The id is of another provider.
    #[error("sandbox `{id}` is not of provider `{provider}`")]
    WrongProvider {
        /// The id.
        id: String,
        /// The provider.
        provider: String,
    },
    /// The server could not be started.
    #[error("the server did not start")]
    Local(#[from] LocalError),
    /// A program could not be run.
    #[error("`{program}` cannot be run")]
    Program {
        /// The program.
        program: String,
        /// Why.
        #[source]
        source: Arc<io::Error>,
    },
    /// A command of the container engine failed.
    #[error("`{command}` failed: {output}")]
    Engine {
        /// The command, without its secrets.
        command: String,
        /// The end of what it printed.
        output: String,
    },
    /// The server in the sandbox cannot be used. A sandbox that was made for it has been destroyed.
    #[error("the server in the sandbox cannot be used")]
    Server(#[source] Box<Error>),
}
