//! Captures of the released server: commands and their output.

use std::path::Path;

/// One command of a capture and its outcome.
#[derive(Debug, Clone)]
pub(crate) struct Exchange {
    pub(crate) method: String,
    /// The path with its query.
    pub(crate) target: String,
    pub(crate) headers: Vec<(String, String)>,
    /// The body, or `@` and the name of a file that held it.
    pub(crate) body: Option<String>,
    /// The timeout of the command in seconds.
    pub(crate) timeout: Option<f64>,
    /// `None` if no response arrived before the timeout.
    pub(crate) answer: Option<Answer>,
    /// Whether the command timed out, with or without a partial response.
    pub(crate) gave_up: bool,
}

/// A captured response.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Exchange {
    pub(crate) fn is_stream(&self) -> bool {
        let header = |answer: &Answer| {
            answer.headers.iter().any(|(name, value)| name == "content-type" && value == "text/event-stream")
        };
        self.answer.as_ref().is_some_and(header)
    }

    /// Returns the server id in the target, if any.
    pub(crate) fn server_id(&self) -> Option<&str> {
        let rest = self.target.strip_prefix("/v1/acp/")?;
        Some(rest.split('?').next().unwrap_or(rest))
    }
}

/// Returns the text of a capture.
pub(crate) fn text(name: &str) -> String {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/released").join(format!("{name}.txt"));
    std::fs::read_to_string(path).unwrap()
}

/// Parses a capture.
pub(crate) fn read(name: &str) -> Vec<Exchange> {
    let text = text(name);
    let mut exchanges = Vec::new();
    // A command may follow other output on its line.
    for part in text.split("$ curl ").skip(1) {
        let (command, rest) = part.split_once('\n').unwrap();
        let (output, end) = rest.split_once("\n[time_total=").unwrap();
        exchanges.push(exchange(command, output, end.contains("[curl rc=28]")));
    }
    exchanges
}

fn exchange(command: &str, output: &str, gave_up: bool) -> Exchange {
    let mut exchange = Exchange {
        method: "GET".into(),
        target: String::new(),
        headers: Vec::new(),
        body: None,
        timeout: None,
        answer: answer(output),
        gave_up,
    };
    let mut words = shlex::split(command).unwrap().into_iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "-i" | "-N" => {}
            // The output file, which is not needed.
            "-o" | "-D" => drop(words.next()),
            "-I" => exchange.method = "HEAD".into(),
            "-X" => exchange.method = words.next().unwrap(),
            "--max-time" => exchange.timeout = Some(words.next().unwrap().parse().unwrap()),
            "--data-binary" | "-d" => exchange.body = words.next(),
            "-H" => {
                let header = words.next().unwrap();
                let (name, value) = header.split_once(':').unwrap();
                exchange.headers.push((name.to_owned(), value.trim().to_owned()));
            }
            url => {
                let (_, rest) = url.split_once("//").unwrap();
                exchange.target = rest.find('/').map_or(String::new(), |start| rest[start..].to_owned());
            }
        }
    }
    exchange
}

fn answer(output: &str) -> Option<Answer> {
    let output = output.strip_prefix("HTTP/1.1 100 Continue\n\n").unwrap_or(output);
    let rest = output.strip_prefix("HTTP/1.1 ")?;
    let (head, body) = rest.split_once("\n\n").unwrap_or((rest, ""));
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').next()?.parse().ok()?;
    let headers =
        lines.filter_map(|line| line.split_once(": ")).map(|(name, value)| (name.into(), value.into()));
    Some(Answer { status, headers: headers.collect(), body: body.to_owned() })
}
