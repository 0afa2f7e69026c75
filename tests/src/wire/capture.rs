//! A recording as a file: a line about it, a line for each thing that passed, a line for each thing the client told.

use std::{fs, io, path::Path};

use serde_json::{Value, json};

use super::{Entry, Pass};

/// The version of the file's layout.
const VERSION: u64 = 1;

/// What passed between a client and a server in one run, and what the client told of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Capture {
    /// The server, in words.
    pub server: String,
    /// The name of the [scenario](crate::Scenario) that was run.
    pub scenario: String,
    /// What passed.
    pub entries: Vec<Entry>,
    /// What the client told the program.
    pub told: Vec<Value>,
}

impl Capture {
    /// Takes names that cannot be guessed, and would let others in, out of everything; and the token, wherever a server
    /// or an agent may have repeated it.
    #[must_use]
    pub fn redacted(mut self, token: Option<&str>) -> Self {
        let mut secrets = self.secrets();
        secrets.extend(token.filter(|token| !token.is_empty()).map(|token| (token.into(), "TOKEN".into())));
        for entry in &mut self.entries {
            match &mut entry.pass {
                Pass::Request { path, headers, message, .. } => {
                    *path = without_secrets(path);
                    headers.values_mut().for_each(|value| redact(value, &secrets));
                    redact(message, &secrets);
                }
                Pass::Response { headers, message, .. } => {
                    headers.values_mut().for_each(|value| redact(value, &secrets));
                    redact(message, &secrets);
                }
                Pass::Event { message, .. } => redact(message, &secrets),
                Pass::End => {}
            }
        }
        self.told.iter_mut().for_each(|told| redact(told, &secrets));
        self
    }

    /// The names that let somebody in: those of endpoints, and the ids of connections.
    fn secrets(&self) -> Vec<(String, String)> {
        let mut secrets = Vec::new();
        for entry in &self.entries {
            let (path, headers) = match &entry.pass {
                Pass::Request { path, headers, .. } => (path.as_str(), headers),
                Pass::Response { headers, .. } => ("", headers),
                _ => continue,
            };
            let segments =
                path.split(['/', '?']).map(|segment| (segment.to_owned(), without_secret(segment)));
            secrets.extend(segments.filter(|(secret, redacted)| secret != redacted));
            for name in ["acp-connection-id", "x-acp-connection-id"] {
                let connection = headers.get(name).and_then(Value::as_str);
                secrets.extend(connection.map(|id| (id.to_owned(), "ID".to_owned())));
            }
        }
        secrets.sort_unstable();
        secrets.dedup();
        secrets
    }

    /// The file's text.
    pub fn to_lines(&self) -> String {
        let about = json!({ "capture": VERSION, "server": self.server, "scenario": self.scenario });
        let told = self.told.iter().map(|told| json!({ "told": told }));
        let lines = [about].into_iter().chain(self.entries.iter().map(Entry::to_json)).chain(told);
        lines.map(|line| format!("{line}\n")).collect()
    }

    /// Reads a file.
    ///
    /// # Errors
    /// When the file cannot be read, or is no capture.
    pub fn read(path: &Path) -> io::Result<Self> {
        let text = fs::read_to_string(path)?;
        Self::from_lines(&text).ok_or_else(|| io::Error::other(format!("{} is no capture", path.display())))
    }

    fn from_lines(text: &str) -> Option<Self> {
        let mut lines = text.lines().map(serde_json::from_str::<Value>);
        let about = lines.next()?.ok()?;
        if about["capture"] != VERSION {
            return None;
        }
        let word = |name: &str| about[name].as_str().map(str::to_owned);
        let mut capture = Self {
            server: word("server")?,
            scenario: word("scenario")?,
            entries: Vec::new(),
            told: Vec::new(),
        };
        for line in lines {
            let line = line.ok()?;
            match line.get("told") {
                Some(told) => capture.told.push(told.clone()),
                None => capture.entries.push(Entry::from_json(&line)?),
            }
        }
        Some(capture)
    }
}

/// A path in which whatever is too long to be guessed is replaced.
pub(super) fn without_secrets(path: &str) -> String {
    let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
    let segments: Vec<String> = path.split('/').map(without_secret).collect();
    let path = segments.join("/");
    query.map_or(path.clone(), |query| format!("{path}?{query}"))
}

fn without_secret(segment: &str) -> String {
    const SECRET: usize = 32;
    let named = segment.trim_end_matches(|letter: char| letter.is_ascii_hexdigit());
    if segment.len() - named.len() >= SECRET { format!("{named}ID") } else { segment.to_owned() }
}

/// Replaces secrets wherever they stand.
fn redact(value: &mut Value, secrets: &[(String, String)]) {
    match value {
        Value::String(text) => {
            for (secret, redacted) in secrets {
                if text.contains(secret.as_str()) {
                    *text = text.replace(secret.as_str(), redacted);
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| redact(value, secrets)),
        Value::Object(members) => {
            let redacted = std::mem::take(members).into_iter().map(|(name, mut member)| {
                let mut name = Value::from(name);
                redact(&mut name, secrets);
                redact(&mut member, secrets);
                (name.as_str().unwrap_or_default().to_owned(), member)
            });
            *members = redacted.collect();
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_is_read_as_it_was_written() {
        let pass = Pass::Event { id: Some("1".into()), message: json!({ "a": 1 }) };
        let capture = Capture {
            server: "a server".into(),
            scenario: "turn".into(),
            entries: vec![Entry { ms: 1, request: 2, pass }],
            told: vec![json!("something")],
        };
        assert_eq!(Capture::from_lines(&capture.to_lines()), Some(capture));
        assert_eq!(Capture::from_lines("{\"capture\":2}"), None);
        assert_eq!(Capture::from_lines("no json"), None);
    }

    #[test]
    fn names_that_cannot_be_guessed_are_taken_out_everywhere() {
        let secret = "0123456789abcdef0123456789abcdef";
        assert_eq!(without_secrets("/v1/acp/cafe?agent=mock"), "/v1/acp/cafe?agent=mock");
        let headers = json!({ "acp-connection-id": "of-a-connection" }).as_object().cloned().unwrap();
        let passes = [
            Pass::Request {
                verb: "POST".into(),
                path: format!("/v1/acp/sdk-{secret}?agent=mock"),
                headers,
                message: Value::Null,
            },
            Pass::Response {
                status: 404,
                headers: serde_json::Map::new(),
                message: json!({
                    "detail": [format!("not found: sdk-{secret}, of-a-connection")],
                    "hush-hush": "the token is hush-hush",
                }),
            },
        ];
        let entries = passes.into_iter().map(|pass| Entry { ms: 0, request: 1, pass }).collect();
        let capture =
            Capture { server: "s".into(), scenario: "turn".into(), entries, told: vec![json!(secret)] };
        let text = Capture { told: vec![json!(format!("sdk-{secret}"))], ..capture }
            .redacted(Some("hush-hush"))
            .to_lines();
        assert!(
            text.contains("/v1/acp/sdk-ID?agent=mock") && text.contains("not found: sdk-ID, ID"),
            "{text}"
        );
        assert!(!text.contains(secret) && !text.contains("of-a-connection"), "{text}");
        assert!(!text.contains("hush") && text.contains("\"TOKEN\":\"the token is TOKEN\""), "{text}");
    }
}
