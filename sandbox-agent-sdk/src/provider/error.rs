//! Errors of sandbox providers.

use std::io;
use std::sync::Arc;

use crate::Error;
use crate::convert::text::printable;
use crate::local::LocalError;

/// The error of a sandbox provider. `Display` is safe to print; the fields hold the original text.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ProviderError {
    /// The provider does not support the operation.
    #[error("the provider does not support `{0}`")]
    Unsupported(&'static str),
    /// The sandbox does not exist.
    #[error("sandbox `{}` does not exist", printable(.0))]
    NotFound(String),
    /// The sandbox id belongs to another provider.
    #[error("sandbox `{}` does not belong to provider `{provider}`", printable(.id))]
    #[non_exhaustive]
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
    #[non_exhaustive]
    Program {
        /// The program or resource.
        program: String,
        /// The cause.
        #[source]
        source: Arc<io::Error>,
    },
    /// A command of the container engine failed.
    #[error("`{command}` failed: {}", printable(.output))]
    #[non_exhaustive]
    Engine {
        /// The command, without secrets.
        command: String,
        /// The end of the command's output.
        output: String,
    },
    /// An environment variable cannot be passed to a container.
    #[error("variable `{}` cannot be passed to a container: {problem}", printable(.name))]
    #[non_exhaustive]
    Variable {
        /// The name of the variable.
        name: String,
        /// What is wrong with its name or its value.
        problem: &'static str,
    },
    /// The server in the sandbox is not usable. If the sandbox was created by this call, it has been
    /// destroyed.
    #[error("the server in the sandbox is not usable")]
    Server(#[source] Box<Error>),
}

impl ProviderError {
    /// The operating system provides no randomness for a name or a token.
    pub(super) fn randomness(source: io::Error) -> Self {
        Self::Program { program: "randomness of the operating system".to_owned(), source: Arc::new(source) }
    }
}

#[cfg(test)]
mod tests {
    use super::ProviderError;

    #[test]
    fn an_error_is_safe_to_print_whatever_an_engine_prints() {
        let attack = "\u{1b}]0;owned\u{7}\u{9b}2J";
        let errors = [
            ProviderError::Engine { command: "docker run".to_owned(), output: attack.to_owned() },
            ProviderError::NotFound(attack.to_owned()),
            ProviderError::WrongProvider { id: attack.to_owned(), provider: "docker".to_owned() },
        ];
        for error in errors {
            let shown = error.to_string();
            assert!(!shown.contains(char::is_control) && shown.contains("owned"), "{shown:?}");
        }
    }
}
