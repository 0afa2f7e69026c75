//! The description of a file or directory.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cap_std::fs::Metadata;
use serde::Serialize;

/// The first instant without a four-digit year.
const YEAR_10000: Duration = Duration::from_secs(253_402_300_800);

/// An entry of a directory.
#[derive(Debug, Serialize)]
pub(super) struct DirectoryEntry {
    pub(super) name: String,
    pub(super) path: String,
    #[serde(flatten)]
    pub(super) facts: Facts,
}

/// The description of a path.
#[derive(Debug, Serialize)]
pub(super) struct Stat {
    pub(super) path: String,
    #[serde(flatten)]
    pub(super) facts: Facts,
}

/// The file system's information about an entry.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Facts {
    /// `directory`, or `file` for everything else.
    entry_type: &'static str,
    size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    modified: Option<String>,
}

impl From<&Metadata> for Facts {
    fn from(metadata: &Metadata) -> Self {
        Self {
            entry_type: if metadata.is_dir() { "directory" } else { "file" },
            size: metadata.len(),
            modified: metadata.modified().ok().and_then(|time| rfc3339(time.into_std())),
        }
    }
}

/// Formats a time as RFC 3339 with nanoseconds and `+00:00`; `None` if the format cannot represent it.
fn rfc3339(time: SystemTime) -> Option<String> {
    time.duration_since(UNIX_EPOCH).ok().filter(|since| *since < YEAR_10000)?;
    let text = humantime::format_rfc3339_nanos(time).to_string();
    Some(text.trim_end_matches('Z').to_owned() + "+00:00")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_format_of_the_released_server() {
        let time = UNIX_EPOCH + Duration::new(1_794_790_832, 378_902_225);
        assert_eq!(rfc3339(time).unwrap(), "2026-11-16T01:00:32.378902225+00:00");
        assert_eq!(rfc3339(UNIX_EPOCH).unwrap(), "1970-01-01T00:00:00.000000000+00:00");
    }

    #[test]
    fn times_that_the_format_cannot_represent_are_omitted() {
        assert_eq!(rfc3339(UNIX_EPOCH - Duration::from_secs(1)), None);
        assert_eq!(rfc3339(UNIX_EPOCH + YEAR_10000), None);
        assert!(rfc3339(UNIX_EPOCH + YEAR_10000 - Duration::from_secs(1)).unwrap().starts_with("9999-12-31"));
    }
}
