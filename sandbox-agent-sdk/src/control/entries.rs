//! Types that the server returns about its files.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::convert::open_enum::open_enum;

open_enum! {
    /// The type of a file system entry.
    pub enum FsEntryType {
        /// A file. Listings report every symbolic link as a file too.
        File = "file",
        /// A directory.
        Directory = "directory",
    }
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct FsEntry {
    /// The name in the directory.
    pub name: String,
    /// The absolute path.
    pub path: String,
    /// The type of the entry.
    #[serde(alias = "entry_type")]
    pub entry_type: FsEntryType,
    /// The size in bytes.
    #[serde(default)]
    pub size: u64,
    /// The time of the last change, as RFC 3339 text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified: Option<String>,
    /// Unknown fields, as the server sent them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl FsEntry {
    /// Returns whether the entry is a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.entry_type == FsEntryType::Directory
    }
}

/// The entries of a directory, in no particular order.
///
/// Deserializes from a plain list (HTTP) and from an object with `entries` (extension method).
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(from = "Listing")]
#[non_exhaustive]
pub struct FsEntries {
    /// The entries.
    pub entries: Vec<FsEntry>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Listing {
    Bare(Vec<FsEntry>),
    Wrapped { entries: Vec<FsEntry> },
}

impl From<Listing> for FsEntries {
    fn from(listing: Listing) -> Self {
        match listing {
            Listing::Bare(entries) | Listing::Wrapped { entries } => Self { entries },
        }
    }
}

/// The type and size of a file or directory. Symbolic links are followed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct FsStat {
    /// The absolute path.
    pub path: String,
    /// The type of the entry.
    #[serde(alias = "entry_type")]
    pub entry_type: FsEntryType,
    /// The size in bytes.
    #[serde(default)]
    pub size: u64,
    /// The time of the last change, as RFC 3339 text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified: Option<String>,
    /// Unknown fields, as the server sent them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl FsStat {
    /// Returns whether the path is a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.entry_type == FsEntryType::Directory
    }
}

/// The result of writing a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct FsWritten {
    /// The absolute path of the file.
    pub path: String,
    /// The number of bytes written.
    #[serde(alias = "bytes_written")]
    pub bytes_written: u64,
}

/// The absolute path of a created or deleted entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FsPath {
    /// The path.
    pub path: String,
}

/// A request to move a file or a directory.
///
/// With [`overwrite`](Self::overwrite) the server deletes an existing target first. If the move then fails,
/// the target is lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[must_use]
pub struct FsMove {
    from: String,
    to: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    overwrite: bool,
}

impl FsMove {
    /// Creates a request to move `from` to `to`. The move fails if `to` exists.
    pub fn new(from: impl Into<String>, to: impl Into<String>) -> Self {
        Self { from: from.into(), to: to.into(), overwrite: false }
    }

    /// Makes the move delete an existing target first, recursively.
    pub fn overwrite(mut self) -> Self {
        self.overwrite = true;
        self
    }
}

/// The result of a move.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FsMoved {
    /// The absolute path before the move.
    pub from: String,
    /// The absolute path after the move.
    pub to: String,
}

/// The result of unpacking an archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FsUploaded {
    /// The absolute paths of the unpacked entries, at most the first 1024.
    pub paths: Vec<String>,
    /// Whether `paths` is incomplete.
    #[serde(default)]
    pub truncated: bool,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{FsEntries, FsEntryType, FsMove, FsMoved, FsPath, FsStat, FsUploaded, FsWritten};

    #[test]
    fn a_listing_is_parsed_bare_and_wrapped() {
        let entries = json!([
            {"name": "dirlink", "path": "/srv/test/fsx/dirlink", "entryType": "file", "size": 13,
             "modified": "2026-11-16T01:00:32.734902241+00:00"},
            {"name": "a", "path": "/srv/test/fsx/a", "entryType": "directory", "size": 4096},
            {"name": "s", "path": "/srv/test/fsx/s", "entryType": "socket", "size": 0, "mode": 448}]);
        let bare: FsEntries = serde_json::from_value(entries.clone()).unwrap();
        let wrapped: FsEntries = serde_json::from_value(json!({"entries": entries.clone()})).unwrap();
        assert_eq!(bare, wrapped);
        assert_eq!(
            bare.entries.iter().map(super::FsEntry::is_directory).collect::<Vec<_>>(),
            [false, true, false]
        );
        assert_eq!(bare.entries[0].modified.as_deref(), Some("2026-11-16T01:00:32.734902241+00:00"));
        assert_eq!(bare.entries[2].entry_type, FsEntryType::Other("socket".to_owned()));
        assert_eq!(serde_json::to_value(bare.entries).unwrap(), entries);
        assert_eq!(serde_json::from_value::<FsEntries>(json!([])).unwrap(), FsEntries::default());
        assert!(serde_json::from_value::<FsEntries>(json!({"path": "/"})).is_err());
    }

    #[test]
    fn file_entries_of_the_released_server_are_parsed() {
        let stat: FsStat =
            serde_json::from_value(json!({"path": "/srv/test/fsx/a", "entryType": "directory",
            "size": 4096, "modified": "2026-11-16T01:00:32.378902225+00:00"}))
            .unwrap();
        assert!(stat.is_directory());
        let written: FsWritten =
            serde_json::from_value(json!({"path": "/srv/test/data/home/rel/x.txt", "bytesWritten": 7}))
                .unwrap();
        assert_eq!(written.bytes_written, 7);
        let made: FsPath = serde_json::from_value(json!({"path": "/srv/test/fsx/d1/d2"})).unwrap();
        assert_eq!(made.path, "/srv/test/fsx/d1/d2");
        let moved: FsMoved =
            serde_json::from_value(json!({"from": "/srv/test/fsx/a/b.txt", "to": "/srv/test/fsx/d1/c.txt"}))
                .unwrap();
        assert_eq!(moved.to, "/srv/test/fsx/d1/c.txt");
        let uploaded: FsUploaded = serde_json::from_value(
            json!({"paths": ["/srv/test/fsx/up/one", "/srv/test/fsx/up/sub"], "truncated": false}),
        )
        .unwrap();
        assert_eq!((uploaded.paths.len(), uploaded.truncated), (2, false));
    }

    #[test]
    fn a_move_overwrites_only_on_request() {
        let polite = FsMove::new("/a", "/b");
        assert_eq!(serde_json::to_value(&polite).unwrap(), json!({"from": "/a", "to": "/b"}));
        let rude = json!({"from": "/a", "to": "/b", "overwrite": true});
        assert_eq!(serde_json::to_value(polite.overwrite()).unwrap(), rude);
    }
}
