//! Decodes the events of a stream for a recording. Supports line feeds only, which all tested servers send.

/// Collects lines until an event is complete.
#[derive(Debug, Default)]
pub(super) struct EventLines {
    line: Vec<u8>,
    id: Option<String>,
    data: Option<String>,
}

impl EventLines {
    /// Adds bytes and returns the ids and data of the completed events.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Vec<(Option<String>, String)> {
        let mut events = Vec::new();
        let mut lines = bytes.split(|byte| *byte == b'\n').peekable();
        while let Some(part) = lines.next() {
            self.line.extend_from_slice(part);
            if lines.peek().is_some() {
                let line = std::mem::take(&mut self.line);
                events.extend(self.take(&String::from_utf8_lossy(&line)));
            }
        }
        events
    }

    fn take(&mut self, line: &str) -> Option<(Option<String>, String)> {
        let line = line.trim_end_matches('\r');
        if line.is_empty() {
            let id = self.id.take();
            return self.data.take().map(|data| (id, data));
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match (field, &mut self.data) {
            ("id", _) => self.id = Some(value.to_owned()),
            ("data", Some(data)) => {
                data.push('\n');
                data.push_str(value);
            }
            ("data", data) => *data = Some(value.to_owned()),
            // A replay needs neither comments nor other fields.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cut_gives_the_same_events() {
        let stream = b": hello\n\nevent: message\nid: 1\ndata: {\"a\":1}\n\ndata: x\ndata: y\r\n\n";
        let expected = vec![(Some("1".to_owned()), "{\"a\":1}".to_owned()), (None, "x\ny".to_owned())];
        for cut in 0..stream.len() {
            let mut lines = EventLines::default();
            let mut events = lines.push(&stream[..cut]);
            events.extend(lines.push(&stream[cut..]));
            assert_eq!(events, expected, "cut at {cut}");
        }
    }
}
