//! Finds the programs that providers run.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::ProviderError;
use crate::local::{in_path, trusted};

/// Finds a program in the absolute directories of `PATH`, or at its path, and checks that other users cannot replace it.
pub(super) fn find(name: &Path, accept_untrusted: bool) -> Result<PathBuf, ProviderError> {
    let found = match name.to_str() {
        Some(name) if !name.contains('/') => in_path(name, std::env::var_os("PATH").as_deref()),
        _ => Some(name.to_owned()).filter(|program| program.is_file()),
    };
    let found = found.ok_or_else(|| ProviderError::Program {
        program: name.display().to_string(),
        source: Arc::new(io::Error::from(io::ErrorKind::NotFound)),
    })?;
    Ok(trusted(&found, accept_untrusted)?)
}
