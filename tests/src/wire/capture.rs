//! The file format of a recording: a header line, one line per message, and one line per client report.

use std::{fs, io, path::Path};

use serde_json::{Value, json};

use super::{Entry, Pass};

/// The version of the file format.
const VERSION: u64 = 1;

/// The messages of one run between a client and a server, and what the client reported.
#[derive(Debug, Clone, PartialEq)]
pub struct Capture {
    /// A description of the server.
    pub server: String,
    /// The name of the [scenario](crate::Scenario) that was run.
    pub scenario: String,
    /// The messages.
    pub entries: Vec<Entry>,
    /// What the client reported to the application.
    pub observed: Vec<Value>,
}

impl Capture {
    /// Redacts secret names, which would grant access, and the token, wherever a server or an agent repeated them.
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
        self.observed.iter_mut().for_each(|observed| redact(observed, &secrets));
        self
    }

    /// Returns the names that grant access: endpoints and connection ids.
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

    /// Returns the text of the file.
    pub fn to_lines(&self) -> String {
        let about = json!({ "capture": VERSION, "server": self.server, "scenario": self.scenario });
        let observed = self.observed.iter().map(|observed| json!({ "observed": observed }));
        let lines = [about].into_iter().chain(self.entries.iter().map(Entry::to_json)).chain(observed);
        lines.map(|line| format!("{line}\n")).collect()
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If the file cannot be read or is not a capture.
    pub fn read(path: &Path) -> io::Result<Self> {
        let text = fs::read_to_string(path)?;
        Self::from_lines(&text)
            .ok_or_else(|| io::Error::other(format!("{} is not a capture", path.display())))
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
            observed: Vec::new(),
        };
        for line in lines {
            let line = line.ok()?;
            match line.get("observed") {
                Some(observed) => capture.observed.push(observed.clone()),
                None => capture.entries.push(Entry::from_json(&line)?),
            }
        }
        Some(capture)
    }
}

/// Replaces the secret segments of a path. Segments that are too long to be guessed count as secret.
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

/// Replaces secrets in all strings and keys.
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
    fn a_capture_round_trips() {
        let pass = Pass::Event { id: Some("1".into()), message: json!({ "a": 1 }) };
        let capture = Capture {
            server: "a server".into(),
            scenario: "turn".into(),
            entries: vec![Entry { ms: 1, request: 2, pass }],
            observed: vec![json!("something")],
        };
        assert_eq!(Capture::from_lines(&capture.to_lines()), Some(capture));
        assert_eq!(Capture::from_lines("{\"capture\":2}"), None);
        assert_eq!(Capture::from_lines("no json"), None);
    }

    #[test]
    fn secret_names_are_redacted_everywhere() {
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
            Capture { server: "s".into(), scenario: "turn".into(), entries, observed: vec![json!(secret)] };
        let text = Capture { observed: vec![json!(format!("sdk-{secret}"))], ..capture }
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
