//! Errors of sandbox providers.

use std::io;
use std::sync::Arc;

use crate::Error;
use crate::local::LocalError;

/// The error of a sandbox provider.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ProviderError {
    /// The provider does not support the operation.
    #[error("the provider does not support `{0}`")]
    Unsupported(&'static str),
    /// The sandbox does not exist.
    #[error("sandbox `{0}` does not exist")]
    NotFound(String),
    /// The sandbox id belongs to another provider.
    #[error("sandbox `{id}` does not belong to provider `{provider}`")]
    WrongProvider {
        /// The sandbox id.
        id: String,
        /// The provider's name.
        provider: String,
    },
    /// The server failed to start.
    #[error("the server failed to start")]
    Local(#[from] LocalError),
    /// A program failed to start, or a resource of this machine is unavailable.
    #[error("`{program}` is unavailable")]
    Program {
        /// The program or resource.
        program: String,
        /// The cause.
        #[source]
        source: Arc<io::Error>,
    },
    /// A command of the container engine failed.
    #[error("`{command}` failed: {output}")]
    Engine {
        /// The command, without secrets.
        command: String,
        /// The end of its output.
        output: String,
    },
    /// The server in the sandbox is not usable. If the sandbox was created by this call, it has been
    /// destroyed.
    #[error("the server in the sandbox is not usable")]
    Server(#[source] Box<Error>),
}
