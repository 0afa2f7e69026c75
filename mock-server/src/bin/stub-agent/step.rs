//! The directives that control the agent.

/// The default size of an update's text in bytes.
const DEFAULT_UPDATE_BYTES: usize = 16;

/// One directive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Say(String),
    Updates { count: u64, bytes: usize },
    Stderr { lines: u64, bytes: usize, text: StderrText },
    Recall,
    Permission,
    FsRead(String),
    Delay(u64),
    Late(u64),
    Hang,
    Freeze,
    Garbage,
    Torn,
    CloseStdout,
    Child(u64),
    Linger(u64),
    Answer,
    Exit(i32),
    Signal(String),
}

/// The kind of text on standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StderrText {
    Utf8,
    Invalid,
}

impl Step {
    /// Parses a prompt. A piece that is not a directive is echoed.
    pub(crate) fn parse_prompt(text: &str) -> Vec<Step> {
        let echo = |piece: &str| Step::Say(format!("stub: {piece}"));
        pieces(text).map(|piece| Step::parse(piece).unwrap_or_else(|| echo(piece))).collect()
    }

    /// Parses directives. Returns the first piece that is not a directive as the error.
    pub(crate) fn parse_all(text: &str) -> Result<Vec<Step>, String> {
        pieces(text).map(|piece| Step::parse(piece).ok_or_else(|| piece.to_owned())).collect()
    }

    fn parse(piece: &str) -> Option<Step> {
        let (name, rest) = piece.split_once(char::is_whitespace).unwrap_or((piece, ""));
        let rest = rest.trim();
        let words: Vec<&str> = rest.split_whitespace().collect();
        let step = match (name, words.as_slice()) {
            ("say", [_, ..]) => Step::Say(rest.to_owned()),
            ("updates", [count]) => Step::Updates { count: count.parse().ok()?, bytes: DEFAULT_UPDATE_BYTES },
            ("updates", [count, "bytes", bytes]) => {
                Step::Updates { count: count.parse().ok()?, bytes: bytes.parse().ok()? }
            }
            ("stderr", [lines, options @ ..]) => Step::parse_stderr(lines, options)?,
            ("recall", []) => Step::Recall,
            ("permission", []) => Step::Permission,
            ("fs-read", [_, ..]) => Step::FsRead(rest.to_owned()),
            ("delay", [millis]) => Step::Delay(millis.parse().ok()?),
            ("late", [millis]) => Step::Late(millis.parse().ok()?),
            ("hang", []) => Step::Hang,
            ("freeze", []) => Step::Freeze,
            ("garbage", []) => Step::Garbage,
            ("torn", []) => Step::Torn,
            ("close-stdout", []) => Step::CloseStdout,
            ("child", [seconds]) => Step::Child(seconds.parse().ok()?),
            ("linger", [seconds]) => Step::Linger(seconds.parse().ok()?),
            ("answer", []) => Step::Answer,
            ("exit", [code]) => Step::Exit(code.parse().ok()?),
            ("signal", [name]) => Step::Signal(name.trim_start_matches("SIG").to_owned()),
            _ => return None,
        };
        Some(step)
    }

    fn parse_stderr(lines: &str, options: &[&str]) -> Option<Step> {
        let (bytes, text) = match options {
            [] => ("0", StderrText::Utf8),
            ["invalid"] => ("0", StderrText::Invalid),
            ["bytes", bytes] => (*bytes, StderrText::Utf8),
            ["bytes", bytes, "invalid"] => (*bytes, StderrText::Invalid),
            _ => return None,
        };
        Some(Step::Stderr { lines: lines.parse().ok()?, bytes: bytes.parse().ok()?, text })
    }
}

fn pieces(text: &str) -> impl Iterator<Item = &str> {
    text.split([';', '\n']).map(str::trim).filter(|piece| !piece.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_are_distinguished_from_text() {
        let steps = Step::parse_prompt("hello there; updates 3 bytes 10\nexit -1; exit now; signal SIGKILL");
        let expected = [
            Step::Say("stub: hello there".to_owned()),
            Step::Updates { count: 3, bytes: 10 },
            Step::Exit(-1),
            Step::Say("stub: exit now".to_owned()),
            Step::Signal("KILL".to_owned()),
        ];
        assert_eq!(steps, expected);
    }

    #[test]
    fn stderr_takes_a_size_and_a_kind() {
        let parsed = |text| Step::parse_all(text).unwrap().remove(0);
        let stderr = |lines, bytes, text| Step::Stderr { lines, bytes, text };
        assert_eq!(parsed("stderr 2"), stderr(2, 0, StderrText::Utf8));
        assert_eq!(parsed("stderr 2 invalid"), stderr(2, 0, StderrText::Invalid));
        assert_eq!(parsed("stderr 9 bytes 5 invalid"), stderr(9, 5, StderrText::Invalid));
        assert_eq!(Step::parse_all("answer; stderr x"), Err("stderr x".to_owned()));
    }
}
