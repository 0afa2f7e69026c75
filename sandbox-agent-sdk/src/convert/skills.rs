//! Configuration of skills.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::convert::fields::null_as_default;
use crate::convert::open_enum::open_enum;

/// The configuration of a set of skills, stored by a Sandbox Agent server per directory.
///
/// ```
/// use sandbox_agent_sdk::config::{SkillSource, SkillsConfig};
///
/// let source = SkillSource::github("owner/repository").reference("main").skill("review");
/// let config = SkillsConfig::new([source]);
/// assert_eq!(
///     serde_json::to_string(&config)?,
///     r#"{"sources":[{"type":"github","source":"owner/repository","skills":["review"],"ref":"main"}]}"#
/// );
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SkillsConfig {
    /// The sources of the skills.
    #[serde(default, deserialize_with = "null_as_default")]
    pub sources: Vec<SkillSource>,
    /// Unknown fields, as the server sent them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl SkillsConfig {
    /// Creates a configuration from sources.
    #[must_use]
    pub fn new(sources: impl IntoIterator<Item = SkillSource>) -> Self {
        Self { sources: sources.into_iter().collect(), other: Map::new() }
    }
}

open_enum! {
    /// The kind of a skill source.
    pub enum SkillSourceKind {
        /// A GitHub repository.
        Github = "github",
        /// A directory on the server.
        Local = "local",
        /// Any git repository.
        Git = "git",
    }
}

/// A source of skills.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SkillSource {
    /// The kind of the source.
    #[serde(rename = "type")]
    pub kind: SkillSourceKind,
    /// The location: `owner/repository`, a path, or a URL.
    pub source: String,
    /// The skills to use from the source; `None` means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skills: Option<Vec<String>>,
    /// The branch, tag or commit.
    #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// The directory within the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subpath: Option<String>,
    /// Unknown fields, as the server sent them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl SkillSource {
    /// Creates a source of any kind.
    #[must_use]
    pub fn new(kind: impl Into<SkillSourceKind>, source: impl Into<String>) -> Self {
        Self {
            kind: kind.into(),
            source: source.into(),
            skills: None,
            reference: None,
            subpath: None,
            other: Map::new(),
        }
    }

    /// Creates a source from a GitHub repository, given as `owner/repository`.
    #[must_use]
    pub fn github(repository: impl Into<String>) -> Self {
        Self::new(SkillSourceKind::Github, repository)
    }

    /// Creates a source from a directory on the server.
    #[must_use]
    pub fn local(path: impl Into<String>) -> Self {
        Self::new(SkillSourceKind::Local, path)
    }

    /// Selects one skill instead of all of them. Can be repeated.
    #[must_use]
    pub fn skill(mut self, name: impl Into<String>) -> Self {
        self.skills.get_or_insert_default().push(name.into());
        self
    }

    /// Sets the branch, tag or commit.
    #[must_use]
    pub fn reference(mut self, reference: impl Into<String>) -> Self {
        self.reference = Some(reference.into());
        self
    }

    /// Sets the directory within the source.
    #[must_use]
    pub fn subpath(mut self, path: impl Into<String>) -> Self {
        self.subpath = Some(path.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{SkillSource, SkillSourceKind, SkillsConfig};

    #[test]
    fn what_the_released_server_stores_is_read_and_written_whole() {
        let stored = json!({"sources": [{"type": "github", "source": "o/r", "skills": ["x"], "ref": "main",
            "subpath": "s"}]});
        let config: SkillsConfig = serde_json::from_value(stored.clone()).unwrap();
        let source = &config.sources[0];
        assert_eq!((&source.kind, source.source.as_str()), (&SkillSourceKind::Github, "o/r"));
        assert_eq!((source.reference.as_deref(), source.subpath.as_deref()), (Some("main"), Some("s")));
        assert_eq!(serde_json::to_value(&config).unwrap(), stored);
        let built = SkillsConfig::new([SkillSource::github("o/r").skill("x").reference("main").subpath("s")]);
        assert_eq!(built, config);
    }

    #[test]
    fn new_kinds_and_members_are_kept() {
        let stored = json!({"sources": [{"type": "oci", "source": "r/x", "digest": "d"}], "version": 2});
        let config: SkillsConfig = serde_json::from_value(stored.clone()).unwrap();
        assert_eq!(config.sources[0].kind, SkillSourceKind::Other("oci".to_owned()));
        assert_eq!(serde_json::to_value(config).unwrap(), stored);
        assert_eq!(serde_json::from_value::<SkillsConfig>(json!({})).unwrap(), SkillsConfig::default());
    }

    #[test]
    fn a_directory_on_the_server_is_a_source_too() {
        let local = SkillSource::local("/srv/skills");
        assert_eq!(serde_json::to_value(local).unwrap(), json!({"type": "local", "source": "/srv/skills"}));
    }
}
