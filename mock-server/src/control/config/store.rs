//! Named values in a JSON file of a directory.

use std::{
    io,
    path::Path,
    sync::{Mutex, PoisonError},
};

use serde_json::{Map, Value};

use crate::{
    control::files::{Root, VirtualPath, problem},
    problem::Problem,
};

/// The location of the files within their directory.
const CONFIG_DIRECTORY: &str = ".sandbox-agent/config";

/// The configuration files of all directories.
#[derive(Debug)]
pub(in crate::control) struct Store {
    root: Root,
    /// Held while a file is read, changed and written, so that no change is lost. Only for blocking work.
    changing: Mutex<()>,
}

/// One configuration file.
#[derive(Debug, Clone)]
pub(super) struct Document {
    path: VirtualPath,
}

impl Document {
    /// Returns the file with this name of a directory.
    pub(super) fn of(directory: &VirtualPath, file: &str) -> Result<Self, Problem> {
        directory.join(&Path::new(CONFIG_DIRECTORY).join(file)).map(|path| Self { path })
    }
}

impl Store {
    pub(in crate::control) fn new(root: Root) -> Self {
        Self { root, changing: Mutex::new(()) }
    }

    /// Returns the value with a name. Blocks.
    pub(super) fn value(&self, document: &Document, name: &str) -> Result<Option<Value>, Problem> {
        Ok(self.read(document)?.remove(name))
    }

    /// Changes the values and creates a missing file. Blocks.
    pub(super) fn change(
        &self,
        document: &Document,
        change: impl FnOnce(&mut Map<String, Value>),
    ) -> Result<(), Problem> {
        let _turn = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut values = self.read(document)?;
        change(&mut values);
        self.root.make_parents(&document.path)?;
        let text = serde_json::to_vec_pretty(&values).map_err(io::Error::other);
        let spare = self.root.spare_name(document.path.inner());
        // The file is replaced atomically, so that a reader never sees a partial file.
        let written = text
            .and_then(|text| self.root.dir().write(&spare, text))
            .and_then(|()| self.root.dir().rename(&spare, self.root.dir(), document.path.inner()));
        written.map_err(|error| problem(&error, &document.path))
    }

    fn read(&self, document: &Document) -> Result<Map<String, Value>, Problem> {
        let bytes = match self.root.dir().read(document.path.inner()) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Map::new()),
            Err(error) => return Err(problem(&error, &document.path)),
        };
        crate::json::from_slice(&bytes).map_err(|error| Problem::stream_error(error.to_string()))
    }
}
